"""A discarded sprint: its work is cancelled, and its open issues and pull requests are closed.

Merged changes stay merged. The commits of agents stay on their branches and in saved refs.
"""

from __future__ import annotations

from caloron.domain.model.effects import CancelWork, CloseIssue, ClosePull
from caloron.domain.model.facts import SprintDiscarded
from caloron.domain.model.snapshots import IssueSnapshot, PullSnapshot
from caloron.domain.model.sprint import State, branch_name, enter
from caloron.domain.model.status import Status, Step
from caloron.domain.model.task import Task
from caloron.domain.reporting.forge_texts import DISCARD_KEY
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.post_merge_check import unsettled_merge
from caloron.domain.rules.pull_requests import bind


def left_over(state: State) -> list[Task]:
    """Return the tasks that a discard would cancel."""
    over = (Status.DONE, Status.CANCELLED)
    return [task for task in state.tasks.values() if task.status not in over]


def can_be_discarded(state: State) -> bool:
    """True if there are tasks to cancel, or no tasks yet."""
    return not state.sprint.discard.by and bool(left_over(state) or not state.tasks)


def discard(evaluation: Evaluation, fact: SprintDiscarded) -> None:
    """Cancel all work; the next ticks close the issues and pull requests."""
    sprint = evaluation.sprint
    if not can_be_discarded(evaluation.state):
        return
    reason = f"discarded by {fact.by}"
    sprint.discard.by, sprint.availability.pause_reason = fact.by, ""
    for work in (sprint.planning.work, sprint.main_health.work, sprint.retro.work):
        if work:
            evaluation.do(CancelWork(item=work.item, reason=reason))
    sprint.planning.work = sprint.main_health.work = sprint.retro.work = None
    for task in left_over(evaluation.state):
        task.escalation.reset()
        evaluation.cancel(task, reason, closed_by_person=False)
    for task in evaluation.state.tasks.values():
        task.conversation.closed_by_person = False
    # It ends once everything on the forge is closed.
    enter(sprint, "running")
    sprint.ended_at = None


def advance(evaluation: Evaluation) -> None:
    """Close each open issue and pull request once, with a comment; then end the sprint."""
    state, sprint = evaluation.state, evaluation.sprint
    bind(evaluation)
    for task in state.tasks.values():
        pull = state.pull_of(task)
        if pull and pull.state == "merged" and task.status is not Status.DONE:
            # It was merged before the discard reached the forge.
            evaluation.move(task, Step.DONE, f"merged as pull request #{pull.number}")
        if pull and pull.branch == branch_name(task.id, sprint.id) and _close(evaluation, pull):
            key = f"{DISCARD_KEY}{sprint.id}/pull/{pull.number}"
            evaluation.do(ClosePull(key=key, task=task.id, pull=pull.number))
        for number in (task.escalation.issue, task.links.issue):
            _close_issue(evaluation, task, number)
    plan = state.issue(sprint.plan_issue)
    if plan and _close(evaluation, plan):
        key = f"{DISCARD_KEY}{sprint.id}/plan"
        evaluation.post_comment(plan.number, f"{key}/word", f"Discarded by {sprint.discard.by}.")
        evaluation.do(CloseIssue(key=key, task="", issue=plan.number))
    under_way = evaluation.actions or state.open_effects or unsettled_merge(state)
    if not under_way and sprint.phase != "ended":
        enter(sprint, "ended")
        sprint.ended_at = evaluation.now


def _close_issue(evaluation: Evaluation, task: Task, number: int | None) -> None:
    issue, who = evaluation.state.issue(number), evaluation.sprint.discard.by
    if issue is None or not _close(evaluation, issue):
        return
    text = f"Discarded by {who}. The branch `{task.change.branch}` is kept."
    if task.status is Status.DONE:
        text = f"Done: {task.reason}. The sprint was discarded by {who}."
    key = f"{DISCARD_KEY}{evaluation.sprint.id}/issue/{issue.number}"
    evaluation.post_comment(issue.number, f"{key}/word", text, task.id)
    if not task.conversation.by_label or issue.number != task.links.issue:
        # The issue of a person is theirs to close.
        evaluation.do(CloseIssue(key=key, task=task.id, issue=issue.number))


def _close(evaluation: Evaluation, seen: IssueSnapshot | PullSnapshot) -> bool:
    """True the first time for an open object, so that a refusal of the forge is not repeated."""
    closing = evaluation.sprint.discard.closing
    if seen.state != "open" or seen.object in closing:
        return False
    evaluation.sprint.discard.closing = (*closing, seen.object)
    return True
