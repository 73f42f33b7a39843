"""Values: conversions, JSON, CSV, records."""

from __future__ import annotations

import re

from caloron.graph.errors import ParseError, StageFailed
from caloron.graph.json_text import Json, compact, decode
from caloron.graph.stdlib.input_fields import field, items, mapping, number, optional, text
from caloron.graph.types import json_kind

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
#: The types of JSON Schema, as `json_kind` names them.
_KINDS = {
    "null": "null",
    "boolean": "a boolean",
    "number": "a number",
    "string": "a text",
    "array": "an array",
    "object": "an object",
}


def identity(input: Json) -> Json:
    return input


def to_text(input: Json) -> Json:
    return input if isinstance(input, str) else compact(input)


def to_json(input: Json) -> Json:
    return compact(input)


def to_number(input: Json) -> Json:
    if isinstance(input, bool):
        return 1.0 if input else 0.0
    if isinstance(input, int | float):
        return input
    if isinstance(input, str) and _NUMBER.match(input):
        return float(input)
    raise StageFailed(f"{compact(input)[:80]} is no number")


def to_bool(input: Json) -> Json:
    return True if isinstance(input, list | dict) else bool(input)


def parse_json(input: Json) -> Json:
    try:
        return decode(text(input), allow_bigint=True)
    except ParseError as error:
        raise StageFailed(error.reason) from error


def branch(input: Json) -> Json:
    condition = field(input, "condition")
    if not isinstance(condition, bool):
        raise StageFailed("`condition` must be a boolean")
    return field(input, "if_true" if condition else "if_false")


def http_body(input: Json) -> Json:
    return text(input, "body")


def http_status(input: Json) -> Json:
    return float(number(input, "status"))


def csv_parse(input: Json) -> Json:
    """Cut lines at the delimiter; quotes have no meaning."""
    delimiter = optional(input, "delimiter") or ","
    lines = (line.removesuffix("\r") for line in text(input, "text").split("\n"))
    rows = [line.split(delimiter) for line in lines if line.strip()]
    if optional(input, "has_header") is False:
        header = [f"col{index}" for index in range(max(map(len, rows), default=0))]
    else:
        header, rows = (rows[0], rows[1:]) if rows else ([], [])
    return [
        {name: row[index] if index < len(row) else "" for index, name in enumerate(header)}
        for row in rows
    ]


def csv_write(input: Json) -> Json:
    delimiter, records = optional(input, "delimiter") or ",", items(input, "records")
    if not records:
        return ""
    header = sorted(mapping(records[0]))
    rows = [[_cell(optional(record, name)) for name in header] for record in records]
    return "\n".join(delimiter.join(row) for row in [header, *rows])


def _cell(value: Json) -> str:
    return value if isinstance(value, str) else ""


def json_merge(input: Json) -> Json:
    return _merged(field(input, "base"), field(input, "patch"))


def _merged(base: Json, patch: Json) -> Json:
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return patch
    both = {key: _merged(base[key], patch[key]) for key in base.keys() & patch.keys()}
    return {**base, **patch, **both}


def json_path(input: Json) -> Json:
    value, path = field(input, "data"), text(input, "path")
    steps = path.removeprefix("$")
    at = 0
    while at < len(steps):
        step = _STEP.match(steps, at)
        if step is None:
            raise StageFailed(f"{path!r} is no path: only $, .field and [n] are known")
        value = _member(value, step, path)
        at = step.end()
    return value


def _member(value: Json, step: re.Match[str], path: str) -> Json:
    name, index = step[1], step[2]
    if name is not None and isinstance(value, dict) and name in value:
        return value[name]
    if index is not None and isinstance(value, list) and int(index) < len(value):
        return value[int(index)]
    raise StageFailed(f"nothing is at {step[0]} of {path!r}")


def json_schema_validate(input: Json) -> Json:
    """Check the outermost type only."""
    data, wanted = field(input, "data"), optional(field(input, "schema"), "type")
    kind = _KINDS.get(wanted) if isinstance(wanted, str) else None
    errors = [] if kind in (None, json_kind(data)) else [f"expected {wanted}"]
    return {"errors": errors, "valid": not errors}


def mark_done(input: Json) -> Json:
    return {**mapping(input), "done": True}


def clamp_percent(input: Json) -> Json:
    return min(max(number(input), 0), 100)


def router(input: Json) -> Json:
    """Choose the route itself, else its longest prefix, else the default."""
    wanted, routes = text(input, "route"), mapping(input, "routes")
    if wanted in routes:
        return routes[wanted]
    begins = [key for key in routes if wanted.startswith(key)]
    chosen = max(begins, key=len) if begins else text(input, "default")
    if chosen not in routes:
        raise StageFailed(f"no route leads to {wanted!r}")
    return routes[chosen]
