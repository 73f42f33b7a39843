"""The part of JSON Schema that docs/schema uses: enough to say where an answer differs."""

from __future__ import annotations

from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_KNOWN = {
    "$schema", "title", "$defs", "$ref", "type", "const", "properties", "required", "items",
    "additionalProperties", "oneOf", "anyOf", "allOf", "if", "then",
}  # fmt: skip


def problems(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str = "$") -> list[str]:
    """Everything in which a value differs from its schema, each with its place."""
    unknown = schema.keys() - _KNOWN
    assert not unknown, f"this validator does not know {unknown}"
    found: list[str] = []
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        found += problems(value, root["$defs"][name], root, at)
    if "const" in schema and (value != schema["const"] or type(value) is not type(schema["const"])):
        found.append(f"{at} is {value!r}, not {schema['const']!r}")
    if "type" in schema and not _is(value, schema["type"]):
        return [*found, f"{at} is a {type(value).__name__}, not {schema['type']}"]
    if isinstance(value, dict):
        found += _object(value, schema, root, at)
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            found += problems(item, schema["items"], root, f"{at}[{number}]")
    return found + _combined(value, schema, root, at)


def _is(value: Any, types: str | list[str]) -> bool:
    names = [types] if isinstance(types, str) else types
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, _TYPES[name]) for name in names)


def _object(
    value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str
) -> list[str]:
    known = schema.get("properties", {})
    found = [f"{at}.{name} is missing" for name in schema.get("required", []) if name not in value]
    more = schema.get("additionalProperties", True)
    for name, item in value.items():
        if name in known:
            found += problems(item, known[name], root, f"{at}.{name}")
        elif more is False:
            found.append(f"{at}.{name} is not in the schema")
        elif isinstance(more, dict):
            found += problems(item, more, root, f"{at}.{name}")
    return found


def _combined(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str) -> list[str]:
    found: list[str] = []
    for part in schema.get("allOf", []):
        found += problems(value, part, root, at)
    for name in ("oneOf", "anyOf"):
        if name in schema:
            tries = [problems(value, part, root, at) for part in schema[name]]
            good = sum(not each for each in tries)
            if good == 0 or (name == "oneOf" and good > 1):
                found += sorted(tries, key=len)[0] or [f"{at} fits {good} of {name}"]
    if "if" in schema and not problems(value, schema["if"], root, at):
        found += problems(value, schema["then"], root, at)
    return found
