"""Commits state, consumed facts and journal rows in one transaction, then writes the file."""

from __future__ import annotations

import msgspec

from caloron.domain.actions import Action, Moved
from caloron.graph.held import opened
from caloron.graph.jsontext import Json
from caloron.ledger.ledger import Loaded, StaleTick, TickCommit
from caloron.ledger.projected import digest
from caloron.ledger.projections import kv_path, kv_text, write_kv
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.of_sprint import within
from caloron.stages.catalogue.shapes import held, held_state, moment, read, state_of
from caloron.stages.context import TickContext


class _Read(msgspec.Struct):
    """What the tick had read when it began."""

    version: int
    through: int


def execute(given: Json, context: TickContext | None = None) -> Json:
    """An idle tick writes nothing."""
    sprint, result = given["sprint_id"], opened(given["tick_result"])
    state = state_of(result.get("state"))
    if state.sprint.id != sprint:
        raise ValueError(f"tick_result: it is of the sprint {state.sprint.id!r}")
    began: _Read = read(result.get("loaded"), _Read, "tick_result: loaded")
    actions: tuple[Action, ...] = read(result.get("rows") or (), tuple[Action, ...], "rows")
    moves: tuple[Moved, ...] = read(result.get("moves") or (), tuple[Moved, ...], "moves")
    now = moment(result.get("now")) or 0.0
    if state.facts_wait:
        began.through = 0
    with within(context, sprint) as reached:
        loaded = _as_read(reached, sprint, began)
        before = msgspec.structs.replace(loaded.state, facts_wait=state.facts_wait)
        changed = bool(loaded.facts or actions or moves) or state != before
        if changed:
            text = kv_text(state, now)
            commit = TickCommit(
                state=state, actions=actions, moves=moves, projection=digest(text), since=now
            )
            reached.ledger.commit_tick(loaded, commit)
            write_kv(sprint, text)
    return {
        "actions_taken": result.get("actions_taken") or [],
        "errors": result.get("errors") or [],
        "persisted_path": str(kv_path(sprint)),
        "changed": changed,
        "state": held_state(state),
        "moves": held(moves),
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
