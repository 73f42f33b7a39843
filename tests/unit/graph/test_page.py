"""The page about graphs shows code that works and numbers that are true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from caloron.graph.json_text import MAX_NESTING
from caloron.graph.nodes import OPS
from caloron.graph.stdlib import standard_stages
from caloron.graph.stdlib.library import NOT_IMPLEMENTED

_PAGE = (Path(__file__).parents[3] / "docs" / "graph.md").read_text("utf-8")


def test_the_code_of_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", _PAGE, flags=re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, Any] = {}
    exec(compile("\n".join(blocks), "graph.md", "exec"), names)
    assert names["result"].output == '{"n":42}'


def test_every_operation_is_on_the_page_with_its_fields():
    for op in OPS:
        (row,) = [line for line in _PAGE.splitlines() if line.startswith(f"| `{op.__name__}` |")]
        assert all(f"`{field}`" in row for field in op.__struct_fields__)


def test_the_numbers_of_the_page_are_true():
    assert (
        f"{len(standard_stages()) - len(NOT_IMPLEMENTED)} of Noether's {len(standard_stages())}"
        in _PAGE
    )
    assert f"nested {MAX_NESTING} deep" in _PAGE
