"""Answers of commands, compared with the schema that is published for them in docs/schema."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

PUBLISHED: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "docs" / "schema" / "caloron.json").read_bytes()
)


def problems(envelope: dict[str, Any]) -> list[str]:
    """List all deviations of an answer, each with its position."""
    errors = _validator(envelope["command"]).iter_errors(envelope)
    return [f"{error.json_path} {error.message[:500]}" for error in errors]


@cache
def _validator(command: str) -> Draft202012Validator:
    """The schema with the rule of one command: all of them take 14 ms for each answer."""
    name = {"const": command}
    rules = [rule for rule in PUBLISHED["allOf"] if rule["if"]["properties"]["command"] == name]
    return Draft202012Validator(PUBLISHED | {"allOf": rules})
