"""A red result on a main that nobody has verified: is it the change, or main itself?

Whoever pushes to main may turn it red. Before a change is blamed for that, main is verified by
itself, once for each of its commits.
"""

from __future__ import annotations

from caloron.domain import baseline
from caloron.domain.merging import Doubt, Waits
from caloron.domain.sprint import Sprint, Task
from caloron.domain.status import Status
from caloron.domain.turn import Turn
from caloron.domain.verifying import Outcome, reject


def reject_red(turn: Turn, task: Task, outcome: Outcome) -> None:
    """The merged result is red: the change goes back with the log, unless main may be to blame."""
    if is_sound(turn.sprint, outcome.proof.base):
        _blame(turn, task, Doubt(proof=outcome.proof, line=outcome.line))
        return
    task.verified = None
    task.doubt = Doubt(proof=outcome.proof, line=outcome.line)
    _wait(turn, task, "its result is red: main is being verified by itself")


def is_sound(sprint: Sprint, base: str) -> bool:
    """Whether a main was green; of a sprint that never saw a green one, nothing is known."""
    known = sprint.baseline == "green" and bool(sprint.green_main)
    return not known or base in ("", sprint.green_main)


def red_reason(line: str) -> str:
    return f"verification of the merged result failed: {line}"


def _blame(turn: Turn, task: Task, doubt: Doubt) -> None:
    task.verified = doubt.proof
    reject(turn, task, doubt.proof.head, red_reason(doubt.line))


def advance(turn: Turn) -> None:
    """Settle each doubt as soon as main is known."""
    for task in turn.state.tasks.values():
        if task.doubt:
            turn.apply(task.id, _settle, task, task.doubt)


def waits_for_main(sprint: Sprint, task: Task) -> bool:
    """Whether only a person can help, by putting main right."""
    return task.doubt is not None and task.doubt.proof.base == sprint.red_main


def _settle(turn: Turn, task: Task, doubt: Doubt) -> None:
    sprint, base = turn.sprint, doubt.proof.base
    outdated = task.head != doubt.proof.head or base != turn.main_commit()
    if task.status is not Status.IN_REVIEW or task.landed or task.work or outdated:
        # It is not what would be merged now: what is there is verified anew.
        task.doubt = task.waits = None
    elif is_sound(sprint, base):
        task.doubt = task.waits = None
        _blame(turn, task, doubt)
    elif base != sprint.red_main:
        baseline.look_again(turn)
    elif _somebody_is_told(turn):
        _wait(turn, task, sprint.red_line)
    else:
        task.doubt = task.waits = None
        sprint.red_told = task.id
        again = turn.new_work(task, "verify", head=task.head)
        turn.escalate(task, sprint.red_line, held=again)


def _somebody_is_told(turn: Turn) -> bool:
    """One issue is enough for a main that is red."""
    told = turn.state.tasks.get(turn.sprint.red_told)
    reason = turn.sprint.red_line
    return told is not None and told.status is Status.ESCALATED and told.reason == reason


def _wait(turn: Turn, task: Task, what: str) -> None:
    if task.waits is None or task.waits.what != what:
        task.waits = Waits(head=task.head, what=what, since=turn.now, until=turn.now)
