"""RemoteStage over real HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import (
    ExecutionError,
    RunTimedOut,
    StageFailed,
    StageTimedOut,
)
from caloron.graph.prepare import prepare
from caloron.graph.runners import http as remote
from caloron.graph.runners.functions import RunnerChain
from caloron.graph.runtime.run import RunLimits, RunResult, Settings, run
from caloron.graph.stdlib import StandardLibrary, standard_stages
from tests.support.http_server import HttpServer, Reply, Request
from tests.support.noether import wrapped

_ANSWERS: dict[str, tuple[int, str]] = {
    "/refuses": (200, '{"ok": false, "error": "no seat left"}'),
    "/refuses-oddly": (200, '{"ok": false, "error": {"code": 1}}'),
    "/empty": (200, '{"ok": true, "data": {}}'),
    "/garbage": (200, "<html>"),
    "/list": (200, "[]"),
    "/late-status": (500, '{"ok": true, "data": {"output": 7}}'),
}


def _reply(request: Request) -> Reply:
    status, text = _ANSWERS.get(request.path, (200, ""))
    echo = {"ok": True, "data": {"output": {"got": request.json["input"]}}}
    return Reply(text or echo, status)


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with HttpServer(_reply) as listening:
        yield listening.url


def _call(url: str, value: Any = None, *, output: str = "Any", **limits: Any) -> RunResult:
    node = {"op": "RemoteStage", "url": url, "input": {"kind": "Any"}, "output": {"kind": output}}
    settings = Settings(limits=RunLimits(**limits))
    return run(prepare(wrapped(node), Catalogue()), value, RunnerChain(), settings)


def test_the_input_goes_out_and_the_output_comes_back(server):
    outcome = _call(f"{server}/echo", {"é": [1.5]})
    assert outcome.output == {"got": {"é": [1.5]}}
    assert [entry.stage_id for entry in outcome.trace.stages] == [f"remote:{server}/echo"]


def test_the_status_of_the_answer_does_not_count(server):
    assert _call(f"{server}/late-status").output == 7


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/refuses", "no seat left"),
        ("/refuses-oddly", "unknown error"),
        ("/empty", "no `data.output`"),
        ("/garbage", "is not JSON"),
        ("/list", "no JSON object"),
    ],
)
def test_an_invalid_answer_is_a_clear_failure(server, path, message):
    with pytest.raises(StageFailed, match=message) as failed:
        _call(server + path)
    assert failed.value.path == "$.root"
    assert failed.value.stage_id == f"remote:{server}{path}"
    assert failed.value.exit_code == 3


def test_the_answer_must_have_the_declared_type(server):
    with pytest.raises(StageFailed, match="expected Text, found an object"):
        _call(f"{server}/echo", 1, output="Text")


def test_the_input_must_have_the_declared_type(server):
    node = {
        "op": "RemoteStage",
        "url": f"{server}/echo",
        "input": {"kind": "Text"},
        "output": {"kind": "Any"},
    }
    root = {"op": "Sequential", "stages": [{"op": "Stage", "id": "parse_json"}, node]}
    prepared = prepare(wrapped(root), Catalogue(standard_stages()))
    assert run(prepared, '"text"', StandardLibrary()).output == {"got": "text"}
    with pytest.raises(StageFailed, match="the input is not what the stage declares"):
        run(prepared, "7", StandardLibrary())


def test_only_http_addresses_are_called(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text('{"data":{"output":1}}')
    with pytest.raises(StageFailed, match="only http and https"):
        _call(f"file://{secret}")


def test_a_refused_connection_is_a_clear_failure():
    with pytest.raises(StageFailed, match="refused"):
        _call("http://127.0.0.1:9/")


@contextmanager
def _speaking(speak: Callable[[socket.socket], object]) -> Iterator[str]:
    """Run a server that answers one connection with the bytes that `speak` sends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):
                connection.recv(65536)
                speak(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        thread.join(60)


def _get(url: str, **limits: Any) -> Any:
    prepared = prepare(wrapped({"op": "Stage", "id": "http_get"}), Catalogue(standard_stages()))
    settings = Settings(limits=RunLimits(**limits))
    return run(prepared, {"url": url}, StandardLibrary(), settings).output


_CUT_SHORT = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"


@pytest.mark.parametrize("rubbish", [b"hello there\r\n\r\n", _CUT_SHORT, b""])
@pytest.mark.parametrize("ask", [_call, _get], ids=["remote stage", "http_get"])
def test_an_answer_without_http_is_a_clear_failure(rubbish, ask):
    with _speaking(lambda to: to.sendall(rubbish)) as url:
        with pytest.raises(StageFailed) as failed:
            ask(url)
        assert failed.value.trace is not None


@pytest.mark.parametrize("before", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\n\r\n"])
@pytest.mark.parametrize("ask", [_call, _get], ids=["remote stage", "http_get"])
def test_a_slow_answer_does_not_outlive_the_run(before, ask):
    client_left = threading.Event()
    dripped = []

    def drip(to: socket.socket) -> None:
        to.sendall(before)
        # The answer takes far longer than the run may take, each byte less than one read may take.
        for _ in range(300):
            to.sendall(b"x")
            if client_left.wait(0.1):
                return
        dripped.append("to the end")

    with _speaking(drip) as url:
        try:
            with pytest.raises((RunTimedOut, StageTimedOut)):
                ask(url, run_seconds=0.5)
        finally:
            client_left.set()
    assert not dripped


@pytest.mark.parametrize("ask", [_call, _get], ids=["remote stage", "http_get"])
def test_an_endless_answer_is_read_up_to_the_limit(ask, monkeypatch):
    monkeypatch.setattr(remote, "MAX_BYTES", 100_000)
    sent = [0]

    def pour(to: socket.socket) -> None:
        to.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while sent[0] < 50_000_000:
            to.sendall(b"x" * 65536)
            sent[0] += 65536

    with _speaking(pour) as url, pytest.raises(ExecutionError, match="over 100000 bytes"):
        ask(url)
    assert sent[0] < 50_000_000
