"""JSON Schemas for editors: graphs (docs/schema/graph.json) and stages (docs/schema/stage.json).

They say what the strict profile reads; which types fit together only `caloron graph check` knows.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PRIMITIVES = ("Any", "Bool", "Bytes", "Null", "Number", "Text", "VNode")
_EFFECTS = ("Fallible", "Network", "NonDeterministic", "Process", "Pure", "Unknown")
_WORDS = ("Pure", "Network", "Fallible", "NonDeterministic", "Process", "Llm", "Cost", "Unknown")
_TEXT: Schema = {"type": "string"}
_NODE: Schema = {"$ref": "#/$defs/node"}
_TYPE: Schema = {"$ref": "#/$defs/type"}
_SHORT: Schema = {"$ref": "#/$defs/shorthand"}


def _object(fields: Schema, *optional: str, remarks: bool = False) -> Schema:
    """An object with these fields; where remarks are, any name that begins with `_` may be too."""
    made: Schema = {
        "type": "object",
        "properties": fields,
        "required": [name for name in fields if name not in optional],
        "additionalProperties": False,
    }
    return made | {"patternProperties": {"^_": {}}} if remarks else made


def _list(of: Schema, least: int = 0) -> Schema:
    return {"type": "array", "items": of} | ({"minItems": least} if least else {})


def _named(of: Schema, least: int = 0) -> Schema:
    made: Schema = {"type": "object", "additionalProperties": of}
    return made | ({"minProperties": least} if least else {})


def _op(name: str, does: str, fields: Schema, *optional: str) -> Schema:
    made = _object({"op": {"const": name}, **fields}, *optional, remarks=True)
    return {"title": name, "description": does, **made}


def _nodes() -> list[Schema]:
    counted: Schema = {"type": "integer", "minimum": 0}
    return [
        _op("Stage", "Calls a stage: an id, a unique beginning of one, or a name.",
            {"id": _TEXT, "pinning": {"enum": ["signature", "both"]},
             "config": {"type": ["object", "null"]}}, "pinning", "config"),
        _op("RemoteStage", "Calls a stage on another machine.",
            {"url": _TEXT, "input": _TYPE, "output": _TYPE}),
        _op("Const", "Gives one value.", {"value": {}}),
        _op("Sequential", "One after the other.", {"stages": _list(_NODE)}),
        _op("Parallel", "All at once; the answers are an object.", {"branches": _named(_NODE)}),
        _op("Branch", "One of two, as the predicate says.",
            {"predicate": _NODE, "if_true": _NODE, "if_false": _NODE}),
        _op("Fanout", "One result to every target; the answers are a list.",
            {"source": _NODE, "targets": _list(_NODE)}),
        _op("Merge", "Several results into one target.",
            {"sources": _list(_NODE), "target": _NODE}),
        _op("Retry", "Again until it succeeds.",
            {"stage": _NODE, "max_attempts": counted,
             "delay_ms": {"type": ["integer", "null"], "minimum": 0}}, "delay_ms"),
        _op("Let", "Names for results, which the body gets as fields.",
            {"bindings": _named(_NODE), "body": _NODE}),
    ]  # fmt: skip


def _kind(name: str, value: Schema) -> Schema:
    return _object({"kind": {"const": name}, "value": value})


def _types() -> Schema:
    number: Schema = {"type": "number"}
    refinements = [
        _object({"kind": {"const": "Range"}, "min": number, "max": number}, "min", "max"),
        _object({"kind": {"const": "OneOf"}, "options": _list({})}),
        _object({"kind": {"const": "NonEmpty"}}),
    ]
    fields = _named(_TYPE)
    return {
        "type": {
            "oneOf": [
                _object({"kind": {"enum": list(_PRIMITIVES)}}),
                _object({"kind": {"enum": ["List", "Stream"]}, "value": _TYPE}),
                _kind("Map", _object({"key": _TYPE, "value": _TYPE})),
                _kind("Record", fields),
                _kind("Union", _list(_TYPE)),
                _kind("Var", _TEXT),
                _kind("RecordWith", _object({"fields": fields, "rest": _TEXT})),
                _kind("Refined", _object({"base": _TYPE, "refinement": {"oneOf": refinements}})),
            ]
        },
    }


def graph_schema() -> Schema:
    """A graph file."""
    whole = _object({"description": _TEXT, "version": _TEXT, "root": _NODE, "ui": {}}, "ui",
                    remarks=True)  # fmt: skip
    examples = _list(_object({"input": {}, "output": {}}))
    whole["properties"]["_examples"] = examples
    return {
        "$schema": _DIALECT,
        "title": "A composition graph",
        **whole,
        "$defs": {"node": {"oneOf": _nodes()}, **_types()},
    }


def _shorthand() -> Schema:
    field = {"type": "array", "prefixItems": [_TEXT, _SHORT], "minItems": 2, "maxItems": 2}
    pair = {"type": "array", "items": _SHORT, "minItems": 2, "maxItems": 2}
    return {
        "anyOf": [
            {"enum": list(_PRIMITIVES)},
            _object({"List": _SHORT}),
            _object({"Stream": _SHORT}),
            _object({"Map": pair}),
            _object({"Record": _list(field)}),
            _object({"Union": _list(_SHORT)}),
            {"type": "object", "required": ["kind"]},
        ]
    }


def stage_schema() -> Schema:
    """A stage file, in the form that authors write."""
    text_or_path = {"effect": {"enum": ["FsRead", "FsWrite"]}, "path": _TEXT}
    effect = {
        "anyOf": [
            {"enum": [*_WORDS, *(word.lower() for word in _WORDS), "non-deterministic"]},
            _object({"effect": {"enum": list(_EFFECTS)}}),
            _object(text_or_path),
            _object({"effect": {"const": "Llm"}, "model": _TEXT}),
            _object({"effect": {"const": "Cost"}, "cents": {"type": "integer", "minimum": 0}}),
        ]
    }
    code = {"anyOf": [_TEXT, _object({"code": _TEXT, "language": _TEXT})]}
    fields = {
        "name": {"type": "string", "minLength": 1},
        "description": _TEXT,
        "input": _SHORT,
        "output": _SHORT,
        "effects": _list(effect),
        "language": {"enum": ["python", "python3", "bash", "sh", "javascript", "js", ""]},
        "implementation": code,
        "examples": _list({"type": "object", "required": ["input", "output"]}),
        "tags": _list(_TEXT),
        "aliases": _list(_TEXT),
        "properties": _list({"type": "object", "required": ["kind"]}),
    }
    needed = ("name", "input", "output", "implementation")
    whole = _object(fields, *(name for name in fields if name not in needed))
    return {
        "$schema": _DIALECT,
        "title": "A stage of composition graphs",
        **whole,
        "additionalProperties": True,
        "$defs": {"shorthand": _shorthand()},
    }
