"""The stateless protocol of `sprint_tick_core`, for hosts that keep their own state and agents.

A record is a task as the tick file stores it; an event is one change on a forge. There is no queue,
no verification and no journal: the answer lists actions, and the host performs them. Sprints of
Caloron itself go through `evaluate`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from caloron.domain.model.snapshots import (
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    Snapshot,
    marker_key,
)
from caloron.domain.model.status import Status

TASK_LABEL = "caloron:task"
_LADDER = ("probe", "restart", "escalate_human")

Moment = str | float | None
ActionData = dict[str, Any]


class TaskRecord(msgspec.Struct, kw_only=True):
    """A task as the tick's file has it."""

    title: str = ""
    status: Status = Status.PENDING
    depends_on: tuple[str, ...] = ()
    agent_id: str = ""
    reviewer_id: str = ""
    agent_prompt: str = ""
    issue_number: int | None = None
    pr_number: int | None = None
    started_at: Moment = None
    completed_at: Moment = None
    intervention_count: int = 0
    #: The commit that was last handed in, where the event action_summary it.
    pr_head: str = ""
    #: The last review that was taken in, and whether a merge follows from it.
    review: int = 0
    approved: bool = False


class ForgeEvent(msgspec.Struct, kw_only=True, frozen=True):
    """One thing that happened; what an event does not tell is left out."""

    type: str
    issue_number: int | None = None
    labels: tuple[str, ...] = ()
    pr_number: int | None = None
    linked_issue: int | None = None
    review_state: str = ""
    #: The task whose marker the object carries.
    task_id: str = ""
    head: str = ""
    review: int = 0


def event_of_snapshot(seen: Snapshot) -> ForgeEvent | None:
    """What a picture of a forge's object says happened; None: nothing that counts here."""
    match seen:
        case IssueSnapshot(state="open"):
            task = marker_key(seen.body).rpartition("/")[2]
            return ForgeEvent(
                type="issue_opened", issue_number=seen.number, labels=seen.labels, task_id=task
            )
        case PullSnapshot():
            kind = {"open": "pr_opened", "merged": "pr_merged", "closed": "pr_closed"}[seen.state]
            linked = seen.closes[0] if seen.closes else None
            return ForgeEvent(type=kind, pr_number=seen.number, linked_issue=linked, head=seen.head)
        case ReviewSnapshot(trusted=True):
            return ForgeEvent(
                type="pr_review_submitted",
                pr_number=seen.pull,
                review_state=seen.verdict,
                review=abs(seen.id),
            )
    return None


def evaluate_stateless(
    tasks: dict[str, TaskRecord], events: Iterable[ForgeEvent], now: float, stall_s: float
) -> tuple[dict[str, TaskRecord], list[ActionData]]:
    """The records after these events, and what is to be done; the given ones are not changed."""
    evaluation = _Evaluation(
        {name: msgspec.structs.replace(task) for name, task in tasks.items()}, now
    )
    # Also before: an issue that is seen in the first tick must find its task ready.
    evaluation.unblock()
    for event in events:
        evaluation.take_in(event)
    evaluation.unblock()
    evaluation.watch(stall_s)
    return evaluation.tasks, evaluation.deeds


class _Evaluation:
    def __init__(self, tasks: dict[str, TaskRecord], now: float) -> None:
        self.tasks = tasks
        self.now = now
        self.deeds: list[ActionData] = []

    def take_in(self, event: ForgeEvent) -> None:
        match event.type:
            case "issue_opened":
                self._issue(event)
            case "pr_opened":
                self._opened(event)
            case "pr_review_submitted":
                self._reviewed(event)
            case "pr_merged":
                self._merged(event)
            case "pr_closed":
                self._closed(event)

    def unblock(self) -> None:
        for task in self.tasks.values():
            needs = [self.tasks.get(name) for name in task.depends_on]
            done = all(need is not None and need.status is Status.DONE for need in needs)
            if task.status is Status.PENDING and done:
                task.status = Status.READY

    def watch(self, stall_s: float) -> None:
        """Each further step wants as much silence again: not one with every tick."""
        for name, task in self.tasks.items():
            started = task.started_at
            if task.status is not Status.IN_PROGRESS or not isinstance(started, int | float):
                continue
            count = task.intervention_count
            if self.now - started > stall_s * (count + 1):
                step = _LADDER[min(count, len(_LADDER) - 1)]
                silent = f"no news for {(self.now - started) / 60:.0f} min"
                self._tell(
                    "escalate", name, agent_id=_agent(name, task), reason=silent, action=step
                )
                task.intervention_count += 1

    def _issue(self, event: ForgeEvent) -> None:
        known = any(task.issue_number == event.issue_number for task in self.tasks.values())
        if TASK_LABEL not in event.labels or event.issue_number is None or known:
            return
        free = {
            name: task
            for name, task in self.tasks.items()
            if task.status is Status.READY and task.issue_number is None
        }
        # By its marker; an issue without one is for the first that waits.
        name = event.task_id if event.task_id in free else next(iter(free), "")
        if not free or (event.task_id in self.tasks and name != event.task_id):
            return
        task = free[name]
        task.issue_number = event.issue_number
        self._go_on(task, Status.IN_PROGRESS)
        self._tell(
            "spawn_agent", name, agent_id=_agent(name, task), issue_number=event.issue_number
        )

    def _opened(self, event: ForgeEvent) -> None:
        name, task = self._of_pull(event)
        if task is None or task.status is not Status.IN_PROGRESS:
            return
        again = task.pr_number == event.pr_number and task.pr_head == event.head
        if again:
            # The same commit as before: it was sent back, and nothing was handed in since.
            return
        task.pr_number, task.pr_head, task.approved = event.pr_number, event.head, False
        self._go_on(task, Status.IN_REVIEW)
        self._tell(
            "submit_pr_for_review", name, pr_number=event.pr_number, reviewer_id=task.reviewer_id
        )

    def _reviewed(self, event: ForgeEvent) -> None:
        name, task = self._of_pull(event)
        old = event.review and task is not None and event.review <= task.review
        if task is None or old or task.status not in (Status.IN_REVIEW, Status.IN_PROGRESS):
            return
        task.review = event.review or task.review
        if event.review_state == "approved" and not task.approved:
            task.approved = True
            self._tell("merge_pr", name, pr_number=task.pr_number, issue_number=task.issue_number)
        elif event.review_state == "changes_requested" and task.status is Status.IN_REVIEW:
            task.approved = False
            self._go_on(task, Status.IN_PROGRESS)
            self._notify(name, task, f"changes were requested on pull request #{task.pr_number}")

    def _merged(self, event: ForgeEvent) -> None:
        name, task = self._of_pull(event)
        if task is None or task.status in (Status.DONE, Status.CANCELLED):
            return
        task.status, task.completed_at = Status.DONE, self.now
        task.pr_number, task.intervention_count = event.pr_number, 0
        self._tell("mark_done", name, issue_number=task.issue_number, pr_number=event.pr_number)

    def _closed(self, event: ForgeEvent) -> None:
        name, task = self._of_pull(event)
        working = task is not None and task.status in (Status.IN_REVIEW, Status.IN_PROGRESS)
        if task is None or not working or task.pr_number != event.pr_number:
            return
        task.pr_number, task.pr_head, task.approved = None, "", False
        self._go_on(task, Status.IN_PROGRESS)
        self._notify(name, task, f"pull request #{event.pr_number} was closed: work on it again")

    def _of_pull(self, event: ForgeEvent) -> tuple[str, TaskRecord | None]:
        """By the pull request's number, or by the issue that it closes; nothing is not a number."""
        for name, task in self.tasks.items():
            if event.pr_number is not None and task.pr_number == event.pr_number:
                return name, task
        for name, task in self.tasks.items():
            if event.linked_issue is not None and task.issue_number == event.linked_issue:
                return name, task
        return "", None

    def _go_on(
        self, task: TaskRecord, status: Literal[Status.IN_PROGRESS, Status.IN_REVIEW]
    ) -> None:
        """Something happened, so whoever was silent is forgiven."""
        task.status, task.started_at, task.intervention_count = status, self.now, 0

    def _notify(self, name: str, task: TaskRecord, message: str) -> None:
        self._tell("notify_agent", name, agent_id=_agent(name, task), message=message)

    def _tell(self, kind: str, task: str, **what: Any) -> None:
        self.deeds.append({"type": kind, "task_id": task, **what})


def _agent(name: str, task: TaskRecord) -> str:
    return task.agent_id or name


def action_summary(deed: ActionData) -> str:
    """A deed in one short line, as ticks have always action_summary them."""
    agent, reason = deed.get("agent_id", ""), deed.get("reason", "")
    match deed.get("type"):
        case "spawn_agent":
            return f"spawn:{agent}"
        case "merge_pr":
            return f"merge:PR#{deed['pr_number']}"
        case "mark_done":
            return f"done:#{deed['issue_number']}"
        case "submit_pr_for_review":
            return f"review:PR#{deed['pr_number']}"
        case "notify_agent":
            return f"notify:{agent}"
    step = deed.get("action", "escalate_human")
    if step == "probe":
        return f"probe:{agent} ({reason})"
    return f"{'escalate' if step == 'escalate_human' else step}:{agent}"
