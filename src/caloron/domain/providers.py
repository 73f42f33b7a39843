"""A model's provider that says no: wait for its quota, or stop until a person has put it right.

Neither is the agent's failure, so neither counts as one.
"""

from __future__ import annotations

from caloron.domain.actions import HoldWork
from caloron.domain.facts import WorkEnded
from caloron.domain.pauses import provider_of
from caloron.domain.sprint import Paused
from caloron.domain.turn import Turn

#: When nobody says how long to wait: longer each time.
_FIRST_PAUSE_S = 60.0
_LONGEST_PAUSE_S = 3600.0


def said_no(turn: Turn, fact: WorkEnded) -> bool:
    """Take in a refusal of the provider; True: the same work is to be tried again later."""
    if fact.trouble in ("quota", "rate_limit"):
        _pause(turn, fact)
        return True
    if fact.trouble == "auth":
        name = fact.framework or "the agent"
        turn.sprint.halted = f"{name} has no valid credential: {fact.detail or 'it was refused'}"
        return True
    if fact.framework in turn.sprint.paused and not fact.trouble:
        turn.sprint.paused = {
            name: pause for name, pause in turn.sprint.paused.items() if name != fact.framework
        }
    return False


def _pause(turn: Turn, fact: WorkEnded) -> None:
    sprint = turn.sprint
    before = sprint.paused.get(fact.framework)
    times = before.times + 1 if before else 1
    wait = min(_FIRST_PAUSE_S * 2 ** (times - 1), _LONGEST_PAUSE_S)
    until = fact.reset_at if fact.reset_at and fact.reset_at > turn.now else turn.now + wait
    if before and before.until > until:
        until = before.until
    what = "quota" if fact.trouble == "quota" else "rate limit"
    pause = Paused(until=until, what=what, detail=fact.detail, times=times)
    sprint.paused = sprint.paused | {fact.framework: pause}
    for task in turn.state.tasks.values():
        work = task.work
        waits = work is not None and work.role != "verify" and work.item in turn.state.queued
        if work is not None and waits and provider_of(sprint, task) == fact.framework:
            turn.do(HoldWork(item=work.item, until=until))
