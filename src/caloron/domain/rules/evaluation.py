"""One evaluation in progress: a copy of the state, the time, and what has been decided so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import msgspec

from caloron.domain.model.effects import (
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
from caloron.domain.model.plan import PlannedTask, chain_lengths
from caloron.domain.model.roles import ROLES, Role, WorkId
from caloron.domain.model.snapshots import (
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    Snapshot,
    marker_key,
)
from caloron.domain.model.sprint import Sprint, State, is_ours, main_commit, pull_of
from caloron.domain.model.status import (
    IllegalPhase,
    IllegalTransition,
    Status,
    Step,
    check_transition,
)
from caloron.domain.model.task import Task, Work
from caloron.domain.reporting import forge_texts, work_log
from caloron.domain.rules.steps import step_of

_MOST_ACTS = 1000
_P = ParamSpec("_P")
_Marked = TypeVar("_Marked", IssueSnapshot, PullSnapshot, CommentSnapshot)


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


class Taken(NamedTuple):
    """A rule of the table that was applied to a task, with the step before and after."""

    rule: Any
    before: Step
    after: Step


class Decision(msgspec.Struct, frozen=True):
    """The next state, what to do, and which tasks moved."""

    state: State
    actions: tuple[Action, ...]
    moves: tuple[Moved, ...]
    #: The rules that failed, for the log.
    problems: tuple[RuleFailed, ...] = ()
    #: The rows of the table that were applied.
    taken: tuple[Taken, ...] = ()


def decide(state: State, now: float, rules: Callable[[Evaluation], None]) -> Decision:
    """Apply rules to a copy of the state; nothing of a rule that fails remains.

    Where a rule fails for one task, the decision begins again from the same state: that task waits
    for a person, and no rule sees it. Where leaving out a task does not help, the sprint pauses.
    """
    failed: dict[str, RuleFailed] = {}
    while True:
        evaluation = Evaluation(state, now, failed)
        try:
            evaluation.apply("", Evaluation.contain_failed)
            evaluation.apply("", rules)
        except RuleFailed as problem:
            if not problem.task or problem.task in failed:
                return _paused(state, problem)
            failed[problem.task] = problem
        else:
            evaluation.set_steps()
            # What is queued now is not at work before a worker claims it.
            evaluation.state.queued |= {
                a.work.item for a in evaluation.actions if isinstance(a, StartWork)
            }
            problems = tuple(failed.values())
            actions, moves = tuple(evaluation.actions), tuple(evaluation.moves)
            return Decision(evaluation.state, actions, moves, problems, tuple(evaluation.taken))


def _paused(state: State, problem: RuleFailed) -> Decision:
    """The same state, with the reason; a person, or a version without the defect, resumes it."""
    copy = msgspec.structs.replace
    sprint = state.sprint.copy()
    sprint.availability.pause_reason = str(problem)
    return Decision(copy(state, sprint=sprint, facts_wait=True), (), (), (problem,))


class Evaluation:
    """Collects changes; the state it was made from is not touched."""

    def __init__(
        self, state: State, now: float, failed: Mapping[str, RuleFailed] | None = None
    ) -> None:
        copy = msgspec.structs.replace
        self.state = copy(
            state,
            sprint=state.sprint.copy(),
            tasks={i: t.copy() for i, t in state.tasks.items()},
            objects=dict(state.objects),
        )
        self.now = now
        self.actions: list[Action] = []
        self.moves: list[Moved] = []
        #: The rules of the table that were applied, each with the step before and after.
        self.taken: list[Taken] = []
        #: The tasks for which a rule failed; no other rule sees them.
        self._failed = failed or {}
        self._reviews: dict[int, list[ReviewSnapshot]] = {}
        self._comments: dict[int, list[CommentSnapshot]] = {}
        self._plans: tuple[PlannedTask, ...] = ()
        self._critical_paths: dict[str, int] = {}
        self._marked: dict[tuple[type, str], IssueSnapshot | PullSnapshot | CommentSnapshot] = {}
        self._sorted_from: dict[str, Snapshot] | None = None

    @property
    def sprint(self) -> Sprint:
        return self.state.sprint

    def main_commit(self) -> str:
        return main_commit(self.state)

    def reviews_of(self, pull: int) -> list[ReviewSnapshot]:
        self._sort_once()
        return self._reviews.get(pull, [])

    def comments_on(self, number: int) -> list[CommentSnapshot]:
        """The comments on an issue or a pull request, the oldest first."""
        self._sort_once()
        return self._comments.get(number, [])

    def marked(self, kind: type[_Marked], key: str) -> _Marked | None:
        """Find an object of ours by its marker; of several with one marker, the first counts."""
        self._sort_once()
        found = self._marked.get((kind, key))
        return found if isinstance(found, kind) else None

    def _sort_once(self) -> None:
        """Index the snapshots once per evaluation."""
        if self._sorted_from is self.state.objects:
            return
        self._reviews, self._comments, self._sorted_from = {}, {}, self.state.objects
        self._marked = {}
        for seen in self.state.objects.values():
            if isinstance(seen, IssueSnapshot | PullSnapshot | CommentSnapshot) and is_ours(
                self.sprint, seen
            ):
                place = (type(seen), marker_key(seen.body))
                first = self._marked.setdefault(place, seen)
                if _number(seen) < _number(first):
                    self._marked[place] = seen
            if isinstance(seen, ReviewSnapshot):
                self._reviews.setdefault(seen.pull, []).append(seen)
            elif isinstance(seen, CommentSnapshot):
                self._comments.setdefault(seen.issue, []).append(seen)
        for comments in self._comments.values():
            comments.sort(key=lambda comment: comment.id)

    def critical_path(self, task: Task) -> int:
        """The number of tasks on the longest chain that begins with this one."""
        plans = tuple(t.plan for t in self.state.tasks.values())
        if plans != self._plans:
            self._plans, self._critical_paths = plans, chain_lengths(plans)
        return self._critical_paths[task.id]

    def acted(self, task: Task, act: str) -> None:
        """A person did something about a task; the same act counts once."""
        if act not in task.conversation.acts:
            task.conversation.acts = (*task.conversation.acts, act)[-_MOST_ACTS:]

    def apply(
        self,
        task: str,
        rule: Callable[Concatenate[Evaluation, _P], object],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> object:
        """Apply a rule for one task, or for the sprint if there is no such task."""
        if task in self._failed:
            return None
        try:
            return rule(self, *args, **kwargs)
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
            held = work if work and not work.batch and not task.merge.unverified else None
            self.escalate(task, reason, held=held)
            if task.merge.unverified:
                # Nothing is merged onto a main that is not settled, before a person acts.
                task.escalation.resume_as = Status.IN_REVIEW
            elif held is None:
                # From there it goes on with what its branch has, or begins.
                task.escalation.resume_as = Status.PENDING

    def _ended_by_person(self, task: Task) -> bool:
        """The way out where the rules fail on each tick: merge its change, or close its issue."""
        pull, issue = pull_of(self.state, task), self.state.objects.get(f"issue:{task.links.issue}")
        if task.status is not Status.ESCALATED or task.merge.unverified:
            return False
        if pull and pull.state == "merged":
            text = f"Completed via PR #{pull.number}"
            self.complete(task, f"merged as pull request #{pull.number}", text)
        elif isinstance(issue, IssueSnapshot) and issue.state == "closed":
            self.cancel(task, f"issue #{issue.number} was closed", closed_by_person=True)
        return task.status is not Status.ESCALATED

    def set_steps(self) -> None:
        """Bring the step of every task up to date."""
        for task in self.state.tasks.values():
            task.step = step_of(self, task)

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
        task.status, task.reason, task.times.changed_at = status, reason, self.now
        if status is Status.IN_PROGRESS and task.times.started_at is None:
            task.times.started_at = self.now
        if status is Status.DONE:
            task.times.completed_at = self.now

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
        task.attempts.work_count += 1
        return Work(
            item=str(WorkId(self.sprint.id, task.id, task.attempts.work_count, role)),
            role=role,
            round=task.review.round,
            head=head,
            batch=heads,
            reason=reason,
            verify_log=log,
            edits=task.conversation.edits,
            queued_at=self.now,
        )

    def start(self, task: Task, work: Work, reason: str = "") -> None:
        """Queue work for a task; known work gets another attempt."""
        task.work = msgspec.structs.replace(work, queued_at=self.now)
        work_log.begun(task, work)
        task.supervision.intervened_at = 0.0
        paused = self.sprint.availability.providers.get(
            task.plan.framework or self.sprint.settings.framework
        )
        self.do(
            StartWork(
                task=task.id,
                work=task.work,
                priority=ROLES[work.role].priority + self.critical_path(task),
                reason=reason,
                not_before=paused.until if paused and work.role != "verify" else 0.0,
            )
        )

    def stop_work(self, task: Task, reason: str) -> None:
        if task.work:
            self.do(CancelWork(item=task.work.item, reason=reason))
            work_log.ended(task, task.work.item, f"stopped: {reason}")
            task.work = None

    def comment(self, task: Task, purpose: str, cause: str, text: str) -> None:
        key = forge_texts.comment_key(self.sprint.id, task.id, purpose, cause)
        if task.links.issue is not None:
            self.do(
                PostComment(
                    key=key,
                    task=task.id,
                    issue=task.links.issue,
                    body=forge_texts.comment_body(text, key),
                )
            )

    def complete(self, task: Task, reason: str, text: str) -> None:
        """The completion chain: Done, a label, a comment, the issue closed."""
        self.stop_work(task, reason)
        task.escalation.reset()
        task.merge.reset()
        self.move(task, Status.DONE, reason)
        if (
            self.sprint.main_health.baseline == "red"
            and task.merge.verified
            and task.merge.verified.ok
        ):
            # The merged result was green: from now on a red one is refused again.
            self.sprint.main_health.baseline = "green"
        if task.links.issue is None:
            return
        prefix = f"{self.sprint.id}/{task.id}"
        self.comment(task, "completed", "done", text)
        self.do(
            AddLabel(
                key=f"label/{prefix}/done",
                task=task.id,
                issue=task.links.issue,
                label="caloron:done",
            )
        )
        self.do(CloseIssue(key=f"close/{prefix}/done", task=task.id, issue=task.links.issue))
        self.close_escalation(task)

    def cancel(self, task: Task, reason: str, *, closed_by_person: bool) -> None:
        """Nobody wants the task any more."""
        self.stop_work(task, reason)
        task.conversation.closed_by_person = closed_by_person
        task.merge.reset()
        task.escalation.end_takeover()
        self.move(task, Status.CANCELLED, reason)

    def escalate(
        self, task: Task, reason: str, *, held: Work | None, effects: tuple[str, ...] = ()
    ) -> None:
        """Hand the task to a person: one issue per incident, and work that goes on afterwards."""
        self.hold(task, reason, held=held, effects=effects)
        self.do(
            CreateIssue(
                key=forge_texts.escalation_key(self.sprint.id, task.id, task.escalation.number),
                task=task.id,
                title=f"Escalation: {task.agent} — {reason}"[:200],
                body=forge_texts.escalation_body(self.sprint, task, reason),
                labels=("caloron:escalated",),
            )
        )

    def hold(
        self, task: Task, reason: str, *, held: Work | None, effects: tuple[str, ...] = ()
    ) -> None:
        """The task waits for a person; what was said before does not release it."""
        task.escalation.resume_work, task.escalation.retry_effects = held, effects
        task.escalation.end_takeover()
        started = task.status in (Status.IN_PROGRESS, Status.IN_REVIEW)
        task.escalation.resume_as = task.status if started else Status.PENDING
        task.work, task.merge.merging = None, ""
        task.escalation.number += 1
        task.escalation.issue = None
        said: list[CommentSnapshot | ReviewSnapshot] = [
            *(comment for place in self.places(task) for comment in self.comments_on(place)),
            *self.reviews_of(task.links.pull or 0),
        ]
        task.conversation.handle(*(seen.object for seen in said))
        self.move(task, Status.ESCALATED, reason)

    def places(self, task: Task) -> list[int]:
        """Where people speak about a task: its issue, its escalation, its pull request."""
        return [
            n for n in (task.links.issue, task.escalation.issue, task.links.pull) if n is not None
        ]

    def release(self, task: Task, who: str) -> None:
        """A person says the cause is gone: counters start again and the held work goes on."""
        task.escalation.end_takeover()
        task.attempts.failures = task.supervision.interventions = task.supervision.restarts = (
            task.merge.stale_merges
        ) = 0
        task.review.rejected, task.merge.waiting = (), None
        held, task.escalation.resume_work = task.escalation.resume_work, None
        self.move(task, task.escalation.resume_as, f"released by {who}")
        for key in task.escalation.retry_effects:
            self.do(RetryEffect(key=key, task=task.id))
        task.escalation.retry_effects = ()
        if held:
            self.start(task, msgspec.structs.replace(held, tries=1), f"released by {who}")
        self.close_escalation(task)

    def close_escalation(self, task: Task) -> None:
        if task.escalation.issue is not None:
            key = f"close/{self.sprint.id}/{task.id}/incident-{task.escalation.number}"
            self.do(CloseIssue(key=key, task=task.id, issue=task.escalation.issue))


def _number(seen: IssueSnapshot | PullSnapshot | CommentSnapshot) -> int:
    return seen.id if isinstance(seen, CommentSnapshot) else seen.number


def agent_of(task: Task, role: Role) -> str:
    """Return the agent that does this work: the agent of the role, or the task's own."""
    return ROLES[role].shared_agent or task.agent
