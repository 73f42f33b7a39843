"""One careful request to a model: bounded in time and size, tried again where that can help."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import msgspec

from caloron.errors import ModelError
from caloron.store import log

#: Too many requests, a fault of the server, a model that is overloaded.
_TRANSIENT = frozenset({429, 500, 502, 503, 504, 529})
_TRIES = 4
_FIRST_PAUSE_S = 1.0
#: Who asks for a longer pause is not waited for.
_LONGEST_PAUSE_S = 60.0
_CONNECT_S = 10.0
_ANSWER_CAP = 4 << 20
_SLICE_S = 0.1
_SAID = 300
_HINTS = {
    401: "look at the key of this provider",
    403: "look at the key of this provider, and at what it may do",
    404: "look at the model's name (CALORON_LLM_MODEL) and at the address",
    429: "wait, or choose another provider",
}


class _Answer(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes


def post(
    url: str,
    headers: Mapping[str, str],
    body: dict[str, Any],
    *,
    seconds: float,
    stopped: Callable[[], bool],
) -> dict[str, Any]:
    """The JSON object that an endpoint answers; asking again costs money but harms nobody."""
    deadline = time.monotonic() + seconds
    content = msgspec.json.encode(body)
    given = {**headers, "content-type": "application/json", "accept": "application/json"}
    with httpx.Client(follow_redirects=False) as client:
        for attempt in range(1, _TRIES + 1):
            try:
                answer = _exchange(client, url, given, content, deadline, stopped)
            except httpx.HTTPError as error:
                # Not of the transport alone: an answer whose encoding is broken is one, too.
                why = str(error) or type(error).__name__
                what = "cannot be reached"
                if isinstance(error, httpx.DecodingError):
                    what = "answered in a broken encoding"
                problem = ModelError(
                    f"the model at {_host(url)} {what}: {why}",
                    hint="look at the address and the network",
                )
                pause = _FIRST_PAUSE_S * (1 << (attempt - 1))
            else:
                if answer.status == 200:
                    return _object(answer.body, url)
                problem = _refusal(answer, url)
                if answer.status not in _TRANSIENT:
                    raise problem
                pause = _pause(answer, attempt)
            if attempt == _TRIES or pause > _LONGEST_PAUSE_S:
                raise problem
            log.warning("a question to the model is retried", error=problem, attempt=attempt)
            _wait(pause, deadline, stopped, problem)
    raise AssertionError("the last try ends the loop")


def _exchange(
    client: httpx.Client,
    url: str,
    headers: Mapping[str, str],
    content: bytes,
    deadline: float,
    stopped: Callable[[], bool],
) -> _Answer:
    left = _left(deadline, url)
    timeout = httpx.Timeout(left, connect=min(left, _CONNECT_S))
    body = bytearray()
    try:
        with client.stream(
            "POST", url, headers=dict(headers), content=content, timeout=timeout
        ) as response:
            # A server that sends a byte now and then never runs into the limit of a single read.
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > _ANSWER_CAP:
                    raise ModelError(
                        f"the answer of the model at {_host(url)} is over {_ANSWER_CAP >> 20} MB"
                    )
                _left(deadline, url)
                _look(stopped)
            told = {name.lower(): value for name, value in response.headers.items()}
            return _Answer(response.status_code, told, bytes(body))
    except (httpx.ReadTimeout, httpx.WriteTimeout):
        raise _too_late(url) from None


def _left(deadline: float, url: str) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise _too_late(url)
    return left


def _too_late(url: str) -> ModelError:
    return ModelError(
        f"the model at {_host(url)} did not answer in time",
        hint="give it longer with CALORON_LLM_TIMEOUT (seconds), or ask for less",
    )


def _look(stopped: Callable[[], bool]) -> None:
    if stopped():
        raise ModelError("nobody waits for the model's answer any more")


def _wait(pause: float, deadline: float, stopped: Callable[[], bool], problem: ModelError) -> None:
    until = time.monotonic() + pause
    if until >= deadline:
        raise problem
    while (left := until - time.monotonic()) > 0:
        _look(stopped)
        time.sleep(min(left, _SLICE_S))


def _pause(answer: _Answer, attempt: int) -> float:
    """What the provider asks for, as seconds or as a date; else longer each time."""
    told = answer.headers.get("retry-after", "").strip()
    try:
        return max(float(told), 0.0)
    except ValueError:
        pass
    try:
        at: float = parsedate_to_datetime(told).timestamp()
        return max(at - time.time(), 0.0)
    except (ValueError, TypeError):
        return _FIRST_PAUSE_S * (1 << (attempt - 1))


def _refusal(answer: _Answer, url: str) -> ModelError:
    said = _reason(answer.body)
    later = answer.headers.get("retry-after", "")
    pause = f" (it asks to wait {later[:40]})" if later else ""
    return ModelError(
        f"the model at {_host(url)} refused with status {answer.status}{pause}"
        + (f": {said}" if said else ""),
        hint=_HINTS.get(answer.status, "try again later, or choose another provider"),
    )


def _reason(body: bytes) -> str:
    """What a provider says about its refusal: all of them have a message somewhere."""
    try:
        told: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""
    if isinstance(told, list) and told:
        told = told[0]
    error = told.get("error", told) if isinstance(told, dict) else told
    message = error.get("message") if isinstance(error, dict) else error
    return " ".join(message.split())[:_SAID] if isinstance(message, str) else ""


def _object(body: bytes, url: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _not_understood(url) from error
    if not isinstance(found, dict):
        raise _not_understood(url)
    return found


def _not_understood(url: str) -> ModelError:
    return ModelError(
        f"what {_host(url)} answers is no answer of a model",
        hint="is the address really one of this provider's kind?",
    )


def _host(url: str) -> str:
    return httpx.URL(url).netloc.decode("ascii", "replace")
