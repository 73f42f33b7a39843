"""A proxy on loopback between an adapter and its forge that counts and breaks requests.

The forge's own address in answers (links to the next page, pages of an issue) becomes the proxy's,
as with any proxy in front of a forge; so every request of the adapter comes by here.
"""

from __future__ import annotations

import http.client
import re
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import urlsplit

from tests.support.http_server import HttpServer, Reply, Request

#: Headers of one hop, which no proxy passes on.
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "expect", "host"}

Way = Literal[
    "cut before",  # closed before the forge hears of it
    "cut after",  # done by the forge, closed before the answer
    "half answer",  # done by the forge, closed in the middle of the answer
    "hang",  # never answered, not passed on
    "hang after",  # done by the forge, never answered
    "answer",  # answered with an internal error by the proxy itself
]


@dataclass(frozen=True)
class Heard:
    """A request that came by, and how it was answered (0: not at all)."""

    method: str
    path: str
    status: int


@dataclass
class Fault:
    """A failure of requests with a method and a matching path."""

    method: str
    path: str
    way: Way
    #: How often; None: from now on.
    times: int | None = 1

    def matches(self, method: str, path: str) -> bool:
        return self.times != 0 and self.method == method and bool(re.search(self.path, path))


class FaultProxy(HttpServer):
    """Listens on loopback in front of one forge."""

    # Git sends a large push in chunks, which only this version has.
    protocol = "HTTP/1.1"

    def __init__(self, upstream: str, tls: ssl.SSLContext | None = None) -> None:
        self.upstream = upstream
        self.heard: list[Heard] = []
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        super().__init__(self._answer, tls)

    def close(self) -> None:
        self._closing.set()
        super().close()

    def fault(self, method: str, path: str, way: Way, *, times: int | None = 1) -> None:
        """Add a fault from now on; the newest matching fault applies to a request."""
        with self._lock:
            self._faults.insert(0, Fault(method, path, way, times))

    @contextmanager
    def counting(self) -> Iterator[list[Heard]]:
        """Collect the requests of a block; the list is filled when the block ends."""
        before = len(self.heard)
        requests: list[Heard] = []
        try:
            yield requests
        finally:
            requests += self.heard[before:]

    def _next_way(self, method: str, path: str) -> Way | None:
        with self._lock:
            for fault in self._faults:
                if fault.matches(method, path):
                    if fault.times is not None:
                        fault.times -= 1
                    return fault.way
        return None

    def _answer(self, request: Request) -> Reply:
        path = urlsplit(request.path).path
        way = self._next_way(request.method, path)
        if way in ("cut before", "hang"):
            reply = Reply(cut="before")
        elif way == "answer":
            reply = Reply({"message": "a fault of the tests"}, 500)
        else:
            reply = self._forward(request)
        if way in ("cut after", "hang after"):
            reply = Reply(cut="before")
        if way in ("hang", "hang after"):
            reply = replace(reply, before=self._closing.wait)
        if way == "half answer":
            reply = replace(reply, cut="half")
        with self._lock:
            status = 0 if reply.cut == "before" else reply.status
            self.heard.append(Heard(request.method, path, status))
        return reply

    def _forward(self, request: Request) -> Reply:
        to = urlsplit(self.upstream)
        assert to.hostname
        headers = {k: v for k, v in request.headers.items() if k not in _HOP}
        # The proxy must be able to read a body that it rewrites.
        headers["accept-encoding"] = "identity"
        connection = http.client.HTTPConnection(to.hostname, to.port, timeout=120)
        try:
            body = request.content or None
            connection.request(request.method, request.path, body=body, headers=headers)
            answer = connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            # Without the forge the proxy hangs up, so that its client sees a server that is gone.
            return Reply(cut="before")
        finally:
            connection.close()
        reply_headers = {k: v for k, v in answer.getheaders() if k.lower() not in _HOP}
        if "git" not in answer.headers.get("Content-Type", ""):
            reply_headers = {
                k: v.replace(self.upstream, self.url) for k, v in reply_headers.items()
            }
            content = content.replace(self.upstream.encode(), self.url.encode())
        return Reply(content, answer.status, reply_headers)
