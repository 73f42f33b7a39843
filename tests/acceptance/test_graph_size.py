"""A graph of 10,000 nodes is read, identified, checked and run in time that grows with its size."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from caloron.graph.canonical import composition_id, optimise
from caloron.graph.catalogue import Catalogue
from caloron.graph.memory import MemoryCache
from caloron.graph.nodes import walk
from caloron.graph.parse import parse_graph
from caloron.graph.plan import plan
from caloron.graph.prepare import prepare
from caloron.graph.profile import NOETHER, STRICT, Profile
from caloron.graph.run import Settings, run
from caloron.graph.runners import Runners
from caloron.graph.stdlib import StandardLibrary, standard_stages
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


_SHAPES: list[tuple[Callable[[int], Any], Profile]] = [
    (_chain, STRICT),
    (_chain, NOETHER),
    (_generic_chain, STRICT),
    (_generic_chain, NOETHER),
    (_wide, STRICT),
    (_wide, NOETHER),
    (_mixed, STRICT),
    (_mixed, NOETHER),
]


def _everything(text: str, profile: Profile, stages: Catalogue) -> float:
    """The processor time that one graph takes from text to answer."""
    library = Runners(StandardLibrary())
    began = time.process_time()
    prepared = prepare(text, stages, profile)
    composition_id(prepared.graph)
    plan(optimise(prepared.root).root, stages)
    run(prepared, "text", library, Settings(cache=MemoryCache()))
    return time.process_time() - began


@pytest.mark.parametrize(
    ("shape", "profile"), _SHAPES, ids=[f"{s.__name__[1:]} {p.name}" for s, p in _SHAPES]
)
def test_four_times_the_nodes_take_about_four_times_as_long(shape, profile):
    stages = Catalogue(standard_stages())
    texts = {nodes: wrapped(shape(nodes)) for nodes in (_SMALL, _LARGE)}
    assert sum(1 for _ in walk(parse_graph(texts[_LARGE]).root)) > _LARGE * 0.9
    best = {
        nodes: min(_everything(text, profile, stages) for _ in range(2))
        for nodes, text in texts.items()
    }
    # In a straight line it is 4, for anything with a square in it 16.
    assert best[_LARGE] / best[_SMALL] < 8
