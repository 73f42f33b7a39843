"""HTTP servers of tests, on loopback."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal


class Loopback:
    """Serves with a handler of the standard library until it is closed, in threads."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def __enter__(self) -> Loopback:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    #: By their names in lower case.
    headers: dict[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content or b"null")


@dataclass(frozen=True)
class Reply:
    """The answer to a request: bytes, a text, or data to be sent as JSON."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    #: Where the connection is closed instead: before the answer, or after half of its content.
    cut: Literal["", "before", "half"] = ""
    #: Called before it is sent, to wait for something.
    before: Callable[[], object] = lambda: None

    @property
    def content(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode()


class HttpServer(Loopback):
    """Answers every request with a function, and keeps the requests."""

    def __init__(self, answer: Callable[[Request], Reply]) -> None:
        self.requests: list[Request] = []
        requests = self.requests

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                content = self.rfile.read(int(headers.get("content-length", 0)))
                request = Request(self.command, self.path, headers, content)
                requests.append(request)
                reply = answer(request)
                reply.before()
                try:
                    if reply.cut == "before":
                        self.hang_up()
                        return
                    self.send_response_only(reply.status)
                    if "Date" not in reply.headers:
                        self.send_header("Date", self.date_time_string())
                    for name, value in reply.headers.items():
                        self.send_header(name, value)
                    if reply.status != 204:
                        self.send_header("Content-Length", str(len(reply.content)))
                    self.end_headers()
                    length = len(reply.content) // 2 if reply.cut else None
                    self.wfile.write(reply.content[:length])
                    if reply.cut:
                        self.hang_up()
                except OSError:
                    # The client has closed the connection.
                    self.close_connection = True

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_CONNECT = handle_any  # noqa: N815

            def hang_up(self) -> None:
                self.wfile.flush()
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(Handler)

    def __enter__(self) -> HttpServer:
        return self
