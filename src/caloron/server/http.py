"""The shell over HTTP: loopback only, a token, bounded bodies, a response to every request.

The server of the standard library is enough: a few requests a minute, from this machine.
"""

from __future__ import annotations

import hmac
import json
import sys
import traceback
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from caloron.engine.forge.bounded_http import BoundedServer
from caloron.errors import CaloronError, InUse
from caloron.server.agents import AgentServer, Response, refusal
from caloron.server.requests import (
    BadRequest,
    Heartbeat,
    Logs,
    Spawn,
    Status,
    Stop,
    read_body,
    read_query,
)
from caloron.store import log

HOST = "127.0.0.1"
TOKEN_HEADER = "X-Caloron-Token"
_MAX_BODY = 1 << 20
_MAX_DRAINED = 8 << 20
_TIMEOUT_S = 10.0
_CONCURRENT_REQUESTS = 64


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class ShellServer(BoundedServer):
    """Listens on loopback and passes each request to the agent server."""

    request_queue_size = 128

    def __init__(self, agents: AgentServer, port: int, token: str) -> None:
        self.agents = agents
        self.token = token.encode()
        try:
            super().__init__(
                (HOST, port), _Handler, at_once=_CONCURRENT_REQUESTS, patience_s=_TIMEOUT_S
            )
        except OSError as error:
            raise InUse(
                f"the shell cannot listen on {HOST}:{port}: {error.strerror}",
                hint="another program has that port; choose one with CALORON_SHELL_PORT",
            ) from error
        agents.url = self.url

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log defects; a client that closes the connection early is normal."""
        error = sys.exception()
        if not isinstance(error, ConnectionError | TimeoutError):
            self.agents.log_line("".join(traceback.format_exception(error)))


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server: ShellServer
    server_version = "caloron-shell"
    sys_version = ""
    #: True while the body of the request is unread.
    _unread = True

    def _route(self) -> None:
        try:
            path, query = self._address()
            self._answer(HTTPStatus.OK, self._handle(path, query))
        except _Refused as error:
            self._answer(error.status, refusal(str(error)))
        except BadRequest as error:
            self._answer(HTTPStatus.BAD_REQUEST, refusal(str(error)))
        except CaloronError as error:
            log.error("a request failed", error=error, path=self.path)
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, refusal(str(error)))

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = _route  # noqa: N815

    def _address(self) -> tuple[str, dict[str, str]]:
        try:
            parts = urlsplit(self.path)
            return parts.path, dict(parse_qsl(parts.query, keep_blank_values=True))
        except ValueError as error:
            raise BadRequest(f"invalid address: {error}") from error

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer errors of the HTTP server itself like all others."""
        self._answer(HTTPStatus(code), refusal(message or HTTPStatus(code).phrase))

    def _handle(self, path: str, query: dict[str, str]) -> Response | str:
        method = _METHODS.get(path)
        if method is None:
            raise _Refused(HTTPStatus.NOT_FOUND, f"there is no {path[:100]}")
        if self.command != method:
            raise _Refused(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes {method}")
        if method == "GET":
            # A body has no meaning here, but reading it must not outlast the deadline.
            self._drain()
            self.server.has_read(self.connection)
        if path == "/health":
            return "ok"
        token = self.headers.get(TOKEN_HEADER, "").encode("utf-8", "replace")
        if not hmac.compare_digest(token, self.server.token):
            raise _Refused(
                HTTPStatus.UNAUTHORIZED, f"the header {TOKEN_HEADER} has the wrong token"
            )
        kind, answer = _REQUESTS[path]
        request = read_query(query, kind) if method == "GET" else read_body(self._body(), kind)
        return answer(self.server.agents, request)

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            raise _Refused(HTTPStatus.LENGTH_REQUIRED, "the header Content-Length is missing")
        if len(length) > 9 or int(length) > _MAX_BODY:
            why = f"a body of {length[:12]} bytes is more than {_MAX_BODY}"
            raise _Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, why)
        body = self.rfile.read(int(length))
        self._unread = False
        if len(body) != int(length):
            raise BadRequest("the body is shorter than its Content-Length")
        self.server.has_read(self.connection)
        return body

    def _drain(self) -> None:
        """Read an unwanted body: closing the connection before it would lose our response."""
        length = ""
        if self._unread and hasattr(self, "headers"):
            length = self.headers.get("Content-Length", "")
        self._unread = False
        if not (length.isascii() and length.isdecimal() and len(length) <= 9):
            return
        left = min(int(length), _MAX_DRAINED)
        while left > 0 and (chunk := self.rfile.read(min(left, 1 << 16))):
            left -= len(chunk)

    def _answer(self, status: HTTPStatus, response: Response | str) -> None:
        self._drain()
        self.server.has_read(self.connection)
        text = response if isinstance(response, str) else json.dumps(response)
        data = text.encode()
        kind = "text/plain" if isinstance(response, str) else "application/json"
        self.close_connection = True
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", _METHODS[urlsplit(self.path).path])
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests: heartbeats would fill any disk."""


_METHODS = {
    "/health": "GET",
    "/heartbeat": "POST",
    "/spawn": "POST",
    "/status": "GET",
    "/stop": "POST",
    "/logs": "GET",
}
_REQUESTS: dict[str, tuple[type[Struct], Callable[[AgentServer, Any], Response]]] = {
    "/heartbeat": (Heartbeat, AgentServer.heartbeat),
    "/spawn": (Spawn, AgentServer.spawn),
    "/status": (Status, AgentServer.status),
    "/stop": (Stop, AgentServer.stop),
    "/logs": (Logs, AgentServer.logs),
}
