"""Asks a model over HTTP: bounded in time and size, retried where that can help."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from caloron.errors import ModelError
from caloron.http import HttpClient, HttpError, Response
from caloron.store import log

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


def post(
    url: str,
    headers: Mapping[str, str],
    body: dict[str, Any],
    *,
    seconds: float,
    stopped: Callable[[], bool],
) -> dict[str, Any]:
    """Return the JSON object that an endpoint answers; to repeat a question only costs money."""
    deadline = time.monotonic() + seconds
    content = msgspec.json.encode(body)
    headers = {**headers, "content-type": "application/json", "accept": "application/json"}
    with HttpClient(size_limit=_SIZE_LIMIT, read_timeout_s=seconds) as client:
        for attempt in range(1, _TRIES + 1):
            pause = _FIRST_PAUSE_S * (1 << (attempt - 1))
            try:
                response = client.exchange(
                    "POST",
                    url,
                    headers=headers,
                    content=content,
                    seconds=_remaining(deadline, url),
                    check=lambda: _check_wanted(stopped),
                )
            except HttpError as error:
                problem = _lost(error, url)
                if error.kind in ("timeout", "size"):
                    raise problem from None
            else:
                if response.status == 200:
                    return _object(response.body, url)
                problem = _refusal(response, url)
                if response.status not in _TRANSIENT:
                    raise problem
                asked = response.retry_after_s(time.time())
                pause = pause if asked is None else asked
            if attempt == _TRIES or pause > _LONGEST_PAUSE_S:
                raise problem
            log.warning("a question to the model is retried", error=problem, attempt=attempt)
            _wait(pause, deadline, stopped, problem)
    raise AssertionError("the last try ends the loop")


def _remaining(deadline: float, url: str) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise _too_late(url)
    return remaining


def _lost(error: HttpError, url: str) -> ModelError:
    if error.kind == "timeout":
        return _too_late(url)
    if error.kind == "size":
        return ModelError(f"the answer of the model at {_host(url)} {error}")
    failure = "answered in a broken encoding" if error.kind == "encoding" else "cannot be reached"
    return ModelError(
        f"the model at {_host(url)} {failure}: {error}", hint="check the address and the network"
    )


def _too_late(url: str) -> ModelError:
    return ModelError(
        f"the model at {_host(url)} did not answer in time",
        hint="give it longer with CALORON_LLM_TIMEOUT (seconds), or ask for less",
    )


def _check_wanted(stopped: Callable[[], bool]) -> None:
    if stopped():
        raise ModelError("the question to the model was cancelled")


def _wait(pause: float, deadline: float, stopped: Callable[[], bool], problem: ModelError) -> None:
    until = time.monotonic() + pause
    if until >= deadline:
        raise problem
    while (remaining := until - time.monotonic()) > 0:
        _check_wanted(stopped)
        time.sleep(min(remaining, _SLICE_S))


def _refusal(response: Response, url: str) -> ModelError:
    reason = _reason(response.body)
    later = response.headers.get("retry-after", "")
    pause = f" (it asks to wait {later[:40]})" if later else ""
    return ModelError(
        f"the model at {_host(url)} refused with status {response.status}{pause}"
        + (f": {reason}" if reason else ""),
        hint=_HINTS.get(response.status, "try again later, or choose another provider"),
    )


def _reason(body: bytes) -> str:
    """Return the provider's message about its refusal."""
    try:
        answer: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""
    if isinstance(answer, list) and answer:
        answer = answer[0]
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = error.get("message") if isinstance(error, dict) else error
    return " ".join(message.split())[:_LONGEST_REASON] if isinstance(message, str) else ""


def _object(body: bytes, url: str) -> dict[str, Any]:
    try:
        answer = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _not_understood(url) from error
    if not isinstance(answer, dict):
        raise _not_understood(url)
    return answer


def _not_understood(url: str) -> ModelError:
    return ModelError(
        f"what {_host(url)} answers is no answer of a model",
        hint="is the address really one of this provider's kind?",
    )


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]
