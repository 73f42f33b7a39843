"""The time from the claim of a task to its agent's first instruction, with 10,000 files."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import Measure, median, percentile
from caloron.domain.model.effects import StartWork
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.sprint import Planning, Sprint, SprintSettings
from caloron.domain.model.task import Work
from caloron.domain.rules.planning import tasks_of
from caloron.engine.runs.runtime import SprintRuntime
from caloron.engine.signals import LoopSignal
from caloron.git.command import git
from caloron.git.mirror import Mirror
from caloron.ledger.ledger import Ledger, TickCommit
from caloron.ledger.projects import Project
from caloron.ledger.settings import ProjectConfig
from caloron.ledger.work_queue import WorkQueue
from caloron.ports import Remote
from caloron.store.wake import Wake

_FILES = 10_000
_WARM, _COLD = 12, 2
#: Its first instruction is to say when it was.
_AGENT = ["sh", "-c", "date +%s%N"]


class Bench:
    """A project whose tasks are claimed and started one by one."""

    def __init__(self, home: Path, pool: int) -> None:
        config = ProjectConfig(
            name="bench",
            framework="command",
            command=_AGENT,
            verify="none",
            setup="none",
            pool=pool,
        )
        self._project = Project("bench", home, config)
        self._ledger = Ledger(self._project.ledger)
        plan = tuple(
            PlannedTask(id=f"t{n}", title=f"t{n}", agent_prompt="say when") for n in range(_WARM)
        )
        sprint = Sprint(
            id="bench",
            number=0,
            goal="g",
            planning=Planning(given_plan=plan),
            settings=SprintSettings(framework="command"),
        )
        self._sprint = self._ledger.create_sprint(sprint, tasks_of(sprint, plan, 0.0)).id
        mirror = Mirror(self._project.mirror, Remote(str(home / "forge.git")))
        mirror.ensure()
        mirror.fetch_main()
        self._queue = WorkQueue(self._ledger, self._sprint, holder="bench", lease_ms=60_000)
        signal = LoopSignal(Wake(self._project.wake))
        state = self._ledger.state(self._sprint)
        self.runtime = SprintRuntime(self._project, state, self._queue, mirror, signal)
        self._started = 0

    def start_task(self) -> float:
        """Milliseconds from the claim to the agent's own word."""
        work = Work(item=f"{self._sprint}/t{self._started}/1-implement", role="implement")
        self._started += 1
        loaded = self._ledger.load(self._sprint)
        action = StartWork(task=work.item.split("/")[1], work=work)
        self._ledger.commit_tick(loaded, TickCommit(state=loaded.state, actions=(action,)))
        began = time.time_ns()
        self.runtime.workers.dispatch(4)
        run_dir = self.runtime.workers.runs.of(work.item, 1)
        self.runtime.workers.wait()
        started_at = (run_dir / "output.log").read_text().strip()
        return (int(started_at) - began) / 1e6

    def fill(self, size: int) -> None:
        while len(self.runtime.pool._ready) < size:
            time.sleep(0.01)

    def close(self) -> None:
        self.runtime.pool.close()
        self._ledger.close()


@contextmanager
def _forge() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        git(home, "init", "--bare", "-q", "forge.git")
        git(home, "clone", "-q", "forge.git", "person")
        for number in range(_FILES):
            file = home / "person" / f"d{number // 100}" / f"f{number}.txt"
            file.parent.mkdir(exist_ok=True)
            file.write_text(f"{number}\n" * 20)
        git(home / "person", "add", "-A")
        git(home / "person", "commit", "-q", "-m", "files")
        git(home / "person", "push", "-q", "origin", "HEAD:main")
        yield home


def _clone_alone(home: Path, number: int) -> float:
    began = time.perf_counter()
    argv = ("git", "clone", "-q", "--shared", str(home / "mirror.git"), str(home / f"c{number}"))
    subprocess.run(argv, check=True)
    return (time.perf_counter() - began) * 1000


def run() -> list[Measure]:
    with _forge() as home:
        warm_bench = Bench(home, pool=2)
        warm_bench.runtime.pool.open()
        warm = []
        for _ in range(_WARM):
            warm_bench.fill(2)
            warm.append(warm_bench.start_task())
        warm_bench.close()
        for name in ("ledger.sqlite", "ledger.id"):
            (home / name).unlink()
        cold_bench = Bench(home, pool=0)
        pairs = [(cold_bench.start_task(), _clone_alone(home, n)) for n in range(_COLD)]
        cold_bench.close()
    cold, clone = median([c for c, _ in pairs]), median([a for _, a in pairs])
    note = f"median {median(warm):.0f} ms, worst {max(warm):.0f} ms, of {_WARM} starts"
    return [
        Measure("claim to first instruction, pool warm, p95", percentile(warm, 0.95), "ms", 150,
                note=note),
        Measure("claim to first instruction, cold", cold, "ms",
                note=f"`git clone --shared` alone: {clone:.0f} ms ({cold / clone:.2f} times)"),
    ]  # fmt: skip
