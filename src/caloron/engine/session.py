"""Begins a sprint, or goes on with one: everything is checked before anything is done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from caloron.agents.frameworks import FRAMEWORKS
from caloron.domain.plan import PlannedTask, PlanProblem, parse_plan
from caloron.domain.sprint import Sprint, State
from caloron.engine.engine import Engine, SystemClock, Watcher, check_frameworks
from caloron.errors import NotFound, UsageError
from caloron.forge.local import LocalForge
from caloron.ledger.ledger import Ledger, TickCommit
from caloron.ledger.lock import EngineLock
from caloron.ledger.projects import Project

MAX_PLAN_BYTES = 4 << 20


class Session:
    """A project that this process holds, with its ledger and forge open."""

    def __init__(self, project: Project) -> None:
        self.project = project
        #: Whether the forge's main holds what the user's own repository has.
        self.in_step = True
        self.lock = EngineLock(project.engine_lock)
        self.lock.acquire()
        try:
            self.ledger = Ledger(project.ledger)
            self.forge = LocalForge(project.path)
        except BaseException:
            self.lock.release()
            raise

    def close(self) -> None:
        self.ledger.close()
        self.forge.close()
        self.lock.release()

    def begin(
        self, goal: str, plan: tuple[PlannedTask, ...] | None, *, parallel: int, ask: bool
    ) -> str:
        """Record a new sprint: its goal, and its plan if there is one already."""
        config = self.project.config
        sprint = Sprint(
            id=self.project.name,
            number=0,
            goal=goal,
            created_at=SystemClock().now(),
            parallel=parallel,
            max_fix_rounds=config.max_fix_rounds,
            frameworks=FRAMEWORKS,
            author=self.forge.author,
            main=self.forge.main,
            ask_before_running=ask,
            given_plan=plan or (),
        )
        if config.repo:
            self.in_step = self.forge.catch_up(Path(config.repo))
        check_frameworks(self.project, State(sprint=sprint))
        return self.ledger.create_sprint(sprint, {}).id

    def engine(self, sprint: str, watcher: Watcher) -> Engine:
        self.lock.describe(sprint)
        engine = Engine(self.project, self.ledger, self.forge, sprint, watcher)
        if not self.ledger.get(f"forge_cursor/{sprint}"):
            engine.poller.begin()
        return engine

    def ask_again(self, sprint: str) -> None:
        """Planning gave up, and a person wants it to be tried once more."""
        loaded = self.ledger.load(sprint)
        state = loaded.state
        if not state.sprint.stopped:
            return
        state.sprint = msgspec.structs.replace(
            state.sprint, stopped="", phase="planning", ended_at=None, po=None, po_failures=0
        )
        self.ledger.commit_tick(msgspec.structs.replace(loaded, through=0), TickCommit(state=state))


@contextmanager
def held(project: Project) -> Iterator[Session]:
    """Hold the project for the time of the block."""
    session = Session(project)
    try:
        yield session
    finally:
        session.close()


def read_plan(path: Path) -> tuple[PlannedTask, ...]:
    """A plan from a file, valid or refused with everything that is wrong with it."""
    raw = _read_json(path)
    if isinstance(raw, dict) and isinstance(raw.get("tasks"), list):
        raw = raw["tasks"]
    try:
        return parse_plan(raw, frameworks=FRAMEWORKS)
    except PlanProblem as problem:
        raise UsageError(
            f"the plan {path} cannot be run: " + "; ".join(problem.errors),
            hint="correct the file; nothing was started",
        ) from problem


def _read_json(path: Path) -> Any:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise NotFound(f"there is no plan file {path}") from None
    except OSError as error:
        raise UsageError(f"the plan {path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_PLAN_BYTES:
        raise UsageError(f"the plan {path} has {len(data)} bytes; at most {MAX_PLAN_BYTES}")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"the plan {path} is not JSON: {error}", hint="correct the file; nothing was started"
        ) from error
