"""The world outside: files, HTTP, the environment, the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from caloron.graph.errors import StageFailed
from caloron.graph.jsontext import Json
from caloron.graph.protocols import Call
from caloron.graph.remote import exchange
from caloron.graph.stdlib.given import mapping, optional, text

_SECONDS = 30.0


def read_file(given: Json) -> Json:
    try:
        content = Path(text(given, "path")).read_bytes()
        return {"content": content.decode("utf-8"), "size_bytes": len(content)}
    except (OSError, ValueError) as error:
        raise StageFailed(f"the file cannot be read: {error}") from error


def write_file(given: Json) -> Json:
    path, content = text(given, "path"), text(given, "content").encode("utf-8")
    try:
        Path(path).write_bytes(content)
    except (OSError, ValueError) as error:
        raise StageFailed(f"the file cannot be written: {error}") from error
    return {"bytes_written": len(content), "path": path}


def stdin_read(_given: Json) -> Json:
    try:
        return sys.stdin.read()
    except (OSError, ValueError) as error:
        raise StageFailed(f"the standard input cannot be read: {error}") from error


def stdout_write(given: Json) -> Json:
    sys.stdout.write(text(given, "text"))
    sys.stdout.flush()


class Environment:
    """What stages may see of the environment."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def get(self, given: Json) -> Json:
        return self._variables.get(text(given, "name"))


def http_get(given: Json, call: Call) -> Json:
    return _http("GET", given, None, call)


def http_post(given: Json, call: Call) -> Json:
    return _http("POST", given, text(given, "body"), call)


def http_put(given: Json, call: Call) -> Json:
    return _http("PUT", given, text(given, "body"), call)


def _http(method: str, given: Json, body: str | None, call: Call) -> Json:
    """Any answer is one, whatever its status."""
    url = text(given, "url")
    if not url.startswith(("http://", "https://")):
        raise StageFailed(f"only http and https can be called, not {url[:60]!r}")
    headers = {} if optional(given, "headers") is None else mapping(given, "headers")
    if body is not None:
        headers = {"Content-Type": optional(given, "content_type") or "application/json", **headers}
    left = call.seconds_left()
    seconds = _SECONDS if left is None else max(min(left, _SECONDS), 0.001)
    data = None if body is None else body.encode("utf-8")
    try:
        status, told, received = exchange(method, url, headers, data, seconds)
    except (OSError, ValueError) as error:
        raise StageFailed(f"{method} {url} failed: {error}") from error
    return {"status": status, "headers": told, "body": received.decode("utf-8", "replace")}
