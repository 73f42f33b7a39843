"""One evaluation in progress: a copy of the state, the time, and what has been decided so far."""

from __future__ import annotations

import msgspec

from caloron.domain import texts
from caloron.domain.actions import (
    Action,
    AddLabel,
    CancelWork,
    CloseIssue,
    CreateIssue,
    Moved,
    PostComment,
    RetryEffect,
    StartWork,
)
from caloron.domain.observations import BranchSeen, ReviewSeen, Snapshot
from caloron.domain.sprint import REVIEWER, Role, Sprint, State, Task, Work
from caloron.domain.status import Status, check_transition

_ROLE_BONUS = 5


class Turn:
    """Collects changes; the state it was made from is not touched."""

    def __init__(self, state: State, now: float) -> None:
        copy = msgspec.structs.replace
        self.state = copy(
            state,
            sprint=copy(state.sprint),
            tasks={i: copy(t) for i, t in state.tasks.items()},
            objects=dict(state.objects),
        )
        self.now = now
        self.actions: list[Action] = []
        self.moves: list[Moved] = []
        self._reviews: dict[int, list[ReviewSeen]] = {}
        self._reviews_from: dict[str, Snapshot] | None = None

    @property
    def sprint(self) -> Sprint:
        return self.state.sprint

    def main_commit(self) -> str:
        seen = self.state.objects.get(f"branch:{self.sprint.main}")
        return seen.commit if isinstance(seen, BranchSeen) else ""

    def reviews_of(self, pull: int) -> list[ReviewSeen]:
        """The reviews of a pull request; all are sorted once, not once for each that asks."""
        if self._reviews_from is not self.state.objects:
            self._reviews, self._reviews_from = {}, self.state.objects
            for seen in self.state.objects.values():
                if isinstance(seen, ReviewSeen):
                    self._reviews.setdefault(seen.pull, []).append(seen)
        return self._reviews.get(pull, [])

    def do(self, action: Action) -> None:
        self.actions.append(action)

    def move(self, task: Task, status: Status, reason: str = "") -> None:
        """Change a task's status, with the time and the reason; the same status is no move."""
        if status == task.status:
            task.reason = reason or task.reason
            return
        check_transition(task.id, task.status, status)
        self.moves.append(Moved(task=task.id, old=task.status, new=status, reason=reason))
        task.status, task.reason, task.changed_at = status, reason, self.now
        if status is Status.IN_PROGRESS and task.started_at is None:
            task.started_at = self.now
        if status is Status.DONE:
            task.completed_at = self.now

    def new_work(
        self,
        task: Task,
        role: Role,
        *,
        head: str = "",
        heads: tuple[str, ...] = (),
        reason: str = "",
        log: str = "",
    ) -> Work:
        """Work that has an item of its own but is not queued yet."""
        task.works += 1
        return Work(
            item=f"{self.sprint.id}/{task.id}/{task.works}-{role}",
            role=role,
            round=task.round,
            head=head,
            heads=heads,
            reason=reason,
            log=log,
            since=self.now,
        )

    def start(self, task: Task, work: Work, reason: str = "") -> None:
        """Queue work for a task; known work gets another attempt."""
        task.work = msgspec.structs.replace(work, since=self.now)
        task.intervened_at = 0.0
        bonus = 0 if work.role in ("implement", "check") else _ROLE_BONUS
        paused = self.sprint.paused.get(task.plan.framework or self.sprint.framework)
        self.do(
            StartWork(
                task=task.id,
                work=task.work,
                priority=task.chain * 10 + bonus,
                reason=reason,
                not_before=paused.until if paused and work.role != "verify" else 0.0,
            )
        )

    def stop_work(self, task: Task, reason: str) -> None:
        if task.work:
            self.do(CancelWork(item=task.work.item, reason=reason))
            task.work = None

    def comment(self, task: Task, purpose: str, cause: str, text: str) -> None:
        key = texts.comment_key(self.sprint.id, task.id, purpose, cause)
        if task.issue is not None:
            self.do(
                PostComment(
                    key=key, task=task.id, issue=task.issue, body=texts.comment_body(text, key)
                )
            )

    def complete(self, task: Task, reason: str, text: str) -> None:
        """The completion chain: Done, a label, a comment, the issue closed."""
        self.stop_work(task, reason)
        task.held, task.merging = None, ""
        self.move(task, Status.DONE, reason)
        if self.sprint.baseline == "red" and task.verified and task.verified.ok:
            # The merged result was green: from now on a red one is refused again.
            self.sprint.baseline = "green"
        if task.issue is None:
            return
        prefix = f"{self.sprint.id}/{task.id}"
        self.comment(task, "completed", "done", text)
        self.do(
            AddLabel(
                key=f"label/{prefix}/done", task=task.id, issue=task.issue, label="caloron:done"
            )
        )
        self.do(CloseIssue(key=f"close/{prefix}/done", task=task.id, issue=task.issue))
        self.close_escalation(task)

    def cancel(self, task: Task, reason: str, *, closed_by_person: bool) -> None:
        """Nobody wants the task any more."""
        self.stop_work(task, reason)
        task.merging, task.closed_by_person = "", closed_by_person
        task.landed, task.revert = "", None
        self.move(task, Status.CANCELLED, reason)

    def escalate(
        self, task: Task, reason: str, *, held: Work | None, effects: tuple[str, ...] = ()
    ) -> None:
        """Hand the task to a person: one issue per incident, and work that goes on afterwards."""
        task.held, task.held_effects = held, effects
        started = task.status in (Status.IN_PROGRESS, Status.IN_REVIEW)
        task.held_from = task.status if started else Status.PENDING
        task.work, task.merging = None, ""
        task.incident += 1
        task.escalation_issue = None
        task.heard = tuple(
            sorted(o for o in self.state.objects if o.startswith(("comment:", "review:")))
        )
        self.move(task, Status.ESCALATED, reason)
        self.do(
            CreateIssue(
                key=texts.escalation_key(self.sprint.id, task.id, task.incident),
                task=task.id,
                title=f"Escalation: {task.agent} — {reason}"[:200],
                body=texts.escalation_body(self.sprint, task, reason),
                labels=("caloron:escalated",),
            )
        )

    def release(self, task: Task, who: str) -> None:
        """A person says the cause is gone: counters start again and the held work goes on."""
        task.failures = task.interventions = task.restarts = task.stale_merges = 0
        task.rejected, task.waits = (), None
        held, task.held = task.held, None
        self.move(task, task.held_from, f"released by {who}")
        for key in task.held_effects:
            self.do(RetryEffect(key=key))
        task.held_effects = ()
        if held:
            self.start(task, msgspec.structs.replace(held, asks=1), f"released by {who}")
        self.close_escalation(task)

    def close_escalation(self, task: Task) -> None:
        if task.escalation_issue is not None:
            key = f"close/{self.sprint.id}/{task.id}/incident-{task.incident}"
            self.do(CloseIssue(key=key, task=task.id, issue=task.escalation_issue))


def agent_of(task: Task, role: Role) -> str:
    """Which agent does this work: the task's own, or the reviewer."""
    return REVIEWER if role == "review" else task.agent
