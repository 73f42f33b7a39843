"""Begins a sprint, or goes on with one: everything is checked before anything is done."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from caloron.agents.frameworks import FRAMEWORKS, WITH_MODEL
from caloron.domain.facts import SprintDiscarded
from caloron.domain.joining import LABEL
from caloron.domain.ours import last_number
from caloron.domain.plan import PlannedTask, PlanProblem
from caloron.domain.plan_forms import Plan, parse_plan_file
from caloron.domain.sprint import Sprint, State, enter
from caloron.engine.answering import wait_until_it_answers
from caloron.engine.confining import Confining
from caloron.engine.engine import Engine, SystemClock, Watcher
from caloron.engine.forges import (
    catch_up,
    forge_of_session,
    look,
    main_by_git,
    refuse_unfit,
    remember,
)
from caloron.engine.tick import tick_graph
from caloron.engine.workshop import (
    cleaned_plan,
    frameworks_of,
    known_secrets,
    refuse_start_from,
    runner,
    sandbox_for,
)
from caloron.errors import NotFound, PreconditionFailed, UsageError
from caloron.git.mirror import Mirror
from caloron.ledger.history import take_in_history
from caloron.ledger.ledger import Ledger, TickCommit
from caloron.ledger.projects import Project
from caloron.ledger.settings import ProjectConfig
from caloron.ports import Forge
from caloron.store import log
from caloron.store.database import refuse_damaged
from caloron.store.lock import ProcessLock
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
        self.lock = ProcessLock(project.engine_lock)
        with ExitStack() as opened:
            self.lock.acquire()
            opened.callback(self.lock.release)
            log.pin(log.log_of(project.path))
            opened.callback(log.unpin)
            refuse_damaged(project.ledger)
            self.ledger = Ledger(project.ledger)
            opened.callback(self.ledger.close)
            #: What was taken over from an older Caloron, in lines for people.
            self.told = take_in_history(self.ledger, project)
            self.forge = forge_of_session(project, self.ledger, self.told)
            opened.callback(self.forge.close)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Close everything, also if one of them raises."""
        self._opened.close()

    def begin(
        self,
        goal: str,
        plan: tuple[PlannedTask, ...] | None,
        choices: Choices,
        *,
        parallel: int,
        ask: bool,
        plan_on_forge: bool = False,
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
            reviewer=self.forge.reviewer,
            main=self.forge.main,
            ask_before_running=ask,
            # A forge without pages has nobody who would read it there.
            plan_on_forge=plan_on_forge and bool(self.forge.url(1)),
            given_plan=cleaned_plan(plan or (), redactor),
            framework=config.framework,
            baseline="",
            budget_usd=choices.budget_usd or config.budget_usd,
            allow_red=choices.allow_red,
            unsandboxed=choices.unsandboxed,
            retro=_retro_by(config),
        )
        self.in_step = catch_up(self.project, self.forge)
        self._check(State(sprint=sprint))
        taken = 0
        if self.project.is_remote:
            taken = last_number(self.project.name, self.forge.issues("all", LABEL))
        return self.ledger.create_sprint(sprint, {}, after=taken).id

    def _check(self, state: State) -> None:
        plans = (*state.sprint.given_plan, *(task.plan for task in state.tasks.values()))
        check_start(self.project, self.forge, plans, unsandboxed=state.sprint.unsandboxed)

    def engine(self, sprint: str, watcher: Watcher, *, debug: bool = False) -> Engine:
        self.lock.describe(sprint)
        log.pin(log.log_of(self.project.path), sprint=sprint)
        remember(self.ledger, self.forge, self.forge.about())
        engine = Engine(self.project, self.ledger, self.forge, sprint, watcher, debug=debug)
        engine.workshop.open()
        if not self.ledger.get(f"forge_cursor/{sprint}"):
            engine.poller.begin()
        return engine

    def wait_for_forge(self, sprint: str, tell: Callable[[str], None]) -> None:
        """What has begun waits for a forge that is away, as it does while an engine runs it."""
        if self.project.is_remote and self.ledger.state(sprint).sprint.phase != "ended":
            wait_until_it_answers(self.project, self.ledger, self.forge, sprint, tell)

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
            # What was wrong is put right in the user's own repository, if there is one.
            self.in_step = catch_up(self.project, self.forge)
            # Planning gave up, or main was red: both are tried once more.
            after.stopped = after.stopped_by = ""
            enter(after, "planning")
            after.ended_at = None
            after.po, after.po_failures = None, 0
            after.baseline_work = None
        elif before.phase == "ended" and before.insight_problem:
            # The model was to be asked and could not be: so it is asked now.
            enter(after, "retro")
            after.retro_asked = False
        loaded.state.sprint = after
        if after.phase != "ended":
            self._check(loaded.state)
        if after != before:
            commit = TickCommit(state=loaded.state)
            self.ledger.commit_tick(msgspec.structs.replace(loaded, through=0), commit)


def _retro_by(config: ProjectConfig) -> Literal["rules", "model"]:
    if config.retro == "auto":
        return "model" if config.framework in WITH_MODEL else "rules"
    return config.retro


def check_start(
    project: Project, forge: Forge, plan: tuple[PlannedTask, ...], *, unsandboxed: bool
) -> None:
    """Refuse what cannot work before anything is begun."""
    tick_graph()
    about = look(project.config, forge)
    refuse_unfit(project.config, forge, about)
    if project.config.webhook:
        # It loads an HTTP server, which few need.
        from caloron.engine.webhooks import webhooks_of

        webhooks_of(project.config, lambda: None)
    for name in frameworks_of(project, plan):
        runner(project, name).check()
    mirror = Mirror(project.mirror, forge.remote(), forge.main)
    mirror.ensure()
    refuse_start_from(mirror, main_by_git(mirror, about.kind))
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


def read_plan(path: Path) -> Plan:
    """A plan from a file, valid or refused with everything that is wrong with it."""
    raw = _read_json(path)
    try:
        return parse_plan_file(raw, frameworks=FRAMEWORKS)
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
