"""The last phase of a sprint: a model looks back, if one is to be asked.

Nothing waits for it but the end itself: whatever goes wrong here, the sprint ends with the retro
that the rules write, and with the reason.
"""

from __future__ import annotations

import msgspec

from caloron.domain.actions import Action, CancelWork, StartWork
from caloron.domain.facts import WorkEnded
from caloron.domain.insight import InsightProblem, parse_insight
from caloron.domain.pauses import why_paused
from caloron.domain.sprint import Work, enter
from caloron.domain.turn import Turn

_MAX_ANSWERS = 2
_REASON = 300


def begin_or_end(turn: Turn) -> None:
    """No task can move any more: ask the model once, then end."""
    sprint = turn.sprint
    sprint.ended_at = turn.now if sprint.ended_at is None else sprint.ended_at
    if sprint.retro == "model" and not sprint.retro_asked:
        sprint.retro_asked = True
        sprint.insight, sprint.insight_problem, sprint.retro_error = None, "", ""
        hindered = sprint.halted or why_paused(sprint, None, turn.now)
        if hindered:
            sprint.insight_problem = hindered
        else:
            sprint.retros += 1
            item = f"{sprint.id}/retro/{sprint.retros}-retro"
            _ask(turn, Work(item=item, role="retro", since=turn.now))
    enter(sprint, "retro" if sprint.retro_work else "ended")


def _ask(turn: Turn, work: Work, reason: str = "the sprint looks back") -> None:
    turn.sprint.retro_work = work
    turn.do(StartWork(task="", work=work, reason=reason))


def ended(turn: Turn, fact: WorkEnded) -> None:
    """Take the model's answer in; one that is not in the asked form may be put right once."""
    sprint, work = turn.sprint, turn.sprint.retro_work
    if work is None or work.item != fact.item or fact.token <= work.taken_in:
        return
    work = msgspec.structs.replace(work, taken_in=fact.token)
    if failure := _how_it_failed(fact):
        _give_up(turn, failure)
        return
    model = fact.usage.model if fact.usage else ""
    try:
        insight = parse_insight(fact.answer, f"{fact.framework} {model}".strip())
    except InsightProblem as problem:
        if work.asks < _MAX_ANSWERS:
            sprint.retro_error = str(problem)[:_REASON]
            _ask(turn, msgspec.structs.replace(work, asks=work.asks + 1), str(problem))
        else:
            _give_up(turn, str(problem))
        return
    sprint.retro_work, sprint.insight = None, insight


def _how_it_failed(fact: WorkEnded) -> str:
    if fact.fault or fact.over:
        return fact.fault or fact.over
    if fact.timed_out:
        return "it ran out of time"
    if fact.trouble:
        return f"{fact.trouble}: {fact.detail or fact.last_line}"
    if fact.exit_code:
        return f"exit code {fact.exit_code}: {fact.last_line or 'no output'}"
    return ""


def _give_up(turn: Turn, reason: str) -> None:
    """There will be no analysis by a model; why, the report says."""
    turn.sprint.retro_work = None
    turn.sprint.insight_problem = " ".join(reason.split())[:_REASON]


def do_without(turn: Turn, reason: str) -> None:
    """Something forbids to start the model: the sprint ends without waiting for it."""
    if turn.sprint.retro_work:
        turn.do(CancelWork(item=turn.sprint.retro_work.item, reason=reason))
        _give_up(turn, reason)


def is_cancelled(action: Action) -> bool:
    """Whether an action only takes the question back, which no end has to wait for."""
    return isinstance(action, CancelWork) and action.item.endswith("-retro")


def go_back(turn: Turn) -> None:
    """A task moves again: what was said about the sprint is not true any more."""
    sprint = turn.sprint
    if sprint.retro_work:
        turn.do(CancelWork(item=sprint.retro_work.item, reason="the sprint goes on"))
    enter(sprint, "running")
    sprint.ended_at = sprint.retro_work = None
    sprint.retro_asked = False
