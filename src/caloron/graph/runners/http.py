"""HTTP for graphs: RemoteStage and the `http_*` stages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import wait
from typing import Any

from caloron.graph.errors import ParseError, StageFailed
from caloron.graph.json_text import Json, decode
from caloron.graph.runtime.cancellation import run_in_background
from caloron.graph.runtime.protocols import Call, Value
from caloron.graph.stage import StageSpec

_SECONDS = 30.0
_CHUNK = 64 * 1024
MAX_BYTES = 64 * 1024 * 1024


class RemoteRunner:
    """Runs the stage of a RemoteStage node, whose name is its URL.

    It POSTs `{"input": …}` and reads `data.output`; the HTTP status does not count.
    """

    def code_version(self, stage: StageSpec) -> str:
        return ""

    def run(self, stage: StageSpec, input: Value, call: Call) -> Json:
        if not stage.name.startswith(("http://", "https://")):
            raise StageFailed("only http and https can be called")
        seconds = min(call.seconds_left() or _SECONDS, _SECONDS)
        answer = _post(stage.name, input.text, seconds)
        if not isinstance(answer, dict):
            raise StageFailed("the answer is no JSON object")
        if answer.get("ok") is False:
            message = answer.get("error")
            raise StageFailed(message if isinstance(message, str) else "unknown error")
        data = answer.get("data")
        if not isinstance(data, dict) or "output" not in data:
            raise StageFailed("the answer has no `data.output`")
        return Value(data["output"])


def _post(url: str, text: str, seconds: float) -> Json:
    headers, body = {"Content-Type": "application/json"}, f'{{"input":{text}}}'.encode()
    try:
        status, _, received = exchange("POST", url, headers, body, seconds)
    except (OSError, ValueError) as error:
        raise StageFailed(str(error)) from error
    try:
        return decode(received, allow_bigint=True, what="the answer")
    except ParseError as error:
        raise StageFailed(
            error.reason if status < 300 else f"HTTP {status}, and {error.reason}"
        ) from error


def exchange(
    method: str, url: str, headers: Mapping[str, str], data: bytes | None, seconds: float
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of an HTTP response; raises OSError or ValueError.

    `seconds` limits the whole exchange. A socket timeout starts again with each byte, so the
    exchange runs in a thread of its own, which is abandoned when it takes too long.
    """
    # Most graphs make no HTTP call, and these imports are slow.
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
                lowered = {name.lower(): value for name, value in answer.headers.items()}
                return answer.status, lowered, _body(answer, until)
        except http.client.HTTPException as error:
            raise OSError(f"no HTTP answer: {type(error).__name__}: {error}") from error

    answer = run_in_background(job)
    if not wait([answer], seconds).done:
        raise TimeoutError(f"no complete answer after {round(seconds, 2):g} s")
    return answer.result()


def _body(answer: Any, until: float) -> bytes:
    body = bytearray()
    while chunk := answer.read(_CHUNK):
        body += chunk
        if len(body) > MAX_BYTES:
            raise OSError(f"the answer is over {MAX_BYTES} bytes")
        if time.monotonic() > until:
            raise TimeoutError("no complete answer in time")
    if answer.headers.get("Content-Length", "").isdigit() and answer.length:
        raise OSError(f"the answer ended {answer.length} bytes too early")
    return bytes(body)
