"""What an attempt came to: its commits, its answer, its cost; and nothing of it is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from caloron.agents import feedback
from caloron.agents.supervise.transcript import last_line
from caloron.agents.workspace.commits import SALVAGE_CAP_BYTES, HandOver, hand_over
from caloron.agents.workspace.workspaces import remove_workspace, unfinished
from caloron.answers import closing_words
from caloron.domain.model.facts import RunInterrupted, WorkEnded
from caloron.domain.model.feedback import Feedback
from caloron.domain.model.merge import Link
from caloron.domain.model.roles import ROLES, Role, WorkId
from caloron.domain.model.task import Work
from caloron.domain.model.usage import Usage, guess_usd
from caloron.engine.runs.prepare import sessions_of
from caloron.engine.runs.run_dirs import RunDirs, read_spec
from caloron.errors import CaloronError
from caloron.git.incoming import HandOverCancelled, SecretInCommits
from caloron.git.mirror import Mirror
from caloron.git.repository import printable_names
from caloron.ledger.work_queue import WorkQueue
from caloron.ports import AgentCli, AgentReport, Sandbox
from caloron.store import log
from caloron.store.redact import Redactor

_ANSWER_TAIL = 16_384
_PLAN_LIMIT = 1 << 20
#: The provider said no: the work goes on later where it is, so nothing is published.
_LATER = ("auth", "quota", "rate_limit")
#: How long a hand-over may last after a stop: enough for all but large files.
_LAST_S = 2.0


class MergeNotMade(CaloronError):
    """A resolve round whose result would be in conflict again, for ever."""


class NothingLeft(CaloronError):
    """A round after which the change has nothing that main has not."""


@dataclass(kw_only=True)
class AttemptCollector:
    """Reads the results of attempts, also of those that an earlier engine started."""

    queue: WorkQueue
    mirror: Mirror
    sandbox: Sandbox
    runs: RunDirs
    runner: Callable[[str], AgentCli]
    #: The author of commits.
    identity: tuple[str, str]
    #: Values that must appear nowhere; new ones are added while agents are started.
    secrets: dict[str, str]
    disk_mb: int
    #: Deletes workspaces.
    discard: Callable[[Path], None] = remove_workspace
    #: Once set, a long hand-over is given up; the next engine begins it again.
    stopping: threading.Event = field(default_factory=threading.Event)

    def ended(
        self, task: str, work: Work, token: int, result: dict[str, Any], started_at: int | None
    ) -> WorkEnded:
        """The fact for an attempt that came to its end."""
        run_dir = self.runs.of(work.item, token)
        spec = read_spec(run_dir)
        report, usage = self._report(spec, run_dir)
        seconds = time.time() - started_at / 1000 if started_at else 0.0
        conflicts: tuple[str, ...] = ()
        head = work.head or str(spec.get("base", ""))
        base = str(spec.get("base", ""))
        over = str(result.get("over", ""))
        if _is_unfinished(work.role, report.trouble, over):
            head = base
        elif ROLES[work.role].writes_code:
            head, conflicts = self._take_commits(task, work, token, spec, run_dir)
        return WorkEnded(
            item=work.item,
            task=task,
            role=work.role,
            token=token,
            exit_code=int(result.get("exit_code", 0)),
            timed_out=bool(result.get("timed_out", False)),
            last_line=_closing_words(report) or str(result.get("last_line", "")),
            limit_hit=over,
            answer=_answer(work.role, report.text),
            head=head,
            base=base,
            conflicts=conflicts,
            log=str(run_dir / "output.log") if work.role == "verify" else "",
            verify_command=str(spec.get("how", "")),
            main_author=self._author(base) if work.role == "verify" and not work.head else "",
            tree=str(spec.get("tree", "")),
            chain=tuple(Link(head, tree) for head, tree in spec.get("chain", ())),
            framework=str(spec.get("framework", "")),
            provider_error=report.trouble,
            provider_message=report.detail,
            reset_at=report.reset_at,
            stop_reason=report.stop_reason,
            session=report.session,
            usage=usage,
            feedback=_feedback(task, work.role, report, seconds),
        )

    def _author(self, commit: str) -> str:
        """Who made a commit, as far as that is known here."""
        newest = self.mirror.log(commit, 1) if commit and self.mirror.has(commit) else []
        return " ".join(newest[0][2].split())[:60] if newest else ""

    def said_last(self, item: str, token: int) -> str:
        """The closing words of an attempt that was lost, as far as it got."""
        run_dir = self.runs.of(item, token)
        spec = read_spec(run_dir)
        if not spec.get("framework"):
            log = run_dir / "output.log"
            return last_line(log) if log.exists() else ""
        return _closing_words(self._report(spec, run_dir)[0])

    def interrupted(self, item: str, token: int) -> RunInterrupted | None:
        """The fact for an attempt that was cut short: what it cost, and its conversation.

        None: it used nothing that anybody counts.
        """
        run_dir = self.runs.of(item, token)
        report, usage = self._report(read_spec(run_dir), run_dir)
        if usage is None or not (usage.usd or usage.tokens_in or report.session):
            return None
        work = WorkId.parse(item)
        return RunInterrupted(
            item=item,
            task=work.planned_task,
            token=token,
            usage=usage,
            session=report.session if work.spec.writes_code else "",
        )

    def finish(self, fact: WorkEnded) -> None:
        """Remove the workspace of an attempt whose end was recorded; save what is not published."""
        if _is_unfinished(fact.role, fact.provider_error, fact.limit_hit):
            self.save_and_remove(fact.item, fact.token)
        else:
            self.remove(fact.item, fact.token)

    def save_and_remove(self, item: str, token: int) -> None:
        """Never lose an agent's work: what is in the workspace goes to a salvage ref first."""
        run_dir = self.runs.of(item, token)
        workspace, spec = run_dir / "workspace", read_spec(run_dir)
        self.discard(unfinished(workspace))
        if workspace.exists() and WorkId.parse(item).spec.writes_code:
            handed_over = self.mirror.has(f"refs/caloron/work/{item}/{token}")
            try:
                kept = spec.get("base") and not handed_over and not self._salvage(item, token, spec)
            except HandOverCancelled as error:
                log.debug("work is saved by the next engine", error=error, item=item)
                kept = True
            if kept:
                remove_workspace(run_dir / "home")
                return
        self.remove(item, token)

    def remove(self, item: str, token: int) -> None:
        """The workspace and the private home of an attempt, with the credential in it."""
        run_dir = self.runs.of(item, token)
        # At once: a credential does not wait for a background thread.
        remove_workspace(run_dir / "home")
        self.discard(run_dir / "workspace")
        self.discard(unfinished(run_dir / "workspace"))

    def _salvage(self, item: str, token: int, spec: dict[str, Any]) -> bool:
        """Save uncommitted and unpublished work under a ref; False if that was not possible."""
        run_dir, ref = self.runs.of(item, token), f"refs/salvage/{item}/{token}"
        workspace, base, task = run_dir / "workspace", spec["base"], WorkId.parse(item).task
        if not workspace.exists():
            return True
        work = HandOver(
            workspace=workspace,
            base=base,
            main=self.mirror.newest_main(),
            message="Work saved from an attempt that did not end\n",
            identity=self.identity,
            leave_out=spec.get("products", ()),
            secrets=self.secrets,
            ref=ref,
            bundle=run_dir / "work.salvage",
            cap_bytes=SALVAGE_CAP_BYTES,
            disk_mb=self.disk_mb,
            cancelled=self._cancelled(),
        )
        try:
            commit = hand_over(work, self.sandbox, self.mirror)
        except HandOverCancelled:
            raise
        except SecretInCommits as error:
            # A key must not stay on the disk; the task starts again without this work.
            log.warning("work with a secret in it is dropped", error=error, item=item, task=task)
            self.queue.note("work_dropped", item, {"why": str(error)})
            return True
        except CaloronError as error:
            log.warning("cannot save the work of an attempt", error=error, item=item, task=task)
            self.queue.note("salvage_failed", item, {"kept": str(workspace), "why": str(error)})
            return False
        if commit != base:
            self.queue.note("work_salvaged", item, {"ref": ref, "commit": commit})
        return True

    def _cancelled(self) -> Callable[[], bool]:
        """Whether one hand-over has lasted too long since the stop, or since it began after it."""
        seen_at: list[float] = []

        def cancelled() -> bool:
            if self.stopping.is_set() and not seen_at:
                seen_at.append(time.monotonic())
            return bool(seen_at) and time.monotonic() - seen_at[0] > _LAST_S

        return cancelled

    def _report(self, spec: dict[str, Any], run_dir: Path) -> tuple[AgentReport, Usage | None]:
        """What the agent told about its run; its conversation is kept for the next one."""
        framework = spec.get("framework")
        if not framework:
            return AgentReport(), None
        runner = self.runner(framework)
        report = self._cleaned(runner.read_report(run_dir))
        # An agent can read its own key, and a conversation holds all that it ever read.
        clean = Redactor(self.secrets).data
        kept = report.session and runner.save_session(
            run_dir / "home", sessions_of(run_dir), report.session, clean
        )
        if not kept:
            report = msgspec.structs.replace(report, session="")
        cost = report.cost_usd
        if cost is None and runner.info.reports_cost:
            cap = spec.get("budget_usd") or float("inf")
            # A guess that is too high is safer for the budget: cache reads are not free.
            cost = guess_usd(report.tokens_in + report.tokens_cached, report.tokens_out, cap)
        usage = Usage(
            usd=cost or 0.0,
            estimated=report.cost_usd is None and bool(cost),
            tokens_in=report.tokens_in,
            tokens_out=report.tokens_out,
            turns=report.turns,
            tools=report.tools,
            model=report.model,
        )
        return report, usage

    def _cleaned(self, report: AgentReport) -> AgentReport:
        """The report without keys: only what the agent printed was looked through before."""
        clean = Redactor(self.secrets).text
        return msgspec.structs.replace(
            report,
            text=clean(report.text),
            session=clean(report.session),
            model=clean(report.model),
            stop_reason=clean(report.stop_reason),
            detail=clean(report.detail),
        )

    def _take_commits(
        self, task: str, work: Work, token: int, spec: dict[str, Any], run_dir: Path
    ) -> tuple[str, tuple[str, ...]]:
        """Commit what the agent left, and bring its commits into our own repository."""
        base, main = spec["base"], self.mirror.newest_main()
        title = self.queue.ledger.state(self.queue.sprint).tasks[task].plan.title
        what = title if work.role == "implement" else f"{title} ({work.role})"
        agent = f"caloron-agent-{task}"
        handed_over = HandOver(
            workspace=run_dir / "workspace",
            base=base,
            main=main,
            message=f"{what}\n\nTask: {task}\nAgent: {agent}\n",
            identity=self.identity,
            agent=agent,
            leave_out=spec.get("products", ()),
            secrets=self.secrets,
            ref=f"refs/caloron/work/{work.item}/{token}",
            bundle=run_dir / "work.bundle",
            disk_mb=self.disk_mb,
            cancelled=self._cancelled(),
        )
        head = hand_over(handed_over, self.sandbox, self.mirror)
        left = self.mirror.conflict_markers(head, tuple(spec.get("conflicts", ())))
        if left:
            return work.head, printable_names(left)
        merged = spec.get("merges", "")
        if merged and not self.mirror.is_ancestor(merged, head):
            raise MergeNotMade(f"the {work.role} round of {task} did not merge main in")
        if head != base and self.mirror.brings_nothing(main, head):
            if work.role != "implement":
                raise NothingLeft(f"the {work.role} round leaves nothing of the change of {task}")
            head = base
        return head, ()


def _is_unfinished(role: Role, trouble: str, over: str) -> bool:
    """Whether an agent ended before its change was whole: that is saved, and not published."""
    return ROLES[role].writes_code and (trouble in _LATER or bool(over))


def _closing_words(report: AgentReport) -> str:
    """The last line that the agent wrote for people, outside of its feedback or in it."""
    if words := closing_words(report.text):
        return words
    said = feedback.parse(report.text)
    return closing_words(said.notes) if said else ""


def _answer(role: Role, text: str) -> str:
    if ROLES[role].of_sprint:
        return text[:_PLAN_LIMIT]
    return text[-_ANSWER_TAIL:]


def _feedback(task: str, role: Role, report: AgentReport, seconds: float) -> Feedback | None:
    """Return the feedback of a task's own agent, with the numbers that we measured."""
    spec = ROLES[role]
    own_agent = bool(task) and spec.needs_agent and not spec.shared_agent
    said = feedback.parse(report.text) if own_agent else None
    if said is None:
        return None
    return msgspec.structs.replace(
        said,
        task_id=task,
        agent_role="developer" if role != "check" else "checker",
        tools_used=said.tools_used or tuple(sorted(report.tools)),
        tokens_consumed=report.tokens_in + report.tokens_out,
        time_to_complete_min=max(1, int(seconds // 60)),
    )
