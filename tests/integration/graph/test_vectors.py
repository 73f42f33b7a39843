"""Every run of the real Noether 0.8.2 that was recorded, run again: outputs, traces, exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from caloron.graph.errors import (
    BudgetExceeded,
    GraphError,
    RemoteCallFailed,
    RetryExhausted,
    StageMissing,
    StageTimedOut,
)
from caloron.graph.jsontext import compact
from caloron.graph.prepare import prepare
from caloron.graph.profile import NOETHER, STRICT
from caloron.graph.report import dry_run_data, failure, run_data, success
from caloron.graph.run import run
from tests.support.noether import VECTORS, catalogue, permissions, wrapped
from tests.support.vector_runs import runner

STAGES = catalogue()
_TRACED = ("stage_id", "step_index", "status", "input_hash", "output_hash")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("noether")


def _run(vector: dict[str, Any], directory: Path) -> tuple[int, str | None, Any]:
    """The exit code, the kind of error, and what would be printed."""
    try:
        allowed = permissions(vector["flags"])
        prepared = prepare(json.dumps(vector["graph"]), STAGES, NOETHER, allowed)
        return 0, None, run_data(prepared, run(prepared, vector["input"], runner(directory)))
    except GraphError as error:
        return error.exit_code, error.kind, failure(error)


@pytest.mark.parametrize("vector", VECTORS["runs"], ids=lambda v: v["name"])
def test_a_run_gives_what_the_real_program_gave(vector, shared):
    if vector["name"] == "javascript" and shutil.which("node") is None:
        pytest.skip("node is not installed")
    code, kind, told = _run(vector, shared)
    assert (code, kind) == (vector["exit"], vector.get("error_kind"))
    if code != 0:
        assert told["error"]["message"]
        return
    assert compact(told["output"]) == compact(vector["output"])
    assert told["composition_id"] == vector["composition_id"]
    assert told["effects"] == vector["effects"]
    assert told["warnings"] == vector["warnings"]
    assert told["trace"]["status"] == vector["trace_status"]
    entries = [{name: entry[name] for name in _TRACED} for entry in told["trace"]["stages"]]
    assert entries == vector["trace"]
    assert told.get("memoize") == vector.get("memoize")
    assert success(told)["ok"] is True


#: Recorded runs that strict refuses, each for a mistake that 0.8.2 looks away from.
_REFUSED_BY_STRICT = {
    "branch const non-bool": "expected Bool, found a number",
    "let missing field": "the field `b` (Text) is missing",
    "branch arms unchecked": "if_true: expected Text",
}


@pytest.mark.parametrize(
    "vector", [v for v in VECTORS["runs"] if v["exit"] == 0], ids=lambda v: v["name"]
)
def test_strict_gives_the_same_answer_or_says_what_is_wrong(vector, shared):
    if vector["name"] == "javascript" and shutil.which("node") is None:
        pytest.skip("node is not installed")
    allowed, text = permissions(vector["flags"]), json.dumps(vector["graph"])
    told = ""
    try:
        prepared = prepare(text, STAGES, STRICT, allowed)
        output = run(prepared, vector["input"], runner(shared)).output
    except GraphError as error:
        told = str(error)
    if vector["name"] in _REFUSED_BY_STRICT:
        assert _REFUSED_BY_STRICT[vector["name"]] in told
    else:
        assert told == ""
        assert compact(output) == compact(vector["output"])


@pytest.mark.parametrize("vector", VECTORS["checks"], ids=lambda v: v["name"])
def test_a_dry_run_prints_what_the_real_program_printed(vector):
    prepared = prepare(json.dumps(vector["graph"]), STAGES, NOETHER)
    assert dry_run_data(prepared) == vector["data"]


def _standard_runs() -> list[Any]:
    """Each with the writes that its store had seen; a question asked again has an empty one."""
    seen: set[str] = set()
    writes: list[Any] = []
    cases = []
    for vector in VECTORS["stdlib_runs"]:
        asked = vector["stage"] + compact(vector["input"])
        before = [] if vector["stage"] == "kv_get" and asked in seen else list(writes)
        seen.add(asked)
        if vector["stage"] in ("kv_set", "kv_delete"):
            writes.append(vector)
        name = f"{vector['stage']} {compact(vector['input'])[:40]}"
        cases.append(pytest.param(vector, before, id=name))
    return cases


@pytest.mark.parametrize(("vector", "before"), _standard_runs())
def test_a_stage_of_the_standard_library_answers_as_the_real_one(vector, before, tmp_path):
    # A store of its own: tests run in any order, and in several processes.
    for one in [*(before if vector["stage"].startswith("kv_") else ()), vector]:
        graph = json.loads(wrapped({"op": "Stage", "id": one["stage"]}))
        case = {"graph": graph, "input": one["input"], "flags": []}
        code, _, told = _run(case, tmp_path)
    assert code == vector["exit"]
    if code == 0:
        assert compact(told["output"]) == compact(vector["output"])


def test_the_words_of_a_failure_are_those_of_the_real_program(shared):
    case = next(v for v in VECTORS["runs"] if v["name"] == "boom")
    code, _, told = _run(case, shared)
    boom = next(v["id"] for v in VECTORS["stages"] if v["spec"]["name"] == "boom")
    assert code == 3
    assert told["ok"] is False
    assert told["error"]["code"] == "GENERAL_ERROR"
    assert told["error"]["message"].startswith(f"stage StageId(\"{boom}\") failed: boom: 'x'")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StageMissing("gone", stage_id="s"), 'stage StageId("s") not found'),
        (
            StageTimedOut("late", seconds=30.0, stage_id="s"),
            'stage StageId("s") timed out after 30s',
        ),
        (BudgetExceeded(spent=3, limit=4), "cost budget exceeded: spent 3¢ of 4¢ limit"),
        (RemoteCallFailed("no", url="http://x"), "remote call to http://x failed: no"),
        (
            RetryExhausted("no", attempts=0, stage_id="unknown"),
            'retry exhausted after 0 attempts for stage StageId("unknown")',
        ),
    ],
)
def test_every_kind_of_failure_has_its_published_words(error, words):
    assert failure(error)["error"]["message"] == words
