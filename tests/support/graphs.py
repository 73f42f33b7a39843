"""Random graphs, as JSON values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

_NAMES = st.sampled_from(["a", "b", "c", "n", "source_0", "with space"])
_VALUES = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([1.0, 0.5, "t", [], {}])


def nodes(
    leaves: st.SearchStrategy[dict[str, Any]], *, most_leaves: int = 10, empty: bool = True
) -> st.SearchStrategy[dict[str, Any]]:
    """Nodes over these leaves; `empty` also makes operations that hold nothing."""
    least = 0 if empty else 1

    def wider(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        listed = st.lists(inner, min_size=least, max_size=3)
        named = st.dictionaries(_NAMES, inner, min_size=least, max_size=3)
        attempts = st.integers(least, 4)
        delays = st.none() | st.integers(0, 2)
        return st.one_of(
            st.builds(lambda s: {"op": "Sequential", "stages": s}, listed),
            st.builds(lambda b: {"op": "Parallel", "branches": b}, named),
            st.builds(
                lambda p, t, f: {"op": "Branch", "predicate": p, "if_true": t, "if_false": f},
                inner,
                inner,
                inner,
            ),
            st.builds(lambda s, t: {"op": "Fanout", "source": s, "targets": t}, inner, listed),
            st.builds(lambda s, t: {"op": "Merge", "sources": s, "target": t}, listed, inner),
            st.builds(
                lambda s, n, d: {"op": "Retry", "stage": s, "max_attempts": n, "delay_ms": d},
                inner,
                attempts,
                delays,
            ),
            st.builds(lambda b, y: {"op": "Let", "bindings": b, "body": y}, named, inner),
        )

    return st.recursive(leaves, wider, max_leaves=most_leaves)


def stages(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """References to stages of these names."""
    return st.sampled_from(names).map(lambda name: {"op": "Stage", "id": name})


CONSTANTS = _VALUES.map(lambda value: {"op": "Const", "value": value})
ANY_NODE = nodes(stages("a", "b", "c") | CONSTANTS)
