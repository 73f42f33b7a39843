"""Prepares what an agent or a verification needs: a workspace, a prompt, a confined command."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from caloron.agents import prompting
from caloron.agents.recipes import SHELL, environment, with_path
from caloron.domain.facts import Skipped
from caloron.domain.merging import Link
from caloron.domain.plan import PlannedTask
from caloron.domain.sprint import ANALYST, OF_THE_SPRINT, PLANNER, Role, State, Task, Work
from caloron.domain.turn import agent_of
from caloron.engine.confining import Confining, model_of
from caloron.engine.workplaces import Workplace, Workplaces
from caloron.git.commits import TooLarge, shown
from caloron.git.mirror import Conflict, Mirror
from caloron.ledger.settings import ProjectConfig
from caloron.ports import AgentCommand, AgentRequest, AgentRunner, Confined
from caloron.store.redact import Redactor

_LOG_LIMIT = 20_000
#: Agents have the supervisor; this only ends one that nobody watches any more.
_UNWATCHED = 3.0
_AUTHOR: tuple[Role, ...] = ("implement", "fix", "resolve")
#: Only these find programs that the branch installed; a judge must not run the author's programs.
_WITH_BRANCH_PROGRAMS = (*_AUTHOR, "verify")


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A process to start, and what must be known again when it has ended."""

    confined: Confined
    #: Environment that is told to the agent and never written down.
    secrets: dict[str, str] = msgspec.field(default_factory=dict)
    stdin: str = ""
    limit_s: float
    #: The commit that the work starts from.
    base: str
    #: The commit that a resolve round has to merge in.
    merges: str = ""
    conflicts: tuple[str, ...] = ()
    framework: str = ""
    #: Folders that setup made: not the agent's work.
    products: tuple[str, ...] = ()
    #: The shell line that verifies.
    how: str = ""
    #: The tree that is verified, and of a batch the tree after each of its changes.
    tree: str = ""
    chain: tuple[Link, ...] = ()
    #: What the shim has to look at besides.
    watch: dict[str, object] = msgspec.field(default_factory=dict)


class NothingToRun(msgspec.Struct, frozen=True, kw_only=True):
    """The work is done without a process: what it came to."""

    base: str
    conflicts: tuple[str, ...] = ()
    skipped: Skipped = ""
    #: Setup failed, so verification did too: its log and its last line.
    failed: str = ""
    log: str = ""
    how: str = ""
    tree: str = ""
    chain: tuple[Link, ...] = ()


class Assigner:
    """Turns work of the queue into a process to start."""

    def __init__(
        self,
        config: ProjectConfig,
        mirror: Mirror,
        confining: Confining,
        workplaces: Workplaces,
        runner: Callable[[str], AgentRunner],
        *,
        redactor: Redactor,
        show: Callable[[str], None] | None = None,
    ) -> None:
        self._config = config
        self._mirror = mirror
        self._confining = confining
        self._workplaces = workplaces
        self._runner = runner
        self._redactor = redactor
        #: The organisation's conventions, for agents to read.
        self.conventions = ""
        #: What earlier sprints teach the planner of this one.
        self.lessons: Callable[[str], str] = lambda _sprint: ""
        #: The repository in lines, and what it asks of contributors.
        self.repository: Callable[[], tuple[str, str]] = lambda: ("", "")
        #: What the model that looks back at this one is told, by heading.
        self.material: Callable[[str], Mapping[str, str]] = lambda _sprint: {}
        #: What an agent is told of itself before anything else.
        self.opening: Callable[[str], str] = lambda _agent: ""
        #: Tells what agents are asked to somebody who wants to know.
        self._show = show

    def assign(
        self,
        state: State,
        task: Task | None,
        work: Work,
        run_dir: Path,
        budget_usd: float | None = None,
    ) -> Assignment | NothingToRun:
        self._fetch(state, task, work)
        if work.role == "verify":
            return self._verification(task, work, run_dir)
        return self._agent(state, task, work, run_dir, budget_usd)

    def _fetch(self, state: State, task: Task | None, work: Work) -> None:
        """A commit that a person pushed to a branch is not in our own repository yet."""
        places = {t.head: (t.branch, t.pull) for t in state.tasks.values()}
        if task:
            places.setdefault(work.head, (task.branch, task.pull))
        if task and task.revert:
            places[task.revert.head] = (task.revert.branch, task.revert.pull)
        for head in work.heads or (work.head,):
            if head in places and head and not self._mirror.has(head):
                self._mirror.fetch_head(head, *places[head])

    def _verification(
        self, task: Task | None, work: Work, run_dir: Path
    ) -> Assignment | NothingToRun:
        """The merged result, or main itself, in a clean checkout, and the project's own test."""
        base = commit = self._mirror.fetch_main()
        chain: list[Link] = []
        conflicts: tuple[str, ...] = ()
        for head in work.heads or ((work.head,) if work.head else ()):
            merged = self._mirror.merge(commit, head, "Merge for verification")
            if isinstance(merged, Conflict):
                conflicts += shown(merged.files)
            else:
                commit = merged.commit
                chain.append(Link(head, merged.tree))
        if conflicts and not chain:
            return NothingToRun(base=base, conflicts=conflicts)
        found: Assignment | NothingToRun
        try:
            if not task and self._workplaces.is_empty(base):
                return NothingToRun(base=base, skipped="none")
            found = self._verify(task, commit, run_dir)
        except TooLarge as error:
            found = NothingToRun(base=base, failed=str(error))
        tree, links = self._mirror.tree(commit), tuple(chain) if work.heads else ()
        return msgspec.structs.replace(found, base=base, tree=tree, chain=links)

    def _verify(self, task: Task | None, commit: str, run_dir: Path) -> Assignment | NothingToRun:
        """The project's own test on one commit."""
        recipe = self._workplaces.recipe(commit)
        if problem := self._workplaces.refusal(commit):
            return NothingToRun(base=commit, failed=problem, how=recipe.verify)
        if not recipe.verify and (task or not recipe.setup):
            return NothingToRun(base=commit, skipped="unverified")
        place = self._workplaces.checkout(run_dir, commit, scope=task.id if task else "")
        if not recipe.verify and not place.setup_failed:
            return NothingToRun(base=commit, skipped="unverified")
        if place.setup_failed:
            return NothingToRun(
                base=commit, failed=place.setup_failed, log=str(place.log), how=recipe.verify
            )
        return Assignment(
            confined=self._confine(
                "verify",
                AgentCommand(argv=(SHELL, "-c", f"exec 2>&1\n{recipe.verify}")),
                place,
                {"CALORON_ROLE": "verify"},
            ),
            limit_s=self._config.verify_timeout_s,
            base=commit,
            how=recipe.verify,
            watch=self._confining.watch(place.workspace, place.home),
        )

    def _agent(
        self,
        state: State,
        task: Task | None,
        work: Work,
        run_dir: Path,
        budget_usd: float | None,
    ) -> Assignment:
        framework = (task.plan.framework if task else "") or self._config.framework
        session = task.session if task and work.role in _AUTHOR else ""
        place = self._workplaces.prepare(state, task, work, run_dir, restore=bool(session))
        sandbox = self._confining.sandbox
        prompt = self._prompt(state, task, work, place, restarted=bool(place.restored))
        prompt = self._clean(prompting.opened(self.opening(_who(task, work.role)))) + prompt
        if self._show:
            self._show(f"asked of {work.item}:\n{prompt}")
        command = self._runner(framework).command(
            AgentRequest(
                role=work.role,
                task=task.id if task else "",
                prompt=prompt,
                workspace=sandbox.inside(place.workspace),
                run_dir=run_dir,
                home=place.home,
                home_inside=sandbox.home_inside(place.home),
                instructions=prompting.instructions(self.conventions),
                model=model_of(self._config, work.role),
                budget_usd=budget_usd,
                session=session,
                sessions=sessions_of(run_dir),
            )
        )
        # What was written into the home since belongs to the agent too.
        sandbox.hand_to_agent(place.home)
        return Assignment(
            confined=self._confine(work.role, command, place, self._environment(state, task, work)),
            secrets=command.secrets | self._passed_on(),
            stdin=command.stdin,
            limit_s=self._limit(work.role),
            base=place.start,
            merges=place.merges,
            conflicts=place.conflicts,
            framework=framework,
            products=(*place.recipe.products, *place.products),
            watch=self._confining.watch(place.workspace, place.home),
        )

    def _confine(
        self, role: str, command: AgentCommand, place: Workplace, env: dict[str, str]
    ) -> Confined:
        inside = self._confining.sandbox.inside(place.workspace)
        argv = command.argv
        if role in _WITH_BRANCH_PROGRAMS:
            argv = with_path(place.recipe, inside, argv)
        return self._confining.confine(
            role,
            argv,
            place.workspace,
            place.home,
            env=environment(place.recipe, inside) | env | command.env,
            read_only=command.read_only,
            hosts=command.hosts,
        )

    def _prompt(
        self, state: State, task: Task | None, work: Work, place: Workplace, *, restarted: bool
    ) -> str:
        nonce, sprint = secrets.token_hex(4), state.sprint
        if work.role == "retro":
            told = self.material(sprint.id)
            return self._clean(prompting.retro(told, sprint.retro_error, nonce=nonce))
        repository, rules = self.repository()
        if task is None:
            return self._clean(
                prompting.po(
                    sprint.goal,
                    sprint.plan_errors,
                    nonce=nonce,
                    context=self.lessons(sprint.id),
                    repository=repository,
                    rules=rules,
                    conventions=self.conventions,
                    note=work.note,
                )
            )
        about: prompting.About = {
            "nonce": nonce,
            "conventions": self.conventions,
            "rules": rules,
            "goal": sprint.goal,
            "restarted": restarted,
            "note": work.note,
            "touches": task.plan.files if work.role in _AUTHOR else (),
        }
        plan: PlannedTask = task.plan
        asked = (plan.title, plan.agent_prompt, plan.acceptance)
        match work.role:
            case "review":
                diff = "" if task.empty else self._diff(work.head)
                text = prompting.review(*asked, diff, _log(work), **about)
            case "fix":
                text = prompting.fix(*asked, work.reason, _log(work), **about)
            case "resolve":
                text = prompting.resolve(*asked, shown(place.conflicts), **about)
            case "check":
                text = prompting.check(*asked, **about)
            case _:
                text = prompting.implement(*asked, task.issue or 0, **about)
        return self._clean(text)

    def _clean(self, prompt: str) -> str:
        return self._redactor.text(prompt)

    def _diff(self, head: str) -> str:
        return self._mirror.diff(self._mirror.fetch_main(), head)

    def _passed_on(self) -> dict[str, str]:
        """What the user lets agents have may be a key, so it is treated as one."""
        return {name: os.environ[name] for name in self._config.pass_env if name in os.environ}

    def _environment(self, state: State, task: Task | None, work: Work) -> dict[str, str]:
        return {
            "CALORON_ROLE": work.role,
            "CALORON_TASK_ID": task.id if task else "",
            "CALORON_SPRINT_ID": state.sprint.id,
            "CALORON_AGENT_ID": _who(task, work.role),
            "CALORON_ROUND": str(work.round),
            "CALORON_SANDBOXED": "0" if self._confining.sandbox.name == "none" else "1",
        }

    def _limit(self, role: Role) -> float:
        if role in OF_THE_SPRINT:
            return self._config.po_timeout_s
        return self._config.timeout_s * _UNWATCHED


def _who(task: Task | None, role: Role) -> str:
    if task:
        return agent_of(task, role)
    return ANALYST if role == "retro" else PLANNER


def sessions_of(run_dir: Path) -> Path:
    """Where the conversations of a task are kept: runs/<sprint>/<task>/sessions."""
    return run_dir.parent.parent / "sessions"


def _log(work: Work) -> str:
    """The end of the verification's log that this work is about."""
    if not work.log or not Path(work.log).exists():
        return ""
    with Path(work.log).open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _LOG_LIMIT))
        return file.read().decode("utf-8", "replace")
