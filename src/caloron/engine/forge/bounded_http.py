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

#: For the thread of a connection that was given up to end; it has nothing more to wait for.
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
        """Handlers call this once a request is complete: from then on it is not given up."""
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
        """Give up requests that took too long to arrive; the server calls this all the time."""
        now = time.monotonic()
        with self._lock:
            late = [one for one in self._reading.values() if one.until < now]
            for one in late:
                self._give_up(one)

    def _take_place(self) -> bool:
        """Give up one unread request; False if every request is being answered."""
        with self._lock:
            held = Counter(one.client for one in self._reading.values())
            if not held:
                return False
            client = held.most_common(1)[0][0]
            self._give_up(next(one for one in self._reading.values() if one.client == client))
        return self._places.acquire(timeout=_HANDOVER_S)

    def _give_up(self, one: _Reading) -> None:
        """End the reading of a connection: its thread sees the end of the request."""
        del self._reading[one.connection]
        with suppress(OSError):
            # The client may have closed it already.
            one.connection.shutdown(socket.SHUT_RDWR)
