"""Ten thousand graphs, sound and damaged: each gets a verdict, none a crash, none hangs."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caloron.graph.errors import GraphError
from caloron.graph.prepare import prepare
from tests.support.graphs import CONSTANTS, nodes, stages
from tests.support.noether import catalogue, wrapped

STAGES = catalogue()
_NAMES = ["identity", "head", "tail", "mark_done", "sort", "clamp_percent", "nope", "098d96d7", ""]
_WILD = stages(*_NAMES, "double_n", "text_split", "http_get") | CONSTANTS


@settings(max_examples=2500, suppress_health_check=list(HealthCheck), deadline=None, database=None)
@given(nodes(_WILD, most_leaves=8), st.integers(0, 3), st.randoms(use_true_random=False))
def test_every_random_graph_gets_a_verdict(root, damage, random):
    """Two profiles and two forms, sound and damaged: 10,000 graphs, no crash, no hang."""
    text = wrapped(root)
    for _ in range(damage):
        position = random.randrange(len(text))
        text = text[:position] + random.choice('{}[]",:0nx\\') + text[position + 1 :]
    for graph_text in (text, wrapped(root)):
        for strict in (True, False):
            assert _exit_code(graph_text, strict=strict) in (0, 1, 2)


def _exit_code(text: str, *, strict: bool) -> int:
    try:
        prepare(text, STAGES, strict=strict)
    except GraphError as error:
        return error.exit_code
    return 0
