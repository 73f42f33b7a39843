"""Recorded runs of the real Noether 0.8.2: the same ids, static verdicts and results."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from caloron.graph.errors import GraphError
from caloron.graph.json_text import compact
from caloron.graph.prepare import Prepared, prepare
from caloron.graph.runners.functions import RunnerChain
from caloron.graph.runners.subprocess import SubprocessRunner
from caloron.graph.runtime.run import RunResult, run
from caloron.graph.stdlib import StandardLibrary
from caloron.graph.stdlib.library import NOT_IMPLEMENTED
from tests.support.noether import VECTORS, catalogue, permissions, wrapped
from tests.support.unsandboxed import Unsandboxed

STAGES = catalogue()


def _runner(directory: Path) -> RunnerChain:
    """The standard library and programs without a sandbox, all kept in this directory."""
    python = {"python": [sys.executable, "-S"]}
    programs = SubprocessRunner(directory / "scripts", Unsandboxed(), interpreters=python)
    return RunnerChain(StandardLibrary(directory), programs)


_TRACED = ("stage_id", "input_hash", "output_hash")
#: Recorded runs that strict refuses, each for a mistake that Noether does not check.
_REFUSED_BY_STRICT = {
    "branch const non-bool": "expected Bool, found a number",
    "let missing field": "the field `b` (Text) is missing",
    "branch arms unchecked": "if_true: expected Text",
}
#: Recorded runs with defects of Noether that are not reproduced: values are not checked against
#: their types while running, a bare value beside `config` goes into the wrong field, and all uses
#: of a generic stage share their type variables.
_DEFECTS = ("let missing field", "config on stdlib", "generic identity twice at two types")
_UNTYPED_INPUTS = ("flatten", "kv_list")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("noether")


def _names(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(_names, node))
    if not isinstance(node, dict):
        return set()
    own = {node["id"]} if node.get("op") == "Stage" else set()
    return own | _names(list(node.values()))


_RUNS = [v for v in VECTORS["runs"] if not _names(v["graph"]) & set(NOT_IMPLEMENTED)]


def _run(vector: dict[str, Any], directory: Path, *, strict: bool) -> tuple[Prepared, RunResult]:
    if vector["name"] == "javascript" and shutil.which("node") is None:
        pytest.skip("node is not installed")
    allowed, text = permissions(vector["flags"]), json.dumps(vector["graph"])
    prepared = prepare(text, STAGES, allowed, strict=strict)
    return prepared, run(prepared, vector["input"], _runner(directory))


@pytest.mark.parametrize(
    "vector",
    [v for v in _RUNS if v["exit"] != 0 and v["name"] not in _DEFECTS],
    ids=lambda v: v["name"],
)
def test_a_run_fails_where_the_real_program_failed(vector, shared):
    with pytest.raises(GraphError) as failed:
        _run(vector, shared, strict=False)
    assert failed.value.exit_code == vector["exit"]
    assert failed.value.kind == vector["error_kind"]


@pytest.mark.parametrize(
    "vector",
    [v for v in _RUNS if v["name"] in _REFUSED_BY_STRICT],
    ids=lambda v: v["name"],
)
def test_strict_refuses_mistakes_that_noether_does_not_check(vector, shared):
    with pytest.raises(GraphError, match=re.escape(_REFUSED_BY_STRICT[vector["name"]])):
        _run(vector, shared, strict=True)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "noether"])
@pytest.mark.parametrize(
    "vector",
    [v for v in _RUNS if v["exit"] == 0 and v["name"] not in _DEFECTS],
    ids=lambda v: v["name"],
)
def test_a_run_answers_as_the_real_program(vector, strict, shared):
    if strict and vector["name"] in _REFUSED_BY_STRICT:
        return
    prepared, result = _run(vector, shared, strict=strict)
    assert compact(result.output) == compact(vector["output"])
    assert prepared.composition_id == vector["composition_id"]
    assert [effect.word for effect in prepared.effects] == vector["effects"]
    if vector["trace_status"] == "Ok":
        entries = [
            {name: getattr(entry, name) for name in _TRACED} for entry in result.trace.stages
        ]
        assert entries == [{name: entry[name] for name in _TRACED} for entry in vector["trace"]]


def _standard_runs() -> list[Any]:
    """Pair each run with the earlier writes to its store; a repeated question has no writes."""
    asked_before: set[str] = set()
    writes: list[Any] = []
    cases = []
    for vector in VECTORS["stdlib_runs"]:
        question = vector["stage"] + compact(vector["input"])
        before = [] if vector["stage"] == "kv_get" and question in asked_before else list(writes)
        asked_before.add(question)
        if vector["stage"] in ("kv_set", "kv_delete"):
            writes.append(vector)
        if vector["stage"] not in (*NOT_IMPLEMENTED, *_UNTYPED_INPUTS):
            name = f"{vector['stage']} {compact(vector['input'])[:40]}"
            cases.append(pytest.param(vector, before, id=name))
    return cases


@pytest.mark.parametrize(("vector", "before"), _standard_runs())
def test_a_stage_of_the_standard_library_answers_as_the_real_one(vector, before, tmp_path):
    # Each test has its own store, because tests run in any order and in several processes.
    code, output = 0, None
    for step in [*(before if vector["stage"].startswith("kv_") else ()), vector]:
        prepared = prepare(wrapped({"op": "Stage", "id": step["stage"]}), STAGES, strict=False)
        try:
            code, output = 0, run(prepared, step["input"], _runner(tmp_path)).output
        except GraphError as error:
            code = error.exit_code
    assert code == vector["exit"]
    if code == 0:
        assert compact(output) == compact(vector["output"])
