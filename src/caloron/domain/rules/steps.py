"""Where exactly a task is: the one function that reads the step from the parts of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from caloron.domain.model.roles import Role
from caloron.domain.model.status import FIRST_STEP, Status, Step
from caloron.domain.rules.verdicts import approved_head

if TYPE_CHECKING:
    from caloron.domain.model.task import Task
    from caloron.domain.rules.evaluation import Evaluation

_BY_STATUS = {
    Status.PENDING: Step.WAITING,
    Status.READY: Step.READY,
    Status.BLOCKED: Step.BLOCKED,
    Status.ESCALATED: Step.ESCALATED,
    Status.DONE: Step.DONE,
    Status.CANCELLED: Step.CANCELLED,
}
_BY_ROLE: dict[Role, Step] = {
    "implement": Step.IMPLEMENTING,
    "fix": Step.FIXING,
    "resolve": Step.RESOLVING,
    "check": Step.CHECKING,
    "review": Step.REVIEWING,
}


def step_of(evaluation: Evaluation, task: Task) -> Step:
    """Return the step of a task; in a damaged state, one that its status allows."""
    step = _BY_STATUS.get(task.status) or _of_started(evaluation, task)
    return step if step.status is task.status else FIRST_STEP[task.status]


def _of_started(evaluation: Evaluation, task: Task) -> Step:
    if task.merge.unverified:
        return _after_merge(task)
    if task.work:
        return _BY_ROLE.get(task.work.role) or _verifying(evaluation, task)
    if task.status is Status.IN_PROGRESS:
        return Step.PUBLISHING
    return _in_review(evaluation, task)


def _after_merge(task: Task) -> Step:
    if task.merge.revert is None:
        return Step.MERGED_UNVERIFIED
    return Step.REVERTED if task.merge.revert.merged else Step.REVERTING


def _verifying(evaluation: Evaluation, task: Task) -> Step:
    approved = bool(task.work and task.work.batch) or bool(approved_head(evaluation, task))
    return Step.MERGE_VERIFYING if approved else Step.VERIFYING


def _in_review(evaluation: Evaluation, task: Task) -> Step:
    merge, head = task.merge, task.change.head
    if merge.merging:
        return Step.MERGING
    if merge.suspect:
        return Step.MAIN_SUSPECT
    if merge.waiting and merge.waiting.head == head:
        return Step.WAITING_FOR_CI
    if approved_head(evaluation, task):
        return Step.MERGE_QUEUED
    if task.review.posted_for == head:
        return Step.POSTING_VERDICT
    return Step.REVIEW_QUEUED
