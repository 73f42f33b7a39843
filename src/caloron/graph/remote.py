"""Calls stages on other machines over HTTP."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from caloron.graph.errors import ParseError, RemoteCallFailed
from caloron.graph.jsontext import Json, decode
from caloron.graph.scope import Settled

_SECONDS = 30.0
_CHUNK = 64 * 1024
MOST_BYTES = 64 * 1024 * 1024


class HttpCaller:
    """POSTs `{"input": …}` and reads `data.output`; the HTTP status does not count."""

    def call(self, url: str, text: str, seconds: float | None) -> Json:
        if not url.startswith(("http://", "https://")):
            raise RemoteCallFailed("only http and https can be called", url=url)
        answer = self._post(url, text, min(seconds or _SECONDS, _SECONDS))
        if not isinstance(answer, dict):
            raise RemoteCallFailed("the answer is no JSON object", url=url)
        if answer.get("ok") is False:
            said = answer.get("error")
            raise RemoteCallFailed(said if isinstance(said, str) else "unknown error", url=url)
        data = answer.get("data")
        if not isinstance(data, dict) or "output" not in data:
            raise RemoteCallFailed("the answer holds no `data.output`", url=url)
        return data["output"]

    def _post(self, url: str, text: str, seconds: float) -> Json:
        try:
            status, _, body = exchange(
                "POST",
                url,
                {"Content-Type": "application/json"},
                f'{{"input":{text}}}'.encode(),
                seconds,
            )
        except (OSError, ValueError) as error:
            raise RemoteCallFailed(str(error), url=url) from error
        try:
            return decode(body, wide_integers=True, what="the answer")
        except ParseError as error:
            said = error.reason if status < 300 else f"HTTP {status}, and {error.reason}"
            raise RemoteCallFailed(said, url=url) from error


def exchange(
    method: str, url: str, headers: Mapping[str, str], data: bytes | None, seconds: float
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an HTTP answer; an OSError or a ValueError if there is none.

    The time is for all of it. A socket's own limit begins again with each byte, so the exchange
    runs in a thread of its own; one that takes too long is given up.
    """
    # Most graphs call no server, and these imports take longer than they do.
    import http.client
    import urllib.error
    import urllib.request

    until = time.monotonic() + seconds

    def job() -> tuple[int, dict[str, str], bytes]:
        request = urllib.request.Request(url, data=data, headers=dict(headers), method=method)
        try:
            try:
                answer = urllib.request.urlopen(request, timeout=seconds)
            except urllib.error.HTTPError as error:
                answer = error
            with answer:
                told = {name.lower(): value for name, value in answer.headers.items()}
                return answer.status, told, _body(answer, until)
        except http.client.HTTPException as error:
            raise OSError(f"no HTTP answer: {type(error).__name__}: {error}") from error

    ended: list[Settled[tuple[int, dict[str, str], bytes]]] = []
    worker = threading.Thread(target=lambda: ended.append(Settled(job)), daemon=True)
    worker.start()
    worker.join(seconds)
    if not ended:
        raise TimeoutError(f"no complete answer after {round(seconds, 2):g} s")
    return ended[0].value


def _body(answer: Any, until: float) -> bytes:
    body = bytearray()
    while chunk := answer.read(_CHUNK):
        body += chunk
        if len(body) > MOST_BYTES:
            raise OSError(f"the answer is over {MOST_BYTES} bytes")
        if time.monotonic() > until:
            raise TimeoutError("no complete answer in time")
    if answer.headers.get("Content-Length", "").isdigit() and answer.length:
        raise OSError(f"the answer ended {answer.length} bytes too early")
    return bytes(body)
