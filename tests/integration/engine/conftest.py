"""A ledger with a running sprint, a forge that a test scripts, and the engine's own parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from caloron.agents.supervise import launch
from caloron.domain.model.effects import StartWork
from caloron.domain.model.roles import Role
from caloron.domain.model.task import Work
from caloron.engine.forge.executor import EffectExecutor
from caloron.engine.forge.poller import Poller
from caloron.engine.runs.runtime import SprintRuntime
from caloron.engine.runs.workers import Workers
from caloron.git.mirror import Mirror
from caloron.ledger.projects import Project
from caloron.ledger.settings import ProjectConfig
from caloron.ledger.work_queue import Claimed
from caloron.ports import Checks, Remote
from tests.integration.engine.parts import Parts
from tests.support.git import git, new_repository
from tests.support.home import Home

ITEM = "shop-1/a/1-implement"


class ScriptedForge:
    """Answers as a test scripts it and records the calls."""

    author = "caloron"
    main = "main"

    def __init__(self, **answers: Any) -> None:
        self.answers = {"checks": Checks(state="none")} | answers
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def answer(*args: Any) -> Any:
            self.calls.append(name)
            answer_or_error = self.answers.get(name)
            if isinstance(answer_or_error, BaseException):
                raise answer_or_error
            return answer_or_error

        return answer


class Engine(Parts):
    """The parts of the engine, with a project, a mirror and real shims."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        fixture = home / "fixture.json"
        fixture.write_text("{}")
        config = ProjectConfig(name="shop", stub_fixture=str(fixture))
        self.project = Project("shop", home, config)
        self._mirror: Mirror | None = None

    @property
    def mirror(self) -> Mirror:
        """A mirror of a forge with one commit on main."""
        if self._mirror is None:
            person = new_repository(self.home / "person")
            forge = self.home / "forge.git"
            git(self.home, "clone", "-q", "--bare", str(person), str(forge))
            git(person, "remote", "add", "origin", str(forge))
            self._mirror = Mirror(self.project.mirror, Remote(str(forge)), "main")
            self._mirror.ensure()
        return self._mirror

    def effects(self, forge: ScriptedForge, poller: Poller | None = None) -> EffectExecutor:
        return self.executor(self.operations(forge, self._mirror), poller)

    def workers(self) -> Workers:
        return self.runtime().workers

    def runtime(self) -> SprintRuntime:
        state = self.ledger.state(self.sprint)
        settings = state.sprint.settings
        state.sprint.settings = msgspec.structs.replace(settings, unsandboxed=True)
        return SprintRuntime(self.project, state, self.queue, self.mirror, self.signal)

    def plan_work(self, item: str = ITEM, role: Role = "implement") -> None:
        self.plan(StartWork(task="a", work=Work(item=item, role=role)))

    def work(self, workers: Workers, role: Role = "implement") -> None:
        """Do one piece of work to its end."""
        self.plan_work(role=role)
        workers.dispatch(4)
        workers.wait()

    def start_work(self, item: str = ITEM, role: Role = "implement") -> Claimed:
        self.plan_work(item, role)
        claimed = self.queue.claim((role,), cap=99)
        assert claimed is not None
        return claimed

    def shim(self, claimed: Claimed, *argv: str, **changes: Any) -> Path:
        """Start a real shim for a claim and return its run directory."""
        run_dir = self.runs.of(claimed.item, claimed.token)
        (run_dir / "workspace").mkdir(parents=True, exist_ok=True)
        spec = {
            "ledger": str(self.ledger.db.path),
            "item": claimed.item,
            "token": claimed.token,
            "lease_ms": 3_600_000,
            "beat_s": 60.0,
            "argv": list(argv),
            "env": {"PATH": "/usr/bin:/bin"},
            "cwd": str(run_dir / "workspace"),
            "stdin": "",
            "output_cap": 1 << 20,
            "limit_s": 600.0,
            "wake": "",
            "base": "",
            "conflicts": [],
            "framework": "stub",
        } | changes
        self.process = launch.start(run_dir, spec)
        return run_dir

    def status(self, item: str = ITEM) -> str:
        row = self.ledger.db.row("SELECT status FROM work_items WHERE id = ?", (item,))
        assert row is not None
        return str(row["status"])

    def events(self, type: str) -> list[dict[str, Any]]:
        rows = self.ledger.db.rows("SELECT payload FROM events WHERE type = ?", (type,))
        return [json.loads(r["payload"]) for r in rows]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "Ada")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "ada@example.org")
    made = Engine(tmp_path)
    yield made
    for directory in made.runs.root.rglob("lock"):
        launch.stop(directory.parent)
    made.ledger.close()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home with the project `demo`, which this process uses."""
    made = Home(tmp_path).init()
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made
