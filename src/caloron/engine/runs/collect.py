"""Collects the commits, the answer and the cost of attempts, and saves unfinished work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from caloron.agents import feedback
from caloron.agents.workspace.commits import SALVAGE_CAP_BYTES, HandOver, hand_over
from caloron.agents.workspace.workspaces import remove_workspace, unfinished
from caloron.answers import closing_words, description
from caloron.domain.model.facts import PROVIDER_REFUSALS, RunInterrupted, WorkEnded
from caloron.domain.model.feedback import Feedback
from caloron.domain.model.roles import ROLES, Role, WorkId
from caloron.domain.model.task import Work
from caloron.domain.model.usage import Usage, guess_usd
from caloron.domain.reporting.forge_texts import commit_trailers
from caloron.engine.runs.prepare import sessions_of
from caloron.engine.runs.run_dirs import AttemptRecord, RunDirs, read_record
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
#: How long a hand-over may last after a stop: enough for all but large files.
_HAND_OVER_S = 2.0


class MergeNotMade(CaloronError):
    """A resolve round whose result would be in conflict again, for ever."""


class NothingLeft(CaloronError):
    """A round after which main already contains the whole change."""


@dataclass(kw_only=True)
class AttemptCollector:
    """Reads the results of attempts, also of attempts that an earlier engine started."""

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
    discard: Callable[[Path], None]
    #: Once set, a long hand-over is cancelled; the next engine begins it again.
    stopping: threading.Event

    def ended(
        self, task: str, work: Work, token: int, result: dict[str, Any], started_at: int | None
    ) -> WorkEnded:
        """Return the fact for an attempt that ended."""
        run_dir = self.runs.of(work.item, token)
        record = read_record(run_dir)
        report, usage = self._report(record, run_dir)
        seconds = time.time() - started_at / 1000 if started_at else 0.0
        conflicts: tuple[str, ...] = ()
        head = work.head or record.base
        over = str(result.get("over", ""))
        if _is_unfinished(work.role, report.trouble, over):
            head = record.base
        elif ROLES[work.role].writes_code:
            head, conflicts = self._take_commits(task, work, token, record, run_dir)
        is_verification = work.role == "verify"
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
            summary=_summary(work.role, report),
            comments=record.comments,
            head=head,
            base=record.base,
            conflicts=conflicts,
            log=str(run_dir / "output.log") if is_verification else "",
            verify_command=record.how,
            main_author=self._author(record.base) if is_verification and not work.head else "",
            tree=record.tree,
            chain=record.links,
            framework=record.framework,
            provider_error=report.trouble,
            provider_message=report.detail,
            reset_at=report.reset_at,
            stop_reason=report.stop_reason,
            session=report.session,
            usage=usage,
            feedback=_feedback(task, work.role, report, seconds),
        )

    def _author(self, commit: str) -> str:
        """Return the author of a commit; empty if our own repository does not have it."""
        newest = self.mirror.log(commit, 1) if commit and self.mirror.has(commit) else []
        return " ".join(newest[0][2].split())[:60] if newest else ""

    def last_words(self, item: str, token: int) -> str:
        """Return the last line of an attempt that was lost."""
        run_dir = self.runs.of(item, token)
        record = read_record(run_dir)
        if not record.framework:
            from caloron.agents.supervise.transcript import last_line

            output = run_dir / "output.log"
            return last_line(output) if output.exists() else ""
        return _closing_words(self._report(record, run_dir)[0])

    def interrupted(self, item: str, token: int) -> RunInterrupted | None:
        """Return the cost and the conversation of an attempt that was cut short; None: no cost."""
        run_dir = self.runs.of(item, token)
        report, usage = self._report(read_record(run_dir), run_dir)
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
        """Remove the workspace of an attempt whose end was recorded; save unfinished work."""
        if _is_unfinished(fact.role, fact.provider_error, fact.limit_hit):
            self.save_and_remove(fact.item, fact.token)
        else:
            self.remove(fact.item, fact.token)

    def save_and_remove(self, item: str, token: int) -> None:
        """Save the work in the workspace of an attempt to a salvage ref, then remove it."""
        run_dir = self.runs.of(item, token)
        workspace, record = run_dir / "workspace", read_record(run_dir)
        self.discard(unfinished(workspace))
        if workspace.exists() and WorkId.parse(item).spec.writes_code:
            handed_over = self.mirror.has(f"refs/caloron/work/{item}/{token}")
            if record.base and not handed_over and not self._salvage(item, token, record):
                remove_workspace(run_dir / "home")
                return
        self.remove(item, token)

    def remove(self, item: str, token: int) -> None:
        """Remove the workspace and the private home of an attempt, with the credential in it."""
        run_dir = self.runs.of(item, token)
        # At once: a credential does not wait for a background thread.
        remove_workspace(run_dir / "home")
        self.discard(run_dir / "workspace")
        self.discard(unfinished(run_dir / "workspace"))

    def _salvage(self, item: str, token: int, record: AttemptRecord) -> bool:
        """Save uncommitted and unpublished work under a ref; False: its workspace must stay."""
        run_dir, ref = self.runs.of(item, token), f"refs/salvage/{item}/{token}"
        task = WorkId.parse(item).task
        work = HandOver(
            workspace=run_dir / "workspace",
            message="Work saved from an attempt that did not end\n",
            ref=ref,
            bundle=run_dir / "work.salvage",
            cap_bytes=SALVAGE_CAP_BYTES,
        )
        try:
            commit = self._hand_over(work, record)
        except HandOverCancelled as error:
            log.debug("work is saved by the next engine", error=error, item=item)
            return False
        except SecretInCommits as error:
            # A key must not stay on the disk; the task starts again without this work.
            log.warning("work with a secret in it is dropped", error=error, item=item, task=task)
            self.queue.note("work_dropped", item, {"why": str(error)})
            return True
        except CaloronError as error:
            log.warning("cannot save the work of an attempt", error=error, item=item, task=task)
            kept = {"kept": str(work.workspace), "why": str(error)}
            self.queue.note("salvage_failed", item, kept)
            return False
        if commit != record.base:
            self.queue.note("work_salvaged", item, {"ref": ref, "commit": commit})
        return True

    def _hand_over(self, work: HandOver, record: AttemptRecord) -> str:
        """Fetch work into our own repository, within the limits of the project."""
        work = msgspec.structs.replace(
            work,
            base=record.base,
            main=self.mirror.newest_main(),
            identity=self.identity,
            leave_out=record.products,
            secrets=self.secrets,
            disk_mb=self.disk_mb,
            cancelled=self._cancelled(),
        )
        return hand_over(work, self.sandbox, self.mirror)

    def _cancelled(self) -> Callable[[], bool]:
        """Return a check that gives a hand-over up some time after the engine has to stop."""
        deadline: list[float] = []

        def cancelled() -> bool:
            if self.stopping.is_set() and not deadline:
                deadline.append(time.monotonic() + _HAND_OVER_S)
            return bool(deadline) and time.monotonic() > deadline[0]

        return cancelled

    def _report(self, record: AttemptRecord, run_dir: Path) -> tuple[AgentReport, Usage | None]:
        """Read the agent's report, and keep its conversation for the next attempt."""
        if not record.framework:
            return AgentReport(), None
        runner = self.runner(record.framework)
        report = self._cleaned(runner.read_report(run_dir))
        # An agent can read its own key, and a conversation contains everything it read.
        clean = Redactor(self.secrets).data
        kept = report.session and runner.save_session(
            run_dir / "home", sessions_of(run_dir), report.session, clean
        )
        if not kept:
            report = msgspec.structs.replace(report, session="")
        cost = report.cost_usd
        if cost is None and runner.info.reports_cost:
            cap = record.budget_usd or float("inf")
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
        """Remove keys from the report: until now only the printed output was redacted."""
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
        self, task: str, work: Work, token: int, record: AttemptRecord, run_dir: Path
    ) -> tuple[str, tuple[str, ...]]:
        """Commit the files that the agent left, and fetch its commits into our own repository."""
        title = self.queue.ledger.state(self.queue.sprint).tasks[task].plan.title
        what = title if work.role == "implement" else f"{title} ({work.role})"
        agent = f"caloron-agent-{task}"
        handed_over = HandOver(
            workspace=run_dir / "workspace",
            message=f"{what}\n\n{commit_trailers(task)}\n",
            agent=agent,
            ref=f"refs/caloron/work/{work.item}/{token}",
            bundle=run_dir / "work.bundle",
        )
        head = self._hand_over(handed_over, record)
        left = self.mirror.conflict_markers(head, record.conflicts)
        if left:
            return work.head, printable_names(left)
        if record.merges and not self.mirror.is_ancestor(record.merges, head):
            raise MergeNotMade(f"the {work.role} round of {task} did not merge main in")
        if head != record.base and self.mirror.brings_nothing(self.mirror.newest_main(), head):
            if work.role != "implement":
                raise NothingLeft(f"the {work.role} round leaves nothing of the change of {task}")
            head = record.base
        return head, ()


def _is_unfinished(role: Role, trouble: str, over: str) -> bool:
    """True if an agent ended before its change was complete: it is saved and not published."""
    return ROLES[role].writes_code and (trouble in PROVIDER_REFUSALS or bool(over))


def _closing_words(report: AgentReport) -> str:
    """Return the agent's last line for people, outside of its feedback or in it."""
    if words := closing_words(report.text):
        return words
    parsed = feedback.parse(report.text)
    return closing_words(parsed.notes) if parsed else ""


def _summary(role: Role, report: AgentReport) -> str:
    """Return the description of a change by its agent, at least the notes of its feedback."""
    if not ROLES[role].writes_code:
        return ""
    if text := description(report.text):
        return text
    parsed = feedback.parse(report.text)
    return parsed.notes if parsed else ""


def _answer(role: Role, text: str) -> str:
    if ROLES[role].of_sprint:
        return text[:_PLAN_LIMIT]
    return text[-_ANSWER_TAIL:]


def _feedback(task: str, role: Role, report: AgentReport, seconds: float) -> Feedback | None:
    """Return the feedback of a task's own agent, with the numbers that we measured."""
    spec = ROLES[role]
    own_agent = bool(task) and spec.needs_agent and not spec.shared_agent
    parsed = feedback.parse(report.text) if own_agent else None
    if parsed is None:
        return None
    return msgspec.structs.replace(
        parsed,
        task_id=task,
        agent_role="developer" if role != "check" else "checker",
        tools_used=parsed.tools_used or tuple(sorted(report.tools)),
        tokens_consumed=report.tokens_in + report.tokens_out,
        time_to_complete_min=max(1, int(seconds // 60)),
    )
