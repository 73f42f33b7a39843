"""Stages as JSON: the simple form that authors write, and the full form that stores keep."""

from __future__ import annotations

from caloron.graph.effects import (
    CAPABILITIES,
    PURE,
    Effect,
    Effects,
    effect_of_word,
    effect_set,
    effects_json,
    parse_effect,
    parse_effects,
)
from caloron.graph.errors import ParseError
from caloron.graph.jsontext import Json, decode, sha256
from caloron.graph.profile import STRICT, Profile
from caloron.graph.shorthand import parse_shorthand
from caloron.graph.spec import CostEstimate, Example, Identity, Lifecycle, StageSpec
from caloron.graph.typeparse import parse_type, part
from caloron.graph.types import json_kind, type_json

_STATES = ("Draft", "Active", "Tombstone")


def parse_spec(text: str | bytes, profile: Profile = STRICT) -> StageSpec:
    """A stage from the text of its file, in whichever of the two forms it is."""
    wide = not profile.refuses_doubtful_text
    return spec_of(decode(text, wide_integers=wide, what="the stage"), profile)


def spec_of(value: Json, profile: Profile = STRICT) -> StageSpec:
    """A stage from a decoded value: the simple form has a name, an implementation and no id."""
    if not isinstance(value, dict):
        raise ParseError(f"a stage is an object, not {json_kind(value)}", path="$")
    if "name" in value and "implementation" in value and "id" not in value:
        return _simple(value, profile)
    return _full(value, profile)


def _simple(value: Json, profile: Profile) -> StageSpec:
    strict = profile.refuses_doubtful_text
    code, language = _implementation(value)
    name = _text(value, "name")
    if language in ("python", "python3", ""):
        _check_python(code, strict)
    identity = Identity(
        name,
        parse_shorthand(part(value, "input", "$"), "$.input", as_noether=not strict),
        parse_shorthand(part(value, "output", "$"), "$.output", as_noether=not strict),
        _simple_effects(value.get("effects", []), strict),
        sha256(code),
    )
    return StageSpec(
        id=identity.stage_id(),
        signature_id=identity.signature_id(),
        name=name,
        input=identity.input,
        output=identity.output,
        effects=identity.effects,
        implementation_hash=identity.implementation_hash,
        description=_text(value, "description", name),
        code=code,
        language=language,
        examples=_examples(value.get("examples", []), strict),
        tags=_texts(value, "tags"),
        aliases=_texts(value, "aliases"),
        # The simple form of 0.8.2 drops them without a word.
        properties=_list(value, "properties") if strict else (),
    )


def _implementation(value: Json) -> tuple[str, str]:
    given = value["implementation"]
    if isinstance(given, str):
        return given, _text(value, "language", "python")
    return (
        _text({"code": part(given, "code", "$.implementation")}, "code"),
        _text({"language": part(given, "language", "$.implementation")}, "language"),
    )


def _simple_effects(value: Json, strict: bool) -> Effects:
    if not isinstance(value, list):
        raise ParseError(f"effects are an array, not {json_kind(value)}", path="$.effects")
    named: list[Effect] = []
    for index, one in enumerate(value):
        effect = effect_of_word(one) if isinstance(one, str) else None
        if effect is None and strict:
            path = f"$.effects[{index}]"
            if not isinstance(one, dict):
                raise ParseError(f"unknown effect {one!r}", path=path)
            effect = parse_effect(one, path)
        if effect is not None:
            named.append(effect)
    return effect_set(named or [PURE])


def _examples(value: Json, strict: bool) -> tuple[Example, ...]:
    examples: list[Example] = []
    for index, one in enumerate(value if isinstance(value, list) else []):
        if isinstance(one, dict) and "input" in one and "output" in one:
            examples.append(Example(one["input"], one["output"]))
        elif strict:
            raise ParseError("an example has `input` and `output`", path=f"$.examples[{index}]")
    return tuple(examples)


def _check_python(code: str, strict: bool) -> None:
    """What the wrapper around a Python stage cannot live with, told before it runs."""
    top = [line for line in code.splitlines() if line and not line[0].isspace()]
    entries = ("def execute(",) if strict else ("def execute(", "async def execute(")
    path = "$.implementation"
    if not any(line.startswith(entries) for line in top):
        raise ParseError("the code needs `def execute(input):` at the top level", path=path)
    for line in top:
        if line.startswith(('if __name__ == "__main__"', "if __name__ == '__main__'")):
            raise ParseError("the code must not start itself (`if __name__ …`)", path=path)
        if "sys.stdin" in line or line.startswith("input(") or " input(" in line:
            raise ParseError("the code must not read the standard input itself", path=path)


def _full(value: Json, profile: Profile) -> StageSpec:
    signature = part(value, "signature", "$")
    identity = Identity(
        _text(value, "name", ""),
        parse_type(part(signature, "input", "$.signature"), "$.signature.input"),
        parse_type(part(signature, "output", "$.signature"), "$.signature.output"),
        parse_effects(part(signature, "effects", "$.signature"), "$.signature.effects"),
        _text(
            {"implementation_hash": part(signature, "implementation_hash", "$.signature")},
            "implementation_hash",
        ),
    )
    for name in ("id", "capabilities", "cost", "description", "examples", "lifecycle"):
        part(value, name, "$")
    id = _text(value, "id")
    if profile.refuses_doubtful_text and id != identity.stage_id():
        raise ParseError(f"the id is not that of this content ({identity.stage_id()})", path="$.id")
    return StageSpec(
        id=id,
        signature_id=value.get("signature_id")
        or value.get("canonical_id")
        or identity.signature_id(),
        name=identity.name,
        input=identity.input,
        output=identity.output,
        effects=identity.effects,
        implementation_hash=identity.implementation_hash,
        description=_text(value, "description"),
        code=value.get("implementation_code"),
        language=value.get("implementation_language"),
        examples=_examples(value["examples"], profile.refuses_doubtful_text),
        capabilities=_capabilities(value["capabilities"]),
        cost=_cost(value["cost"]),
        lifecycle=_lifecycle(value["lifecycle"]),
        tags=_texts(value, "tags"),
        aliases=_texts(value, "aliases"),
        properties=_list(value, "properties"),
    )


def _capabilities(value: Json) -> frozenset[str]:
    if not isinstance(value, list) or not all(one in CAPABILITIES for one in value):
        known = ", ".join(CAPABILITIES)
        raise ParseError(f"capabilities are an array of {known}", path="$.capabilities")
    return frozenset(value)


def _cost(value: Json) -> CostEstimate:
    if not isinstance(value, dict):
        raise ParseError(f"cost is an object, not {json_kind(value)}", path="$.cost")
    known = CostEstimate.__struct_fields__
    return CostEstimate(**{name: value[name] for name in known if name in value})


def _lifecycle(value: Json) -> Lifecycle:
    if isinstance(value, str) and value in _STATES:
        return Lifecycle(value)
    deprecated = value.get("Deprecated") if isinstance(value, dict) else None
    if isinstance(deprecated, dict) and isinstance(deprecated.get("successor_id"), str):
        return Lifecycle("Deprecated", deprecated["successor_id"])
    raise ParseError(
        'lifecycle is "Draft", "Active", "Tombstone" or {"Deprecated": {"successor_id": …}}',
        path="$.lifecycle",
    )


def _text(value: Json, name: str, default: str | None = None) -> str:
    found = value.get(name, default)
    if found is None and default is not None:
        return default
    if not isinstance(found, str):
        raise ParseError(f"expected a text, found {json_kind(found)}", path=f"$.{name}")
    return found


def _list(value: Json, name: str) -> tuple[Json, ...]:
    found = value.get(name)
    return tuple(found) if isinstance(found, list) else ()


def _texts(value: Json, name: str) -> tuple[str, ...]:
    return tuple(one for one in _list(value, name) if isinstance(one, str))


def spec_json(spec: StageSpec) -> Json:
    """The full form, as a store of 0.8.2 writes it; the two signing fields stay empty."""
    state: Json = spec.lifecycle.state
    if state == "Deprecated":
        state = {"Deprecated": {"successor_id": spec.lifecycle.successor_id}}
    written: dict[str, Json] = {
        "id": spec.id,
        "signature_id": spec.signature_id,
        "signature": {
            "input": type_json(spec.input),
            "output": type_json(spec.output),
            "effects": effects_json(spec.effects),
            "implementation_hash": spec.implementation_hash,
        },
        "capabilities": [one for one in CAPABILITIES if one in spec.capabilities],
        "cost": {name: getattr(spec.cost, name) for name in spec.cost.__struct_fields__},
        "description": spec.description,
        "examples": [{"input": one.input, "output": one.output} for one in spec.examples],
        "lifecycle": state,
        "ed25519_signature": None,
        "signer_public_key": None,
    }
    kept = {
        "implementation_code": spec.code,
        "implementation_language": spec.language,
        "tags": list(spec.tags),
        "aliases": list(spec.aliases),
        "name": spec.name,
        "properties": list(spec.properties),
    }
    return written | {name: found for name, found in kept.items() if found}
