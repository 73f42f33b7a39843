"""A home for one sprint whose processes a test kills, counts and copies."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from threading import Thread
from typing import Any

from tests.support.home import Home

PROJECT = "demo"
SPRINT = "demo-1"
#: Long enough for a busy machine; only a sprint that hangs needs it.
PATIENCE_S = 240.0


class World(Home):
    """A home with a project; every process of it belongs to its directory."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        #: What a person does while a sprint runs: called again and again.
        self.person: Callable[[World], None] | None = None
        #: What main must hold once a task is done: lines of files, by task and path.
        self.work: dict[str, dict[str, str]] = {}

    @property
    def forge_git(self) -> Path:
        return self.project() / "forge.git"

    def begin(self, *args: str, **extra: str) -> subprocess.Popen[bytes]:
        """Start `caloron` in the background; its output goes to a file of the world."""
        with (self.root / "cli.log").open("ab") as log:
            process = subprocess.Popen(
                (*self.program, *self.naming_project(args)),
                env=self.environment | {"NO_COLOR": "1"} | extra,
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if self.person:
            Thread(target=self._act, args=(self.person, process), daemon=True).start()
        return process

    def _act(self, person: Callable[[World], None], process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            person(self)
            time.sleep(0.02)

    def run(self, *args: str, **extra: str) -> int:
        """Run `caloron` to its end; a command that does not end is killed and fails the test."""
        process = self.begin(*args, **extra)
        try:
            return process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(
                f"caloron {' '.join(args)} did not end in {PATIENCE_S:.0f} s\n{self.log()}"
            ) from None

    def log(self) -> str:
        file = self.root / "cli.log"
        return file.read_text("utf-8", "replace")[-6000:] if file.exists() else ""

    def copy_to(self, root: Path) -> World:
        """Copy this world as it started: the same project, nothing run yet."""
        copy = World(root)
        shutil.copytree(self.path, copy.path, symlinks=True)
        copy.environment = {
            name: value.replace(str(self.root), str(root))
            for name, value in self.environment.items()
        }
        copy.person, copy.program, copy.work = self.person, self.program, self.work
        text = self.fixture.read_text("utf-8").replace(str(self.root), str(root))
        copy.fixture.write_text(text, "utf-8")
        copy.set(read_only=[str(copy.gates)])
        return copy

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Read the ledger; there are no rows as long as it, or its tables, are not made."""
        ledger = self.project() / "ledger.sqlite"
        if not ledger.exists():
            return []
        with closing(sqlite3.connect(ledger, timeout=10)) as connection:
            try:
                return connection.execute(sql).fetchall()
            except sqlite3.OperationalError as error:
                if "no such table" not in str(error):
                    raise
                return []

    def goal_recorded(self) -> bool:
        """True if there is a sprint to resume."""
        return bool(self.rows("SELECT 1 FROM sprints"))

    def count_printed(self, line: str) -> int:
        """Count how often agents printed this line."""
        return self.printed(line).count("")

    def kill_everything(self) -> None:
        """End all processes of this world after any test."""
        give_up = time.monotonic() + 10
        while (left := self.living()) and time.monotonic() < give_up:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)


def new_world(
    root: Path, *options: str, env: dict[str, str] | None = None, **settings: Any
) -> World:
    """Make a world with a project, and with short leases so that recovery is quick."""
    world = World(root)
    world.environment |= env or {}
    world.script()
    quick = {"lease_s": 2.0, "verify": "test -f README.md"}
    world.init(PROJECT, *options, **(quick | settings))
    return world


def until_it_holds_the_project(world: World, engine: subprocess.Popen[bytes]) -> None:
    """A slow machine must not kill every engine before it has begun."""
    mine = f'"pid": {engine.pid},'
    lock = world.project() / "engine.lock"
    while engine.poll() is None and not (lock.exists() and mine in lock.read_text("utf-8")):
        time.sleep(0.01)
