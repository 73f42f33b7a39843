"""Models behind HTTP, asked over a real connection; the server's answers are scripted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from email.utils import formatdate

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


Choose = Callable[..., Model]


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Choose:
    def choose(endpoint: Endpoint, kind: str = "openai-api") -> Model:
        monkeypatch.setenv("CALORON_LLM_PROVIDER", kind)
        monkeypatch.setenv("CALORON_LLM_BASE_URL", f"{endpoint.url}/")
        model = chosen_model().model
        assert model is not None
        assert model.name == kind
        return model

    return choose


@pytest.mark.parametrize("kind", _KINDS)
def test_each_provider_gets_its_own_form_of_request_and_its_answer_is_read(
    choose: Choose, kind: str
) -> None:
    reply, _, path, header = _KINDS[kind]
    with Endpoint(reply("42, “maybe”")) as endpoint:
        answer = choose(endpoint, kind).ask("How many?", seconds=20)
    assert (answer.text, answer.model) == ("42, “maybe”", "m-1")
    assert (answer.tokens_in, answer.tokens_out) == (7, 3)
    (request,) = endpoint.requests
    assert request.path == path
    assert request.headers[header].removeprefix("Bearer ") == _KEY
    assert "How many?" in str(request.json)
    assert kind == "gemini-api" or request.json["model"] == "m/1"


_LATER = {"error": {"message": "over\nloaded"}}
_BAD_KEY = {"error": {"message": f"bad key {_KEY}", "type": "x"}}
_ELSEWHERE = {"location": "http://127.0.0.1:1/"}
_NOT_GZIP = Reply(f"not gzip {_KEY}".encode(), headers={"Content-Encoding": "gzip"})


@pytest.mark.parametrize(
    ("kind", "reply", "message", "tries"),
    [
        ("anthropic-api", anthropic("half an ans", stop_reason="max_tokens"), "cut short", 1),
        ("openai-api", openai("half an ans", finish_reason="length"), "cut short", 1),
        ("gemini-api", gemini("half an ans", finishReason="MAX_TOKENS"), "cut short", 1),
        ("anthropic-api", Reply({"content": [], "stop_reason": "refusal"}),
         r"answered nothing \(refusal", 1),
        ("openai-api", Reply({"choices": []}), "answered nothing", 1),
        ("openai-api", Reply({"choices": [{"message": {"refusal": "No."}}]}), r"nothing \(No", 1),
        ("gemini-api", Reply({"promptFeedback": {"blockReason": "SAFETY"}}),
         r"nothing \(SAFETY", 1),
        ("gemini-api", Reply({"candidates": "?", "usageMetadata": 3}), "answered nothing", 1),
        ("openai-api", Reply([1]), "no answer of a model", 1),
        ("openai-api", Reply(b"<html>"), "no answer of a model", 1),
        ("openai-api", Reply(b"[" * 100_000), "no answer of a model", 1),
        ("openai-api", Reply(b"x" * (5 << 20)), "over 4 MB", 1),
        ("openai-api", openai("x" * (1 << 20) + "x"), "1048577 characters", 1),
        # A failure that may pass is tried again, unless the provider asks for a long wait.
        ("openai-api", Reply(_LATER, 503), "status 503: over loaded", 4),
        ("openai-api", _NOT_GZIP, "encoding", 4),
        *(("openai-api", Reply({}, 429, {"retry-after": wait}), "asks to wait", 1)
          for wait in ("3600", formatdate(4e9), "61")),
        *(("openai-api", Reply(_BAD_KEY, status, _ELSEWHERE), f"{status}: bad key .redacted", 1)
          for status in (400, 401, 403, 404, 302)),
    ],
)  # fmt: skip
def test_a_failure_is_an_error_with_its_reason_and_shows_no_key(
    choose: Choose, kind: str, reply: Reply, message: str, tries: int
) -> None:
    with Endpoint(reply) as endpoint, pytest.raises(ModelError, match=message) as raised:
        choose(endpoint, kind).ask("x", seconds=20)
    assert len(endpoint.requests) == tries
    error = raised.value
    assert _KEY not in f"{error} {error.hint} {error.__cause__} {error.__context__}"


@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_a_temporary_failure_is_retried(choose: Choose, status: int) -> None:
    soon = {"retry-after": "0"} if status == 429 else {"retry-after": formatdate(0)}
    with Endpoint(Reply({}, status, soon), Reply({}, status), openai("yes")) as endpoint:
        assert choose(endpoint).ask("x", seconds=20).text == "yes"
    assert len(endpoint.requests) == 3


def test_a_model_that_does_not_answer_fails_in_time(choose: Choose) -> None:
    gate = threading.Event()
    with Endpoint(Reply({}, before=lambda: gate.wait(60))) as endpoint:
        with pytest.raises(ModelError, match="in time"):
            choose(endpoint).ask("x", seconds=1)
        gate.set()
    assert len(endpoint.requests) <= 1


def test_a_cancelled_question_is_not_retried(choose: Choose) -> None:
    with (
        Endpoint(Reply({}, 503, {"retry-after": "30"})) as endpoint,
        pytest.raises(ModelError, match="was cancelled"),
    ):
        choose(endpoint).ask("x", seconds=60, stopped=lambda: bool(endpoint.requests))
    assert len(endpoint.requests) == 1


def test_a_secret_in_the_question_is_redacted(choose: Choose) -> None:
    with Endpoint(lambda asked: openai(str(asked.json))) as endpoint:
        answer = choose(endpoint).ask(f"use {_KEY} to log in", seconds=20)
    assert _KEY not in str(endpoint.requests[0].json)
    assert "[redacted" in answer.text


def test_an_unreachable_server_is_named_with_its_address(choose: Choose) -> None:
    with Endpoint(openai("x")) as endpoint:
        model = choose(endpoint)
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:\d+ cannot be reached"):
        model.ask("x", seconds=20)


def test_only_the_server_of_a_provider_needs_a_key(
    choose: Choose, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with Endpoint(openai("yes")) as endpoint:
        assert choose(endpoint).ask("x", seconds=20).text == "yes"
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
        ("CALORON_LLM_BASE_URL", "http://[x", "not an address"),
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
