"""A stage: its signature, its effects, its code, and the ids that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from caloron.graph.errors import ParseError
from caloron.graph.json_text import Json, canonical, sha256
from caloron.graph.types import NType, Record, json_kind, type_json

#: The kinds of effects, in the order in which a set is written and hashed, with their words.
KINDS = {
    "Cost": "cost",
    "Fallible": "fallible",
    "FsRead": "fs-read",
    "FsWrite": "fs-write",
    "Llm": "llm",
    "Network": "network",
    "NonDeterministic": "non-deterministic",
    "Process": "process",
    "Pure": "pure",
    "Unknown": "unknown",
}
CAPABILITIES = {
    "Network": "network",
    "FsRead": "fs-read",
    "FsWrite": "fs-write",
    "Gpu": "gpu",
    "Llm": "llm",
    "Process": "process",
}
_DETAIL = {"Cost": "cents", "FsRead": "path", "FsWrite": "path", "Llm": "model"}
#: The detail of an effect that a simple spec names by its word alone.
_DEFAULT_DETAILS: dict[str, int | str] = {"Llm": "unknown", "Cost": 0}
#: A simple spec cannot name these.
_NEED_A_PATH = ("FsRead", "FsWrite")


class Effect(msgspec.Struct, frozen=True):
    """One effect; the detail is cents, a path or a model where the kind has one."""

    kind: str
    detail: int | str | None = None

    @property
    def word(self) -> str:
        return KINDS[self.kind]


Effects = tuple[Effect, ...]

PURE = Effect("Pure")
FALLIBLE = Effect("Fallible")
NETWORK = Effect("Network")
#: Of a stage on another machine.
REMOTE_EFFECTS = (FALLIBLE, NETWORK)


def effect_set(effects: Iterable[Effect]) -> Effects:
    """Return the effects sorted and distinct, as they are hashed."""
    return tuple(sorted(set(effects), key=_order))


def _order(effect: Effect) -> tuple[int, int, str]:
    detail = effect.detail
    cents, word = (detail, "") if isinstance(detail, int) else (0, detail or "")
    return list(KINDS).index(effect.kind), cents, word


def effects_json(effects: Iterable[Effect]) -> Json:
    return {"effects": list(map(_effect_json, effects))}


def _effect_json(effect: Effect) -> Json:
    written: dict[str, Json] = {"effect": effect.kind}
    if effect.kind in _DETAIL:
        written[_DETAIL[effect.kind]] = effect.detail
    return written


def parse_effects(value: Json, path: str) -> Effects:
    """Parse the form of a stored stage: `{"effects": [{"effect": "Pure"}]}`."""
    if not isinstance(value, dict) or not isinstance(value.get("effects"), list):
        raise ParseError('effects are an object {"effects": […]}', path=path)
    return effect_set(
        parse_effect(item, f"{path}.effects[{i}]") for i, item in enumerate(value["effects"])
    )


def parse_effect(value: Json, path: str) -> Effect:
    """Parse one effect in its object form."""
    kind = value.get("effect") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise ParseError(f"unknown effect; known: {', '.join(KINDS)}", path=path)
    name = _DETAIL.get(kind)
    if name is None:
        return Effect(kind)
    detail = value.get(name)
    right = isinstance(detail, int) and not isinstance(detail, bool) and detail >= 0
    if not (right if name == "cents" else isinstance(detail, str)):
        raise ParseError(f"{kind} needs `{name}`, found {json_kind(detail)}", path=path)
    return Effect(kind, detail)


def effect_of_word(word: str) -> Effect | None:
    """Return the effect that a word of a simple spec names, if there is one."""
    plain = word.lower().replace("-", "")
    kind = next((kind for kind in KINDS if kind.lower() == plain), None)
    if kind is None or kind in _NEED_A_PATH:
        return None
    return Effect(kind, _DEFAULT_DETAILS.get(kind))


def kinds_of_words(words: str | Iterable[str], known: dict[str, str]) -> frozenset[str]:
    """Return the kinds in a list such as `network,fs-read`; unknown words are left out."""
    listed = words.split(",") if isinstance(words, str) else words
    plain = {word.replace("-", ""): kind for kind, word in known.items()}
    named = (plain.get(word.strip().lower().replace("-", "")) for word in listed)
    return frozenset(kind for kind in named if kind is not None)


def cost_of(effects: Iterable[Effect]) -> int:
    """Return the declared cost of one call in cents."""
    return sum(e.detail for e in effects if e.kind == "Cost" and isinstance(e.detail, int))


class CostEstimate(msgspec.Struct, frozen=True):
    """The estimated resources of a call; for plans only, never enforced."""

    time_ms_p50: int | None = None
    tokens_est: int | None = None
    memory_mb: int | None = None


class Lifecycle(msgspec.Struct, frozen=True):
    """The state of a stage: Draft, Active, Deprecated (by a successor) or Tombstone."""

    state: str = "Active"
    successor_id: str = ""


ACTIVE = Lifecycle()


class Example(msgspec.Struct, frozen=True):
    """An input, and the answer of the stage to it."""

    input: Json
    output: Json


class StageSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A stage as graphs refer to it: typed, with declared effects, identified by its content."""

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

    @property
    def is_pure(self) -> bool:
        """True if an answer may be reused for the same input."""
        kinds = {effect.kind for effect in self.effects}
        return "Pure" in kinds and kinds <= {"Pure", "Fallible"}


#: A bare value goes into the first of these fields that `config` does not have.
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


def with_config(stage: StageSpec, config: Mapping[str, Json], value: Json) -> Json:
    """Return the input of a stage whose `config` has some fields of it.

    A value that is no object goes into the one field that is left, else into the first free one of
    the names that Noether uses.
    """
    if isinstance(value, dict):
        return {**value, **config}
    field = next((name for name in _WRAPPERS if name not in config), None)
    if isinstance(stage.input, Record):
        left = [name for name in stage.input.fields if name not in config]
        field = left[0] if len(left) == 1 else field
    return dict(config) if field is None else {field: value, **config}


def define(
    name: str,
    input: NType,
    output: NType,
    *,
    effects: Iterable[Effect] = (PURE,),
    implementation_hash: str = "",
    code: str | None = None,
    **details: Any,
) -> StageSpec:
    """Return a stage with the ids of its content: its code, or a hash that stands for it.

    All implementations of one signature share the signature id.
    """
    effects = effect_set(effects)
    if code is not None and not implementation_hash:
        implementation_hash = sha256(code)
    signature = {
        "name": name,
        "input": type_json(input),
        "output": type_json(output),
        "effects": effects_json(effects),
    }
    hashed = signature | {"implementation_hash": implementation_hash}
    defaults = {
        "id": sha256(canonical(hashed)),
        "signature_id": sha256(canonical(signature)),
        "description": name,
    }
    return StageSpec(
        **defaults | details,
        name=name,
        input=input,
        output=output,
        effects=effects,
        implementation_hash=implementation_hash,
        code=code,
    )
