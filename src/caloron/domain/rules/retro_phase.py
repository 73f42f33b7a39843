"""The last phase of a sprint: a model looks back, if the settings ask for it.

Nothing but the end of the sprint waits for it. Whatever fails here, the sprint ends with the retro
that the rules write, and with the reason.
"""

from __future__ import annotations

import msgspec

from caloron.domain.model.effects import Action, CancelWork
from caloron.domain.model.facts import WorkEnded, classify
from caloron.domain.model.retro_answer import InsightProblem, parse_insight
from caloron.domain.model.roles import WorkId
from caloron.domain.model.sprint import enter
from caloron.domain.model.task import Work
from caloron.domain.reporting.waiting import why_paused
from caloron.domain.rules.evaluation import Evaluation

_MAX_ANSWERS = 2
_LONGEST_REASON = 300


def begin_or_end(evaluation: Evaluation) -> None:
    """Ask the model once no task can move any more, then end."""
    sprint, retro = evaluation.sprint, evaluation.sprint.retro
    sprint.ended_at = evaluation.now if sprint.ended_at is None else sprint.ended_at
    if sprint.settings.retro_by == "model" and not retro.asked:
        retro.asked, retro.answer, retro.error = True, None, ""
        retro.problem = sprint.availability.pause_reason or why_paused(sprint, None, evaluation.now)
        if not retro.problem:
            retro.runs += 1
            work = Work(item=str(WorkId(sprint.id, "retro", retro.runs, "retro")), role="retro")
            retro.work = evaluation.queue(work, "the sprint looks back")
    enter(sprint, "retro" if retro.work else "ended")


def ended(evaluation: Evaluation, fact: WorkEnded) -> None:
    """Accept the model's answer; an answer in another form may be corrected once."""
    retro = evaluation.sprint.retro
    work = retro.work.ended_by(fact.item, fact.token) if retro.work else None
    if work is None:
        return
    result = classify(fact)
    if result.kind in ("failed", "refused"):
        _give_up(evaluation, fact.internal_error or f"the model {result.reason}")
        return
    model = fact.usage.model if fact.usage else ""
    try:
        retro.answer = parse_insight(fact.answer, f"{fact.framework} {model}".strip())
        retro.work = None
    except InsightProblem as problem:
        if work.tries < _MAX_ANSWERS:
            retro.error = str(problem)[:_LONGEST_REASON]
            again = msgspec.structs.replace(work, tries=work.tries + 1)
            retro.work = evaluation.queue(again, str(problem))
        else:
            _give_up(evaluation, str(problem))


def _give_up(evaluation: Evaluation, reason: str) -> None:
    """End without an answer of the model; the report shows the reason."""
    evaluation.sprint.retro.work = None
    evaluation.sprint.retro.problem = " ".join(reason.split())[:_LONGEST_REASON]


def do_without(evaluation: Evaluation, reason: str) -> None:
    """End without the model, because it must not be started."""
    if evaluation.sprint.retro.work:
        evaluation.do(CancelWork(item=evaluation.sprint.retro.work.item, reason=reason))
        _give_up(evaluation, reason)


def is_cancelled(action: Action) -> bool:
    """True if an action only cancels the model's work; the end does not wait for that."""
    return isinstance(action, CancelWork) and WorkId.parse(action.item).role == "retro"


def go_back(evaluation: Evaluation) -> None:
    """Continue the sprint, because a task moves again; the answer will be outdated."""
    sprint = evaluation.sprint
    if sprint.retro.work:
        evaluation.do(CancelWork(item=sprint.retro.work.item, reason="the sprint goes on"))
    enter(sprint, "running")
    sprint.ended_at = sprint.retro.work = None
    sprint.retro.asked = False
