"""A home of its own for one sprint, and the real `caloron` started in it as a user starts it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import yaml

from tests.support.projects import naming_project

SRC = Path(__file__).resolve().parents[2] / "src"
PROJECT = "demo"
SPRINT = "demo-1"
#: Long enough for a busy machine; only a sprint that hangs needs it.
PATIENCE_S = 240.0

CLI = (sys.executable, "-m", "caloron.cli")


@dataclass
class World:
    """One home with one project; everything that is started belongs to its directory."""

    place: Path
    env: dict[str, str] = field(default_factory=dict)
    #: What a person does while a sprint runs: called again and again.
    person: Callable[[World], None] | None = None
    #: What is run as `caloron`.
    program: tuple[str, ...] = CLI
    #: What main must hold once a task is done: lines of files, by task and path.
    work: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.place / "home"

    @property
    def project(self) -> Path:
        return self.home / "projects" / PROJECT

    @property
    def forge_git(self) -> Path:
        return self.project / "forge.git"

    @property
    def shown(self) -> Path:
        """A folder that agents see and cannot change."""
        return self.place / "shown"

    @property
    def fixture(self) -> Path:
        return self.place / "fixture.json"

    def environment(self, **extra: str) -> dict[str, str]:
        mine = {k: v for k, v in os.environ.items() if not k.startswith(("CALORON_", "GIT_"))}
        mine |= {
            "CALORON_HOME": str(self.home),
            "CALORON_STUB_FIXTURE": str(self.fixture),
            "PYTHONPATH": str(SRC),
            "NO_COLOR": "1",
        }
        return mine | self.env | extra

    def start(self, *args: str, **extra: str) -> subprocess.Popen[bytes]:
        """Start `caloron` in the background; what it prints goes to a file of the world."""
        with (self.place / "cli.log").open("ab") as log:
            process = subprocess.Popen(
                (*self.program, *naming_project(args, self.home)),
                env=self.environment(**extra),
                cwd=self.place,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if self.person:
            Thread(target=self._attend, args=(self.person, process), daemon=True).start()
        return process

    def _attend(self, person: Callable[[World], None], process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            person(self)
            time.sleep(0.02)

    def run(self, *args: str, **extra: str) -> int:
        """Run `caloron` to its end; one that does not end is killed and fails the test."""
        process = self.start(*args, **extra)
        try:
            return process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(
                f"caloron {' '.join(args)} did not end in {PATIENCE_S:.0f} s\n{self.log()}"
            ) from None

    def log(self) -> str:
        file = self.place / "cli.log"
        return file.read_text("utf-8", "replace")[-6000:] if file.exists() else ""

    def configure(self, **settings: Any) -> None:
        file = self.project / "config.yml"
        raw = yaml.safe_load(file.read_text("utf-8"))
        file.write_text(yaml.safe_dump(raw | settings), "utf-8")

    def script(self, *responses: dict[str, Any]) -> None:
        """What the scripted agent answers."""
        content = {"responses": list(responses), "default": "nothing was scripted for this"}
        self.fixture.write_text(json.dumps(content), "utf-8")

    def write_plan(self, *tasks: dict[str, Any]) -> None:
        (self.place / "plan.json").write_text(json.dumps(tasks), "utf-8")

    def copy_to(self, place: Path) -> World:
        """A new world that starts like this one did: the same project, nothing run yet."""
        place.mkdir(parents=True)
        shutil.copytree(self.home, place / "home", symlinks=True)
        copy = World(place, dict(self.env), self.person, self.program, self.work)
        copy.shown.mkdir()
        text = self.fixture.read_text("utf-8").replace(str(self.place), str(place))
        copy.fixture.write_text(text, "utf-8")
        copy.configure(read_only=[str(copy.shown)])
        return copy

    def printed(self, line: str, of: str = "*/*/*/*") -> int:
        """How many times agents printed this line."""
        found = 0
        for log in self.project.glob(f"runs/{of}/output.log"):
            try:
                found += log.read_text("utf-8", "replace").splitlines().count(line)
            except FileNotFoundError:
                continue
        return found

    def processes(self) -> dict[int, str]:
        """Living processes that were started in or for this world, by their command lines."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                there = (entry / "cwd").readlink()
            except OSError:
                continue
            line = b" ".join(words).decode("utf-8", "replace").strip()
            if line and (f"{self.place}/" in line or there.is_relative_to(self.place)):
                found[int(entry.name)] = line
        return found

    def kill_everything(self) -> None:
        """Leave no process of this world behind, whatever a test did."""
        give_up = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < give_up:
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)


def new_world(
    place: Path, *options: str, env: dict[str, str] | None = None, **settings: Any
) -> World:
    """A project made by `caloron init`, with short leases so that recovery is quick."""
    place.mkdir(parents=True, exist_ok=True)
    world = World(place, env or {})
    world.script()
    world.shown.mkdir()
    framework = () if "--framework" in options else ("--framework", "stub")
    assert world.run("init", PROJECT, *framework, *options) == 0, world.log()
    quick = {"poll_s": 0.2, "lease_s": 2.0, "read_only": [str(world.shown)]}
    world.configure(**(quick | {"verify": "test -f README.md"} | settings))
    return world


def until_it_holds_the_project(world: World, engine: subprocess.Popen[bytes]) -> None:
    """A slow machine must not kill every engine before it has begun."""
    mine = f'"pid": {engine.pid},'
    lock = world.project / "engine.lock"
    while engine.poll() is None and not (lock.exists() and mine in lock.read_text("utf-8")):
        time.sleep(0.01)


def git(repository: Path, *args: str) -> str:
    done = subprocess.run(
        ("git", "-C", str(repository), *args), capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
