"""A sprint that nobody wants any more: its work ends, and what is open on the forge is closed.

What was merged stays merged. What agents wrote stays on its branches and in saved refs.
"""

from __future__ import annotations

from caloron.domain.model.effects import CancelWork, CloseIssue, ClosePull, PostComment
from caloron.domain.model.facts import SprintDiscarded
from caloron.domain.model.snapshots import IssueSnapshot, PullSnapshot
from caloron.domain.model.sprint import State, branch_name, enter, pull_of
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.reporting.forge_texts import comment_body
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.pull_requests import bind

#: The beginning of the keys of all that is still done on the forge for a discarded sprint.
KEY = "discard/"


def left_over(state: State) -> list[Task]:
    """The tasks that would be thrown away."""
    over = (Status.DONE, Status.CANCELLED)
    return [task for task in state.tasks.values() if task.status not in over]


def can_be_discarded(state: State) -> bool:
    """Whether there is anything to throw away: tasks, or a sprint that has none yet."""
    return not state.sprint.discard.by and bool(left_over(state) or not state.tasks)


def discard(evaluation: Evaluation, fact: SprintDiscarded) -> None:
    """End everything that is at work; what is on the forge is closed by the ticks that follow."""
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
    # It ends once what is open on the forge is closed.
    enter(sprint, "running")
    sprint.ended_at = None


def advance(evaluation: Evaluation) -> None:
    """Close what the forge shows open, once each, with a word; then the sprint is over."""
    bind(evaluation)
    for task in evaluation.state.tasks.values():
        pull = pull_of(evaluation.state, task)
        if pull and pull.state == "merged" and task.status is not Status.DONE:
            # It was merged before anybody could stop it: that is what counts.
            evaluation.move(task, Status.DONE, f"merged as pull request #{pull.number}")
        _let_go_of_pull(evaluation, task, pull)
        for number in (task.escalation.issue, task.links.issue):
            _let_go_of_issue(evaluation, task, number)
    if evaluation.sprint.planning.approval:
        _let_go_of_plan(evaluation, evaluation.sprint.planning.approval.number)
    if (
        not evaluation.actions
        and not evaluation.state.open_effects
        and evaluation.sprint.phase != "ended"
    ):
        enter(evaluation.sprint, "ended")
        evaluation.sprint.ended_at = evaluation.now


def _let_go_of_pull(evaluation: Evaluation, task: Task, pull: PullSnapshot | None) -> None:
    ours = pull is not None and pull.branch == branch_name(task.id, evaluation.sprint.id)
    if pull is not None and ours and pull.state == "open" and _first_time(evaluation, pull.object):
        key = f"{KEY}{evaluation.sprint.id}/pull/{pull.number}"
        evaluation.do(ClosePull(key=key, task=task.id, pull=pull.number))


def _let_go_of_issue(evaluation: Evaluation, task: Task, number: int | None) -> None:
    seen = evaluation.state.objects.get(f"issue:{number}")
    if not isinstance(seen, IssueSnapshot) or seen.state != "open":
        return
    if not _first_time(evaluation, seen.object):
        return
    done, who = task.status is Status.DONE, evaluation.sprint.discard.by
    text = (
        f"Done: {task.reason}. The sprint was discarded by {who}."
        if done
        else f"Discarded by {who}. The branch `{task.change.branch}` is kept."
    )
    key = f"{KEY}{evaluation.sprint.id}/issue/{seen.number}"
    evaluation.do(
        PostComment(
            key=f"{key}/word",
            task=task.id,
            issue=seen.number,
            body=comment_body(text, f"{key}/word"),
        )
    )
    if not task.conversation.by_label or seen.number != task.links.issue:
        # What a person opened is theirs to close.
        evaluation.do(CloseIssue(key=key, task=task.id, issue=seen.number))


def _let_go_of_plan(evaluation: Evaluation, number: int | None) -> None:
    seen = evaluation.state.objects.get(f"issue:{number}")
    if (
        isinstance(seen, IssueSnapshot)
        and seen.state == "open"
        and _first_time(evaluation, seen.object)
    ):
        key = f"{KEY}{evaluation.sprint.id}/plan"
        body = comment_body(f"Discarded by {evaluation.sprint.discard.by}.", f"{key}/word")
        evaluation.do(PostComment(key=f"{key}/word", task="", issue=seen.number, body=body))
        evaluation.do(CloseIssue(key=key, task="", issue=seen.number))


def _first_time(evaluation: Evaluation, name: str) -> bool:
    """Whether it is not being closed already: what the forge refuses is not tried for ever."""
    if name in evaluation.sprint.discard.closing:
        return False
    evaluation.sprint.discard.closing = (*evaluation.sprint.discard.closing, name)
    return True
