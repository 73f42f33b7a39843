"""Values: conversions, JSON, CSV, records."""

from __future__ import annotations

import re

from caloron.graph.errors import ParseError, StageFailed
from caloron.graph.json_text import Json, compact, decode
from caloron.graph.stdlib.input_fields import field, items, mapping, number, optional, text

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\Z", re.ASCII)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]")
_KINDS: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}


def identity(given: Json) -> Json:
    return given


def to_text(given: Json) -> Json:
    return given if isinstance(given, str) else compact(given)


def to_json(given: Json) -> Json:
    return compact(given)


def to_number(given: Json) -> Json:
    if isinstance(given, bool):
        return 1.0 if given else 0.0
    if isinstance(given, int | float):
        return given
    if isinstance(given, str) and _NUMBER.match(given):
        return float(given)
    raise StageFailed(f"{compact(given)[:80]} is no number")


def to_bool(given: Json) -> Json:
    return True if isinstance(given, list | dict) else bool(given)


def parse_json(given: Json) -> Json:
    try:
        return decode(text(given), allow_bigint=True)
    except ParseError as error:
        raise StageFailed(error.reason) from error


def choose(given: Json) -> Json:
    condition = field(given, "condition")
    if not isinstance(condition, bool):
        raise StageFailed("`condition` must be a boolean")
    return field(given, "if_true" if condition else "if_false")


def http_body(given: Json) -> Json:
    return text(given, "body")


def http_status(given: Json) -> Json:
    return float(number(given, "status"))


def csv_parse(given: Json) -> Json:
    """Lines cut at the delimiter; quotes mean nothing."""
    delimiter = optional(given, "delimiter") or ","
    rows = [line.split(delimiter) for line in _lines(text(given, "text")) if line.strip()]
    if optional(given, "has_header") is False:
        header = [f"col{index}" for index in range(max(map(len, rows), default=0))]
    else:
        header, rows = (rows[0], rows[1:]) if rows else ([], [])
    return [
        {name: row[index] if index < len(row) else "" for index, name in enumerate(header)}
        for row in rows
    ]


def _lines(whole: str) -> list[str]:
    return [line.removesuffix("\r") for line in whole.split("\n")]


def csv_write(given: Json) -> Json:
    delimiter, records = optional(given, "delimiter") or ",", items(given, "records")
    if not records:
        return ""
    header = sorted(mapping(records[0]))
    rows = [[_cell(optional(record, name)) for name in header] for record in records]
    return "\n".join(delimiter.join(row) for row in [header, *rows])


def _cell(value: Json) -> str:
    return value if isinstance(value, str) else ""


def merge(given: Json) -> Json:
    return _merged(field(given, "base"), field(given, "patch"))


def _merged(base: Json, patch: Json) -> Json:
    if not isinstance(base, dict) or not isinstance(patch, dict):
        return patch
    laid = {key: _merged(base[key], patch[key]) for key in base.keys() & patch.keys()}
    return {**base, **patch, **laid}


def at_path(given: Json) -> Json:
    found, path = field(given, "data"), text(given, "path")
    steps = path.removeprefix("$")
    place = 0
    while place < len(steps):
        step = _STEP.match(steps, place)
        if step is None:
            raise StageFailed(f"{path!r} is no path: only $, .field and [n] are known")
        found = _member(found, step, path)
        place = step.end()
    return found


def _member(value: Json, step: re.Match[str], path: str) -> Json:
    name, index = step[1], step[2]
    if name is not None and isinstance(value, dict) and name in value:
        return value[name]
    if index is not None and isinstance(value, list) and int(index) < len(value):
        return value[int(index)]
    raise StageFailed(f"nothing is at {step[0]} of {path!r}")


def validate_schema(given: Json) -> Json:
    """Only the type at the top is looked at."""
    data, wanted = field(given, "data"), optional(field(given, "schema"), "type")
    errors: list[str] = []
    kind = _KINDS.get(wanted) if isinstance(wanted, str) else None
    if kind is not None:
        right = isinstance(data, kind) and not (isinstance(data, bool) and wanted == "number")
        if not right:
            errors.append(f"expected {wanted}")
    return {"errors": errors, "valid": not errors}


def mark_done(given: Json) -> Json:
    return {**mapping(given), "done": True}


def clamp_percent(given: Json) -> Json:
    return min(max(number(given), 0), 100)


def route(given: Json) -> Json:
    """The route itself, else the longest that it begins with, else the default."""
    wanted, routes = text(given, "route"), mapping(given, "routes")
    if wanted in routes:
        return routes[wanted]
    begins = [key for key in routes if wanted.startswith(key)]
    chosen = max(begins, key=len) if begins else text(given, "default")
    if chosen not in routes:
        raise StageFailed(f"no route leads to {wanted!r}")
    return routes[chosen]
