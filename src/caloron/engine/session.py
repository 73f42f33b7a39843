"""Begins a sprint, or goes on with one: everything is checked before anything is done."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from caloron.agents.frameworks import FRAMEWORKS
from caloron.domain.facts import SprintDiscarded
from caloron.domain.plan import PlannedTask, PlanProblem, parse_plan
from caloron.domain.sprint import Sprint, State
from caloron.engine.confining import Confining
from caloron.engine.engine import Engine, SystemClock, Watcher
from caloron.engine.workshop import (
    cleaned_plan,
    frameworks_of,
    known_secrets,
    refuse_start_from,
    runner,
    sandbox_for,
)
from caloron.errors import NotFound, PreconditionFailed, UsageError
from caloron.forge.local import LocalForge
from caloron.git.mirror import Mirror
from caloron.ledger.ledger import Ledger, TickCommit
from caloron.ledger.lock import EngineLock
from caloron.ledger.projects import Project
from caloron.store.redact import Redactor

MAX_PLAN_BYTES = 4 << 20


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """What the user decided for this run; None: as the sprint or the project has it."""

    budget_usd: float | None = None
    allow_red: bool = False
    unsandboxed: bool = False
    #: Print what agents are asked.
    debug: bool = False


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
        self,
        goal: str,
        plan: tuple[PlannedTask, ...] | None,
        choices: Choices,
        *,
        parallel: int,
        ask: bool,
    ) -> str:
        """Record a new sprint: its goal, and its plan if there is one already."""
        config = self.project.config
        redactor = Redactor(known_secrets(config))
        sprint = Sprint(
            id=self.project.name,
            number=0,
            goal=redactor.text(goal),
            created_at=SystemClock().now(),
            parallel=parallel,
            max_fix_rounds=config.max_fix_rounds,
            frameworks=FRAMEWORKS,
            author=self.forge.author,
            main=self.forge.main,
            ask_before_running=ask,
            given_plan=cleaned_plan(plan or (), redactor),
            framework=config.framework,
            baseline="",
            budget_usd=choices.budget_usd or config.budget_usd,
            allow_red=choices.allow_red,
            unsandboxed=choices.unsandboxed,
        )
        if config.repo:
            self.in_step = self.forge.catch_up(Path(config.repo))
        self._check(State(sprint=sprint))
        return self.ledger.create_sprint(sprint, {}).id

    def _check(self, state: State) -> None:
        plans = (*state.sprint.given_plan, *(task.plan for task in state.tasks.values()))
        check_start(self.project, self.forge, plans, unsandboxed=state.sprint.unsandboxed)

    def engine(self, sprint: str, watcher: Watcher, *, debug: bool = False) -> Engine:
        self.lock.describe(sprint)
        engine = Engine(self.project, self.ledger, self.forge, sprint, watcher, debug=debug)
        if not self.ledger.get(f"forge_cursor/{sprint}"):
            engine.poller.begin()
        return engine

    def go_on(self, sprint: str, choices: Choices) -> None:
        """A person wants the sprint to go on: with what stopped it cleared, and what changed."""
        loaded = self.ledger.load(sprint)
        before = loaded.state.sprint
        if before.discarded or any(isinstance(f, SprintDiscarded) for f in loaded.facts):
            raise PreconditionFailed(
                f"sprint {sprint} was discarded",
                hint='begin another: caloron sprint "<goal>"'
                if before.phase == "ended"
                else f"finish that: caloron discard {sprint}",
            )
        after = msgspec.structs.replace(
            before,
            halted="",
            budget_usd=choices.budget_usd or before.budget_usd,
            allow_red=before.allow_red or choices.allow_red,
            unsandboxed=before.unsandboxed or choices.unsandboxed,
        )
        if before.stopped:
            # Planning gave up, or main was red: both are tried once more.
            after.stopped = after.stopped_by = ""
            after.phase, after.ended_at = "planning", None
            after.po, after.po_failures = None, 0
            after.baseline_work = None
        loaded.state.sprint = after
        if after.phase != "ended":
            self._check(loaded.state)
        if after != before:
            commit = TickCommit(state=loaded.state)
            self.ledger.commit_tick(msgspec.structs.replace(loaded, through=0), commit)


def check_start(
    project: Project, forge: LocalForge, plan: tuple[PlannedTask, ...], *, unsandboxed: bool
) -> None:
    """Refuse what cannot work before anything is begun."""
    for name in frameworks_of(project, plan):
        runner(project, name).check()
    mirror = Mirror(project.mirror, forge.remote(), forge.main)
    mirror.ensure()
    refuse_start_from(mirror, mirror.fetch_main())
    sandbox = sandbox_for(mirror.path, unsandboxed=unsandboxed)
    sandbox.check()
    Confining(project.config, sandbox).check()


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
