"""What the stages of the standard library are called, take, give and declare."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import msgspec

from caloron.graph.effects import Effect, effect_of_word, parse_effect
from caloron.graph.jsontext import Json, sha256
from caloron.graph.shorthand import parse_shorthand
from caloron.graph.spec import CostEstimate, StageSpec, define

#: Their code is compiled in, so that a name stands for it in their ids.
_IMPLEMENTATION = "noether-stdlib-v0.1.0:"


@cache
def standard_stages() -> tuple[StageSpec, ...]:
    """All of them, with their published ids."""
    text = Path(__file__).with_name("signatures.json").read_text("utf-8")
    return tuple(_stage(entry) for entry in json.loads(text))


def _stage(entry: Json) -> StageSpec:
    stage = define(
        entry["name"],
        parse_shorthand(entry["input"]),
        parse_shorthand(entry["output"]),
        effects=tuple(_effect(one) for one in entry["effects"]),
        implementation_hash=sha256(_IMPLEMENTATION + entry["name"]),
        description=entry["description"],
    )
    return msgspec.structs.replace(
        stage,
        capabilities=frozenset(entry.get("capabilities", ())),
        cost=CostEstimate(**entry.get("cost", {})),
    )


def _effect(written: Json) -> Effect:
    effect = effect_of_word(written) if isinstance(written, str) else None
    return effect or parse_effect(written, "$.effects")
