"""What the real Noether 0.8.2 answered, for tests that hold us to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_DATA = Path(__file__).parent.parent / "data" / "noether"

#: Graphs, stages, types and inputs with the answers of the real program.
VECTORS: dict[str, Any] = json.loads((_DATA / "vectors.json").read_text("utf-8"))
#: The 85 stages that come with it, with their published ids.
STDLIB: list[dict[str, Any]] = json.loads((_DATA / "stdlib.json").read_text("utf-8"))["stages"]


def wrapped(root: Any) -> str:
    """The text of a graph with this root."""
    return json.dumps({"description": "t", "version": "0.1.0", "root": root})
