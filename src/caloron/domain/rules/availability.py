"""A model's provider that says no: wait for its quota, or stop until a person has put it right.

Neither is the agent's failure, so neither counts as one.
"""

from __future__ import annotations

from caloron.domain.model.effects import HoldWork
from caloron.domain.model.facts import WorkEnded
from caloron.domain.model.sprint import Unavailable
from caloron.domain.reporting.waiting import provider_of
from caloron.domain.rules.evaluation import Evaluation
from caloron.durations import Backoff

#: When nobody says how long to wait: longer each time.
_BACKOFF = Backoff(60.0, 3600.0)


def said_no(evaluation: Evaluation, fact: WorkEnded) -> bool:
    """Take in a refusal of the provider; True: the same work is to be tried again later."""
    if fact.provider_error in ("quota", "rate_limit"):
        _pause(evaluation, fact)
        return True
    if fact.provider_error == "auth":
        name = fact.framework or "the agent"
        evaluation.sprint.availability.pause_reason = (
            f"{name} has no valid credential: {fact.provider_message or 'it was refused'}"
        )
        return True
    if fact.framework in evaluation.sprint.availability.providers and not fact.provider_error:
        evaluation.sprint.availability.providers = {
            name: pause
            for name, pause in evaluation.sprint.availability.providers.items()
            if name != fact.framework
        }
    return False


def _pause(evaluation: Evaluation, fact: WorkEnded) -> None:
    sprint = evaluation.sprint
    before = sprint.availability.providers.get(fact.framework)
    times = before.times + 1 if before else 1
    wait = _BACKOFF.pause(times)
    until = (
        fact.reset_at if fact.reset_at and fact.reset_at > evaluation.now else evaluation.now + wait
    )
    if before and before.until > until:
        until = before.until
    what = "quota" if fact.provider_error == "quota" else "rate limit"
    pause = Unavailable(until=until, what=what, detail=fact.provider_message, times=times)
    sprint.availability.providers = sprint.availability.providers | {fact.framework: pause}
    for task in evaluation.state.tasks.values():
        work = task.work
        waits = work is not None and work.role != "verify" and work.item in evaluation.state.queued
        if work is not None and waits and provider_of(sprint, task) == fact.framework:
            evaluation.do(HoldWork(item=work.item, until=until))
