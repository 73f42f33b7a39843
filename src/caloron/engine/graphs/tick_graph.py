"""The shipped graph of a tick: the steps of `engine/tick.py` as stages to rearrange."""

from __future__ import annotations

from functools import cache

from caloron.errors import CaloronError
from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import GraphError
from caloron.graph.prepare import Prepared, prepare
from caloron.stages.catalogue import catalogue_stages
from caloron.stages.compositions import composition

GRAPH = "sprint_tick_stateful"


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
