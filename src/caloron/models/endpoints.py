"""Models behind HTTP: Anthropic's messages, OpenAI's chat completions, Gemini's contents."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec

from caloron.errors import ModelError
from caloron.http import HttpClient, HttpError, Response
from caloron.json_values import at, count, tables, text
from caloron.ports import ModelAnswer
from caloron.store import log

_MOST_TOKENS = 16_000
_ANTHROPIC_VERSION = "2023-06-01"
#: Too many requests, a fault of the server, a model that is overloaded.
_TRANSIENT = frozenset({429, 500, 502, 503, 504, 529})
_TRIES = 4
_FIRST_PAUSE_S = 1.0
#: A provider that asks for a longer pause is not waited for.
_LONGEST_PAUSE_S = 60.0
_SIZE_LIMIT = 4 << 20
_SLICE_S = 0.1
_LONGEST_REASON = 300
_HINTS = {
    401: "check the key of this provider",
    403: "check the key of this provider, and at what it may do",
    404: "check the model's name (CALORON_LLM_MODEL) and at the address",
    429: "wait, or choose another provider",
}


class Endpoint:
    """A model behind HTTP; a subclass knows the requests and answers of its provider."""

    #: The reason that means that the answer was cut short.
    cut: str

    def __init__(self, name: str, base: str, model: str, headers: Mapping[str, str]) -> None:
        self.name, self.model, self._headers = name, model, headers
        self._url = self.url(base)

    def url(self, base: str) -> str:
        raise NotImplementedError

    def body(self, prompt: str) -> dict[str, Any]:
        return {"model": self.model, "messages": [{"role": "user", "content": prompt}]}

    def read(self, answer: dict[str, Any]) -> tuple[ModelAnswer, str]:
        """Return what the model answered, and why it ended its answer."""
        raise NotImplementedError

    def ask(
        self, prompt: str, *, seconds: float, stopped: Callable[[], bool] = lambda: False
    ) -> ModelAnswer:
        reply = _post(self._url, self._headers, self.body(prompt), seconds, stopped)
        answer, reason = self.read(reply)
        if reason == self.cut:
            raise ModelError(
                f"the answer of {self.name} was cut short: it is longer than the model may answer",
                hint="ask for less, or choose a model with longer answers (CALORON_LLM_MODEL)",
            )
        if not answer.text.strip():
            why = f" ({reason})" if reason else ""
            raise ModelError(
                f"{self.name} answered nothing{why}", hint="ask again, or in other words"
            )
        return answer


class Anthropic(Endpoint):
    """`POST /v1/messages`."""

    cut = "max_tokens"

    def url(self, base: str) -> str:
        return f"{base.removesuffix('/v1')}/v1/messages"

    def body(self, prompt: str) -> dict[str, Any]:
        return {"max_tokens": _MOST_TOKENS, **super().body(prompt)}

    def read(self, answer: dict[str, Any]) -> tuple[ModelAnswer, str]:
        parts = tables(answer, "content")
        return ModelAnswer(
            text="".join(text(part, "text") for part in parts if part.get("type") == "text"),
            model=text(answer, "model") or self.model,
            tokens_in=count(answer, "usage", "input_tokens"),
            tokens_out=count(answer, "usage", "output_tokens"),
        ), text(answer, "stop_reason")


class OpenAi(Endpoint):
    """`POST /chat/completions`, as OpenAI and compatible servers answer it."""

    cut = "length"

    def url(self, base: str) -> str:
        return f"{base}/chat/completions"

    def read(self, answer: dict[str, Any]) -> tuple[ModelAnswer, str]:
        choice = next(iter(tables(answer, "choices")), {})
        parts = tables(choice, "message", "content")
        content = text(choice, "message", "content")
        return ModelAnswer(
            text=content or "".join(text(part, "text") for part in parts),
            model=text(answer, "model") or self.model,
            tokens_in=count(answer, "usage", "prompt_tokens"),
            tokens_out=count(answer, "usage", "completion_tokens"),
        ), text(choice, "message", "refusal") or text(choice, "finish_reason")


class Gemini(Endpoint):
    """`POST /v1beta/models/MODEL:generateContent`."""

    cut = "MAX_TOKENS"

    def url(self, base: str) -> str:
        model = quote(self.model, safe="")
        return f"{base.removesuffix('/v1beta')}/v1beta/models/{model}:generateContent"

    def body(self, prompt: str) -> dict[str, Any]:
        return {"contents": [{"role": "user", "parts": [{"text": prompt}]}]}

    def read(self, answer: dict[str, Any]) -> tuple[ModelAnswer, str]:
        candidate = next(iter(tables(answer, "candidates")), {})
        parts = tables(candidate, "content", "parts")
        blocked = text(answer, "promptFeedback", "blockReason")
        return ModelAnswer(
            # Thoughts are not the answer.
            text="".join(text(part, "text") for part in parts if not part.get("thought")),
            model=text(answer, "modelVersion") or self.model,
            tokens_in=count(answer, "usageMetadata", "promptTokenCount"),
            tokens_out=count(answer, "usageMetadata", "candidatesTokenCount"),
        ), blocked or text(candidate, "finishReason")


def endpoint(provider: str, base: str, model: str, key_name: str, key: str) -> Endpoint:
    """Return the endpoint of a provider; a server of the user may need no key."""
    bearer = {"authorization": f"Bearer {key}"} if key else {}
    if provider == "anthropic-api":
        own = {"x-api-key": key} if key_name == "ANTHROPIC_API_KEY" else bearer
        return Anthropic(provider, base, model, {"anthropic-version": _ANTHROPIC_VERSION, **own})
    if provider == "gemini-api":
        return Gemini(provider, base, model, {"x-goog-api-key": key} if key else {})
    return OpenAi(provider, base, model, bearer)


class _Temporary(ModelError):
    """A failure that another try may not have."""

    #: How long the provider asks to wait; None: it does not say.
    pause_s: float | None = None


def _post(
    url: str,
    headers: Mapping[str, str],
    body: dict[str, Any],
    seconds: float,
    stopped: Callable[[], bool],
) -> dict[str, Any]:
    """Return the JSON object that an endpoint answers; to repeat a question only costs money."""
    deadline = time.monotonic() + seconds
    content = msgspec.json.encode(body)
    headers = {**headers, "content-type": "application/json", "accept": "application/json"}

    def check_wanted() -> None:
        if stopped():
            raise ModelError("the question to the model was cancelled")

    def ask(client: HttpClient) -> dict[str, Any]:
        host, remaining = urlsplit(url).netloc.rpartition("@")[2], deadline - time.monotonic()
        if remaining <= 0:
            raise _too_late(host)
        try:
            response = client.exchange(
                "POST", url, headers=headers, content=content, seconds=remaining,
                check=check_wanted,
            )  # fmt: skip
        except HttpError as error:
            raise _lost(error, host) from None
        if response.status != 200:
            raise _refusal(response, host)
        return _answer(response.body, host)

    with HttpClient(size_limit=_SIZE_LIMIT, read_timeout_s=seconds) as client:
        for attempt in range(1, _TRIES):
            try:
                return ask(client)
            except _Temporary as error:
                pause = (
                    _FIRST_PAUSE_S * 2 ** (attempt - 1) if error.pause_s is None else error.pause_s
                )
                until = time.monotonic() + pause
                if pause > _LONGEST_PAUSE_S or until >= deadline:
                    raise
                log.warning("a question to the model is retried", error=error, attempt=attempt)
            _wait(until, check_wanted)
        return ask(client)


def _wait(until: float, check: Callable[[], None]) -> None:
    while (remaining := until - time.monotonic()) > 0:
        check()
        time.sleep(min(remaining, _SLICE_S))


def _lost(error: HttpError, host: str) -> ModelError:
    if error.kind == "timeout":
        return _too_late(host)
    if error.kind == "size":
        return ModelError(f"the answer of the model at {host} {error}")
    failure = "answered in a broken encoding" if error.kind == "encoding" else "cannot be reached"
    return _Temporary(
        f"the model at {host} {failure}: {error}", hint="check the address and the network"
    )


def _too_late(host: str) -> ModelError:
    return ModelError(
        f"the model at {host} did not answer in time",
        hint="give it longer with CALORON_LLM_TIMEOUT (seconds), or ask for less",
    )


def _refusal(response: Response, host: str) -> ModelError:
    answer = _decoded(response.body)
    if isinstance(answer, list) and answer:
        answer = answer[0]
    error = at(answer, "error") or answer
    reason = " ".join((text(error) or text(error, "message")).split())[:_LONGEST_REASON]
    later = response.headers.get("retry-after", "")
    pause = f" (it asks to wait {later[:40]})" if later else ""
    kind = _Temporary if response.status in _TRANSIENT else ModelError
    refusal = kind(
        f"the model at {host} refused with status {response.status}{pause}"
        + (f": {reason}" if reason else ""),
        hint=_HINTS.get(response.status, "try again later, or choose another provider"),
    )
    if isinstance(refusal, _Temporary):
        refusal.pause_s = response.retry_after_s(time.time())
    return refusal


def _answer(body: bytes, host: str) -> dict[str, Any]:
    answer = _decoded(body)
    if not isinstance(answer, dict):
        raise ModelError(
            f"what {host} answers is no answer of a model",
            hint="is the address really one of this provider's kind?",
        )
    return answer


def _decoded(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
