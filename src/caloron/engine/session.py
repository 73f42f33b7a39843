"""Opens a project: its lock, its ledger and its forge; begins and resumes sprints."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal

import msgspec

from caloron.agents.clis.registry import FRAMEWORKS, uses_model
from caloron.domain.compat.plan_forms import Plan, parse_plan_file
from caloron.domain.model.facts import RevertRequested, SprintDiscarded
from caloron.domain.model.plan import PlannedTask, PlanProblem
from caloron.domain.model.sprint import (
    MainHealth,
    Planning,
    RuleSettings,
    SourceIssues,
    Sprint,
    SprintSettings,
    State,
    last_number,
)
from caloron.domain.reporting.forge_texts import DISCARD_KEY
from caloron.domain.reporting.waiting import Outage, outage_after
from caloron.domain.rules.people.labelled_issues import LABEL
from caloron.domain.rules.planning import resumed
from caloron.durations import Backoff
from caloron.engine.forge.connect import catch_up, forge_of_session, open_mirror, remember
from caloron.engine.loop import Engine
from caloron.engine.runs.runtime import (
    cleaned_plan,
    frameworks_of,
    known_secrets,
    refuse_start_from,
    runner,
    sandbox_for,
)
from caloron.engine.runs.sandbox_policy import SandboxPolicy
from caloron.engine.signals import Listener, SystemClock
from caloron.errors import ForgePaused, ForgeUnavailable, NotFound, PreconditionFailed, UsageError
from caloron.ledger.ledger import Ledger, TickCommit
from caloron.ledger.legacy import import_home
from caloron.ledger.projects import Project
from caloron.ledger.settings import ProjectConfig
from caloron.ports import Forge
from caloron.store import log
from caloron.store.database import refuse_damaged
from caloron.store.lock import ProcessLock
from caloron.store.redact import Redactor

_BACKOFF = Backoff(1.0, 60.0)


@contextmanager
def refuse_if_unreachable() -> Iterator[None]:
    """Refuse to begin a sprint while the forge does not answer."""
    try:
        yield
    except ForgeUnavailable as error:
        raise ForgeUnavailable(
            f"no sprint was begun: {error}", hint="begin it again when the forge answers"
        ) from error


MAX_PLAN_BYTES = 4 << 20


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """The user's choices for this run; None: the setting of the sprint or the project."""

    budget_usd: float | None = None
    allow_red: bool = False
    unsandboxed: bool = False
    #: Print what agents are asked.
    debug: bool = False


class Session:
    """A project that this process has locked, with its ledger and forge open."""

    def __init__(self, project: Project) -> None:
        self.project = project
        #: True if the forge's main contains the commits of the user's own repository.
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
            #: What was imported from an older Caloron, in lines for people.
            self.messages = import_home(self.ledger, project)
            self.forge = forge_of_session(project, self.ledger, self.messages)
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
        source: SourceIssues | None = None,
    ) -> str:
        """Record a new sprint with its goal and, if there is one already, its plan."""
        config = self.project.config
        redactor = Redactor(known_secrets(config))
        sprint = Sprint(
            id=self.project.name,
            number=0,
            goal=redactor.text(goal),
            settings=SprintSettings(
                created_at=SystemClock().now(),
                parallel=parallel,
                rules=self._rules(),
                frameworks=FRAMEWORKS,
                author=self.forge.author,
                reviewer=self.forge.reviewer,
                main_branch=self.forge.main,
                merge_style=config.merge_style,
                forge_is_local=not self.project.is_remote,
                ask_before_running=ask,
                plan_on_forge=plan_on_forge and bool(self.forge.url(1)),
                framework=config.framework,
                budget_usd=choices.budget_usd or config.budget_usd,
                allow_red=choices.allow_red,
                unsandboxed=choices.unsandboxed,
                retro_by=_retro_by(config),
            ),
            planning=Planning(given_plan=cleaned_plan(plan or (), redactor), source=source),
            main_health=MainHealth(baseline=""),
        )
        self.in_step = catch_up(self.project, self.forge)
        self._check(State(sprint=sprint))
        taken = 0
        if self.project.is_remote:
            taken = last_number(self.project.name, self.forge.issues("all", LABEL))
        return self.ledger.create_sprint(sprint, {}, after=taken).id

    def _rules(self) -> RuleSettings:
        return msgspec.convert(self.project.config, RuleSettings, from_attributes=True)

    def _check(self, state: State) -> None:
        plans = (*state.sprint.planning.given_plan, *(task.plan for task in state.tasks.values()))
        check_start(self.project, self.forge, plans, unsandboxed=state.sprint.settings.unsandboxed)

    def engine(self, sprint: str, listener: Listener, *, debug: bool = False) -> Engine:
        self.lock.describe(sprint)
        log.pin(log.log_of(self.project.path), sprint=sprint)
        remember(self.ledger, self.forge, self.forge.about())
        engine = Engine(self.project, self.ledger, self.forge, sprint, listener, debug=debug)
        engine.runtime.context.open()
        if not self.ledger.get(f"forge_cursor/{sprint}"):
            engine.poller.begin()
        return engine

    def discard(self, sprint: str, by: str, listener: Listener) -> State:
        """Throw a sprint away; this needs no agent."""
        engine = Engine(
            self.project, self.ledger, self.forge, sprint, listener, only_effects=DISCARD_KEY
        )
        return engine.discard(by)

    def revert(self, sprint: str, tasks: tuple[str, ...], by: str, listener: Listener) -> State:
        """Revert merged tasks on the forge's main; without tasks, go on after a crash.

        This starts no agent for them; the result of the revert is verified before it lands.
        """
        state = self.ledger.state(sprint)
        mirror = open_mirror(self.project, self.forge)
        sandbox_for(mirror.path, unsandboxed=state.sprint.settings.unsandboxed).check()
        engine = self.engine(sprint, listener)
        if tasks:
            request = RevertRequested(by=by, tasks=tasks, at=engine.clock.now())
            self.ledger.append_facts(sprint, [request])
        return engine.run()

    def wait_for_forge(
        self,
        sprint: str,
        message: Callable[[str], None],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Ask the forge and its git until both answer; `status` shows the outage meanwhile.

        A local forge always answers, and an ended sprint needs none.
        """
        if not self.project.is_remote or self.ledger.state(sprint).sprint.phase == "ended":
            return
        outage: Outage | None = None
        for attempt in count(1):
            try:
                self.forge.about()
                open_mirror(self.project, self.forge).fetch_main()
            except ForgeUnavailable as error:
                log.warning("the forge does not answer; it is asked again", error=error)
                until = error.until if isinstance(error, ForgePaused) else None
                after = outage_after(outage, str(error), until, time.time())
                if after != outage:
                    message(f"{after}; waiting, and going on when it answers (Ctrl-C stops)")
                    self.ledger.store_outage(sprint, after)
                outage = after
                pause = _BACKOFF.pause(attempt)
                sleep(pause if until is None else max(until - time.time(), pause))
                continue
            if outage is not None:
                self.ledger.end_outage(sprint)
                message("the forge answers again")
            return

    def go_on(self, sprint: str, choices: Choices) -> None:
        """Clear what stopped a sprint, and apply the user's choices."""
        loaded = self.ledger.load(sprint)
        before = loaded.state.sprint
        if before.discard.by or any(isinstance(f, SprintDiscarded) for f in loaded.facts):
            raise PreconditionFailed(
                f"sprint {sprint} was discarded",
                hint='begin another: caloron sprint "<goal>"'
                if before.phase == "ended"
                else f"finish that: caloron discard {sprint}",
            )
        after = resumed(
            before,
            budget_usd=choices.budget_usd,
            allow_red=choices.allow_red,
            unsandboxed=choices.unsandboxed,
            rules=self._rules(),
        )
        if before.planning.failure:
            # The user may have fixed main in the own repository.
            self.in_step = catch_up(self.project, self.forge)
        loaded.state.sprint = after
        if after.phase != "ended":
            self._check(loaded.state)
        if after != before:
            commit = TickCommit(state=loaded.state)
            self.ledger.commit_tick(msgspec.structs.replace(loaded, through=0), commit)


def _retro_by(config: ProjectConfig) -> Literal["rules", "model"]:
    if config.retro == "auto":
        return "model" if uses_model(config.framework) else "rules"
    return config.retro


def check_start(
    project: Project, forge: Forge, plan: tuple[PlannedTask, ...], *, unsandboxed: bool
) -> None:
    """Refuse a sprint that cannot work, before anything is begun."""
    if project.is_remote:
        # This import loads the API of forges, which a local forge does not need.
        from caloron.engine.forge import access

        about = access.repository_info(project.config, forge)
        access.refuse_unfit(project.config, forge, about)
    if project.config.webhook:
        # This import loads an HTTP server, which few projects need.
        from caloron.engine.forge.webhooks import webhooks_of

        webhooks_of(project.config, lambda: None)
    for name in frameworks_of(project, plan):
        runner(project, name).check()
    mirror = open_mirror(project, forge)
    main = access.main_by_git(mirror, about.kind) if project.is_remote else mirror.fetch_main()
    refuse_start_from(mirror, main)
    sandbox = sandbox_for(mirror.path, unsandboxed=unsandboxed)
    sandbox.check()
    SandboxPolicy(project.config, sandbox).check()


@contextmanager
def exclusive(project: Project) -> Iterator[Session]:
    """Lock the project for the time of the block."""
    session = Session(project)
    try:
        yield session
    finally:
        session.close()


def read_plan(path: Path) -> Plan:
    """Read a valid plan from a file; the refusal names everything that is wrong with it."""
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
