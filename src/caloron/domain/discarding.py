"""A sprint that nobody wants any more: its work ends, and what is open on the forge is closed.

What was merged stays merged. What agents wrote stays on its branches and in saved refs.
"""

from __future__ import annotations

from caloron.domain.actions import CancelWork, CloseIssue, ClosePull, PostComment
from caloron.domain.facts import SprintDiscarded
from caloron.domain.observations import IssueSeen, PullSeen
from caloron.domain.reactions import bind
from caloron.domain.sprint import State, Task, branch_name, enter, pull_of
from caloron.domain.status import Status
from caloron.domain.texts import comment_body
from caloron.domain.turn import Turn

#: The beginning of the keys of all that is still done on the forge for a discarded sprint.
KEY = "discard/"


def left_over(state: State) -> list[Task]:
    """The tasks that would be thrown away."""
    over = (Status.DONE, Status.CANCELLED)
    return [task for task in state.tasks.values() if task.status not in over]


def can_be_discarded(state: State) -> bool:
    """Whether there is anything to throw away: tasks, or a sprint that has none yet."""
    return not state.sprint.discarded and bool(left_over(state) or not state.tasks)


def discard(turn: Turn, fact: SprintDiscarded) -> None:
    """End everything that is at work; what is on the forge is closed by the ticks that follow."""
    sprint = turn.sprint
    if not can_be_discarded(turn.state):
        return
    reason = f"discarded by {fact.by}"
    sprint.discarded, sprint.halted = fact.by, ""
    for work in (sprint.po, sprint.baseline_work, sprint.retro_work):
        if work:
            turn.do(CancelWork(item=work.item, reason=reason))
    sprint.po = sprint.baseline_work = sprint.retro_work = None
    for task in left_over(turn.state):
        task.held, task.held_effects = None, ()
        turn.cancel(task, reason, closed_by_person=False)
    for task in turn.state.tasks.values():
        task.closed_by_person = False
    # It ends once what is open on the forge is closed.
    enter(sprint, "running")
    sprint.ended_at = None


def advance(turn: Turn) -> None:
    """Close what the forge shows open, once each, with a word; then the sprint is over."""
    bind(turn)
    for task in turn.state.tasks.values():
        pull = pull_of(turn.state, task)
        if pull and pull.state == "merged" and task.status is not Status.DONE:
            # It was merged before anybody could stop it: that is what counts.
            turn.move(task, Status.DONE, f"merged as pull request #{pull.number}")
        _let_go_of_pull(turn, task, pull)
        for number in (task.escalation_issue, task.issue):
            _let_go_of_issue(turn, task, number)
    if turn.sprint.held_plan:
        _let_go_of_plan(turn, turn.sprint.held_plan.number)
    if not turn.actions and not turn.state.open_effects and turn.sprint.phase != "ended":
        enter(turn.sprint, "ended")
        turn.sprint.ended_at = turn.now


def _let_go_of_pull(turn: Turn, task: Task, pull: PullSeen | None) -> None:
    ours = pull is not None and pull.branch == branch_name(task.id, turn.sprint.id)
    if pull is not None and ours and pull.state == "open" and _first_time(turn, pull.object):
        key = f"{KEY}{turn.sprint.id}/pull/{pull.number}"
        turn.do(ClosePull(key=key, task=task.id, pull=pull.number))


def _let_go_of_issue(turn: Turn, task: Task, number: int | None) -> None:
    seen = turn.state.objects.get(f"issue:{number}")
    if not isinstance(seen, IssueSeen) or seen.state != "open":
        return
    if not _first_time(turn, seen.object):
        return
    done = task.status is Status.DONE
    text = (
        f"Done: {task.reason}. The sprint was discarded by {turn.sprint.discarded}."
        if done
        else f"Discarded by {turn.sprint.discarded}. The branch `{task.branch}` is kept."
    )
    key = f"{KEY}{turn.sprint.id}/issue/{seen.number}"
    turn.do(
        PostComment(
            key=f"{key}/word",
            task=task.id,
            issue=seen.number,
            body=comment_body(text, f"{key}/word"),
        )
    )
    if not task.by_label or seen.number != task.issue:
        # What a person opened is theirs to close.
        turn.do(CloseIssue(key=key, task=task.id, issue=seen.number))


def _let_go_of_plan(turn: Turn, number: int | None) -> None:
    seen = turn.state.objects.get(f"issue:{number}")
    if isinstance(seen, IssueSeen) and seen.state == "open" and _first_time(turn, seen.object):
        key = f"{KEY}{turn.sprint.id}/plan"
        body = comment_body(f"Discarded by {turn.sprint.discarded}.", f"{key}/word")
        turn.do(PostComment(key=f"{key}/word", task="", issue=seen.number, body=body))
        turn.do(CloseIssue(key=key, task="", issue=seen.number))


def _first_time(turn: Turn, name: str) -> bool:
    """Whether it is not being closed already: what the forge refuses is not tried for ever."""
    if name in turn.sprint.let_go:
        return False
    turn.sprint.let_go = (*turn.sprint.let_go, name)
    return True
