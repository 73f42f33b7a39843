"""Writes full_cycle_resolved.json: full_cycle with the ids of the stages that it means today."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from caloron.graph.catalogue import Catalogue
from caloron.graph.nodes import Node, Stage, node_json, rebuilt
from caloron.graph.parse import parse_graph
from caloron.graph.resolve import resolve
from caloron.stages import compositions
from caloron.stages.catalogue import catalogue_stages

FILE = Path(compositions.__file__).with_name("full_cycle_resolved.json")


def text() -> str:
    """The whole file."""
    source = compositions.composition("full_cycle")
    assert source is not None
    graph = resolve(parse_graph(source), Catalogue(catalogue_stages())).graph
    told: dict[str, Any] = {
        "description": f"{graph.description}; each stage by its id",
        "version": graph.version,
        "root": node_json(_pinned("", graph.root)),
    }
    return json.dumps(told, indent=1, ensure_ascii=False) + "\n"


def _pinned(path: str, node: Node) -> Node:
    """Exactly these implementations, and no others with the same types."""
    if isinstance(node, Stage):
        return msgspec.structs.replace(node, pinning="both")
    return rebuilt(node, _pinned, path)


def stale() -> bool:
    return not FILE.exists() or FILE.read_text("utf-8") != text()


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(1 if stale() else 0)
    FILE.write_text(text(), "utf-8")
    print(f"wrote {FILE}")
