"""Recorded answers of the real Noether 0.8.2, for tests that compare ours with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from caloron.graph.catalogue import Catalogue
from caloron.graph.prepare import Permissions
from caloron.graph.stage_file import stage_of
from caloron.graph.stdlib import standard_stages

_DATA = Path(__file__).parent.parent / "data" / "noether"

#: Graphs, stages, types and inputs with the answers of the real program.
VECTORS: dict[str, Any] = json.loads((_DATA / "vectors.json").read_text("utf-8"))
#: The 85 stages that come with it, with their published ids.
STDLIB: list[dict[str, Any]] = json.loads((_DATA / "stdlib.json").read_text("utf-8"))["stages"]


def wrapped(root: Any) -> str:
    """The text of a graph with this root."""
    return json.dumps({"description": "t", "version": "0.1.0", "root": root})


def catalogue() -> Catalogue:
    """The stages that the real program knew: its own 85 and those of the vectors."""
    known = Catalogue(standard_stages())
    for vector in VECTORS["stages"]:
        if vector["exit"] == 0:
            known.add(stage_of(vector["spec"], strict=False))
    return known


def permissions(flags: list[str]) -> Permissions:
    """Return the permissions that the flags of a vector give."""
    options = dict(zip(flags[::2], flags[1::2], strict=True))
    budget = options.get("--budget-cents")
    return Permissions(
        effects=options.get("--allow-effects", ()),
        budget_cents=None if budget is None else int(budget),
    )
