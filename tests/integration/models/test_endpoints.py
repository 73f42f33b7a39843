"""Models behind HTTP, asked over a real connection; the server's answers are scripted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

import pytest

from caloron.errors import ModelError, PreconditionFailed, UsageError
from caloron.models import endpoints
from caloron.models.choose import ask_seconds, chosen_model
from caloron.ports import Model
from tests.support.endpoint import Endpoint, anthropic, gemini, openai
from tests.support.http_server import Reply

_KEY = "sk-planted-0123456789abcdef"
_KINDS: dict[str, tuple[Callable[..., Reply], str, str, str]] = {
    "anthropic-api": (anthropic, "ANTHROPIC_API_KEY", "/v1/messages", "x-api-key"),
    "openai-api": (openai, "OPENAI_API_KEY", "/chat/completions", "authorization"),
    "mistral-api": (openai, "MISTRAL_API_KEY", "/chat/completions", "authorization"),
    "gemini-api": (
        gemini, "GEMINI_API_KEY", "/v1beta/models/m%2F1:generateContent", "x-goog-api-key",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    for _, key, _, _ in _KINDS.values():
        monkeypatch.setenv(key, _KEY)
    monkeypatch.setenv("CALORON_LLM_MODEL", "m/1")
    monkeypatch.setattr(endpoints, "_FIRST_PAUSE_S", 0.01)


def _model(monkeypatch: pytest.MonkeyPatch, endpoint: Endpoint, kind: str = "openai-api") -> Model:
    monkeypatch.setenv("CALORON_LLM_PROVIDER", kind)
    monkeypatch.setenv("CALORON_LLM_BASE_URL", f"{endpoint.url}/")
    model = chosen_model().model
    assert model is not None
    assert model.name == kind
    return model


@pytest.mark.parametrize("kind", _KINDS)
def test_each_provider_gets_its_own_form_of_request_and_its_answer_is_read(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    reply, _, path, header = _KINDS[kind]
    with Endpoint(reply("42, “maybe”")) as endpoint:
        answer = _model(monkeypatch, endpoint, kind).ask("How many?", seconds=20)
    assert (answer.text, answer.model) == ("42, “maybe”", "m-1")
    assert (answer.tokens_in, answer.tokens_out) == (7, 3)
    (request,) = endpoint.requests
    assert request.path == path
    assert request.headers[header].removeprefix("Bearer ") == _KEY
    assert "How many?" in str(request.json)
    assert kind == "gemini-api" or request.json["model"] == "m/1"


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        ("anthropic-api", anthropic("half an ans", stop_reason="max_tokens")),
        ("openai-api", openai("half an ans", finish_reason="length")),
        ("gemini-api", gemini("half an ans", finishReason="MAX_TOKENS")),
    ],
)
def test_an_answer_that_was_cut_short_is_an_error(
    monkeypatch: pytest.MonkeyPatch, kind: str, reply: Reply
) -> None:
    with (
        Endpoint(reply) as endpoint,
        pytest.raises(ModelError, match="cut short"),
    ):
        _model(monkeypatch, endpoint, kind).ask("x", seconds=20)


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("anthropic-api", {"content": [], "stop_reason": "refusal"}, r"answered nothing \(refusal"),
        ("openai-api", {"choices": []}, "answered nothing"),
        ("openai-api", {"choices": [{"message": {"refusal": "No."}}]}, r"nothing \(No"),
        ("gemini-api", {"promptFeedback": {"blockReason": "SAFETY"}}, r"nothing \(SAFETY"),
        ("gemini-api", {"candidates": "?", "usageMetadata": 3}, "answered nothing"),
        ("openai-api", [1], "no answer of a model"),
        ("openai-api", b"<html>", "no answer of a model"),
        ("openai-api", b"[" * 100_000, "no answer of a model"),
    ],
)
def test_an_unusable_answer_is_an_error(
    monkeypatch: pytest.MonkeyPatch, kind: str, body: Any, message: str
) -> None:
    with Endpoint(Reply(body)) as endpoint, pytest.raises(ModelError, match=message):
        _model(monkeypatch, endpoint, kind).ask("x", seconds=20)


def test_an_answer_in_a_broken_encoding_is_a_refusal_without_secrets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(endpoints, "_TRIES", 2)
    reply = Reply(f"not gzip {_KEY}".encode(), headers={"Content-Encoding": "gzip"})
    with Endpoint(reply) as endpoint, pytest.raises(ModelError, match="encoding") as raised:
        _model(monkeypatch, endpoint).ask("x", seconds=20)
    assert _KEY not in str(raised.value)
    assert len(endpoint.requests) == 2


@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_a_temporary_failure_is_retried(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    soon = {"retry-after": "0"} if status == 429 else {"retry-after": formatdate(0)}
    with Endpoint(Reply({}, status, soon), Reply({}, status), openai("yes")) as endpoint:
        assert _model(monkeypatch, endpoint).ask("x", seconds=20).text == "yes"
    assert len(endpoint.requests) == 3


def test_a_lasting_failure_ends_after_a_few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        Endpoint(Reply({"error": {"message": "over\nloaded"}}, 503)) as endpoint,
        pytest.raises(ModelError, match="status 503: over loaded"),
    ):
        _model(monkeypatch, endpoint).ask("x", seconds=20)
    assert len(endpoint.requests) == 4


@pytest.mark.parametrize("wait", ["3600", formatdate(4e9), "61"])
def test_a_long_wait_that_a_provider_asks_for_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, wait: str
) -> None:
    with (
        Endpoint(Reply({}, 429, {"retry-after": wait})) as endpoint,
        pytest.raises(ModelError, match="asks to wait"),
    ):
        _model(monkeypatch, endpoint).ask("x", seconds=20)
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 302])
def test_a_refusal_is_not_retried_and_shows_no_key(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    body = {"error": {"message": f"bad key {_KEY}", "type": "x"}}
    with (
        Endpoint(Reply(body, status, {"location": "http://127.0.0.1:1/"})) as endpoint,
        pytest.raises(ModelError, match=f"status {status}: bad key .redacted") as refused,
    ):
        _model(monkeypatch, endpoint).ask("x", seconds=20)
    assert len(endpoint.requests) == 1
    error = refused.value
    assert _KEY not in f"{error} {error.hint} {error.__cause__} {error.__context__}"


def test_a_model_that_does_not_answer_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    with Endpoint(Reply({}, before=lambda: gate.wait(60))) as endpoint:
        model = _model(monkeypatch, endpoint)
        with pytest.raises(ModelError, match="in time"):
            model.ask("x", seconds=1)
        gate.set()
    assert len(endpoint.requests) <= 1


def test_an_endless_answer_is_read_up_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        Endpoint(Reply(b"x" * (5 << 20))) as endpoint,
        pytest.raises(ModelError, match="over 4 MB"),
    ):
        _model(monkeypatch, endpoint).ask("x", seconds=20)


def test_an_answer_of_more_than_a_megabyte_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with Endpoint(openai("x" * (1 << 20) + "x")) as endpoint:
        model = _model(monkeypatch, endpoint)
        with pytest.raises(ModelError, match="1048577 characters"):
            model.ask("x", seconds=20)


def test_a_cancelled_question_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        Endpoint(Reply({}, 503, {"retry-after": "30"})) as endpoint,
        pytest.raises(ModelError, match="was cancelled"),
    ):
        _model(monkeypatch, endpoint).ask("x", seconds=60, stopped=lambda: bool(endpoint.requests))
    assert len(endpoint.requests) == 1


def test_a_secret_in_the_question_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    with Endpoint(lambda asked: openai(str(asked.json))) as endpoint:
        answer = _model(monkeypatch, endpoint).ask(f"use {_KEY} to log in", seconds=20)
    assert _KEY not in str(endpoint.requests[0].json)
    assert "[redacted" in answer.text


def test_an_unreachable_server_is_named_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with Endpoint(openai("x")) as endpoint:
        model = _model(monkeypatch, endpoint)
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:\d+ cannot be reached"):
        model.ask("x", seconds=20)


def test_only_the_server_of_a_provider_needs_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with Endpoint(openai("yes")) as endpoint:
        assert _model(monkeypatch, endpoint).ask("x", seconds=20).text == "yes"
    assert "authorization" not in endpoint.requests[0].headers
    monkeypatch.delenv("CALORON_LLM_BASE_URL")
    with pytest.raises(PreconditionFailed, match="openai-api has no key") as refused:
        chosen_model()
    assert "OPENAI_API_KEY" in refused.value.hint


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("CALORON_LLM_PROVIDER", "chatgpt", "no provider"),
        ("CALORON_LLM_BASE_URL", "ftp://x", "not an address"),
        ("CALORON_LLM_BASE_URL", f"https://me:{_KEY}@x", "not an address"),
        ("OPENAI_API_KEY", "sk-\u2026", "no key has"),
        ("OPENAI_API_KEY", "sk-\r\nx-more: 1", "no key has"),
    ],
)
def test_an_invalid_setting_is_an_error_and_has_no_fallback(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv("CALORON_LLM_PROVIDER", "openai-api")
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=message) as refused:
        chosen_model()
    assert _KEY not in f"{refused.value} {refused.value.hint}"


def test_without_a_provider_there_is_no_model_and_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CALORON_LLM_PROVIDER", raising=False)
    assert chosen_model() == (None, "no model is configured (CALORON_LLM_PROVIDER)")


def test_auto_takes_the_first_available_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALORON_LLM_PROVIDER", "auto")
    monkeypatch.setenv("PATH", "")
    for name in ("CALORON_CLAUDE", "CALORON_GEMINI", "CALORON_CODEX"):
        monkeypatch.delenv(name, raising=False)
    model = chosen_model().model
    assert model is not None
    assert model.name == "anthropic-api"
    monkeypatch.setenv("CALORON_CODEX", "/bin/sh")
    model = chosen_model().model
    assert model is not None
    assert model.name == "codex-cli"
    monkeypatch.setenv("NOETHER_LLM_SKIP_CLI", "yes")
    for _, key, _, _ in _KINDS.values():
        monkeypatch.delenv(key)
    assert "neither a program nor a key" in chosen_model().reason
    monkeypatch.setenv("CALORON_LLM_PROVIDER", "codex-cli")
    with pytest.raises(UsageError, match="excludes programs"):
        chosen_model()


def test_the_time_for_one_question_is_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask_seconds() == 120
    monkeypatch.setenv("CALORON_LLM_TIMEOUT", "7.5")
    assert ask_seconds() == 7.5
    for bad in ("soon", "0", "-1", "nan", "inf", "1e9"):
        monkeypatch.setenv("CALORON_LLM_TIMEOUT", bad)
        with pytest.raises(UsageError, match="CALORON_LLM_TIMEOUT"):
            ask_seconds()
