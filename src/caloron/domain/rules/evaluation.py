"""One evaluation in progress: a copy of the state, the time, and the decisions made so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import msgspec

from caloron.domain.model.effects import (
    Action,
    AddLabel,
    CancelWork,
    CloseIssue,
    ClosePull,
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
from caloron.domain.model.sprint import Sprint, State, is_ours
from caloron.domain.model.status import (
    FIRST_STEP,
    IllegalPhase,
    IllegalTransition,
    Status,
    Step,
    check_transition,
)
from caloron.domain.model.task import Task, Work
from caloron.domain.reporting import forge_texts, work_log
from caloron.domain.rules.verdicts import approved_head, awaits_approval

_MAX_ACTS = 1000
#: Work of the sprint itself is started before that of tasks, which wait for it.
_SPRINT_PRIORITY = 1000
_P = ParamSpec("_P")
_Marked = TypeVar("_Marked", IssueSnapshot, PullSnapshot, CommentSnapshot)
_copy = msgspec.structs.replace


class RuleFailed(Exception):
    """A rule raised an error that concerns one task, or the sprint if it names none."""

    def __init__(self, task: str, rule: str, error: Exception) -> None:
        what = str(error) if isinstance(error, _KNOWN) else repr(error)
        super().__init__(f"internal error in rule {rule}: {what}"[:500])
        self.task = task
        self.rule = rule


class NeverSettles(RuntimeError):
    """The rules change the state on each pass, without an end."""


#: Errors whose text needs no class name.
_KNOWN = (IllegalTransition, IllegalPhase, NeverSettles)


class AppliedRule(NamedTuple):
    """A rule of the table that was applied to a task, with the step before and after."""

    rule: Any
    before: Step
    after: Step


class Decision(msgspec.Struct, frozen=True):
    """The next state, the actions that lead to it, and the tasks that moved."""

    state: State
    actions: tuple[Action, ...]
    moves: tuple[Moved, ...]
    #: The rules that failed, for the log.
    problems: tuple[RuleFailed, ...] = ()
    applied: tuple[AppliedRule, ...] = ()


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
            # Work that is queued now is not running before a worker claims it.
            evaluation.state.queued |= {
                a.work.item for a in evaluation.actions if isinstance(a, StartWork)
            }
            return evaluation.decision()


def _paused(state: State, problem: RuleFailed) -> Decision:
    """Return the same state with the reason; a person, or a fixed version, resumes the sprint."""
    sprint = state.sprint.copy()
    sprint.availability.pause_reason = str(problem)
    return Decision(_copy(state, sprint=sprint, facts_wait=True), (), (), (problem,))


class Evaluation:
    """Collects changes in a copy of the state; the original is not touched."""

    def __init__(
        self, state: State, now: float, failed: Mapping[str, RuleFailed] | None = None
    ) -> None:
        self.state = _copy(
            state,
            sprint=state.sprint.copy(),
            tasks={i: t.copy() for i, t in state.tasks.items()},
            objects=dict(state.objects),
        )
        self.now = now
        self.actions: list[Action] = []
        self.moves: list[Moved] = []
        self.applied: list[AppliedRule] = []
        #: The tasks for which a rule failed; no other rule sees them.
        self._failed = failed or {}
        self._reviews: dict[int, list[ReviewSnapshot]] = {}
        self._comments: dict[int, list[CommentSnapshot]] = {}
        self._plans: tuple[PlannedTask, ...] = ()
        self._critical_paths: dict[str, int] = {}
        self._marked: dict[tuple[type, str], IssueSnapshot | PullSnapshot | CommentSnapshot] = {}
        self._indexed: dict[str, Snapshot] | None = None

    @property
    def sprint(self) -> Sprint:
        return self.state.sprint

    def decision(self) -> Decision:
        self.update_steps()
        problems = tuple(self._failed.values())
        actions, moves = tuple(self.actions), tuple(self.moves)
        return Decision(self.state, actions, moves, problems, tuple(self.applied))

    # Snapshots

    def reviews_of(self, pull: int | None) -> list[ReviewSnapshot]:
        self._index_snapshots()
        return self._reviews.get(pull or 0, [])

    def comments_on(self, number: int) -> list[CommentSnapshot]:
        """Return the comments on an issue or a pull request, the oldest first."""
        self._index_snapshots()
        return self._comments.get(number, [])

    def marked(self, kind: type[_Marked], key: str) -> _Marked | None:
        """Find an object of ours by its marker; of several with one marker, the first counts."""
        self._index_snapshots()
        seen = self._marked.get((kind, key))
        return seen if isinstance(seen, kind) else None

    def _index_snapshots(self) -> None:
        """Index the snapshots once, unless they were replaced."""
        if self._indexed is self.state.objects:
            return
        self._indexed = self.state.objects
        self._reviews, self._comments, self._marked = {}, {}, {}
        for seen in self._indexed.values():
            if isinstance(seen, ReviewSnapshot):
                self._reviews.setdefault(seen.pull, []).append(seen)
                continue
            if isinstance(seen, CommentSnapshot):
                self._comments.setdefault(seen.issue, []).append(seen)
            if isinstance(seen, IssueSnapshot | PullSnapshot | CommentSnapshot) and is_ours(
                self.sprint, seen
            ):
                key = (type(seen), marker_key(seen.body))
                first = self._marked.setdefault(key, seen)
                if _number(seen) < _number(first):
                    self._marked[key] = seen
        for comments in self._comments.values():
            comments.sort(key=lambda comment: comment.id)

    def critical_path(self, task: Task) -> int:
        """Return the number of tasks on the longest chain that begins with this one."""
        plans = tuple(t.plan for t in self.state.tasks.values())
        if plans != self._plans:
            self._plans, self._critical_paths = plans, chain_lengths(plans)
        return self._critical_paths[task.id]

    def conversations(self, task: Task) -> list[int]:
        """Return where people write about a task: its issue, its escalation, its pull request."""
        numbers = (task.links.issue, task.escalation.issue, task.links.pull)
        return [number for number in numbers if number is not None]

    # Rules that fail

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
            elif task.merge.unverified:
                # Nothing is merged onto a main that is not settled, before a person acts.
                self.escalate(task, reason, resume_as=Step.REVIEW_QUEUED)
            elif work and not work.batch:
                self.escalate(task, reason, work)
            else:
                # A release continues with the commits on its branch, or starts the task.
                self.escalate(task, reason, resume_as=Step.WAITING)

    def _ended_by_person(self, task: Task) -> bool:
        """Let a person merge the change or close the issue, although the rules always fail."""
        pull, issue = self.state.pull_of(task), self.state.issue(task.links.issue)
        if task.status is not Status.ESCALATED or task.merge.unverified:
            return False
        if pull and pull.state == "merged":
            text = f"Completed via PR #{pull.number}"
            self.complete(task, f"merged as pull request #{pull.number}", text)
        elif issue and issue.state == "closed":
            self.cancel(task, f"issue #{issue.number} was closed", closed_by_person=True)
        return task.status is not Status.ESCALATED

    # Status and history

    def update_steps(self) -> None:
        """Bring the steps of all tasks up to date."""
        for task in self.state.tasks.values():
            self.update_step(task)

    def update_step(self, task: Task) -> None:
        """Bring the step up to date with the work, the verdicts and the merge of the task.

        The status stays: only `move` changes it.
        """
        if task.status in (Status.IN_PROGRESS, Status.IN_REVIEW):
            step = self._step_of_started(task)
            # A damaged state may have work that the status does not allow.
            task.step = step if step.status is task.status else FIRST_STEP[task.status]

    def _step_of_started(self, task: Task) -> Step:
        merge, work = task.merge, task.work
        if merge.unverified:
            revert = merge.revert
            reverting = Step.REVERTED if revert and revert.merged else Step.REVERTING
            return reverting if revert else Step.MERGED_UNVERIFIED
        if work and work.role == "verify":
            approved = work.batch or approved_head(self, task)
            return Step.MERGE_VERIFYING if approved else Step.VERIFYING
        if work:
            return ROLES[work.role].step or task.step
        in_progress = task.status is Status.IN_PROGRESS
        return Step.PUBLISHING if in_progress else self._step_in_review(task)

    def _step_in_review(self, task: Task) -> Step:
        merge, head = task.merge, task.change.head
        if merge.merging:
            return Step.MERGING
        if merge.suspect:
            return Step.MAIN_SUSPECT
        if merge.wait_of(head):
            return Step.WAITING_FOR_CI
        if approved_head(self, task):
            return Step.MERGE_QUEUED
        if awaits_approval(self, task):
            return Step.AWAITING_APPROVAL
        return Step.POSTING_VERDICT if task.review.posted_for == head else Step.REVIEW_QUEUED

    def record_act(self, task: Task, act: str) -> None:
        """Count an act of a person once."""
        if act not in task.conversation.acts:
            task.conversation.acts = (*task.conversation.acts, act)[-_MAX_ACTS:]

    def move(self, task: Task, step: Step, reason: str = "") -> None:
        """Change a task's step; a change of its status is recorded with the time and the reason."""
        old, status = task.status, step.status
        if status is old:
            task.step, task.reason = step, reason or task.reason
            return
        check_transition(task.id, old, status)
        self.moves.append(Moved(task=task.id, old=old, new=status, reason=reason))
        task.step, task.reason, task.times.changed_at = step, reason, self.now
        if status is Status.IN_PROGRESS and task.times.started_at is None:
            task.times.started_at = self.now
        if status is Status.DONE:
            task.times.completed_at = self.now

    def note(self, task: Task, reason: str) -> None:
        """Record an event of a task that does not change its status."""
        self.moves.append(Moved(task=task.id, old=task.status, new=task.status, reason=reason))
        task.reason = reason

    # Work

    def new_work(
        self,
        task: Task,
        role: Role,
        *,
        head: str = "",
        heads: tuple[str, ...] = (),
        reason: str = "",
        log: str = "",
        onto_main: bool = False,
    ) -> Work:
        """Return work with an id of its own that is not queued yet."""
        task.attempts.work_count += 1
        return Work(
            item=str(WorkId(self.sprint.id, task.id, task.attempts.work_count, role)),
            role=role,
            round=task.review.round,
            head=head,
            batch=heads,
            reason=reason,
            verify_log=log,
            onto_main=onto_main,
            edits=task.conversation.edits,
        )

    def start(self, task: Task, work: Work, reason: str = "") -> None:
        """Queue work for a task; known work gets another attempt."""
        task.work = self.queue(work, reason, task)
        work_log.begun(task, work)
        task.supervision.intervened_at = 0.0

    def start_new(
        self, task: Task, role: Role, *, head: str = "", reason: str = "", why: str = ""
    ) -> None:
        """Queue new work for a task; `why` is for the event log."""
        self.start(task, self.new_work(task, role, head=head, reason=reason), why)

    def start_again(
        self, task: Task, work: Work, why: str, *, role: Role | None = None, reason: str = ""
    ) -> None:
        """Queue new work in the place of other work, from the same commit and the same log."""
        again = self.new_work(
            task,
            role or work.role,
            head=work.head,
            reason=reason,
            log=work.verify_log,
            onto_main=work.onto_main,
        )
        self.start(task, again, why)

    def queue(self, work: Work, reason: str, task: Task | None = None) -> Work:
        """Queue work of a task, or of the sprint itself, and return it."""
        framework = (task and task.plan.framework) or self.sprint.settings.framework
        pause, spec = self.sprint.availability.providers.get(framework), ROLES[work.role]
        self.do(
            StartWork(
                task=task.id if task else "",
                work=work,
                priority=spec.priority + (self.critical_path(task) if task else _SPRINT_PRIORITY),
                reason=reason,
                not_before=pause.until if pause and spec.needs_agent else 0.0,
            )
        )
        return work

    def stop_work(self, task: Task, reason: str) -> None:
        if task.work:
            self.do(CancelWork(item=task.work.item, reason=reason))
            work_log.ended(task, task.work.item, f"stopped: {reason}")
            task.work = None

    # Effects

    def do(self, action: Action) -> None:
        self.actions.append(action)

    def has_effects(self, task: Task) -> bool:
        """True if effects of this task are planned and not done."""
        planned = (a for a in self.actions if isinstance(a, Effect | RetryEffect))
        return task.id in self.state.open_effects or any(a.task == task.id for a in planned)

    def post_comment(self, number: int, key: str, text: str, task: str = "") -> None:
        """Comment on an issue or a pull request, once per key."""
        body = forge_texts.comment_body(text, key)
        self.do(PostComment(key=key, task=task, issue=number, body=body))

    def comment(
        self, task: Task, purpose: str, cause: str, text: str, on: int | None = None
    ) -> None:
        """Comment on the issue of a task, or on another conversation about it."""
        number = task.links.issue if on is None else on
        if number is not None:
            key = f"comment/{self.sprint.id}/{task.id}/{purpose}/{cause}"
            self.post_comment(number, key, text, task.id)

    def add_label(self, task: Task, name: str) -> None:
        if task.links.issue is not None:
            key = f"label/{self.sprint.id}/{task.id}/{name}"
            label = f"caloron:{name}"
            self.do(AddLabel(key=key, task=task.id, issue=task.links.issue, label=label))

    def close_issue(self, number: int | None, cause: str, task: Task) -> None:
        if number is not None:
            key = f"close/{self.sprint.id}/{task.id}/{cause}"
            self.do(CloseIssue(key=key, task=task.id, issue=number))

    def close_pull(self, task: Task, pull: int, cause: str) -> None:
        key = f"close_pull/{self.sprint.id}/{task.id}/{pull}-{cause}"
        self.do(ClosePull(key=key, task=task.id, pull=pull))

    # Ends of tasks, and what needs a person

    def complete(self, task: Task, reason: str, text: str) -> None:
        """Set a task to Done, label its issue, comment on it and close it."""
        self.stop_work(task, reason)
        task.escalation.reset()
        task.merge.reset()
        self.move(task, Step.DONE, reason)
        text, task.conversation.unread = text + self._unread_note(task), ()
        health = self.sprint.main_health
        if health.baseline == "red" and task.merge.verified and task.merge.verified.ok:
            # The merged result was green: from now on a red one is refused again.
            health.baseline = "green"
        if task.links.issue is not None:
            self.comment(task, "completed", "done", text)
            self.add_label(task, "done")
            self.close_issue(task.links.issue, "done", task)
            self.close_escalation(task)

    def _unread_note(self, task: Task) -> str:
        """Name the people whose comments no agent read before the task was done."""
        comments = (self.state.objects.get(name) for name in task.conversation.unread)
        authors = {c.author for c in comments if isinstance(c, CommentSnapshot | ReviewSnapshot)}
        return f"\n\n{forge_texts.unread_note(authors)}" if authors else ""

    def cancel(self, task: Task, reason: str, *, closed_by_person: bool) -> None:
        self.stop_work(task, reason)
        task.conversation.closed_by_person = closed_by_person
        task.merge.reset()
        task.escalation.end_takeover()
        self.move(task, Step.CANCELLED, reason)

    def escalate(
        self,
        task: Task,
        reason: str,
        resume: Work | None = None,
        *,
        resume_as: Step | None = None,
        retry: tuple[str, ...] = (),
    ) -> None:
        """Open an issue for a person; a release resumes the work and retries the effects."""
        self.wait_for_person(task, reason, resume, resume_as, retry)
        key = forge_texts.escalation_key(self.sprint.id, task.id, task.escalation.number)
        title = f"Escalation: {task.agent} — {reason}"[:200]
        body = forge_texts.escalation_body(self.sprint, task, reason)
        labels = ("caloron:escalated",)
        self.do(CreateIssue(key=key, task=task.id, title=title, body=body, labels=labels))

    def wait_for_person(
        self,
        task: Task,
        reason: str,
        resume: Work | None = None,
        resume_as: Step | None = None,
        retry: tuple[str, ...] = (),
    ) -> None:
        """Stop a task until a person releases it; earlier comments and reviews do not."""
        started = task.status in (Status.IN_PROGRESS, Status.IN_REVIEW)
        before = task.step if started else Step.WAITING
        escalation = task.escalation
        escalation.end_takeover()
        escalation.resume_work, escalation.retry_effects = resume, retry
        escalation.resume_as = resume_as or before
        task.work, task.merge.merging = None, ""
        escalation.number += 1
        escalation.issue = None
        comments = [c for number in self.conversations(task) for c in self.comments_on(number)]
        task.conversation.handle(
            *(comment.object for comment in comments),
            *(review.object for review in self.reviews_of(task.links.pull)),
        )
        self.move(task, Step.ESCALATED, reason)

    def release(self, task: Task, who: str) -> None:
        """Resume a task whose cause is gone, with its counters at zero."""
        escalation = task.escalation
        escalation.end_takeover()
        task.forgive()
        task.merge.stale_merges = 0
        task.review.rejected, task.merge.waiting = (), None
        work, keys = escalation.resume_work, escalation.retry_effects
        escalation.reset()
        self.move(task, escalation.resume_as, f"released by {who}")
        for key in keys:
            self.do(RetryEffect(key=key, task=task.id))
        if work:
            self.start(task, _copy(work, tries=1), f"released by {who}")
        self.close_escalation(task)

    def close_escalation(self, task: Task) -> None:
        cause = f"incident-{task.escalation.number}"
        self.close_issue(task.escalation.issue, cause, task)


def _number(seen: IssueSnapshot | PullSnapshot | CommentSnapshot) -> int:
    return seen.id if isinstance(seen, CommentSnapshot) else seen.number
