"""A server of the standard library with a bounded number of threads.

A connection holds a thread while its request is read. Reading has one deadline, and when no thread
is free the client with the most unread requests loses the oldest of them. So connections that
never finish, or send one byte at a time, cannot keep others out.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

#: How long the thread of a dropped connection may take to end.
_HANDOVER_S = 1.0


class _Reading(NamedTuple):
    """A connection whose request is not read yet."""

    connection: socket.socket
    client: str
    until: float


class BoundedServer(ThreadingHTTPServer):
    """Handles each request in a thread, and only so many at once."""

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        *,
        at_once: int,
        patience_s: float,
    ) -> None:
        self._places = threading.BoundedSemaphore(at_once)
        self._patience_s = patience_s
        #: In the order in which they came; a request that is read is not in it.
        self._reading: dict[socket.socket, _Reading] = {}
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def has_read(self, connection: socket.socket) -> None:
        """Mark a request as complete, so that its connection is not dropped; handlers call this."""
        with self._lock:
            self._reading.pop(connection, None)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False) and not self._take_place():
            self.shutdown_request(request)
            return
        until = time.monotonic() + self._patience_s
        with self._lock:
            self._reading[request] = _Reading(request, str(client_address[0]), until)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.has_read(request)
            self._places.release()

    def service_actions(self) -> None:
        """Drop requests that took too long to arrive; the server calls this regularly."""
        now = time.monotonic()
        with self._lock:
            for reading in [r for r in self._reading.values() if r.until < now]:
                self._drop(reading)

    def _take_place(self) -> bool:
        """Drop one unread request; False if every request is being answered."""
        with self._lock:
            clients = Counter(reading.client for reading in self._reading.values())
            if not clients:
                return False
            client = clients.most_common(1)[0][0]
            self._drop(next(r for r in self._reading.values() if r.client == client))
        return self._places.acquire(timeout=_HANDOVER_S)

    def _drop(self, reading: _Reading) -> None:
        """Shut a connection down for reading: its thread sees the end of the request."""
        del self._reading[reading.connection]
        with suppress(OSError):
            # The client may have closed it already.
            reading.connection.shutdown(socket.SHUT_RDWR)
