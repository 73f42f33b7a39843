"""A model's provider that refuses requests: wait for its quota, or pause until a person helps.

Neither counts as a failure of the agent.
"""

from __future__ import annotations

from caloron.domain.model.effects import HoldWork
from caloron.domain.model.facts import WorkEnded
from caloron.domain.model.roles import ROLES
from caloron.domain.model.sprint import Unavailable
from caloron.domain.reporting.waiting import provider_of
from caloron.domain.rules.evaluation import Evaluation
from caloron.durations import Backoff

#: For a provider that does not say how long to wait.
_BACKOFF = Backoff(60.0, 3600.0)


def provider_refused(evaluation: Evaluation, fact: WorkEnded) -> bool:
    """Take in a refusal of the provider; True: the same work is to be tried again later."""
    availability, name = evaluation.sprint.availability, fact.framework
    if fact.provider_error in ("quota", "rate_limit"):
        _postpone(evaluation, fact)
        return True
    if fact.provider_error == "auth":
        availability.pause_reason = (
            f"{name or 'the agent'} has no valid credential:"
            f" {fact.provider_message or 'it was refused'}"
        )
        return True
    if not fact.provider_error:
        availability.providers = {k: v for k, v in availability.providers.items() if k != name}
    return False


def _postpone(evaluation: Evaluation, fact: WorkEnded) -> None:
    sprint, name = evaluation.sprint, fact.framework
    before = sprint.availability.providers.get(name)
    times = before.times + 1 if before else 1
    known = fact.reset_at if fact.reset_at and fact.reset_at > evaluation.now else None
    until = known or evaluation.now + _BACKOFF.pause(times)
    pause = Unavailable(
        until=max(until, before.until) if before else until,
        what="quota" if fact.provider_error == "quota" else "rate limit",
        detail=fact.provider_message,
        times=times,
    )
    sprint.availability.providers = sprint.availability.providers | {name: pause}
    for task in evaluation.state.tasks.values():
        work = task.work
        waits = work is not None and work.item in evaluation.state.queued
        if work and waits and ROLES[work.role].needs_agent and provider_of(sprint, task) == name:
            evaluation.do(HoldWork(item=work.item, until=pause.until))
