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
    """List all deviations of a value from its schema, each with its position."""
    unknown = schema.keys() - _KNOWN
    assert not unknown, f"this validator does not know {unknown}"
    deviations: list[str] = []
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        deviations += problems(value, root["$defs"][name], root, at)
    if "const" in schema and (value != schema["const"] or type(value) is not type(schema["const"])):
        deviations.append(f"{at} is {value!r}, not {schema['const']!r}")
    if "type" in schema and not _is(value, schema["type"]):
        return [*deviations, f"{at} is a {type(value).__name__}, not {schema['type']}"]
    if isinstance(value, dict):
        deviations += _object(value, schema, root, at)
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            deviations += problems(item, schema["items"], root, f"{at}[{number}]")
    return deviations + _combined(value, schema, root, at)


def _is(value: Any, types: str | list[str]) -> bool:
    names = [types] if isinstance(types, str) else types
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, _TYPES[name]) for name in names)


def _object(
    value: dict[str, Any], schema: dict[str, Any], root: dict[str, Any], at: str
) -> list[str]:
    known = schema.get("properties", {})
    deviations = [
        f"{at}.{name} is missing" for name in schema.get("required", []) if name not in value
    ]
    more = schema.get("additionalProperties", True)
    for name, item in value.items():
        if name in known:
            deviations += problems(item, known[name], root, f"{at}.{name}")
        elif more is False:
            deviations.append(f"{at}.{name} is not in the schema")
        elif isinstance(more, dict):
            deviations += problems(item, more, root, f"{at}.{name}")
    return deviations


def _combined(value: Any, schema: dict[str, Any], root: dict[str, Any], at: str) -> list[str]:
    deviations: list[str] = []
    for part in schema.get("allOf", []):
        deviations += problems(value, part, root, at)
    for name in ("oneOf", "anyOf"):
        if name in schema:
            tries = [problems(value, part, root, at) for part in schema[name]]
            good = sum(not each for each in tries)
            if good == 0 or (name == "oneOf" and good > 1):
                deviations += sorted(tries, key=len)[0] or [f"{at} fits {good} of {name}"]
    if "if" in schema and not problems(value, schema["if"], root, at):
        deviations += problems(value, schema["then"], root, at)
    return deviations
