"""One evaluation in progress: a copy of the state, the time, and what has been decided so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Concatenate, ParamSpec

import msgspec

from caloron.domain import breadcrumbs, texts
from caloron.domain.actions import (
    Action,
    AddLabel,
    CancelWork,
    CloseIssue,
    CreateIssue,
    Effect,
    Moved,
    PostComment,
    RetryEffect,
    StartWork,
)
from caloron.domain.observations import CommentSeen, IssueSeen, ReviewSeen, Snapshot
from caloron.domain.sprint import REVIEWER, Role, Sprint, State, Task, Work, main_commit, pull_of
from caloron.domain.status import IllegalPhase, IllegalTransition, Status, check_transition

#: Finish before starting: what brings a begun change to main goes first, then the longest chain.
_RANK: dict[Role, int] = {"verify": 3000, "review": 3000, "resolve": 2000, "fix": 2000}
_MOST_ACTS = 1000
_P = ParamSpec("_P")


class RuleFailed(Exception):
    """A rule raised an error that concerns one task, or the sprint if it names none."""

    def __init__(self, task: str, rule: str, error: Exception) -> None:
        what = str(error) if isinstance(error, _KNOWN) else repr(error)
        super().__init__(f"internal error in rule {rule}: {what}"[:500])
        self.task = task
        self.rule = rule


class Restless(RuntimeError):
    """The rules change the state on each pass, without an end."""


#: Errors whose text says all.
_KNOWN = (IllegalTransition, IllegalPhase, Restless)


class Decision(msgspec.Struct, frozen=True):
    """The next state, what to do, and which tasks moved."""

    state: State
    actions: tuple[Action, ...]
    moves: tuple[Moved, ...]
    #: The rules that failed, for the log.
    problems: tuple[RuleFailed, ...] = ()


def decide(state: State, now: float, rules: Callable[[Turn], None]) -> Decision:
    """Apply rules to a copy of the state; nothing of a rule that fails remains.

    Where a rule fails for one task, the decision begins again from the same state: that task waits
    for a person, and no rule sees it. Where leaving out a task does not help, the sprint pauses.
    """
    failed: dict[str, RuleFailed] = {}
    while True:
        turn = Turn(state, now, failed)
        try:
            turn.apply("", Turn.contain_failed)
            turn.apply("", rules)
        except RuleFailed as problem:
            if not problem.task or problem.task in failed:
                return _paused(state, problem)
            failed[problem.task] = problem
        else:
            # What is queued now is not at work before a worker claims it.
            turn.state.queued |= {a.work.item for a in turn.actions if isinstance(a, StartWork)}
            problems = tuple(failed.values())
            return Decision(turn.state, tuple(turn.actions), tuple(turn.moves), problems)


def _paused(state: State, problem: RuleFailed) -> Decision:
    """The same state, with the reason; a person, or a version without the defect, resumes it."""
    copy = msgspec.structs.replace
    sprint = copy(state.sprint, halted=str(problem))
    return Decision(copy(state, sprint=sprint, facts_wait=True), (), (), (problem,))


class Turn:
    """Collects changes; the state it was made from is not touched."""

    def __init__(
        self, state: State, now: float, failed: Mapping[str, RuleFailed] | None = None
    ) -> None:
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
        #: The tasks for which a rule failed; no other rule sees them.
        self._failed = failed or {}
        self._reviews: dict[int, list[ReviewSeen]] = {}
        self._comments: dict[int, list[CommentSeen]] = {}
        self._sorted_from: dict[str, Snapshot] | None = None

    @property
    def sprint(self) -> Sprint:
        return self.state.sprint

    def main_commit(self) -> str:
        return main_commit(self.state)

    def reviews_of(self, pull: int) -> list[ReviewSeen]:
        self._sort_once()
        return self._reviews.get(pull, [])

    def comments_on(self, number: int) -> list[CommentSeen]:
        """The comments on an issue or a pull request, the oldest first."""
        self._sort_once()
        return self._comments.get(number, [])

    def _sort_once(self) -> None:
        """All are sorted once, not once for each that asks."""
        if self._sorted_from is self.state.objects:
            return
        self._reviews, self._comments, self._sorted_from = {}, {}, self.state.objects
        for seen in self.state.objects.values():
            if isinstance(seen, ReviewSeen):
                self._reviews.setdefault(seen.pull, []).append(seen)
            elif isinstance(seen, CommentSeen):
                self._comments.setdefault(seen.issue, []).append(seen)
        for comments in self._comments.values():
            comments.sort(key=lambda comment: comment.id)

    def acted(self, task: Task, act: str) -> None:
        """A person did something about a task; the same act counts once."""
        if act not in task.acts:
            task.acts = (*task.acts, act)[-_MOST_ACTS:]

    def apply(
        self,
        task: str,
        rule: Callable[Concatenate[Turn, _P], object],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> None:
        """Apply a rule for one task, or for the sprint if there is no such task."""
        if task in self._failed:
            return
        try:
            rule(self, *args, **kwargs)
        except RuleFailed:
            raise
        except IllegalTransition as error:
            raise RuleFailed(error.task, rule.__name__, error) from error
        except Exception as error:
            concerned = task if task in self.state.tasks else ""
            raise RuleFailed(concerned, rule.__name__, error) from error

    def contain_failed(self) -> None:
        """Hand each task for which a rule failed to a person."""
        for task in [t for name, t in self.state.tasks.items() if name in self._failed]:
            reason, work = str(self._failed[task.id]), task.work
            self.stop_work(task, reason)
            if task.status in (Status.DONE, Status.CANCELLED, Status.ESCALATED):
                if not self._ended_by_person(task) and task.reason != reason:
                    self.note(task, reason)
                continue
            held = work if work and not work.heads and not task.landed else None
            self.escalate(task, reason, held=held)
            if task.landed:
                # Nothing is merged onto a main that is not settled, before a person acts.
                task.held_from = Status.IN_REVIEW
            elif held is None:
                # From there it goes on with what its branch has, or begins.
                task.held_from = Status.PENDING

    def _ended_by_person(self, task: Task) -> bool:
        """The way out where the rules fail on each tick: merge its change, or close its issue."""
        pull, issue = pull_of(self.state, task), self.state.objects.get(f"issue:{task.issue}")
        if task.status is not Status.ESCALATED or task.landed:
            return False
        if pull and pull.state == "merged":
            text = f"Completed via PR #{pull.number}"
            self.complete(task, f"merged as pull request #{pull.number}", text)
        elif isinstance(issue, IssueSeen) and issue.state == "closed":
            self.cancel(task, f"issue #{issue.number} was closed", closed_by_person=True)
        return task.status is not Status.ESCALATED

    def do(self, action: Action) -> None:
        self.actions.append(action)

    def has_effects(self, task: Task) -> bool:
        """Whether effects of this task are planned and not done."""
        planned = (a for a in self.actions if isinstance(a, Effect | RetryEffect))
        return task.id in self.state.open_effects or any(a.task == task.id for a in planned)

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

    def note(self, task: Task, reason: str) -> None:
        """Something happened to a task that is no change of its status: a line in the diary."""
        self.moves.append(Moved(task=task.id, old=task.status, new=task.status, reason=reason))
        task.reason = reason

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
            edits=task.edits,
            since=self.now,
        )

    def start(self, task: Task, work: Work, reason: str = "") -> None:
        """Queue work for a task; known work gets another attempt."""
        task.work = msgspec.structs.replace(work, since=self.now)
        breadcrumbs.begun(task, work)
        task.intervened_at = 0.0
        paused = self.sprint.paused.get(task.plan.framework or self.sprint.framework)
        self.do(
            StartWork(
                task=task.id,
                work=task.work,
                priority=_RANK.get(work.role, 1000) + task.chain,
                reason=reason,
                not_before=paused.until if paused and work.role != "verify" else 0.0,
            )
        )

    def stop_work(self, task: Task, reason: str) -> None:
        if task.work:
            self.do(CancelWork(item=task.work.item, reason=reason))
            breadcrumbs.ended(task, task.work.item, f"stopped: {reason}")
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
        task.held, task.held_effects = None, ()
        _forget_merge(task)
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
        task.closed_by_person = closed_by_person
        _forget_merge(task)
        task.taken_over = task.given_back = ""
        self.move(task, Status.CANCELLED, reason)

    def escalate(
        self, task: Task, reason: str, *, held: Work | None, effects: tuple[str, ...] = ()
    ) -> None:
        """Hand the task to a person: one issue per incident, and work that goes on afterwards."""
        self.hold(task, reason, held=held, effects=effects)
        self.do(
            CreateIssue(
                key=texts.escalation_key(self.sprint.id, task.id, task.incident),
                task=task.id,
                title=f"Escalation: {task.agent} — {reason}"[:200],
                body=texts.escalation_body(self.sprint, task, reason),
                labels=("caloron:escalated",),
            )
        )

    def hold(
        self, task: Task, reason: str, *, held: Work | None, effects: tuple[str, ...] = ()
    ) -> None:
        """The task waits for a person; what was said before does not release it."""
        task.held, task.held_effects = held, effects
        task.taken_over = task.given_back = ""
        started = task.status in (Status.IN_PROGRESS, Status.IN_REVIEW)
        task.held_from = task.status if started else Status.PENDING
        task.work, task.merging = None, ""
        task.incident += 1
        task.escalation_issue = None
        said: list[CommentSeen | ReviewSeen] = [
            *(comment for place in self.places(task) for comment in self.comments_on(place)),
            *self.reviews_of(task.pull or 0),
        ]
        task.heard = tuple(sorted({*task.heard, *(seen.object for seen in said)}))
        self.move(task, Status.ESCALATED, reason)

    def places(self, task: Task) -> list[int]:
        """Where people speak about a task: its issue, its escalation, its pull request."""
        return [n for n in (task.issue, task.escalation_issue, task.pull) if n is not None]

    def release(self, task: Task, who: str) -> None:
        """A person says the cause is gone: counters start again and the held work goes on."""
        task.taken_over = task.given_back = ""
        task.failures = task.interventions = task.restarts = task.stale_merges = 0
        task.rejected, task.waits = (), None
        held, task.held = task.held, None
        self.move(task, task.held_from, f"released by {who}")
        for key in task.held_effects:
            self.do(RetryEffect(key=key, task=task.id))
        task.held_effects = ()
        if held:
            self.start(task, msgspec.structs.replace(held, asks=1), f"released by {who}")
        self.close_escalation(task)

    def close_escalation(self, task: Task) -> None:
        if task.escalation_issue is not None:
            key = f"close/{self.sprint.id}/{task.id}/incident-{task.incident}"
            self.do(CloseIssue(key=key, task=task.id, issue=task.escalation_issue))


def _forget_merge(task: Task) -> None:
    """No merge of the task is under way any more; a train notices by itself who has left it."""
    task.merging, task.landed, task.alone = "", "", ""
    task.revert = task.waits = task.doubt = None


def agent_of(task: Task, role: Role) -> str:
    """Which agent does this work: the task's own, or the reviewer."""
    return REVIEWER if role == "review" else task.agent
