"""Models behind HTTP: Anthropic's messages, OpenAI's chat completions, Gemini's contents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from caloron.errors import ModelError
from caloron.ports import ModelAnswer

_MOST_TOKENS = 16_000
_ANTHROPIC_VERSION = "2023-06-01"


def _never() -> bool:
    return False


class AnthropicEndpoint:
    """`POST /v1/messages`."""

    def __init__(self, name: str, base: str, model: str, headers: dict[str, str]) -> None:
        self.name, self._model = name, model
        self._url = f"{base.removesuffix('/v1')}/v1/messages"
        self._headers = {"anthropic-version": _ANTHROPIC_VERSION, **headers}

    def ask(
        self, prompt: str, *, seconds: float, stopped: Callable[[], bool] = _never
    ) -> ModelAnswer:
        body = {
            "model": self._model,
            "max_tokens": _MOST_TOKENS,
            "messages": [{"role": "user", "content": prompt}],
        }
        reply = _post(self._url, self._headers, body, seconds, stopped)
        _refuse_cut(self.name, reply.get("stop_reason"), "max_tokens")
        parts = _objects(reply.get("content"))
        text = "".join(_text(part, "text") for part in parts if part.get("type") == "text")
        usage = _object(reply.get("usage"))
        return _answer(
            self.name, text, reply.get("stop_reason"), _text(reply, "model") or self._model,
            usage.get("input_tokens"), usage.get("output_tokens"),
        )  # fmt: skip


class OpenAiEndpoint:
    """`POST /chat/completions`, as OpenAI and compatible servers answer it."""

    def __init__(self, name: str, base: str, model: str, headers: dict[str, str]) -> None:
        self.name, self._model, self._headers = name, model, headers
        self._url = f"{base}/chat/completions"

    def ask(
        self, prompt: str, *, seconds: float, stopped: Callable[[], bool] = _never
    ) -> ModelAnswer:
        body = {"model": self._model, "messages": [{"role": "user", "content": prompt}]}
        reply = _post(self._url, self._headers, body, seconds, stopped)
        choice = next(iter(_objects(reply.get("choices"))), {})
        _refuse_cut(self.name, choice.get("finish_reason"), "length")
        message = _object(choice.get("message"))
        content = message.get("content")
        if not isinstance(content, str):
            content = "".join(_text(part, "text") for part in _objects(content))
        usage = _object(reply.get("usage"))
        reason = _text(message, "refusal") or choice.get("finish_reason")
        return _answer(
            self.name, content, reason, _text(reply, "model") or self._model,
            usage.get("prompt_tokens"), usage.get("completion_tokens"),
        )  # fmt: skip


class GeminiEndpoint:
    """`POST /v1beta/models/MODEL:generateContent`."""

    def __init__(self, name: str, base: str, model: str, headers: dict[str, str]) -> None:
        self.name, self._model, self._headers = name, model, headers
        root = base.removesuffix("/v1beta")
        self._url = f"{root}/v1beta/models/{quote(model, safe='')}:generateContent"

    def ask(
        self, prompt: str, *, seconds: float, stopped: Callable[[], bool] = _never
    ) -> ModelAnswer:
        body = {"contents": [{"role": "user", "parts": [{"text": prompt}]}]}
        reply = _post(self._url, self._headers, body, seconds, stopped)
        candidate = next(iter(_objects(reply.get("candidates"))), {})
        _refuse_cut(self.name, candidate.get("finishReason"), "MAX_TOKENS")
        parts = _objects(_object(candidate.get("content")).get("parts"))
        # Thoughts are not the answer.
        text = "".join(_text(part, "text") for part in parts if not part.get("thought"))
        blocked = _object(reply.get("promptFeedback")).get("blockReason")
        usage = _object(reply.get("usageMetadata"))
        return _answer(
            self.name, text, blocked or candidate.get("finishReason"),
            _text(reply, "modelVersion") or self._model,
            usage.get("promptTokenCount"), usage.get("candidatesTokenCount"),
        )  # fmt: skip


def _post(
    url: str,
    headers: dict[str, str],
    body: dict[str, Any],
    seconds: float,
    stopped: Callable[[], bool],
) -> dict[str, Any]:
    # The HTTP client is slow to import.
    from caloron.models.http import post

    return post(url, headers, body, seconds=seconds, stopped=stopped)


def _refuse_cut(name: str, reason: object, cut: str) -> None:
    if reason == cut:
        raise ModelError(
            f"the answer of {name} was cut short: it is longer than the model may answer",
            hint="ask for less, or choose a model with longer answers (CALORON_LLM_MODEL)",
        )


def _answer(
    name: str, text: str, reason: object, model: str, tokens_in: object, tokens_out: object
) -> ModelAnswer:
    if not text.strip():
        why = f" ({reason})" if isinstance(reason, str) and reason else ""
        raise ModelError(f"{name} answered nothing{why}", hint="ask again, or in other words")
    return ModelAnswer(
        text=text, model=model, tokens_in=_count(tokens_in), tokens_out=_count(tokens_out)
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(value: dict[str, Any], name: str) -> str:
    text = value.get(name)
    return text if isinstance(text, str) else ""
