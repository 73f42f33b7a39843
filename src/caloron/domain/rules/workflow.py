"""The life of a task: one ordered table of rules.

Rules look at snapshots and not at events, so a lost or repeated event changes nothing. For each
task the first rule whose steps and condition match is applied; then the table is read again, until
no rule changes anything. People's actions come first. `docs/workflow.md` is made from this table.
What follows from the end of work is the table in `results.py`, from a refusal of the forge
`refusals.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, Generic, NamedTuple, TypeVar

from caloron.domain.model.sprint import Sprint
from caloron.domain.model.status import Status, Step
from caloron.domain.model.task import Task
from caloron.domain.rules import merge_queue as queue
from caloron.domain.rules import post_merge_check, verification
from caloron.domain.rules import pull_requests as pulls
from caloron.domain.rules import scheduling as slots
from caloron.domain.rules.evaluation import AppliedRule, Evaluation, NeverSettles, RuleFailed
from caloron.domain.rules.people import commands
from caloron.domain.rules.people import labelled_issues as labels

#: No sprint needs as many: each pass follows one more consequence.
_MAX_PASSES = 100
_Match = TypeVar("_Match")


class Rule(NamedTuple, Generic[_Match]):
    """In these steps, under this condition, this action is taken, and leads to these steps."""

    steps: Set[Step]
    #: Returns what the condition matched, or a false value; the action gets it.
    when: Callable[[Evaluation, Task], _Match | None]
    do: Callable[[Evaluation, Task, _Match], None]
    #: Empty: the task stays where it is.
    then: Set[Step] = frozenset()


class QueueRule(NamedTuple):
    """A rule over all tasks in these steps, because they share main or the slots."""

    steps: Set[Step]
    do: Callable[[Evaluation], None]
    then: Set[Step]


def always(_evaluation: Evaluation, _task: Task) -> bool:
    """Always."""
    return True


ALL = frozenset(Step)
OPEN = ALL - {Step.DONE, Step.CANCELLED}
RUNNING = OPEN - {Step.ESCALATED}
NOT_STARTED = frozenset({Step.WAITING, Step.BLOCKED, Step.READY})
IN_REVIEW = frozenset(step for step in Step if step.status is Status.IN_REVIEW)
#: In review, and nothing is under way for the task.
IDLE = {
    Step.REVIEW_QUEUED,
    Step.POSTING_VERDICT,
    Step.AWAITING_APPROVAL,
    Step.MERGE_QUEUED,
    Step.WAITING_FOR_CI,
}
AFTER_MERGE = {Step.MERGED_UNVERIFIED, Step.REVERTING, Step.REVERTED}
#: A head that is in review: it waits, or it was approved or answered already.
HEAD_IN_REVIEW = IDLE | {Step.PUBLISHING}

#: What people do, and what the forge shows.
PEOPLE: tuple[Rule[Any], ...] = (
    Rule(ALL - {Step.DONE}, pulls.pull_merged, pulls.complete, {Step.DONE}),
    # An edit of the text takes our approval back.
    Rule(ALL, always, pulls.observe, IDLE),
    Rule(ALL, commands.commented, commands.obey, ALL),
    Rule(NOT_STARTED, labels.label_removed, labels.remove_task, {Step.CANCELLED}),
    Rule({Step.CANCELLED}, labels.label_restored, labels.restore_task, {Step.WAITING}),
    Rule(OPEN, pulls.issue_closed, pulls.cancel, {Step.CANCELLED}),
    Rule({Step.CANCELLED}, pulls.issue_closed, pulls.remember_closed_issue),
    Rule({Step.CANCELLED}, pulls.issue_reopened, pulls.restore, {Step.WAITING}),
    Rule({Step.CANCELLED}, pulls.cancelled_with_open_pull, pulls.close_pulls),
    Rule(
        OPEN,
        pulls.pull_was_closed,
        pulls.rework,
        {Step.FIXING, Step.PUBLISHING, Step.ESCALATED} | NOT_STARTED,
    ),
    Rule({Step.ESCALATED}, pulls.branch_pushed, pulls.resume_with_push, HEAD_IN_REVIEW),
    Rule({Step.ESCALATED}, pulls.approved_meanwhile, pulls.resume_in_review, HEAD_IN_REVIEW),
    Rule({Step.ESCALATED}, pulls.changes_requested_meanwhile, pulls.resume_with_fix, {Step.FIXING}),
    Rule(RUNNING, pulls.head_replaced, pulls.adopt_head, HEAD_IN_REVIEW | NOT_STARTED),
    Rule(
        {Step.REVIEWING, Step.FIXING},
        pulls.approved_by_person,
        pulls.stop_answered_work,
        HEAD_IN_REVIEW,
    ),
    Rule(
        {Step.IMPLEMENTING}, pulls.change_made_by_person, pulls.stop_implementing, {Step.PUBLISHING}
    ),
    Rule(
        {Step.FIXING, Step.RESOLVING},
        pulls.more_changes_requested,
        pulls.restart_fix,
        {Step.FIXING},
    ),
    Rule({Step.PUBLISHING}, pulls.pull_shows_head, pulls.enter_review, IDLE),
    Rule(IN_REVIEW, pulls.changes_requested, pulls.send_back, {Step.FIXING, Step.ESCALATED}),
)

#: Dependents wait until their dependencies are done.
DEPENDENCIES: tuple[Rule[Any], ...] = (
    Rule({Step.WAITING, Step.READY}, slots.dependency_held, slots.block, {Step.BLOCKED}),
    Rule({Step.BLOCKED}, slots.no_dependency_held, slots.unblock, {Step.WAITING}),
    Rule({Step.WAITING}, slots.dependencies_done, slots.make_ready, {Step.READY}),
)

#: Each head is verified on top of main, then reviewed.
REVIEW: tuple[Rule[Any], ...] = (
    Rule(
        {Step.MAIN_SUSPECT},
        verification.red_result,
        verification.settle_suspect,
        IDLE | {Step.FIXING, Step.ESCALATED},
    ),
    Rule(IDLE, queue.change_missing, queue.escalate_missing, {Step.ESCALATED}),
    Rule(
        {Step.REVIEW_QUEUED, Step.POSTING_VERDICT, Step.AWAITING_APPROVAL},
        queue.not_verified,
        queue.start_verification,
        {Step.VERIFYING},
    ),
    Rule(
        {Step.MERGE_QUEUED, Step.WAITING_FOR_CI},
        queue.not_verified,
        queue.start_verification,
        {Step.MERGE_VERIFYING},
    ),
    Rule(IDLE, queue.not_reviewed, queue.start_review, {Step.REVIEWING}),
    Rule({Step.AWAITING_APPROVAL}, queue.not_asked, queue.ask_for_approval),
)

#: Tasks share main and the slots: these rules look at all of them at once.
QUEUES: tuple[QueueRule, ...] = (
    QueueRule(AFTER_MERGE, post_merge_check.advance, AFTER_MERGE | {Step.FIXING, Step.ESCALATED}),
    QueueRule(
        {Step.MERGE_QUEUED, Step.MERGE_VERIFYING, Step.WAITING_FOR_CI},
        queue.advance_merge_queue,
        {Step.MERGE_VERIFYING, Step.MERGING, Step.FIXING, Step.MAIN_SUSPECT},
    ),
    QueueRule({Step.READY}, slots.start_ready, {Step.IMPLEMENTING, Step.CHECKING, Step.PUBLISHING}),
)


def run(evaluation: Evaluation) -> None:
    """Apply the whole table until nothing changes."""
    for _ in range(_MAX_PASSES):
        before = _copy(evaluation)
        _one_pass(evaluation)
        if _copy(evaluation) == before:
            return
    _report_unsettled_rule(evaluation)


def _one_pass(evaluation: Evaluation) -> None:
    evaluation.apply("", pulls.bind)
    for rules in (PEOPLE, DEPENDENCIES, REVIEW):
        follow(evaluation, rules)
    for rule in QUEUES:
        evaluation.apply("", rule.do)
        evaluation.update_steps()


def follow(evaluation: Evaluation, rules: tuple[Rule[Any], ...]) -> None:
    """Apply rules to all tasks, until none of these rules changes a task any more."""
    changed = True
    while changed:
        changed = False
        for task in evaluation.state.tasks.values():
            changed = _follow_task(evaluation, task, rules) or changed


def _follow_task(evaluation: Evaluation, task: Task, rules: tuple[Rule[Any], ...]) -> bool:
    """Apply the first rule that changes the task, again and again; True if one did."""
    for count in range(_MAX_PASSES):
        evaluation.update_step(task)
        if not any(_apply(evaluation, task, rule) for rule in rules if task.step in rule.steps):
            return count > 0
    raise _never_settles(task.id, evaluation.applied[-1].rule.do)


def _apply(evaluation: Evaluation, task: Task, rule: Rule[Any]) -> bool:
    """Take the action of a rule if its condition holds; True if that changed anything."""
    matched = evaluation.apply(task.id, rule.when, task)
    if not matched:
        return False
    before, acted = task.copy(), len(evaluation.actions)
    evaluation.apply(task.id, rule.do, task, matched)
    evaluation.update_step(task)
    if task == before and len(evaluation.actions) == acted:
        return False
    evaluation.applied.append(AppliedRule(rule, before.step, task.step))
    return True


def _copy(evaluation: Evaluation) -> tuple[int, int, Sprint, dict[str, Task]]:
    """Everything that a rule may change: a change without an action has consequences, too."""
    tasks = {name: task.copy() for name, task in evaluation.state.tasks.items()}
    return len(evaluation.actions), len(evaluation.moves), evaluation.sprint.copy(), tasks


def _report_unsettled_rule(evaluation: Evaluation) -> None:
    """Find the rule that still changes something, and the first task that it changes, if any."""
    for rule in QUEUES:
        before = _copy(evaluation)
        evaluation.apply("", rule.do)
        if _copy(evaluation) != before:
            raise _never_settles(_changed_since(evaluation, *before), rule.do)
    _one_pass(evaluation)


def _never_settles(task: str, rule: Callable[..., object]) -> RuleFailed:
    error = NeverSettles(f"it does not come to rest in {_MAX_PASSES} passes")
    return RuleFailed(task, rule.__name__, error)


def _changed_since(
    evaluation: Evaluation, acted: int, moved: int, _sprint: Sprint, tasks: dict[str, Task]
) -> str:
    changed = (name for name, task in evaluation.state.tasks.items() if task != tasks.get(name))
    done = (*evaluation.actions[acted:], *evaluation.moves[moved:])
    return next(changed, "") or next((item.task for item in done if hasattr(item, "task")), "")
