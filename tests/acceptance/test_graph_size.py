"""A graph of 10,000 nodes is read, identified, checked and run in time that grows with its size."""

from __future__ import annotations

import time
from typing import Any

import pytest

from caloron.graph.catalogue import Catalogue
from caloron.graph.nodes import composition_id, walk
from caloron.graph.parser import parse_graph
from caloron.graph.planning import plan
from caloron.graph.prepare import prepare
from caloron.graph.runners.functions import RunnerChain
from caloron.graph.runtime.run import Settings, run
from caloron.graph.stdlib import StandardLibrary, standard_stages
from caloron.graph.storage.cache import MemoryCache
from tests.support.bench import const, parallel, retry, sequence, stage
from tests.support.noether import wrapped

_SMALL, _LARGE = 2_500, 10_000


def _chain(nodes: int) -> Any:
    return sequence(*[stage("text_upper")] * nodes)


def _generic_chain(nodes: int) -> Any:
    return sequence(*[stage("identity")] * nodes)


def _wide(nodes: int) -> Any:
    return parallel(**{f"b{index}": stage("to_text") for index in range(nodes)})


def _mixed(nodes: int) -> Any:
    """Every operation, over and over, in a tree of some depth."""
    to_text = stage("to_text")
    block = sequence(
        {"op": "Let", "bindings": {"a": to_text, "b": const(1)}, "body": to_text},
        {"op": "Branch", "predicate": stage("to_bool"), "if_true": to_text, "if_false": const("x")},
        {"op": "Fanout", "source": to_text, "targets": [to_text, retry(to_text, 2)]},
        stage("to_json"),
        stage("parse_json"),
        {"op": "Merge", "sources": [to_text, to_text], "target": to_text},
        stage("text_length"),
    )
    return sequence(*[block] * (nodes // 21))


def _everything(text: str, stages: Catalogue) -> float:
    """The processor time that one graph takes from text to answer."""
    library = RunnerChain(StandardLibrary())
    began = time.process_time()
    prepared = prepare(text, stages)
    composition_id(prepared.graph)
    plan(prepared.root, stages)
    run(prepared, "text", library, Settings(cache=MemoryCache()))
    return time.process_time() - began


@pytest.mark.parametrize("shape", [_chain, _generic_chain, _wide, _mixed])
def test_four_times_the_nodes_take_about_four_times_as_long(shape):
    stages = Catalogue(standard_stages())
    texts = {nodes: wrapped(shape(nodes)) for nodes in (_SMALL, _LARGE)}
    assert sum(1 for _ in walk(parse_graph(texts[_LARGE]).root)) > _LARGE * 0.9
    best = {
        nodes: min(_everything(text, stages) for _ in range(2)) for nodes, text in texts.items()
    }
    # In a straight line it is 4, for anything with a square in it 16.
    assert best[_LARGE] / best[_SMALL] < 8
