"""Writes docs/schema: the JSON of `--output json` for each command, and of graphs and stages.

The types of the data are in `caloron.published`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

# As a program, Python finds only the modules beside it.
sys.path.insert(0, str(Path(__file__).parents[1]))

from caloron.cli.output import SCHEMA
from caloron.published import COMMANDS, Failure, Meta
from scripts.graph_schema import graph_schema, stage_schema

FILE = Path(__file__).parents[1] / "docs" / "schema" / "caloron.json"

#: An action of a dry run has details of its own.
_PLANNED = {
    "type": "object",
    "properties": {"action": {"type": "string"}, "target": {"type": "string"}},
    "required": ["action", "target"],
}


def _definitions() -> tuple[dict[str, Any], dict[str, Any]]:
    """The schema of each command's data, and of the types that they share."""
    types = {name: t if isinstance(t, tuple) else (t,) for name, t in COMMANDS.items()}
    every = [
        Meta,
        Failure,
        *dict.fromkeys(t for alternatives in types.values() for t in alternatives),
    ]
    made, shared = msgspec.json.schema_components(every, ref_template="#/$defs/{name}")
    schema_of = dict(zip(every, made, strict=True))
    for definition in shared.values():
        if fields := definition.get("properties"):
            definition["additionalProperties"] = False
            if any("default" in field for field in fields.values()):
                # A field of a struct is written even if it has its default value.
                definition["required"] = list(fields)
    by_command = {
        name: {"anyOf": [schema_of[t] for t in alternatives]}
        if len(alternatives) > 1
        else schema_of[alternatives[0]]
        for name, alternatives in types.items()
    }
    return by_command, shared | {"meta": schema_of[Meta], "error": schema_of[Failure]}


def _envelope(*required: str, ok: bool, **fields: dict[str, Any]) -> dict[str, Any]:
    """One form of the envelope, with these fields besides the common ones."""
    common = {"command": {"type": "string"}, "meta": {"$ref": "#/$defs/meta"}}
    return {
        "type": "object",
        "properties": {"ok": {"const": ok}, **common, **fields},
        "required": ["ok", "command", *required, "meta"],
        "additionalProperties": False,
    }


def schema() -> dict[str, Any]:
    """The whole file."""
    data: dict[str, Any] = {"type": "object"}
    actions = {"type": "array", "items": {"$ref": "#/$defs/planned_action"}}
    envelopes = {
        "success": _envelope("data", ok=True, data=data),
        "dry_run": _envelope(
            "dry_run", "planned_actions", ok=True, dry_run={"const": True}, planned_actions=actions
        ),
        "failure": _envelope("error", ok=False, data=data, error={"$ref": "#/$defs/error"}),
    }
    data_of, shared = _definitions()
    by_command = [
        {
            "if": {"properties": {"command": {"const": name}}, "required": ["data"]},
            "then": {"properties": {"data": {"$ref": f"#/$defs/data.{name}"}}},
        }
        for name in COMMANDS
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"What `caloron … --output json` prints: one envelope (`meta.schema` {SCHEMA})",
        "oneOf": [{"$ref": f"#/$defs/{name}"} for name in envelopes],
        "allOf": by_command,
        "$defs": {
            **envelopes,
            **shared,
            "planned_action": _PLANNED,
            **{f"data.{name}": shape for name, shape in data_of.items()},
        },
    }


def files() -> Iterator[tuple[Path, str]]:
    """Each file with its content."""
    made = {"caloron": schema(), "graph": graph_schema(), "stage": stage_schema()}
    for name, content in made.items():
        yield FILE.with_name(f"{name}.json"), json.dumps(content, indent=1) + "\n"


def stale() -> list[Path]:
    """The files that are out of date."""
    return [f for f, wanted in files() if not f.exists() or f.read_text("utf-8") != wanted]


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(1 if stale() else 0)
    FILE.parent.mkdir(parents=True, exist_ok=True)
    for file, content in files():
        file.write_text(content, "utf-8")
        print(f"wrote {file}")
