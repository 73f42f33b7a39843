"""One tick: a run of the graph that ships with the program, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import msgspec

from caloron.domain.actions import Moved
from caloron.domain.sprint import State
from caloron.errors import CaloronError
from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import ExecutionError, GraphError
from caloron.graph.jsontext import Json
from caloron.graph.prepare import Prepared, prepare
from caloron.graph.protocols import StageRunner
from caloron.graph.run import Limits, Settings, run
from caloron.graph.trace import Trace
from caloron.ledger.ledger import StaleTick
from caloron.stages.catalogue import CatalogueStages, catalogue_stages
from caloron.stages.catalogue.shapes import read, state_of
from caloron.stages.compositions import composition
from caloron.stages.context import TickContext

GRAPH = "sprint_tick_stateful"
Keep = Callable[[Trace, ExecutionError | None], object]
#: A crashed tick is run again, so it keeps no journal and no cache; nobody writes its values.
_SETTINGS = Settings(memoize=False, hashes=False, limits=Limits(value_characters=None))


class Saved(msgspec.Struct, frozen=True, kw_only=True):
    """What a tick came to."""

    state: State
    moves: tuple[Moved, ...]
    actions_taken: tuple[str, ...]
    #: Whether anything was written: an idle tick writes nothing.
    changed: bool


@cache
def tick_graph() -> Prepared:
    """The shipped graph, checked; without it there is no other way to make a tick."""
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


def run_tick(
    context: TickContext,
    sprint: str,
    *,
    runner: StageRunner | None = None,
    keep: Keep | None = None,
) -> Saved:
    """Load, poll the inbox, evaluate, health, decide, and one commit.

    What a stage raises comes out as it was raised, with the place noted. `keep` is told what a
    tick did, if it did anything.
    """
    try:
        outcome = run(
            tick_graph(), {"sprint_id": sprint}, runner or CatalogueStages(context), _SETTINGS
        )
    except ExecutionError as error:
        cause = error.__cause__
        if keep and error.trace and not isinstance(cause, StaleTick):
            keep(error.trace, error)
        if cause is None:
            raise
        cause.add_note(f"in the graph {GRAPH} at {error.path}")
        raise cause from None
    saved = _saved(outcome.datum.value)
    if keep and saved.changed:
        keep(outcome.trace, None)
    return saved


def _saved(told: Json) -> Saved:
    moves: tuple[Moved, ...] = read(told["moves"], tuple[Moved, ...], "moves")
    return Saved(
        state=state_of(told["state"]),
        moves=moves,
        actions_taken=tuple(told["actions_taken"]),
        changed=told["changed"],
    )
