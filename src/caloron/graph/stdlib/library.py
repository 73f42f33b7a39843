"""The 85 stages of Noether: their signatures, and a runner for those implemented here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec

from caloron.graph.json_text import Json, sha256
from caloron.graph.runners.functions import Function, FunctionRunner
from caloron.graph.runtime.protocols import Call, Value
from caloron.graph.stage import (
    CostEstimate,
    Effect,
    StageSpec,
    define,
    effect_of_word,
    parse_effect,
)
from caloron.graph.stdlib import data, lists, outside, text
from caloron.graph.stdlib.outside import KeyValues
from caloron.graph.type_syntax import parse_shorthand

_MODEL = "it needs a model"
_STORE = "it uses Noether's own store"
_ARROW = "it needs Apache Arrow"
_REGISTRY = "it is part of Noether's own registry"
_PROCESS = "it starts or ends processes; write a stage that is a program instead"
_PATTERN = "it needs a process of its own; write a stage that is a program instead"
_OPERATION = "use the operation of the language instead"
_TERMINAL = "a graph has an input and an output instead"

#: Stages that can be referred to and checked, but not run.
NOT_IMPLEMENTED = {
    "llm_complete": _MODEL,
    "llm_embed": _MODEL,
    "llm_classify": _MODEL,
    "llm_extract": _MODEL,
    "store_search": _STORE,
    "store_add": _STORE,
    "composition_verify": _STORE,
    "trace_read": _STORE,
    "stage_describe": _STORE,
    "arrow_from_records": _ARROW,
    "records_to_arrow": _ARROW,
    "verify_stage_content_hash": _REGISTRY,
    "verify_stage_ed25519": _REGISTRY,
    "check_stage_description": _REGISTRY,
    "check_stage_examples": _REGISTRY,
    "merge_validation_checks": _REGISTRY,
    "type_check": _REGISTRY,
    "spawn_process": _PROCESS,
    "wait_process": _PROCESS,
    "signal_process": _PROCESS,
    "kill_process": _PROCESS,
    "regex_match": _PATTERN,
    "regex_replace": _PATTERN,
    "retry": _OPERATION,
    "fallback": _OPERATION,
    "race": _OPERATION,
    "timeout": _OPERATION,
    "parallel": _OPERATION,
    "stdin_read": _TERMINAL,
    "stdout_write": _TERMINAL,
}


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


_PURE: dict[str, Function] = {
    "to_text": data.to_text,
    "to_number": data.to_number,
    "to_bool": data.to_bool,
    "parse_json": data.parse_json,
    "to_json": data.to_json,
    "branch": data.choose,
    "http_body": data.http_body,
    "http_status": data.http_status,
    "csv_parse": data.csv_parse,
    "csv_write": data.csv_write,
    "json_schema_validate": data.validate_schema,
    "json_merge": data.merge,
    "json_path": data.at_path,
    "identity": data.identity,
    "mark_done": data.mark_done,
    "clamp_percent": data.clamp_percent,
    "router": data.route,
    "map": lists.apply,
    "filter": lists.keep,
    "reduce": lists.fold,
    "sort": lists.sort,
    "group_by": lists.group_by,
    "flatten": lists.flatten,
    "zip": lists.pairs,
    "take": lists.take,
    "num_sum": lists.total,
    "num_avg": lists.mean,
    "num_min": lists.least,
    "num_max": lists.most,
    "list_dedup": lists.distinct,
    "list_length": lists.length,
    "head": lists.head,
    "tail": lists.tail,
    "text_split": text.split,
    "text_join": text.join,
    "text_template": text.template,
    "text_hash": text.hashed,
    "text_upper": text.upper,
    "text_lower": text.lower,
    "text_trim": text.trim,
    "text_length": text.length,
    "text_contains": text.contains,
    "text_reverse": text.reverse,
    "text_replace": text.replace,
}
_EFFECTFUL: dict[str, Function] = {
    "read_file": outside.read_file,
    "write_file": outside.write_file,
    "http_get": outside.http_get,
    "http_post": outside.http_post,
    "http_put": outside.http_put,
}


class StandardLibrary:
    """Runs the stages that are implemented here.

    The `kv_*` stages store their values in `kv_directory`; without one they fail.
    """

    def __init__(
        self, kv_directory: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._functions = FunctionRunner(version=_VERSION)
        kept = KeyValues(kv_directory)
        environment = outside.Environment(os.environ if environ is None else environ)
        functions: dict[str, Function] = {
            **_PURE,
            **_EFFECTFUL,
            "env_get": environment.get,
            "kv_set": kept.set,
            "kv_get": kept.get,
            "kv_delete": kept.delete,
            "kv_exists": kept.exists,
            "kv_list": kept.keys,
        }
        for stage in standard_stages():
            if stage.name in functions:
                self._functions.add(stage, functions[stage.name])

    def code_version(self, stage: StageSpec) -> str | None:
        return self._functions.code_version(stage)

    def run(self, stage: StageSpec, given: Value, call: Call) -> Json | Value:
        return self._functions.run(stage, given, call)
