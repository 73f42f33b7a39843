"""What a stage is: its signature, its code, and the ids that follow from both."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from caloron.graph.effects import PURE, Effects, effect_set, effects_json
from caloron.graph.jsontext import Json, canonical, sha256
from caloron.graph.types import NType, Record, type_json


class CostEstimate(msgspec.Struct, frozen=True):
    """What a call is thought to take; advice for plans, never enforced."""

    time_ms_p50: int | None = None
    tokens_est: int | None = None
    memory_mb: int | None = None


class Lifecycle(msgspec.Struct, frozen=True):
    """Whether a stage may be used: Draft, Active, Deprecated (by a successor) or Tombstone."""

    state: str = "Active"
    successor_id: str = ""


ACTIVE = Lifecycle()


class Example(msgspec.Struct, frozen=True):
    """An input and what the stage answers to it."""

    input: Json
    output: Json


class StageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A stage as graphs refer to it: typed, with declared effects, known by its content."""

    id: str
    signature_id: str
    name: str
    input: NType
    output: NType
    effects: Effects
    implementation_hash: str
    description: str = ""
    code: str | None = None
    language: str | None = None
    examples: tuple[Example, ...] = ()
    capabilities: frozenset[str] = frozenset()
    cost: CostEstimate = CostEstimate()
    lifecycle: Lifecycle = ACTIVE
    tags: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    properties: tuple[Json, ...] = ()

    def declares(self, kind: str) -> bool:
        return any(effect.kind == kind for effect in self.effects)

    def identity(self) -> Identity:
        return Identity(self.name, self.input, self.output, self.effects, self.implementation_hash)


class Identity(msgspec.Struct, frozen=True):
    """What the ids of a stage hash; everything else about it may change."""

    name: str
    input: NType
    output: NType
    effects: Effects
    implementation_hash: str

    def signature(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "input": type_json(self.input),
            "output": type_json(self.output),
            "effects": effects_json(self.effects),
        }

    def signature_id(self) -> str:
        """The id that all implementations of one signature share."""
        return sha256(canonical(self.signature()))

    def stage_id(self) -> str:
        """The id of exactly this implementation."""
        hashed = self.signature()
        hashed["implementation_hash"] = self.implementation_hash
        return sha256(canonical(hashed))

    def legacy_id(self) -> str:
        """The id that versions before 0.5 gave: no name, in the order of declaration."""
        hashed = self.signature()
        del hashed["name"]
        hashed["implementation_hash"] = self.implementation_hash
        return sha256(json.dumps(hashed, separators=(",", ":"), ensure_ascii=False))


#: The fields that a bare value goes into, if config has not given them: the first that is free.
_WRAPPERS = (
    "items",
    "text",
    "data",
    "input",
    "records",
    "train",
    "document",
    "html",
    "csv",
    "json_str",
)


def with_config(
    stage: StageSpec, config: Mapping[str, Json], value: Json, *, by_field: bool
) -> Json:
    """The input of a stage whose config gives fields in advance; `by_field`: see Profile."""
    if isinstance(value, dict):
        return {**value, **config}
    field = next((name for name in _WRAPPERS if name not in config), None)
    if by_field and isinstance(stage.input, Record):
        left = [name for name in stage.input.fields if name not in config]
        field = left[0] if len(left) == 1 else field
    return dict(config) if field is None else {field: value, **config}


def define(
    name: str,
    input: NType,
    output: NType,
    *,
    effects: Effects = (PURE,),
    implementation_hash: str = "",
    code: str | None = None,
    language: str | None = None,
    description: str = "",
) -> StageSpec:
    """A stage with the ids that its content gives it: its code, or a hash that stands for it."""
    installed = sha256(code) if code is not None else implementation_hash
    identity = Identity(name, input, output, effect_set(effects), installed)
    return StageSpec(
        id=identity.stage_id(),
        signature_id=identity.signature_id(),
        name=name,
        input=input,
        output=output,
        effects=identity.effects,
        implementation_hash=installed,
        description=description or name,
        code=code,
        language=language,
    )
