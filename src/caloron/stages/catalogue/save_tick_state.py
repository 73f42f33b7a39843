"""Commits state, consumed facts and journal rows in one transaction, then writes the file."""

from __future__ import annotations

import msgspec

from caloron.domain.actions import Action, Moved
from caloron.domain.sprint import State
from caloron.graph.jsontext import Json
from caloron.ledger.ledger import Loaded, StaleTick
from caloron.ledger.projections import kv_path
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.of_sprint import context_of
from caloron.stages.catalogue.shapes import read
from caloron.stages.context import TickContext
from caloron.stages.sprint import TickResult, TickState, save_tick_state


class _Read(msgspec.Struct):
    """What the tick had read when it began."""

    version: int
    through: int


class _Result(msgspec.Struct):
    state: State
    now: float
    loaded: _Read
    rows: tuple[Action, ...] = ()
    moves: tuple[Moved, ...] = ()
    actions_taken: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


def execute(given: Json) -> Json:
    sprint = given["sprint_id"]
    result: _Result = read(given["tick_result"], _Result, "tick_result")
    if result.state.sprint.id != sprint:
        raise ValueError(f"tick_result: it is of the sprint {result.state.sprint.id!r}")
    with context_of(sprint) as context:
        loaded = _as_read(context, sprint, result.loaded)
        tick = TickState(
            loaded=loaded, state=loaded.state, agents=(), limits=context.limits, now=result.now
        )
        saved = save_tick_state(
            context,
            tick,
            TickResult(
                state=result.state,
                rows=result.rows,
                actions_taken=result.actions_taken,
                moves=result.moves,
                now=result.now,
            ),
        )
    return {
        "actions_taken": list(saved.actions_taken),
        "errors": list(result.errors),
        "persisted_path": str(kv_path(sprint)),
        "changed": saved.changed,
    }


def _as_read(context: TickContext, sprint: str, began: _Read) -> Loaded:
    """The ledger as the tick found it: the version says whether it still is, and of the facts
    that came since none may be taken for consumed."""
    loaded = context.ledger.load(sprint)
    if loaded.version != began.version:
        raise StaleTick(f"sprint {sprint} was changed by another tick")
    facts = loaded.facts if began.through else ()
    return msgspec.structs.replace(loaded, through=began.through, facts=facts)


if __name__ == "__main__":
    alone(execute)
