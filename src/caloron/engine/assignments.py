"""Prepares what an agent or a verification needs: a workspace, a prompt, a command line."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from caloron.agents import prompting
from caloron.agents.workspaces import create_checkout, create_workspace
from caloron.domain.plan import PlannedTask
from caloron.domain.sprint import PLANNER, Role, State, Task, Work
from caloron.domain.turn import agent_of
from caloron.git.mirror import CALORON_IDENTITY, Conflict, Mirror
from caloron.ledger.projects import ProjectConfig
from caloron.ports import AgentCommand, AgentRequest, AgentRunner, Sandbox

_LOG_LIMIT = 20_000
#: Agents have the supervisor; this only ends one that nobody watches any more.
_UNWATCHED = 3.0


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A process to start, and what must be known again when it has ended."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path
    stdin: str
    limit_s: float
    #: The commit that the work starts from.
    base: str
    #: The commit that a resolve round has to merge in.
    merges: str = ""
    conflicts: tuple[str, ...] = ()


class NothingToRun(msgspec.Struct, frozen=True, kw_only=True):
    """The work is done without a process: what it came to."""

    base: str
    conflicts: tuple[str, ...] = ()


class Assigner:
    """Turns work of the queue into a process to start."""

    def __init__(
        self,
        config: ProjectConfig,
        mirror: Mirror,
        sandbox: Sandbox,
        runner: Callable[[str], AgentRunner],
    ) -> None:
        self._config = config
        self._mirror = mirror
        self._sandbox = sandbox
        self._runner = runner

    @property
    def identity(self) -> tuple[str, str]:
        config = self._config
        name, email = CALORON_IDENTITY
        return (config.git_name or name, config.git_email or email)

    def assign(
        self, state: State, task: Task | None, work: Work, run_dir: Path
    ) -> Assignment | NothingToRun:
        if task and work.head and not self._mirror.has(work.head):
            # A commit that a person pushed to the branch is not in our own repository yet.
            self._mirror.fetch_branch(task.branch)
        if work.role == "verify":
            return self._verification(work, run_dir)
        base, merges, conflicts = self._workspace(state, task, work, run_dir)
        command = self._command(state, task, work, run_dir, conflicts)
        return Assignment(
            argv=self._sandbox.wrap(command.argv, run_dir / "workspace"),
            env=self._sandbox.environment(self._environment(state, task, work) | command.env),
            cwd=run_dir / "workspace",
            stdin=command.stdin,
            limit_s=self._limit(work.role),
            base=base,
            merges=merges,
            conflicts=conflicts,
        )

    def _verification(self, work: Work, run_dir: Path) -> Assignment | NothingToRun:
        """The merged result in a clean checkout, and the project's own test of it."""
        base = self._mirror.fetch_main()
        merged = self._mirror.merge(base, work.head, "Merge for verification")
        if isinstance(merged, Conflict):
            return NothingToRun(base=base, conflicts=merged.files)
        if not self._config.verify:
            return NothingToRun(base=base)
        checkout = run_dir / "workspace"
        create_checkout(self._mirror, checkout, merged.commit)
        return Assignment(
            argv=self._sandbox.wrap(("sh", "-c", self._config.verify), checkout),
            env=self._sandbox.environment({"CALORON_ROLE": "verify"}),
            cwd=checkout,
            stdin="",
            limit_s=self._config.verify_timeout_s,
            base=base,
        )

    def _workspace(
        self, state: State, task: Task | None, work: Work, run_dir: Path
    ) -> tuple[str, str, tuple[str, ...]]:
        """Where the agent works: where it starts, what it merges in, and files in conflict."""
        main = self._mirror.fetch_main()
        start, merge = work.head or main, ""
        conflicts: tuple[str, ...] = ()
        if work.role == "resolve":
            merged = self._mirror.merge(main, start, "Merge for a look at conflicts")
            merge = main
            conflicts = merged.files if isinstance(merged, Conflict) else ()
        elif work.onto_main:
            merged = self._mirror.merge(main, start, f"Merge {state.sprint.main}", self.identity)
            start = start if isinstance(merged, Conflict) else merged.commit
        create_workspace(
            self._mirror,
            run_dir / "workspace",
            start=start,
            branch=task.branch if task else f"agent/po/{state.sprint.id}",
            merge=merge,
            identity=self.identity,
        )
        return start, merge, conflicts

    def _command(
        self,
        state: State,
        task: Task | None,
        work: Work,
        run_dir: Path,
        conflicts: tuple[str, ...],
    ) -> AgentCommand:
        framework = (task.plan.framework if task else "") or self._config.framework
        prompt = self._prompt(state, task, work, conflicts)
        return self._runner(framework).command(
            AgentRequest(
                role=work.role,
                task=task.id if task else "",
                prompt=prompt,
                workspace=run_dir / "workspace",
                run_dir=run_dir,
            )
        )

    def _prompt(
        self, state: State, task: Task | None, work: Work, conflicts: tuple[str, ...]
    ) -> str:
        nonce = secrets.token_hex(4)
        if task is None:
            return prompting.po(state.sprint.goal, state.sprint.plan_errors, nonce=nonce)
        plan: PlannedTask = task.plan
        told: dict[str, Any] = {
            "title": plan.title,
            "prompt": plan.agent_prompt,
            "acceptance": plan.acceptance,
            "nonce": nonce,
        }
        match work.role:
            case "review":
                diff = "" if task.empty else self._diff(work.head)
                return prompting.review(**told, diff=diff, verify_output=_log(work))
            case "fix":
                return prompting.fix(**told, reason=work.reason, verify_output=_log(work))
            case "resolve":
                return prompting.resolve(**told, files=conflicts)
            case "check":
                return prompting.check(**told)
            case _:
                return prompting.implement(**told, issue=task.issue or 0)

    def _diff(self, head: str) -> str:
        return self._mirror.diff(self._mirror.fetch_main(), head)

    def _environment(self, state: State, task: Task | None, work: Work) -> dict[str, str]:
        passed = {name: os.environ[name] for name in self._config.pass_env if name in os.environ}
        return passed | {
            "CALORON_ROLE": work.role,
            "CALORON_TASK_ID": task.id if task else "",
            "CALORON_SPRINT_ID": state.sprint.id,
            "CALORON_AGENT_ID": agent_of(task, work.role) if task else PLANNER,
            "CALORON_ROUND": str(work.round),
        }

    def _limit(self, role: Role) -> float:
        if role == "po":
            return self._config.po_timeout_s
        return self._config.timeout_s * _UNWATCHED


def _log(work: Work) -> str:
    """The end of the verification's log that this work is about."""
    if not work.log or not Path(work.log).exists():
        return ""
    with Path(work.log).open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _LOG_LIMIT))
        return file.read().decode("utf-8", "replace")
