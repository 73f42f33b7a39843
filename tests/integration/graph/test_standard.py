"""Stages of the standard library beyond what was recorded of the real ones."""

from __future__ import annotations

import io
import json
import re
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from caloron.graph.absent import ABSENT
from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import ExecutionError, RetryExhausted, StageFailed, StageMissing
from caloron.graph.jsontext import compact
from caloron.graph.prepare import prepare
from caloron.graph.profile import NOETHER, STRICT
from caloron.graph.run import Limits, Settings, run
from caloron.graph.stdlib import StandardLibrary, patterns, standard_stages
from tests.support.noether import wrapped
from tests.support.shell import until

STAGES = Catalogue(standard_stages())
_ID = {stage.name: stage.id for stage in standard_stages()}


def _answer(name: str, value: Any, library: StandardLibrary | None = None, **settings: Any) -> Any:
    prepared = prepare(wrapped({"op": "Stage", "id": name}), STAGES)
    return run(prepared, value, library or StandardLibrary(), Settings(**settings)).output


def _runnable() -> set[str]:
    library = StandardLibrary()
    return {stage.name for stage in standard_stages() if library.code_hash(stage) is not None}


def test_every_stage_can_be_run_or_says_why_not():
    assert _runnable() | set(ABSENT) == set(_ID)
    assert not _runnable() & set(ABSENT)
    assert (len(_runnable()), len(ABSENT)) == (65, 20)


@pytest.mark.parametrize("name", sorted(ABSENT))
def test_a_stage_that_is_not_there_fails_with_the_reason(name):
    prepared = prepare(wrapped({"op": "Stage", "id": name}), STAGES, NOETHER)
    with pytest.raises(StageMissing, match=f"run the stage {name}: it ") as missing:
        run(prepared, {}, StandardLibrary())
    assert missing.value.exit_code == 3


@pytest.mark.parametrize(
    ("name", "given", "answer"),
    [
        ("text_lower", "ÀB", "àb"),
        ("text_trim", "\u00a0 a\x1c ", "a\x1c"),
        ("text_replace", {"text": "aXbX", "from": "X", "to": "-"}, "a-b-"),
        ("text_replace", {"text": "ab", "from": "", "to": "-"}, "ab"),
        ("text_template", {"template": "{{a}}{{b}}", "variables": {"a": "{{b}}", "b": "1"}}, "11"),
        (
            "regex_match",
            {"text": "x-12", "pattern": r"(?P<word>\w)-(\d+)"},
            {"matched": True, "full_match": "x-12", "groups": ["x", "12"]},
        ),
        (
            "regex_match",
            {"text": "a\n", "pattern": "a$"},
            {"matched": False, "full_match": None, "groups": []},
        ),
        (
            "regex_replace",
            {"text": "2026-11", "pattern": r"(?<y>\d+)-(\d+)", "replacement": "$2/${y} $$ $9"},
            "11/2026 $ ",
        ),
        ("regex_replace", {"text": "a$b", "pattern": "[$]", "replacement": "-"}, "a-b"),
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
        ("type_check", {"sub": "Text", "sup": "Any"}, {"compatible": True, "reason": None}),
        (
            "type_check",
            {"sub": "Text", "sup": {"List": "Text"}},
            {"compatible": False, "reason": "Text is not List<Text>"},
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
def test_answers(name, given, answer):
    assert compact(_answer(name, given)) == compact(answer)


@pytest.mark.parametrize(
    ("name", "given", "said"),
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
        ("regex_match", {"text": "", "pattern": "("}, "cannot be used"),
        ("regex_match", {"text": "", "pattern": r"\p{L}"}, "Unicode properties"),
        ("text_hash", {"text": "", "algorithm": "md5"}, "only sha256"),
        ("router", {"route": "x", "routes": {}, "default": "/"}, "no route"),
        ("type_check", {"sub": "Txt", "sup": "Any"}, "unknown type"),
        ("read_file", {"path": "/nowhere/at/all"}, "cannot be read"),
        ("write_file", {"path": "/nowhere/at/all", "content": ""}, "cannot be written"),
        ("http_get", {"url": "file:///etc/passwd"}, "only http and https"),
        ("kv_get", {"key": "k"}, "no directory was given"),
    ],
)
def test_failures_say_why(name, given, said):
    with pytest.raises(StageFailed, match=said):
        _answer(name, given)


def test_a_group_that_took_no_part_is_null_though_the_signature_says_text():
    prepared = prepare(wrapped({"op": "Stage", "id": "regex_match"}), STAGES, NOETHER)
    given = {"text": "a", "pattern": "(a)(b)?"}
    assert run(prepared, given, StandardLibrary()).output["groups"] == ["a", None]
    with pytest.raises(StageFailed, match=r"expected Text at \$\.groups\[1\], found null"):
        _answer("regex_match", given)


def test_stages_that_take_stages():
    lengths = {"items": ["a", "bb"], "stage_id": _ID["text_length"]}
    assert _answer("map", lengths) == [1.0, 2.0]
    assert _answer("map", lengths | {"stage_id": "text_length"}) == [1.0, 2.0]
    assert _answer("filter", {"items": ["", "x"], "stage_id": _ID["to_bool"]}) == ["x"]
    folded = {"items": [1, 2], "initial": 0, "stage_id": _ID["to_text"]}
    assert (
        _answer("reduce", folded) == '{"accumulator":"{\\"accumulator\\":0,\\"item\\":1}","item":2}'
    )
    assert _answer("fallback", {"stages": ["head", "list_length"], "input": []}) == 0.0
    assert _answer("race", {"stages": ["list_length"], "input": [1]}) == 1.0
    both = {"stages": ["text_upper", "text_length"], "inputs": ["a", "b"]}
    assert _answer("parallel", both) == ["A", 1.0]
    assert _answer("timeout", {"stage_id": "text_upper", "input": "a", "timeout_ms": 60_000}) == "A"


def test_under_noether_stages_that_take_stages_know_full_ids_only():
    prepared = prepare(wrapped({"op": "Stage", "id": "map"}), STAGES, NOETHER)
    with pytest.raises(ExecutionError, match="no stage is called 'text_length'"):
        run(prepared, {"items": ["a"], "stage_id": "text_length"}, StandardLibrary())


def test_the_stage_retry_waits_and_then_is_exhausted():
    slept: list[float] = []
    given = {"stage_id": "head", "input": [], "max_attempts": 3, "delay_ms": 20}
    with pytest.raises(RetryExhausted, match="3 attempts failed"):
        _answer("retry", given, sleep=slept.append)
    assert slept == [0.02, 0.02]


def test_values_are_kept_between_runs_in_the_directory_that_is_given(tmp_path):
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
    for profile in (NOETHER, STRICT):
        answer = run(prepare(wrapped(root), STAGES, profile), {}, kept).output
    assert answer == '{"source_0":7,"source_1":"ok","source_2":7}'


def test_files(tmp_path):
    path = str(tmp_path / "f")
    written = _answer("write_file", {"path": path, "content": "é"})
    assert written == {"bytes_written": 2, "path": path}
    assert _answer("read_file", {"path": path}) == {"content": "é", "size_bytes": 2}


def test_the_environment_is_the_one_that_is_given():
    library = StandardLibrary(environ={"A": "1"})
    assert _answer("env_get", {"name": "A"}, library) == "1"
    assert _answer("env_get", {"name": "PATH"}, library) is None


def test_the_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("typed"))
    assert _answer("stdin_read", None) == "typed"
    assert _answer("stdout_write", {"text": "told"}) is None
    assert capsys.readouterr().out == "told"


def test_a_pattern_without_end_is_held_to_its_time():
    """Python's matcher takes time that doubles with each letter, and nothing interrupts it."""
    given = {"pattern": "^(a+)+$", "text": "a" * 24 + "b"}
    began = time.monotonic()
    re.search(given["pattern"], given["text"])
    unlimited = time.monotonic() - began
    for name, more in (("regex_match", {}), ("regex_replace", {"replacement": "-"})):
        began = time.monotonic()
        with pytest.raises(ExecutionError):
            _answer(name, given | more, limits=Limits(run_seconds=unlimited / 20))
        assert time.monotonic() - began < unlimited / 2


def test_a_match_whose_parent_is_gone_ends_by_itself():
    endless = json.dumps({"pattern": "^(a+)+$", "text": "a" * 60 + "b"}).encode()
    with subprocess.Popen([sys.executable, "-I", "-S", patterns.__file__], stdin=-1) as match:
        assert match.stdin is not None
        match.stdin.write(endless)
        match.stdin.close()
        until(lambda: resource.prlimit(match.pid, resource.RLIMIT_CPU)[0] == 60)
        match.kill()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(404 if self.path == "/gone" else 200)
        self.send_header("X-Seen", self.headers.get("X-Given", ""))
        self.end_headers()
        self.wfile.write(b"body")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.end_headers()
        self.wfile.write(f"{self.command} {self.headers['Content-Type']} ".encode() + body)

    def do_PUT(self) -> None:
        self.do_POST()

    def log_message(self, *_args: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    listening = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_port}"
    listening.shutdown()
    listening.server_close()


def test_http(server):
    got = _answer("http_get", {"url": server, "headers": {"X-Given": "1"}})
    assert (got["status"], got["body"], got["headers"]["x-seen"]) == (200, "body", "1")
    assert _answer("http_get", {"url": f"{server}/gone"})["status"] == 404
    posted = _answer("http_post", {"url": server, "body": "{}"})
    assert (posted["status"], posted["body"]) == (201, "POST application/json {}")
    put = _answer("http_put", {"url": server, "body": "x", "content_type": "text/plain"})
    assert put["body"] == "PUT text/plain x"
    with pytest.raises(StageFailed, match="refused"):
        _answer("http_get", {"url": "http://127.0.0.1:9/"})
