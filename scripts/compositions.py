"""Writes registered.json, the ids that our stages have in a store that `caloron noether register`
filled, and full_cycle_resolved.json: full_cycle with these ids, so that both programs can run it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from caloron.engine.noether_store import simple_spec
from caloron.graph.nodes import Node, Stage, node_json, rebuilt
from caloron.graph.parse import parse_graph
from caloron.graph.profile import NOETHER
from caloron.graph.specfile import spec_of
from caloron.stages import catalogue, compositions
from caloron.stages.catalogue import catalogue_stages

IDS = Path(catalogue.__file__).with_name("registered.json")
FILE = Path(compositions.__file__).with_name("full_cycle_resolved.json")


def registered() -> dict[str, str]:
    """The ids by name."""
    return {stage.name: spec_of(simple_spec(stage), NOETHER).id for stage in catalogue_stages()}


def text(ids: dict[str, str]) -> str:
    """The whole file of the graph."""
    source = compositions.composition("full_cycle")
    assert source is not None
    graph = parse_graph(source)

    def pinned(path: str, node: Node) -> Node:
        """Exactly these implementations, and no others with the same types."""
        if isinstance(node, Stage):
            return msgspec.structs.replace(node, id=ids[node.id], pinning="both")
        return rebuilt(node, pinned, path)

    told: dict[str, Any] = {
        "description": f"{graph.description}; each stage by its id",
        "version": graph.version,
        "root": node_json(pinned("", graph.root)),
    }
    return json.dumps(told, indent=1, ensure_ascii=False) + "\n"


def written() -> dict[Path, str]:
    """What the files must hold."""
    ids = registered()
    return {IDS: json.dumps(ids, indent=1) + "\n", FILE: text(ids)}


def stale() -> bool:
    return any(not f.exists() or f.read_text("utf-8") != held for f, held in written().items())


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(1 if stale() else 0)
    for file, content in written().items():
        file.write_text(content, "utf-8")
        print(f"wrote {file}")
