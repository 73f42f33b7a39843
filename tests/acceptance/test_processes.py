"""The number of processes that a sprint starts: most of the overhead of a task is their start."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.home import Home, does, task

_TASKS = 6
#: Each task runs two agents in sandboxes, seals, pushes, verifies and merges; a change that adds a
#: process per file, per poll or per commit breaks this at once.
_PER_TASK = 80


def test_a_finished_task_starts_few_processes(home: Home) -> None:
    """Count every process that ran a program: ours, those of git, and those in the sandboxes."""
    names = [f"t{number}" for number in range(_TASKS)]
    files = {f"src/{number}.py": "x = 1\n" for number in range(40)}
    home.script(
        does("implement", "t0", files={"t0.txt": "t0\n", **files}),
        *(does("implement", name, files={f"{name}.txt": f"{name}\n"}) for name in names[1:]),
    )
    trace = home.root / "trace"
    home.program = ("strace", "-f", "-qq", "--seccomp-bpf", "-e", "trace=execve", "-o", str(trace),
                    *home.program)  # fmt: skip
    chain = [task(name, *names[max(number - 1, 0) : number]) for number, name in enumerate(names)]
    ended = home.sprint(*chain)
    assert set(ended.statuses.values()) == {"Done"}, ended
    count = _processes(trace) / _TASKS
    assert count <= _PER_TASK, f"{count} processes per task"


def _processes(trace: Path) -> int:
    """Distinct process ids with a program that started; a search along PATH fails before."""
    started = re.compile(r"(\d+) +(?:execve\(.*|<\.\.\. execve resumed>.*)= 0$")
    matches = map(started.match, trace.read_text("utf-8", "replace").splitlines())
    return len({match[1] for match in matches if match})
