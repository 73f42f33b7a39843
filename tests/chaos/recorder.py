"""Records every crash point of an undisturbed sprint, and the state a crash there would leave."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.forms import durable_form
from tests.chaos.world import PATIENCE_S, World


@dataclass(frozen=True)
class Point:
    """The k-th time that a process of this name reaches a crash point."""

    process: str
    name: str
    k: int

    @property
    def kind(self) -> str:
        return self.process.split("/", 1)[0]

    def at(self, once: Path) -> str:
        return f"{self.process}|{self.name}|{self.k}|{once}"

    def __str__(self) -> str:
        return f"{self.process} {self.name} {self.k}"


def record(
    world: World,
    form: Callable[[World], str] = durable_form,
    sprint: tuple[str, ...] = ("sprint", "goal", "--yes"),
) -> tuple[list[tuple[Point, str]], int]:
    """Run a sprint, stopping at each point; the points with their forms, and the exit code."""
    log = world.root / "points.log"
    log.touch()
    engine = world.begin(*sprint, CALORON_CRASH_LOG=str(log))
    moments: list[tuple[Point, str]] = []
    stop_at_each_point(engine, log, lambda point: moments.append((point, form(world))))
    return moments, engine.returncode


def stop_at_each_point(
    process: subprocess.Popen[bytes], log: Path, act: Callable[[Point], None]
) -> None:
    """Act each time that the process, or a child of it, has stopped itself at a crash point."""
    give_up = time.monotonic() + PATIENCE_S
    line = ""
    with log.open("r") as lines:
        while True:
            # A reader may see the first part of a line that is being written.
            line += lines.readline()
            if line.endswith("\n"):
                pid, kind, name, k = line.strip().split("|")
                line = ""
                if _has_stopped(int(pid)):
                    act(Point(kind, name, int(k)))
                    os.kill(int(pid), signal.SIGCONT)
            elif process.poll() is not None:
                return
            else:
                assert time.monotonic() < give_up, f"it hangs after {log.read_text()[-200:]}"
                time.sleep(0.0005)


def _has_stopped(pid: int) -> bool:
    """Wait until the process that wrote the line has really stopped itself."""
    while True:
        try:
            stat = Path(f"/proc/{pid}/stat").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            return False
        state = stat[stat.rindex(b")") + 2 : stat.rindex(b")") + 3]
        if state == b"T":
            return True
        if state in b"ZX":
            return False
        time.sleep(0.0002)
