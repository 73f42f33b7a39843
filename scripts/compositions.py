"""Writes registered.json, the ids that our stages have in a store that `caloron noether register`
filled, and full_cycle_resolved.json: full_cycle with these ids, so that both programs can run it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

from caloron.engine.graphs.noether import simple_spec
from caloron.graph.nodes import Node, Stage, node_json, rebuilt
from caloron.graph.parser import parse_graph
from caloron.graph.stage_file import stage_of
from caloron.stages import catalogue, compositions
from caloron.stages.catalogue import catalogue_stages

IDS = Path(catalogue.__file__).with_name("registered.json")
FILE = Path(compositions.__file__).with_name("full_cycle_resolved.json")


def registered() -> dict[str, str]:
    """The ids by name."""
    return {
        stage.name: stage_of(simple_spec(stage), strict=False).id for stage in catalogue_stages()
    }


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
    return any(
        not file.exists() or file.read_text("utf-8") != text for file, text in written().items()
    )


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(1 if stale() else 0)
    for file, content in written().items():
        file.write_text(content, "utf-8")
        print(f"wrote {file}")
