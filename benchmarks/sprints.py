"""Real sprints for benchmarks: a temporary home, a project, stub agents, and the ledger after."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

SOURCE = Path(__file__).parents[1] / "src"
#: What the installed `caloron` script does.
PROGRAM = (sys.executable, "-c", "from caloron.cli.start import run; run()")
_PATIENCE_S = 180.0


def our_program() -> tuple[str, ...]:
    """The installed script where there is one, as a user starts it."""
    script = Path(sys.executable).with_name("caloron")
    return (str(script),) if script.exists() else PROGRAM


class Event(NamedTuple):
    id: int
    #: Milliseconds of the ledger's own clock.
    ts: int
    type: str
    item: str
    payload: dict[str, Any]


class Home:
    """A home of its own with one project."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fixture = directory / "fixture.json"
        self.project = directory / "home" / "projects" / "bench"
        self.ledger = self.project / "ledger.sqlite"
        self.environment = {
            **os.environ,
            "CALORON_HOME": str(directory / "home"),
            "CALORON_STUB_FIXTURE": str(self.fixture),
            "PYTHONPATH": str(SOURCE),
        }

    def run(self, *arguments: str) -> None:
        """A command that must go well."""
        done = subprocess.run(
            (*PROGRAM, *arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"caloron {' '.join(arguments)}: {done.stdout}{done.stderr}")

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A command in the background; what it prints is kept in a file."""
        with (self.directory / "output.txt").open("ab") as output:
            return subprocess.Popen(
                (*PROGRAM, *arguments), env=self.environment, stdout=output, stderr=output
            )

    def sprint(self, *, parallel: int) -> subprocess.Popen[bytes]:
        plan = str(self.directory / "plan.json")
        return self.start(
            "sprint",
            "Measure this",
            "--plan",
            plan,
            "--yes",
            "--parallel",
            str(parallel),
            "--project",
            "bench",
        )

    def write(
        self, tasks: Mapping[str, Sequence[str]], responses: Sequence[dict[str, Any]]
    ) -> None:
        """The plan (each task and what it depends on) and what the stub agents answer."""
        plan = [
            {"id": name, "title": name, "agent_prompt": f"Write {name}.", "depends_on": list(needs)}
            for name, needs in tasks.items()
        ]
        (self.directory / "plan.json").write_text(json.dumps(plan))
        self.fixture.write_text(json.dumps({"responses": list(responses)}))

    def events(self, after: int = 0) -> list[Event]:
        sql = "SELECT id, ts, type, work_item_id, payload FROM events WHERE id > ? ORDER BY id"
        if not self.has_ledger():
            return []
        with self.reading() as connection:
            rows = connection.execute(sql, (after,)).fetchall()
        return [Event(r[0], r[1], r[2], r[3] or "", json.loads(r[4])) for r in rows]

    def has_ledger(self) -> bool:
        """True if the ledger is there, with its tables."""
        if not self.ledger.exists():
            return False
        with self.reading() as connection:
            sql = "SELECT 1 FROM sqlite_master WHERE name = 'events'"
            return connection.execute(sql).fetchone() is not None

    def last_event(self) -> int:
        with self.reading() as connection:
            return int(connection.execute("SELECT max(id) FROM events").fetchone()[0] or 0)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(f"{self.ledger.as_uri()}?mode=ro", uri=True, timeout=30)
        try:
            yield connection
        finally:
            connection.close()

    def finish(self, process: subprocess.Popen[bytes]) -> list[Event]:
        """Wait for a sprint that must end with every task done."""
        if process.wait(_PATIENCE_S) != 0:
            output = (self.directory / "output.txt").read_text("utf-8", "replace")
            raise RuntimeError(f"the sprint ended with {process.returncode}:\n{output[-2000:]}")
        return self.events()


@contextmanager
def home(*, verify: str = "") -> Iterator[Home]:
    """A project in a temporary home; everything is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="caloron-bench-"))
    bench_home = Home(directory)
    try:
        bench_home.run("init", "bench", "--framework", "stub")
        if verify:
            bench_home.run("config", "set", "verify", verify, "--project", "bench")
        # The checkout with the benchmarks has no project: commands use this folder's project.
        with chdir(bench_home.project):
            yield bench_home
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Check a condition again and again, as long as the process lives."""
    give_up = time.monotonic() + _PATIENCE_S
    while not condition():
        if process.poll() is not None or time.monotonic() > give_up:
            raise RuntimeError(f"the sprint did not get there (exit code {process.returncode})")
        time.sleep(0.02)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Save and stop, as Ctrl-C does."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    process.wait(_PATIENCE_S)


def implements(task: str, seconds: float = 0) -> dict[str, Any]:
    """An agent that takes its time and then writes a file of its own."""
    return {
        "when": {"role": "implement", "task": task},
        "sleep_s": seconds,
        "files": {f"{task}.txt": f"{task}\n"},
        "output": "done",
    }


def approves(seconds: float = 0) -> dict[str, Any]:
    return {"when": {"role": "review"}, "sleep_s": seconds, "output": "fine\nAPPROVED"}


def started(bench_home: Home) -> int:
    """Count the agents started so far: each is a call that may cost money."""
    return sum(event.type == "attempt_started" for event in bench_home.events())
