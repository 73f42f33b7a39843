"""Runs the stages of the standard library."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from caloron.graph.datum import Datum
from caloron.graph.jsontext import Json
from caloron.graph.native import Function, Functions, hash_of_files
from caloron.graph.protocols import Call
from caloron.graph.spec import StageSpec
from caloron.graph.stdlib import control, data, lists, outside, text
from caloron.graph.stdlib.kv import KeyValues
from caloron.graph.stdlib.signatures import standard_stages

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
    "type_check": data.type_check,
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
    "regex_match": text.match,
    "regex_replace": text.substitute,
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
    "retry": control.retry,
    "fallback": control.first_success,
    "race": control.first_success,
    "timeout": control.timeout,
    "parallel": control.each,
    "read_file": outside.read_file,
    "write_file": outside.write_file,
    "http_get": outside.http_get,
    "http_post": outside.http_post,
    "http_put": outside.http_put,
    "stdin_read": outside.stdin_read,
    "stdout_write": outside.stdout_write,
}


@cache
def _installed() -> str:
    return hash_of_files(Path(__file__).parent.parent.rglob("*.py"))


class StandardLibrary:
    """A runner for the stages that need no model and nothing of Noether's own store.

    Values of the kv stages are kept in `kv_directory`; without one those stages say so.
    """

    def __init__(
        self, kv_directory: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._functions = Functions(installed="standard")
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

    def code_hash(self, stage: StageSpec) -> str | None:
        return None if self._functions.code_hash(stage) is None else _installed()

    def run(self, stage: StageSpec, given: Datum, call: Call) -> Json | Datum:
        return self._functions.run(stage, given, call)
