"""The last phase of a sprint: a model looks back, if one is to be asked.

Nothing waits for it but the end itself: whatever goes wrong here, the sprint ends with the retro
that the rules write, and with the reason.
"""

from __future__ import annotations

import msgspec

from caloron.domain.model.effects import Action, CancelWork, StartWork
from caloron.domain.model.facts import WorkEnded, classify
from caloron.domain.model.retro_answer import InsightProblem, parse_insight
from caloron.domain.model.roles import WorkId
from caloron.domain.model.sprint import enter
from caloron.domain.model.task import Work
from caloron.domain.reporting.waiting import why_paused
from caloron.domain.rules.evaluation import Evaluation

_MAX_ANSWERS = 2
_REASON = 300


def begin_or_end(evaluation: Evaluation) -> None:
    """No task can move any more: ask the model once, then end."""
    sprint = evaluation.sprint
    sprint.ended_at = evaluation.now if sprint.ended_at is None else sprint.ended_at
    if sprint.settings.retro_by == "model" and not sprint.retro.asked:
        sprint.retro.asked = True
        sprint.retro.answer, sprint.retro.problem, sprint.retro.error = (
            None,
            "",
            "",
        )
        hindered = sprint.availability.pause_reason or why_paused(sprint, None, evaluation.now)
        if hindered:
            sprint.retro.problem = hindered
        else:
            sprint.retro.runs += 1
            item = str(WorkId(sprint.id, "retro", sprint.retro.runs, "retro"))
            _ask(evaluation, Work(item=item, role="retro", queued_at=evaluation.now))
    enter(sprint, "retro" if sprint.retro.work else "ended")


def _ask(evaluation: Evaluation, work: Work, reason: str = "the sprint looks back") -> None:
    evaluation.sprint.retro.work = work
    evaluation.do(StartWork(task="", work=work, reason=reason))


def ended(evaluation: Evaluation, fact: WorkEnded) -> None:
    """Take the model's answer in; one that is not in the asked form may be put right once."""
    sprint, work = evaluation.sprint, evaluation.sprint.retro.work
    if work is None or work.item != fact.item or fact.token <= work.last_token:
        return
    work = msgspec.structs.replace(work, last_token=fact.token)
    result = classify(fact)
    if result.kind in ("failed", "refused"):
        _give_up(evaluation, fact.internal_error or f"the model {result.reason}")
        return
    model = fact.usage.model if fact.usage else ""
    try:
        insight = parse_insight(fact.answer, f"{fact.framework} {model}".strip())
    except InsightProblem as problem:
        if work.tries < _MAX_ANSWERS:
            sprint.retro.error = str(problem)[:_REASON]
            _ask(evaluation, msgspec.structs.replace(work, tries=work.tries + 1), str(problem))
        else:
            _give_up(evaluation, str(problem))
        return
    sprint.retro.work, sprint.retro.answer = None, insight


def _give_up(evaluation: Evaluation, reason: str) -> None:
    """There will be no analysis by a model; why, the report says."""
    evaluation.sprint.retro.work = None
    evaluation.sprint.retro.problem = " ".join(reason.split())[:_REASON]


def do_without(evaluation: Evaluation, reason: str) -> None:
    """Something forbids to start the model: the sprint ends without waiting for it."""
    if evaluation.sprint.retro.work:
        evaluation.do(CancelWork(item=evaluation.sprint.retro.work.item, reason=reason))
        _give_up(evaluation, reason)


def is_cancelled(action: Action) -> bool:
    """Whether an action only takes the question back, which no end has to wait for."""
    return isinstance(action, CancelWork) and WorkId.parse(action.item).role == "retro"


def go_back(evaluation: Evaluation) -> None:
    """A task moves again: what was said about the sprint is not true any more."""
    sprint = evaluation.sprint
    if sprint.retro.work:
        evaluation.do(CancelWork(item=sprint.retro.work.item, reason="the sprint goes on"))
    enter(sprint, "running")
    sprint.ended_at = sprint.retro.work = None
    sprint.retro.asked = False
