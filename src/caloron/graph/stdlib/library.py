"""The 85 stages of Noether: their signatures, and a runner for those implemented here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from caloron.graph.json_text import Json, sha256
from caloron.graph.runners.functions import Function, FunctionRunner
from caloron.graph.stage import (
    CostEstimate,
    Effect,
    StageSpec,
    define,
    effect_of_word,
    parse_effect,
)
from caloron.graph.stdlib import data, input_fields, lists, outside, text
from caloron.graph.stdlib.outside import KeyValues
from caloron.graph.type_syntax import parse_shorthand

_REASONS = {
    "it needs a model": ("llm_complete", "llm_embed", "llm_classify", "llm_extract"),
    "it uses Noether's own store": (
        "store_search",
        "store_add",
        "composition_verify",
        "trace_read",
        "stage_describe",
    ),
    "it needs Apache Arrow": ("arrow_from_records", "records_to_arrow"),
    "it is part of Noether's own registry": (
        "verify_stage_content_hash",
        "verify_stage_ed25519",
        "check_stage_description",
        "check_stage_examples",
        "merge_validation_checks",
        "type_check",
    ),
    "it starts or ends processes; write a stage that is a program instead": (
        "spawn_process",
        "wait_process",
        "signal_process",
        "kill_process",
    ),
    "it needs a process of its own; write a stage that is a program instead": (
        "regex_match",
        "regex_replace",
    ),
    "use the operation of the language instead": (
        "retry",
        "fallback",
        "race",
        "timeout",
        "parallel",
    ),
    "a graph has an input and an output instead": ("stdin_read", "stdout_write"),
}
#: Stages that can be referred to and checked, but not run, with the reason.
NOT_IMPLEMENTED = {name: reason for reason, names in _REASONS.items() for name in names}


#: Raise this when a stage answers differently: cached answers of other versions are not used.
_VERSION = "standard-1"
#: Noether compiles these stages in; their ids hash this prefix and the name instead of the code.
_IMPLEMENTATION = "noether-stdlib-v0.1.0:"


@cache
def standard_stages() -> tuple[StageSpec, ...]:
    """All 85 stages, with their published ids."""
    text = Path(__file__).with_name("signatures.json").read_text("utf-8")
    return tuple(_stage(entry) for entry in json.loads(text))


def _stage(entry: Json) -> StageSpec:
    return define(
        entry["name"],
        parse_shorthand(entry["input"]),
        parse_shorthand(entry["output"]),
        effects=tuple(_effect(one) for one in entry["effects"]),
        implementation_hash=sha256(_IMPLEMENTATION + entry["name"]),
        description=entry["description"],
        capabilities=frozenset(entry.get("capabilities", ())),
        cost=CostEstimate(**entry.get("cost", {})),
    )


def _effect(written: Json) -> Effect:
    effect = effect_of_word(written) if isinstance(written, str) else None
    return effect or parse_effect(written, "$.effects")


#: The other stages; each function has the name of its stage.
_FUNCTIONS: dict[str, Function] = {
    name: function
    for module in (data, lists, outside, text)
    for name, function in vars(module).items()
}


class StandardLibrary(FunctionRunner):
    """Runs the stages that are implemented here.

    The `kv_*` stages store their values in `kv_directory`; without one they fail.
    """

    def __init__(
        self, kv_directory: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(version=_VERSION)
        values = KeyValues(kv_directory)
        environ = os.environ if environ is None else environ
        own: dict[str, Function] = {
            "env_get": lambda input: environ.get(input_fields.text(input, "name")),
            "kv_set": values.set,
            "kv_get": values.get,
            "kv_delete": values.delete,
            "kv_exists": values.exists,
            "kv_list": values.keys,
        }
        for stage in standard_stages():
            if stage.name not in NOT_IMPLEMENTED:
                self.add(stage, own.get(stage.name) or _FUNCTIONS[stage.name])
