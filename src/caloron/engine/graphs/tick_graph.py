"""The shipped graph of a tick: the steps of `engine/tick.py` as stages to rearrange."""

from __future__ import annotations

from functools import cache

from caloron.domain.model.effects import Moved
from caloron.engine.tick import TickResult
from caloron.errors import CaloronError
from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import ExecutionError, GraphError
from caloron.graph.json_text import Json
from caloron.graph.prepare import Prepared, prepare
from caloron.graph.runtime.protocols import StageRunner
from caloron.graph.runtime.run import RunLimits, Settings, run
from caloron.ledger.tick_context import TickContext
from caloron.stages.catalogue import CatalogueStages, catalogue_stages
from caloron.stages.compositions import composition
from caloron.stages.values import decode_as, decode_state

GRAPH = "sprint_tick_stateful"
#: A crashed tick is run again, so it keeps no journal and no cache.
_SETTINGS = Settings(hashes=False, limits=RunLimits(value_characters=None))


@cache
def tick_graph() -> Prepared:
    """The shipped graph, checked."""
    text = composition(GRAPH)
    if text is None:
        raise CaloronError(f"the graph {GRAPH} is missing", hint="install Caloron again")
    try:
        return prepare(text, Catalogue(catalogue_stages()))
    except GraphError as error:
        raise CaloronError(
            f"the graph {GRAPH} of this installation cannot run: {error}",
            hint="install Caloron again",
        ) from error


def run_tick_graph(
    context: TickContext, sprint: str, *, runner: StageRunner | None = None
) -> TickResult:
    """Run the shipped graph once; an error of a stage is raised with its path as a note."""
    stages = runner or CatalogueStages(context)
    try:
        outcome = run(tick_graph(), {"sprint_id": sprint}, stages, _SETTINGS)
    except ExecutionError as error:
        cause = error.__cause__
        if cause is None:
            raise
        cause.add_note(f"in the graph {GRAPH} at {error.path}")
        raise cause from None
    answer: Json = outcome.answer.value
    moves: tuple[Moved, ...] = decode_as(answer["moves"], tuple[Moved, ...], "moves")
    return TickResult(
        state=decode_state(answer["state"]),
        moves=moves,
        actions_taken=tuple(answer["actions_taken"]),
        changed=answer["changed"],
    )
