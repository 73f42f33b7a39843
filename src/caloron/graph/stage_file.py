"""Stages as JSON: the simple form that authors write, and the full form that stores keep."""

from __future__ import annotations

import msgspec

from caloron.graph.errors import ParseError
from caloron.graph.json_text import Json, decode
from caloron.graph.stage import (
    CAPABILITIES,
    PURE,
    CostEstimate,
    Effect,
    Effects,
    Example,
    Lifecycle,
    StageSpec,
    define,
    effect_of_word,
    effect_set,
    effects_json,
    parse_effect,
    parse_effects,
)
from caloron.graph.type_syntax import parse_shorthand, parse_type, required
from caloron.graph.types import json_kind, type_json

_STATES = ("Draft", "Active", "Tombstone")


def parse_stage(text: str | bytes, *, strict: bool = True) -> StageSpec:
    """Return the stage of a file, in either form.

    Without `strict`, a file is read as Noether does: unknown effects and broken examples are
    ignored, and the id of a full form is not checked.
    """
    return stage_of(decode(text, allow_bigint=not strict, what="the stage"), strict=strict)


def stage_of(value: Json, *, strict: bool = True) -> StageSpec:
    """Return the stage of a decoded value: the simple form has an implementation and no id."""
    if not isinstance(value, dict):
        raise ParseError(f"a stage is an object, not {json_kind(value)}", path="$")
    if "name" in value and "implementation" in value and "id" not in value:
        return _simple(value, strict)
    return _full(value, strict)


def _simple(value: Json, strict: bool) -> StageSpec:
    code, language = _implementation(value)
    name = _text(value, "name")
    if language in ("python", "python3", ""):
        _check_python(code)
    return define(
        name,
        parse_shorthand(required(value, "input", "$"), "$.input"),
        parse_shorthand(required(value, "output", "$"), "$.output"),
        effects=_simple_effects(value.get("effects", []), strict),
        code=code,
        language=language,
        description=_text(value, "description", name),
        examples=_examples(value.get("examples", []), strict),
        tags=_texts(value, "tags"),
        aliases=_texts(value, "aliases"),
        properties=_list(value, "properties"),
    )


def _implementation(value: Json) -> tuple[str, str]:
    implementation = value["implementation"]
    if isinstance(implementation, str):
        return implementation, _text(value, "language", "python")
    path = "$.implementation"
    return _text(implementation, "code", path=path), _text(implementation, "language", path=path)


def _simple_effects(value: Json, strict: bool) -> Effects:
    if not isinstance(value, list):
        raise ParseError(f"effects are an array, not {json_kind(value)}", path="$.effects")
    effects: list[Effect] = []
    for index, item in enumerate(value):
        effect = effect_of_word(item) if isinstance(item, str) else None
        if effect is None and strict:
            path = f"$.effects[{index}]"
            if not isinstance(item, dict):
                raise ParseError(f"unknown effect {item!r}", path=path)
            effect = parse_effect(item, path)
        if effect is not None:
            effects.append(effect)
    return effect_set(effects or [PURE])


def _examples(value: Json, strict: bool) -> tuple[Example, ...]:
    examples: list[Example] = []
    for index, item in enumerate(value if isinstance(value, list) else []):
        if isinstance(item, dict) and "input" in item and "output" in item:
            examples.append(Example(item["input"], item["output"]))
        elif strict:
            raise ParseError("an example has `input` and `output`", path=f"$.examples[{index}]")
    return tuple(examples)


def _check_python(code: str) -> None:
    """Refuse code that the wrapper around a Python stage cannot run."""
    top = [line for line in code.splitlines() if line and not line[0].isspace()]
    path = "$.implementation"
    if not any(line.startswith("def execute(") for line in top):
        raise ParseError("the code needs `def execute(input):` at the top level", path=path)
    for line in top:
        if line.startswith(('if __name__ == "__main__"', "if __name__ == '__main__'")):
            raise ParseError("the code must not start itself (`if __name__ …`)", path=path)
        if "sys.stdin" in line or line.startswith("input(") or " input(" in line:
            raise ParseError("the code must not read the standard input itself", path=path)


def _full(value: Json, strict: bool) -> StageSpec:
    signature = required(value, "signature", "$")
    for name in ("capabilities", "cost", "examples", "lifecycle"):
        required(value, name, "$")
    stage = define(
        _text(value, "name", ""),
        parse_type(required(signature, "input", "$.signature"), "$.signature.input"),
        parse_type(required(signature, "output", "$.signature"), "$.signature.output"),
        effects=parse_effects(required(signature, "effects", "$.signature"), "$.signature.effects"),
        implementation_hash=_text(signature, "implementation_hash", path="$.signature"),
        description=_text(value, "description"),
        code=value.get("implementation_code"),
        language=value.get("implementation_language"),
        examples=_examples(value["examples"], strict),
        capabilities=_capabilities(value["capabilities"]),
        cost=_cost(value["cost"]),
        lifecycle=_lifecycle(value["lifecycle"]),
        tags=_texts(value, "tags"),
        aliases=_texts(value, "aliases"),
        properties=_list(value, "properties"),
    )
    id = _text(value, "id")
    if strict and id != stage.id:
        raise ParseError(f"the id is not that of this content ({stage.id})", path="$.id")
    signature_id = value.get("signature_id") or value.get("canonical_id") or stage.signature_id
    return msgspec.structs.replace(stage, id=id, signature_id=signature_id)


def _capabilities(value: Json) -> frozenset[str]:
    if not isinstance(value, list) or not all(item in CAPABILITIES for item in value):
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


def _text(value: Json, name: str, default: str | None = None, *, path: str = "$") -> str:
    if default is not None and value.get(name) is None:
        return default
    text = required(value, name, path)
    if not isinstance(text, str):
        raise ParseError(f"expected a text, found {json_kind(text)}", path=f"{path}.{name}")
    return text


def _list(value: Json, name: str) -> tuple[Json, ...]:
    items = value.get(name)
    return tuple(items) if isinstance(items, list) else ()


def _texts(value: Json, name: str) -> tuple[str, ...]:
    return tuple(item for item in _list(value, name) if isinstance(item, str))


def stage_json(spec: StageSpec) -> Json:
    """Return the full form, as a store of Noether writes it; the signing fields stay empty."""
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
        "capabilities": [name for name in CAPABILITIES if name in spec.capabilities],
        "cost": msgspec.structs.asdict(spec.cost),
        "description": spec.description,
        "examples": [msgspec.structs.asdict(example) for example in spec.examples],
        "lifecycle": state,
        "ed25519_signature": None,
        "signer_public_key": None,
    }
    optional = {
        "implementation_code": spec.code,
        "implementation_language": spec.language,
        "tags": list(spec.tags),
        "aliases": list(spec.aliases),
        "name": spec.name,
        "properties": list(spec.properties),
    }
    return written | {name: field for name, field in optional.items() if field}
