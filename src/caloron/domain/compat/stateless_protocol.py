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
    """A task in the form of the tick's file."""

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
    #: The commit that was last submitted, if the event had it.
    pr_head: str = ""
    #: The last review that was handled, and whether it was an approval.
    review: int = 0
    approved: bool = False


class ForgeEvent(msgspec.Struct, kw_only=True, frozen=True):
    """A change on the forge; fields that its host does not know keep their defaults."""

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
    """Return the event that a snapshot shows; None: it is none of this protocol."""
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
    """Return changed copies of the records, and the actions that follow from the events."""
    evaluation = _Evaluation(
        {name: msgspec.structs.replace(task) for name, task in tasks.items()}, now
    )
    # Also before the events: an issue of the first tick must find its task ready.
    evaluation.unblock()
    for event in events:
        evaluation.take_in(event)
    evaluation.unblock()
    evaluation.watch(stall_s)
    return evaluation.tasks, evaluation.actions


class _Evaluation:
    def __init__(self, tasks: dict[str, TaskRecord], now: float) -> None:
        self.tasks = tasks
        self.now = now
        self.actions: list[ActionData] = []

    def take_in(self, event: ForgeEvent) -> None:
        if event.type == "issue_opened":
            self._issue_opened(event)
            return
        name, task = self._of_pull(event)
        if task is None:
            return
        match event.type:
            case "pr_opened":
                self._opened(name, task, event)
            case "pr_review_submitted":
                self._reviewed(name, task, event)
            case "pr_merged":
                self._merged(name, task, event)
            case "pr_closed":
                self._closed(name, task, event)

    def unblock(self) -> None:
        for task in self.tasks.values():
            needs = [self.tasks.get(name) for name in task.depends_on]
            done = all(need is not None and need.status is Status.DONE for need in needs)
            if task.status is Status.PENDING and done:
                task.status = Status.READY

    def watch(self, stall_s: float) -> None:
        """Take the next step for silent agents, after as much silence again for each step."""
        for name, task in self.tasks.items():
            started, count = task.started_at, task.intervention_count
            if task.status is not Status.IN_PROGRESS or not isinstance(started, int | float):
                continue
            if self.now - started > stall_s * (count + 1):
                step = _LADDER[min(count, len(_LADDER) - 1)]
                silent = f"no news for {(self.now - started) / 60:.0f} min"
                agent = _agent(name, task)
                self._emit("escalate", name, agent_id=agent, reason=silent, action=step)
                task.intervention_count += 1

    def _issue_opened(self, event: ForgeEvent) -> None:
        known = any(task.issue_number == event.issue_number for task in self.tasks.values())
        if TASK_LABEL not in event.labels or event.issue_number is None or known:
            return
        free = {
            name: task
            for name, task in self.tasks.items()
            if task.status is Status.READY and task.issue_number is None
        }
        # An issue without our marker is for the first task that waits.
        name = event.task_id if event.task_id in free else next(iter(free), "")
        if not free or (event.task_id in self.tasks and name != event.task_id):
            return
        task, number = free[name], event.issue_number
        task.issue_number = number
        self._move(task, Status.IN_PROGRESS)
        self._emit("spawn_agent", name, agent_id=_agent(name, task), issue_number=number)

    def _opened(self, name: str, task: TaskRecord, event: ForgeEvent) -> None:
        unchanged = task.pr_number == event.pr_number and task.pr_head == event.head
        # The same commit as before was sent back, and waits for another one.
        if task.status is Status.IN_PROGRESS and not unchanged:
            number, reviewer = event.pr_number, task.reviewer_id
            task.pr_number, task.pr_head, task.approved = number, event.head, False
            self._move(task, Status.IN_REVIEW)
            self._emit("submit_pr_for_review", name, pr_number=number, reviewer_id=reviewer)

    def _reviewed(self, name: str, task: TaskRecord, event: ForgeEvent) -> None:
        old = event.review and event.review <= task.review
        if old or task.status not in (Status.IN_REVIEW, Status.IN_PROGRESS):
            return
        task.review = event.review or task.review
        if event.review_state == "approved" and not task.approved:
            task.approved = True
            self._emit("merge_pr", name, pr_number=task.pr_number, issue_number=task.issue_number)
        elif event.review_state == "changes_requested" and task.status is Status.IN_REVIEW:
            task.approved = False
            self._send_back(name, task, f"changes were requested on pull request #{task.pr_number}")

    def _merged(self, name: str, task: TaskRecord, event: ForgeEvent) -> None:
        if task.status not in (Status.DONE, Status.CANCELLED):
            task.status, task.completed_at = Status.DONE, self.now
            task.pr_number, task.intervention_count = event.pr_number, 0
            number = task.issue_number
            self._emit("mark_done", name, issue_number=number, pr_number=event.pr_number)

    def _closed(self, name: str, task: TaskRecord, event: ForgeEvent) -> None:
        working = task.status in (Status.IN_REVIEW, Status.IN_PROGRESS)
        if working and task.pr_number == event.pr_number:
            task.pr_number, task.pr_head, task.approved = None, "", False
            message = f"pull request #{event.pr_number} was closed: work on it again"
            self._send_back(name, task, message)

    def _of_pull(self, event: ForgeEvent) -> tuple[str, TaskRecord | None]:
        """Find the task by the pull request's number, or by the issue that it closes."""
        for name, task in self.tasks.items():
            if event.pr_number is not None and task.pr_number == event.pr_number:
                return name, task
        for name, task in self.tasks.items():
            if event.linked_issue is not None and task.issue_number == event.linked_issue:
                return name, task
        return "", None

    def _move(
        self, task: TaskRecord, status: Literal[Status.IN_PROGRESS, Status.IN_REVIEW]
    ) -> None:
        """Set the status, and forgive an agent that was silent before."""
        task.status, task.started_at, task.intervention_count = status, self.now, 0

    def _send_back(self, name: str, task: TaskRecord, message: str) -> None:
        self._move(task, Status.IN_PROGRESS)
        self._emit("notify_agent", name, agent_id=_agent(name, task), message=message)

    def _emit(self, kind: str, task: str, **fields: Any) -> None:
        self.actions.append({"type": kind, "task_id": task, **fields})


def _agent(name: str, task: TaskRecord) -> str:
    return task.agent_id or name


_SUMMARIES = {
    "spawn_agent": "spawn:{agent_id}",
    "merge_pr": "merge:PR#{pr_number}",
    "mark_done": "done:#{issue_number}",
    "submit_pr_for_review": "review:PR#{pr_number}",
    "notify_agent": "notify:{agent_id}",
    "probe": "probe:{agent_id} ({reason})",
    "escalate_human": "escalate:{agent_id}",
}


def action_summary(action: ActionData) -> str:
    """Return an action in one short line, in the form of the original's ticks."""
    step = action.get("action", "escalate_human")
    form = _SUMMARIES.get(action.get("type", "")) or _SUMMARIES.get(step, "{action}:{agent_id}")
    return form.format_map({"agent_id": "", "reason": ""} | action)
