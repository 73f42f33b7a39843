"""What a stage says it does besides computing: effects, and the capabilities it needs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from caloron.graph.errors import ParseError
from caloron.graph.jsontext import Json
from caloron.graph.types import json_kind

#: In the order in which a set of effects is written and hashed, with the word people use.
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
_PLACE = {kind: place for place, kind in enumerate(KINDS)}
_DETAIL = {"Cost": "cents", "FsRead": "path", "FsWrite": "path", "Llm": "model"}
#: What a simple spec can name by a word alone, and what then fills the detail.
_WORDS: dict[str, int | str | None] = {
    "Pure": None,
    "Network": None,
    "Fallible": None,
    "NonDeterministic": None,
    "Process": None,
    "Llm": "unknown",
    "Cost": 0,
    "Unknown": None,
}


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
NON_DETERMINISTIC = Effect("NonDeterministic")
UNKNOWN = Effect("Unknown")


def effect_set(effects: Iterable[Effect]) -> Effects:
    """The effects sorted and without doubles, as they are hashed."""
    return tuple(sorted(set(effects), key=_order))


def _order(effect: Effect) -> tuple[int, int, str]:
    detail = effect.detail
    cents, word = (detail, "") if isinstance(detail, int) else (0, detail or "")
    return _PLACE[effect.kind], cents, word


def effects_json(effects: Iterable[Effect]) -> Json:
    return {"effects": [_effect_json(one) for one in effects]}


def _effect_json(effect: Effect) -> Json:
    written: dict[str, Json] = {"effect": effect.kind}
    if effect.kind in _DETAIL:
        written[_DETAIL[effect.kind]] = effect.detail
    return written


def parse_effects(value: Json, path: str) -> Effects:
    """The wrapped form of a stored stage: `{"effects": [{"effect": "Pure"}]}`."""
    if not isinstance(value, dict) or not isinstance(value.get("effects"), list):
        raise ParseError('effects are an object {"effects": […]}', path=path)
    return effect_set(
        parse_effect(one, f"{path}.effects[{i}]") for i, one in enumerate(value["effects"])
    )


def parse_effect(value: Json, path: str) -> Effect:
    """One effect in its object form."""
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
    """The effect that a word of a simple spec names; None for one that it cannot name."""
    plain = word.lower().replace("-", "")
    for kind, detail in _WORDS.items():
        if word == kind or plain == kind.lower():
            return Effect(kind, detail)
    return None


def kinds_of_words(words: str | Iterable[str], known: dict[str, str]) -> frozenset[str]:
    """The kinds that a list such as `network,fs-read` names; unknown words are left out."""
    listed = words.split(",") if isinstance(words, str) else words
    plain = {word.replace("-", ""): kind for kind, word in known.items()}
    named = (plain.get(word.strip().lower().replace("-", "")) for word in listed)
    return frozenset(kind for kind in named if kind is not None)


def cost_of(effects: Iterable[Effect]) -> int:
    """The cents that one call is declared to cost."""
    return sum(one.detail for one in effects if one.kind == "Cost" and isinstance(one.detail, int))
