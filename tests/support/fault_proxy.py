"""A proxy on loopback between an adapter and its forge that counts and breaks requests.

The forge's own address in answers (links to the next page, pages of an issue) becomes the proxy's,
as with any proxy in front of a forge; so every request of the adapter comes by here.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from tests.support.http_server import Loopback

#: Headers of one hop, which no proxy passes on.
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect", "host"}

Way = Literal[
    "cut before",  # closed before the forge hears of it
    "cut after",  # done by the forge, closed before the answer
    "half answer",  # done by the forge, closed in the middle of the answer
    "close after",  # answered whole; then the connection is closed without a word of warning
    "hang",  # never answered, not passed on
    "hang after",  # done by the forge, never answered
    "answer",  # answered by the proxy itself
    "delay",  # passed on late
]


@dataclass(frozen=True)
class Heard:
    """A request that came by, and how it was answered (0: not at all)."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    status: int

    @property
    def json(self) -> Any:
        return json.loads(self.body) if self.body else None

    def __str__(self) -> str:
        asked = "&".join(f"{k}={v}" for k, v in self.query.items())
        return f"{self.method} {self.path}{'?' if asked else ''}{asked} → {self.status}"


@dataclass
class Fault:
    """A failure of requests with a method and a matching path."""

    method: str
    path: str
    way: Way
    #: How often; None: from now on.
    times: int | None = 1
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: str = '{"message": "a fault of the tests"}'
    seconds: float = 0.0

    def matches(self, method: str, path: str) -> bool:
        alive = self.times is None or self.times > 0
        return alive and self.method in ("*", method) and bool(re.search(self.path, path))


class FaultProxy:
    """Listens on loopback in front of one forge."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.heard: list[Heard] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._served = Loopback(type("Handler", (_Handler,), {"proxy": self}))
        self.url = self._served.url

    def close(self) -> None:
        self._closing.set()
        self._served.close()

    def fault(self, method: str, path: str, way: Way, **more: Any) -> Fault:
        """Add a fault from now on; the newest matching fault applies to a request."""
        made = Fault(method, path, way, **more)
        with self._lock:
            self._faults.insert(0, made)
        return made

    @contextmanager
    def counting(self) -> Iterator[list[Heard]]:
        """Collect the requests of a block; the list is filled when the block ends."""
        before = len(self.heard)
        requests: list[Heard] = []
        try:
            yield requests
        finally:
            requests += self.heard[before:]

    def _next_fault(self, method: str, path: str) -> Fault | None:
        with self._lock:
            for fault in self._faults:
                if fault.matches(method, path):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault
        return None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body of an answer are two writes: without this the second waits for an echo.
    disable_nagle_algorithm = True
    proxy: FaultProxy

    def log_message(self, *_: Any) -> None:
        pass

    def _any(self) -> None:
        body = self._body()
        path = urlsplit(self.path).path
        fault = self.proxy._next_fault(self.command, path)
        way = fault.way if fault else ""
        if fault and way == "delay":
            self.proxy._closing.wait(fault.seconds)
        if way in ("cut before", "hang"):
            self._note(body, 0)
            return self._silence(hang=way == "hang")
        if fault and way == "answer":
            self._note(body, fault.status)
            headers = {"Content-Type": "application/json", **fault.headers}
            return self._answer(fault.status, headers, fault.body.encode())
        try:
            status, headers, content = self._forward(body)
        except OSError:
            # Without the forge the proxy hangs up, so that its client sees a server that is gone.
            self._note(body, 0)
            return self._silence(hang=False)
        lost = way in ("cut after", "hang after")
        self._note(body, 0 if lost else status)
        if lost:
            return self._silence(hang=way == "hang after")
        if way == "close after":
            # The answer leaves together with the end of the connection, so that the client cannot
            # send its next request in between.
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
        self._answer(status, headers, content, half=way == "half answer")
        if way == "close after":
            self._silence(hang=False)
        return None

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = do_HEAD = _any  # noqa: N815

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts: list[bytes] = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        to = urlsplit(self.proxy.upstream)
        assert to.hostname
        headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
        # The proxy must be able to read a body that it rewrites.
        headers["Accept-Encoding"] = "identity"
        connection = http.client.HTTPConnection(to.hostname, to.port, timeout=120)
        try:
            connection.request(self.command, self.path, body=body or None, headers=headers)
            answer = connection.getresponse()
            content = answer.read()
        except http.client.HTTPException as error:
            raise ConnectionError(str(error)) from error
        finally:
            connection.close()
        reply_headers = {k: v for k, v in answer.getheaders() if k.lower() not in _HOP}
        if "git" in answer.headers.get("Content-Type", ""):
            return answer.status, reply_headers, content
        here, there = self.proxy.url, self.proxy.upstream
        reply_headers = {k: v.replace(there, here) for k, v in reply_headers.items()}
        return answer.status, reply_headers, content.replace(there.encode(), here.encode())

    def _answer(
        self, status: int, headers: dict[str, str], content: bytes, *, half: bool = False
    ) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if half:
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            return self._silence(hang=False)
        if self.command != "HEAD" and status not in (204, 304):
            self.wfile.write(content)
            self.wfile.flush()
        return None

    def _silence(self, *, hang: bool) -> None:
        if hang:
            self.proxy._closing.wait()
        self.close_connection = True
        try:
            self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            # The client has gone already.
            return

    def _note(self, body: bytes, status: int) -> None:
        asked = urlsplit(self.path)
        query = {k: v[-1] for k, v in parse_qs(asked.query, keep_blank_values=True).items()}
        heard = Heard(self.command, asked.path, query, dict(self.headers), body, status)
        with self.proxy._lock:
            self.proxy.heard.append(heard)
