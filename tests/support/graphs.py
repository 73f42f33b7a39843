"""Random graphs, as JSON values."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from caloron.graph.nodes import OPS

_NAMES = st.sampled_from(["a", "b", "c", "n", "source_0", "with space"])
_VALUES = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([1.0, 0.5, "t", [], {}])


def nodes(
    leaves: st.SearchStrategy[dict[str, Any]], *, most_leaves: int = 10, empty: bool = True
) -> st.SearchStrategy[dict[str, Any]]:
    """Nodes over these leaves; `empty` also makes operations that hold nothing."""
    least = 0 if empty else 1

    def wider(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        fields: dict[str, st.SearchStrategy[Any]] = {
            "one": inner,
            "list": st.lists(inner, min_size=least, max_size=3),
            "named": st.dictionaries(_NAMES, inner, min_size=least, max_size=3),
            "max_attempts": st.integers(least, 4),
            "delay_ms": st.none() | st.integers(0, 2),
        }
        operations = [
            st.fixed_dictionaries(
                {"op": st.just(op.__name__)}
                | {name: fields[kinds.get(name, name)] for name in op.__struct_fields__}
            )
            for op, kinds in OPS.items()
            if kinds
        ]
        return st.one_of(operations)

    return st.recursive(leaves, wider, max_leaves=most_leaves)


def stages(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    """References to stages of these names."""
    return st.sampled_from(names).map(lambda name: {"op": "Stage", "id": name})


CONSTANTS = _VALUES.map(lambda value: {"op": "Const", "value": value})
ANY_NODE = nodes(stages("a", "b", "c") | CONSTANTS)
