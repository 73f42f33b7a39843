"""One tick: a run of the graph that ships with the program, and of nothing else."""

from __future__ import annotations

from functools import cache

import msgspec

from caloron.domain.actions import Moved
from caloron.domain.sprint import State
from caloron.errors import CaloronError
from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import ExecutionError, Refused
from caloron.graph.jsontext import Json
from caloron.graph.prepare import Prepared, prepare
from caloron.graph.protocols import StageRunner
from caloron.graph.run import Limits, Outcome, Settings, run
from caloron.stages.catalogue import CatalogueStages, catalogue_stages
from caloron.stages.catalogue.shapes import read, state_of
from caloron.stages.compositions import composition
from caloron.stages.context import TickContext

GRAPH = "sprint_tick_stateful"
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
    except Refused as error:
        raise CaloronError(
            f"the graph {GRAPH} of this installation cannot run: {error}",
            hint="install Caloron again",
        ) from error


def run_tick(context: TickContext, sprint: str, runner: StageRunner | None = None) -> Saved:
    """Load, poll the inbox, evaluate, health, decide, and one commit."""
    return saved_by(make_tick(context, {"sprint_id": sprint}, _SETTINGS, runner))


def make_tick(
    context: TickContext, given: Json, settings: Settings, runner: StageRunner | None = None
) -> Outcome:
    """Runs the graph; what a stage raises comes out as it was raised, with the place noted."""
    try:
        return run(tick_graph(), given, runner or CatalogueStages(context), settings)
    except ExecutionError as error:
        if error.__cause__ is None:
            raise
        error.__cause__.add_note(f"in the graph {GRAPH} at {error.path}")
        raise error.__cause__ from None


def saved_by(outcome: Outcome) -> Saved:
    told = outcome.datum.value
    moves: tuple[Moved, ...] = read(told["moves"], tuple[Moved, ...], "moves")
    return Saved(
        state=state_of(told["state"]),
        moves=moves,
        actions_taken=tuple(told["actions_taken"]),
        changed=told["changed"],
    )
