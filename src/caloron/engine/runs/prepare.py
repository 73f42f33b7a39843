"""Prepares what an agent or a verification needs: a workspace, a prompt, a confined command."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from caloron.agents import conventions, prompting
from caloron.agents.workspace.project_detection import SHELL, environment, with_path
from caloron.domain.model.effects import StartWork
from caloron.domain.model.facts import WorkEnded
from caloron.domain.model.merge import Link
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.roles import CODE_ROLES, PLANNER, ROLES, SPRINT_ROLES, Role
from caloron.domain.model.sprint import State
from caloron.domain.model.task import Task, Work
from caloron.domain.rules.people.commands import for_prompt
from caloron.engine.agent_dirs import AgentDirs
from caloron.engine.forge.connect import NOTE
from caloron.engine.runs.run_dirs import AttemptRecord
from caloron.engine.runs.sandbox_policy import SandboxPolicy, model_of
from caloron.engine.runs.workspaces import PreparedWorkspace, WorkspacePreparer
from caloron.git.mirror import Conflict, Mirror
from caloron.git.repository import TooLarge, printable_names
from caloron.git.repository_context import page, read_repository_context, rules_page
from caloron.ledger.learnings import context_for
from caloron.ledger.ledger import Ledger
from caloron.ledger.locate import home
from caloron.ledger.projects import Project
from caloron.ledger.settings import ProjectConfig
from caloron.ledger.workspace_files import material_for_retro
from caloron.ports import AgentCli, AgentCommand, AgentRequest, SandboxedCommand
from caloron.store.redact import Redactor

_LOG_LIMIT = 20_000
#: The supervisor judges agents earlier; this ends an agent after its engine is gone.
_UNWATCHED = 3.0
#: Only these find programs that the branch installed; a judge must not run the author's programs.
_WITH_BRANCH_PROGRAMS = (*CODE_ROLES, "verify")

_replace = msgspec.structs.replace


class PreparedProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process to start, and the record for its end."""

    confined: SandboxedCommand
    #: Environment of the agent that is never written down.
    secrets: dict[str, str] = msgspec.field(default_factory=dict)
    stdin: str = ""
    limit_s: float
    record: AttemptRecord
    #: What the shim watches.
    watch: dict[str, object] = msgspec.field(default_factory=dict)


@dataclass
class PromptContext:
    """Reads the parts of prompts that are not about the task."""

    project: Project
    ledger: Ledger
    mirror: Mirror
    agent_dirs: AgentDirs
    #: The organisation's conventions, for agents to read.
    conventions: str = ""
    #: Parts of the conventions that were not understood.
    warnings: tuple[str, ...] = ()

    def open(self) -> None:
        """Read the conventions on main; this needs the forge."""
        on_main = self.mirror.read(self.mirror.fetch_main(), "caloron.yml") or None
        loaded = conventions.load(home(), on_main, self.project.workspace)
        self.conventions, self.warnings = conventions.render(loaded), loaded.warnings

    def lessons(self, sprint: str) -> str:
        """Return the lessons of earlier sprints for the planner of this one."""
        return context_for(self.ledger, sprint)

    def retro_material(self, sprint: str) -> Mapping[str, str]:
        """Return the facts for the retro's model, by heading."""
        return material_for_retro(self.ledger, sprint)

    @cached_property
    def repository(self) -> tuple[str, str]:
        """Describe the repository and its rules for contributors, as main was at the start."""
        note = json.loads(self.ledger.get(NOTE) or "{}")
        context = read_repository_context(
            self.mirror,
            self.mirror.newest_main(),
            description=note.get("description", ""),
            open_issues=note.get("open_issues"),
        )
        return page(context), rules_page(context)


@dataclass(kw_only=True)
class AttemptPreparer:
    """Turns work of the queue into a process to start."""

    config: ProjectConfig
    mirror: Mirror
    policy: SandboxPolicy
    workspaces: WorkspacePreparer
    runner: Callable[[str], AgentCli]
    context: PromptContext
    redactor: Redactor
    #: Gets every prompt, for people who debug.
    show_prompt: Callable[[str], None] | None

    def assign(
        self,
        state: State,
        start: StartWork,
        token: int,
        run_dir: Path,
        budget_usd: float | None,
    ) -> PreparedProcess | WorkEnded:
        """Return the process for a piece of work, or its end if it needs none."""
        work, task = start.work, state.tasks.get(start.task)
        self._fetch(state, task, work)
        if work.role == "verify":
            return self._verification(state.tasks.get(start.task), start, token, run_dir)
        return self._agent(state, task, work, run_dir, budget_usd)

    def _fetch(self, state: State, task: Task | None, work: Work) -> None:
        """Fetch heads that a person pushed: they are not in our own repository yet."""
        places = {t.change.head: (t.change.branch, t.links.pull) for t in state.tasks.values()}
        if task:
            places.setdefault(work.head, (task.change.branch, task.links.pull))
        if task and task.merge.revert:
            places[task.merge.revert.head] = (task.merge.revert.branch, task.merge.revert.pull)
        for head in work.batch or (work.head,):
            if head in places and head and not self.mirror.has(head):
                self.mirror.fetch_head(head, *places[head])

    def _verification(
        self, task: Task | None, start: StartWork, token: int, run_dir: Path
    ) -> PreparedProcess | WorkEnded:
        """Prepare the project's own test in a clean checkout of the merged result, or of main."""
        work = start.work
        base = commit = self.mirror.fetch_main()
        chain: list[Link] = []
        conflicts: tuple[str, ...] = ()
        for head in work.batch or ((work.head,) if work.head else ()):
            # The message of the commit that lands contains the result of this verification.
            merged = self.mirror.merge(commit, head, f"Verify {head[:12]}")
            if isinstance(merged, Conflict):
                conflicts += printable_names(merged.files)
            else:
                commit = merged.commit
                chain.append(Link(head, merged.tree))
        ended = WorkEnded(
            item=work.item, task=start.task, role=work.role, token=token, base=base, head=work.head
        )
        if conflicts and not chain:
            return _replace(ended, conflicts=conflicts)
        links, tree = tuple(chain) if work.batch else (), self.mirror.tree(commit)
        ended = _replace(ended, tree=tree, chain=links)
        try:
            if not task and self.workspaces.setup.is_empty(base):
                return _replace(ended, tree="", skipped="none")
            return self._verify(task, commit, run_dir, ended)
        except TooLarge as error:
            return _failed(ended, str(error))

    def _verify(
        self, task: Task | None, commit: str, run_dir: Path, ended: WorkEnded
    ) -> PreparedProcess | WorkEnded:
        """Prepare the project's own test on one commit; `ended` is its end without a process."""
        commands = self.workspaces.setup.commands(commit)
        ended = _replace(ended, verify_command=commands.verify)
        if problem := self.workspaces.setup.refusal(commit):
            return _failed(ended, problem)
        unverified = _replace(ended, verify_command="", skipped="unverified")
        if not commands.verify and (task or not commands.setup):
            return unverified
        place = self.workspaces.checkout(run_dir, commit, scope=task.id if task else "")
        if place.setup_failed:
            return _replace(_failed(ended, place.setup_failed), log=str(place.log))
        if not commands.verify:
            return unverified
        return PreparedProcess(
            confined=self._confine(
                "verify",
                AgentCommand(argv=(SHELL, "-c", f"exec 2>&1\n{commands.verify}")),
                place,
                {"CALORON_ROLE": "verify"},
            ),
            limit_s=self.config.verify_timeout_s,
            record=AttemptRecord(
                base=ended.base,
                how=commands.verify,
                tree=ended.tree,
                chain=tuple((link.head, link.tree) for link in ended.chain),
            ),
            watch=self.policy.watch(place.workspace, place.home),
        )

    def _agent(
        self,
        state: State,
        task: Task | None,
        work: Work,
        run_dir: Path,
        budget_usd: float | None,
    ) -> PreparedProcess:
        framework = (task.plan.framework if task else "") or self.config.framework
        session = task.attempts.session if task and work.role in CODE_ROLES else ""
        place = self.workspaces.prepare(state, task, work, run_dir, restore=bool(session))
        sandbox = self.policy.sandbox
        comments, read = for_prompt(state, task) if task else ("", ())
        prompt = self._prompt(
            state, task, work, place, comments=comments, restarted=bool(place.restored)
        )
        opening = prompting.opened(
            *self.context.agent_dirs.opening(_who(task, work.role), work.item)
        )
        prompt = self._clean(opening) + prompt
        if self.show_prompt:
            self.show_prompt(f"asked of {work.item}:\n{prompt}")
        command = self.runner(framework).command(
            AgentRequest(
                role=work.role,
                task=task.id if task else "",
                prompt=prompt,
                workspace=sandbox.inside(place.workspace),
                run_dir=run_dir,
                home=place.home,
                sandbox_home=sandbox.sandbox_home(place.home),
                instructions=prompting.instructions(self.context.conventions),
                model=model_of(self.config, work.role),
                budget_usd=budget_usd,
                session=session,
                sessions=sessions_of(run_dir),
            )
        )
        # The command may have written files into the home.
        sandbox.give_ownership(place.home)
        return PreparedProcess(
            confined=self._confine(work.role, command, place, self._environment(state, task, work)),
            secrets=command.secrets | self._passed_on(),
            stdin=command.stdin,
            limit_s=self._limit(work.role),
            record=AttemptRecord(
                base=place.start,
                merges=place.merges,
                conflicts=place.conflicts,
                framework=framework,
                budget_usd=budget_usd,
                comments=read,
                products=(*place.commands.products, *place.products),
            ),
            watch=self.policy.watch(place.workspace, place.home),
        )

    def _confine(
        self, role: str, command: AgentCommand, place: PreparedWorkspace, env: dict[str, str]
    ) -> SandboxedCommand:
        inside = self.policy.sandbox.inside(place.workspace)
        argv = command.argv
        if role in _WITH_BRANCH_PROGRAMS:
            argv = with_path(place.commands, inside, argv)
        return self.policy.confine(
            role,
            argv,
            place.workspace,
            place.home,
            env=environment(place.commands, inside) | env | command.env,
            read_only=command.read_only,
            hosts=command.hosts,
        )

    def _prompt(
        self,
        state: State,
        task: Task | None,
        work: Work,
        place: PreparedWorkspace,
        *,
        comments: str,
        restarted: bool,
    ) -> str:
        nonce, sprint = secrets.token_hex(4), state.sprint
        if work.role == "retro":
            material = self.context.retro_material(sprint.id)
            return self._clean(prompting.retro(material, sprint.retro.error, nonce=nonce))
        repository, rules = self.context.repository
        if task is None:
            return self._clean(
                prompting.po(
                    sprint.goal,
                    sprint.planning.errors,
                    nonce=nonce,
                    sent_back=_plan_text(sprint.planning.sent_back),
                    remarks=sprint.planning.remarks,
                    context=self.context.lessons(sprint.id),
                    repository=repository,
                    rules=rules,
                    conventions=self.context.conventions,
                    note=work.previous_failure,
                )
            )
        asked: prompting.TaskRequest = {
            "nonce": nonce,
            "title": task.plan.title,
            "prompt": task.plan.agent_prompt,
            "acceptance": task.plan.acceptance,
            "conventions": self.context.conventions,
            "rules": rules,
            "goal": sprint.goal,
            "restarted": restarted,
            "note": work.previous_failure,
            "comments": comments,
            "touches": task.plan.files if work.role in CODE_ROLES else (),
        }
        match work.role:
            case "review":
                asked["diff"] = "" if task.change.is_empty else self._diff(work.head)
                asked["verify_output"] = _log(work)
            case "fix":
                asked["reason"], asked["verify_output"] = work.reason, _log(work)
            case "resolve":
                asked["conflicts"] = printable_names(place.conflicts)
            case "implement":
                # A commit that names the number of a local forge means another issue elsewhere.
                numbered = not state.sprint.settings.forge_is_local
                asked["issue"] = (task.links.issue or 0) if numbered else 0
        return self._clean(prompting.for_task(work.role, **asked))

    def _clean(self, prompt: str) -> str:
        return self.redactor.text(prompt)

    def _diff(self, head: str) -> str:
        return self.mirror.diff(self.mirror.fetch_main(), head)

    def _passed_on(self) -> dict[str, str]:
        """Return the variables of `pass_env`; values may be keys and count as secrets."""
        return {name: os.environ[name] for name in self.config.pass_env if name in os.environ}

    def _environment(self, state: State, task: Task | None, work: Work) -> dict[str, str]:
        return {
            "CALORON_ROLE": work.role,
            "CALORON_TASK_ID": task.id if task else "",
            "CALORON_SPRINT_ID": state.sprint.id,
            "CALORON_AGENT_ID": _who(task, work.role),
            "CALORON_ROUND": str(work.round),
            "CALORON_SANDBOXED": "0" if self.policy.sandbox.name == "none" else "1",
        }

    def _limit(self, role: Role) -> float:
        if role in SPRINT_ROLES:
            return self.config.planner_timeout_s
        return self.config.timeout_s * _UNWATCHED


def _plan_text(plan: tuple[PlannedTask, ...]) -> str:
    return msgspec.json.format(msgspec.json.encode(plan)).decode() if plan else ""


def _failed(ended: WorkEnded, reason: str) -> WorkEnded:
    return _replace(ended, exit_code=1, last_line=reason)


def _who(task: Task | None, role: Role) -> str:
    return ROLES[role].shared_agent or (task.agent if task else PLANNER)


def sessions_of(run_dir: Path) -> Path:
    """Return the folder of a task's conversations: runs/<sprint>/<task>/sessions."""
    return run_dir.parent.parent / "sessions"


def _log(work: Work) -> str:
    """Return the end of the verification log that this work is about."""
    if not work.verify_log or not Path(work.verify_log).exists():
        return ""
    with Path(work.verify_log).open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _LOG_LIMIT))
        return file.read().decode("utf-8", "replace")
