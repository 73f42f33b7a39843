"""Reading the event stream of an agent: memory must not grow with what the agent printed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Measure
from benchmarks.sprints import SOURCE

_SMALL, _LARGE = 10_000_000, 1_000_000_000

_READ = """
import sys
from pathlib import Path
from caloron.agents.clis.claude import ClaudeCode
report = ClaudeCode().read_report(Path(sys.argv[1]))
print(report.text, report.turns, open("/proc/self/status").read())
"""
_PLAIN = """
import json, sys
with open(sys.argv[1] + "/output.log", "rb") as file:
    for line in file:
        json.loads(line)
print("The end.", open("/proc/self/status").read())
"""


def run() -> list[Measure]:
    small, _ = _read(_READ, _SMALL)
    large, seconds = _read(_READ, _LARGE)
    _, plain = _read(_PLAIN, _LARGE)
    return [
        Measure(
            "events of an agent: peak memory at 1 GB, of 10 MB",
            large / small,
            "x",
            1.2,
            note=f"{large:.0f} MB against {small:.0f} MB; 1 GB through a pipe in {seconds:.1f} s"
            f" ({_LARGE / seconds / 1e6:.0f} MB/s); json.loads line by line takes {plain:.1f} s",
        )
    ]


def _read(program: str, size: int) -> tuple[float, float]:
    """The peak of a process that reads so much, in MB, and how long it took."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "output.log")
        os.mkfifo(log)
        began = time.perf_counter()
        process = subprocess.Popen(
            (sys.executable, "-c", program, folder),
            stdout=subprocess.PIPE,
            text=True,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)},
        )
        with log.open("wb") as pipe:
            for data in _stream(size):
                pipe.write(data)
        output, _ = process.communicate()
        seconds = time.perf_counter() - began
    assert output.startswith("The end."), output
    line = next(line for line in output.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024 / 1e6, seconds


def _stream(size: int) -> Iterator[bytes]:
    """Words, tool calls and their results, as a long run has them; a result at the end."""
    turn = b"".join(map(_line, _turn()))
    sent = number = 0
    while sent < size:
        number += 1
        data = turn.replace(b"MESSAGE", b"msg_%d" % number)
        sent += len(data)
        yield data
    done = {"type": "result", "subtype": "success", "is_error": False, "result": "The end."}
    yield _line(done | {"total_cost_usd": 1.0, "num_turns": number})


def _turn() -> Iterator[dict[str, object]]:
    usage = {"input_tokens": 1000, "output_tokens": 50}
    parts = (
        {"type": "text", "text": "Now I change the second half of it. " * 10},
        {"type": "tool_use", "name": "Write", "input": {"content": 'x = "ä\\n"\n' * 400}},
    )
    for part in parts:
        message = {"id": "MESSAGE", "model": "m", "content": [part], "usage": usage}
        yield {"type": "assistant", "message": message}
    result = {"type": "tool_result", "content": "a line of the test's output\n" * 700}
    yield {"type": "user", "message": {"role": "user", "content": [result]}}


def _line(event: dict[str, object]) -> bytes:
    return json.dumps(event).encode() + b"\n"
