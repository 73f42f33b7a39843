"""Stages of the standard library, beyond the recorded runs of the real stages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import StageFailed, StageMissing
from caloron.graph.json_text import compact
from caloron.graph.prepare import prepare
from caloron.graph.runtime.run import Settings, run
from caloron.graph.stdlib import StandardLibrary, standard_stages
from caloron.graph.stdlib.library import NOT_IMPLEMENTED
from tests.support.http_server import HttpServer, Reply, Request
from tests.support.noether import wrapped

STAGES = Catalogue(standard_stages())
_ID = {stage.name: stage.id for stage in standard_stages()}


def _answer(name: str, value: Any, library: StandardLibrary | None = None, **settings: Any) -> Any:
    prepared = prepare(wrapped({"op": "Stage", "id": name}), STAGES)
    return run(prepared, value, library or StandardLibrary(), Settings(**settings)).output


def _runnable() -> set[str]:
    library = StandardLibrary()
    stages = standard_stages()
    return {stage.name for stage in stages if library.code_version(stage) is not None}


def test_every_stage_runs_or_has_a_reason_why_not():
    assert _runnable() | set(NOT_IMPLEMENTED) == set(_ID)
    assert not _runnable() & set(NOT_IMPLEMENTED)
    assert (len(_runnable()), len(NOT_IMPLEMENTED)) == (55, 30)


@pytest.mark.parametrize("name", sorted(NOT_IMPLEMENTED))
def test_an_unavailable_stage_fails_with_the_reason(name):
    prepared = prepare(wrapped({"op": "Stage", "id": name}), STAGES, strict=False)
    with pytest.raises(
        StageMissing, match=f"the stage {name} is not implemented here: "
    ) as missing:
        run(prepared, {}, StandardLibrary())
    assert missing.value.exit_code == 3


@pytest.mark.parametrize(
    ("name", "value", "answer"),
    [
        ("text_lower", "ÀB", "àb"),
        ("text_trim", "\u00a0 a\x1c ", "a\x1c"),
        ("text_replace", {"text": "aXbX", "from": "X", "to": "-"}, "a-b-"),
        ("text_replace", {"text": "ab", "from": "", "to": "-"}, "ab"),
        ("text_template", {"template": "{{a}}{{b}}", "variables": {"a": "{{b}}", "b": "1"}}, "11"),
        ("num_sum", [], 0.0),
        ("num_sum", [1, 2.5], 3.5),
        ("num_avg", [1, 2], 1.5),
        ("num_min", [3, 1], 1.0),
        ("num_max", [3, 1], 3.0),
        ("list_length", [1, 2], 2.0),
        ("tail", [], []),
        ("zip", {"left": [1, 2], "right": ["a"]}, [{"left": 1, "right": "a"}]),
        ("sort", {"items": [1, 3, 2], "descending": True}, [3, 2, 1]),
        ("sort", [True, False, 2, 1], [False, True, 1, 2]),
        (
            "csv_parse",
            {"text": "a,b\r\n1,2\n\n3\n"},
            [{"a": "1", "b": "2"}, {"a": "3", "b": ""}],
        ),
        (
            "csv_parse",
            {"text": "1;2", "delimiter": ";", "has_header": False},
            [{"col0": "1", "col1": "2"}],
        ),
        ("csv_write", {"records": []}, ""),
        ("json_merge", {"base": {"a": [1]}, "patch": {"a": [2], "b": None}}, {"a": [2], "b": None}),
        ("json_path", {"data": {"a": [{"b": 7}]}, "path": "$.a[0].b"}, 7),
        ("json_path", {"data": 5, "path": "$"}, 5),
        (
            "json_schema_validate",
            {"data": True, "schema": {"type": "number"}},
            {"valid": False, "errors": ["expected number"]},
        ),
        ("to_number", True, 1.0),
        ("to_number", 3, 3),
        ("to_bool", "", False),
        ("branch", {"condition": False, "if_true": 1, "if_false": 2}, 2),
        ("clamp_percent", 40, 40),
        (
            "router",
            {"route": "/a/b", "routes": {"/": {}, "/a": {"t": 1}}, "default": "/"},
            {"t": 1},
        ),
        ("http_status", {"status": 200, "headers": {}, "body": ""}, 200.0),
        ("http_body", {"status": 200, "headers": {}, "body": "b"}, "b"),
    ],
)
def test_a_stage_returns_its_answer(name, value, answer):
    assert compact(_answer(name, value)) == compact(answer)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("take", {"items": [1], "count": 1.0}, "`count` must be a whole number"),
        ("take", {"items": [1], "count": -1}, "`count` must be a whole number"),
        ("num_avg", [], "an empty list"),
        ("head", [], "no first item"),
        ("to_number", "1_0", "is no number"),
        ("to_number", "nan", "is no number"),
        ("parse_json", "[1", "is not JSON"),
        ("json_path", {"data": {}, "path": "$.a"}, "nothing is at .a"),
        ("json_path", {"data": {}, "path": "$..a"}, "is no path"),
        ("text_hash", {"text": "", "algorithm": "md5"}, "only sha256"),
        ("router", {"route": "x", "routes": {}, "default": "/"}, "no route"),
        ("read_file", {"path": "/nowhere/at/all"}, "cannot be read"),
        ("write_file", {"path": "/nowhere/at/all", "content": ""}, "cannot be written"),
        ("http_get", {"url": "file:///etc/passwd"}, "only http and https"),
        ("kv_get", {"key": "k"}, "no directory was given"),
    ],
)
def test_a_failure_has_a_reason(name, value, message):
    with pytest.raises(StageFailed, match=message):
        _answer(name, value)


def test_a_stage_accepts_other_stages_as_values():
    lengths = {"items": ["a", "bb"], "stage_id": _ID["text_length"]}
    assert _answer("map", lengths) == [1.0, 2.0]
    assert _answer("map", lengths | {"stage_id": "text_length"}) == [1.0, 2.0]
    assert _answer("filter", {"items": ["", "x"], "stage_id": _ID["to_bool"]}) == ["x"]
    folded = {"items": [1, 2], "initial": 0, "stage_id": _ID["to_text"]}
    assert (
        _answer("reduce", folded) == '{"accumulator":"{\\"accumulator\\":0,\\"item\\":1}","item":2}'
    )


def test_kv_values_persist_between_runs_in_the_directory(tmp_path):
    kept = StandardLibrary(tmp_path / "kv")
    assert _answer("kv_set", {"key": "a_1", "value": {"x": [1.0]}}, kept) == "ok"
    assert _answer("kv_set", {"key": "a_1", "value": None, "namespace": "n"}, kept) == "ok"
    later = StandardLibrary(tmp_path / "kv")
    assert compact(_answer("kv_get", {"key": "a_1"}, later)) == '{"x":[1.0]}'
    assert _answer("kv_exists", {"key": "a_1", "namespace": "n"}, later) is True
    assert _answer("kv_get", {"key": "nope"}, later) is None
    _answer("kv_set", {"key": "Ab1", "value": 1}, later)
    assert _answer("kv_list", {"prefix": "a_"}, later) == ["Ab1", "a_1"]
    assert _answer("kv_delete", {"key": "a_1"}, later) is True
    assert _answer("kv_delete", {"key": "a_1"}, later) is False
    assert (tmp_path / "kv" / "kv.db").exists()


def test_a_kv_stage_is_never_answered_from_memory(tmp_path):
    kept = StandardLibrary(tmp_path)
    get = {"op": "Stage", "id": "kv_get", "config": {"key": "k"}}
    set_it = {"op": "Stage", "id": "kv_set", "config": {"key": "k", "value": 7}}
    root = {
        "op": "Merge",
        "sources": [get, set_it, get],
        "target": {"op": "Stage", "id": "to_text"},
    }
    for strict in (True, False):
        answer = run(prepare(wrapped(root), STAGES, strict=strict), {}, kept).output
    assert answer == '{"source_0":7,"source_1":"ok","source_2":7}'


def test_files_are_written_and_read(tmp_path):
    path = str(tmp_path / "f")
    written = _answer("write_file", {"path": path, "content": "é"})
    assert written == {"bytes_written": 2, "path": path}
    assert _answer("read_file", {"path": path}) == {"content": "é", "size_bytes": 2}


def test_only_the_passed_environment_is_visible():
    library = StandardLibrary(environ={"A": "1"})
    assert _answer("env_get", {"name": "A"}, library) == "1"
    assert _answer("env_get", {"name": "PATH"}, library) is None


def _reply(request: Request) -> Reply:
    if request.method == "GET":
        seen = {"X-Seen": request.headers.get("x-given", "")}
        return Reply("body", 404 if request.path == "/gone" else 200, seen)
    message = f"{request.method} {request.headers['content-type']} "
    return Reply(message.encode() + request.content, 201)


@pytest.fixture
def server() -> Iterator[str]:
    with HttpServer(_reply) as listening:
        yield listening.url


def test_http_get_sends_headers_and_returns_the_answer(server):
    answer = _answer("http_get", {"url": server, "headers": {"X-Given": "1"}})
    assert (answer["status"], answer["body"], answer["headers"]["x-seen"]) == (200, "body", "1")
    assert _answer("http_get", {"url": f"{server}/gone"})["status"] == 404
    posted = _answer("http_post", {"url": server, "body": "{}"})
    assert (posted["status"], posted["body"]) == (201, "POST application/json {}")
    put = _answer("http_put", {"url": server, "body": "x", "content_type": "text/plain"})
    assert put["body"] == "PUT text/plain x"
    with pytest.raises(StageFailed, match="refused"):
        _answer("http_get", {"url": "http://127.0.0.1:9/"})
