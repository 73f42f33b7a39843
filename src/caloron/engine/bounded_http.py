"""A server of the standard library that strangers cannot make start threads without end."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class BoundedServer(ThreadingHTTPServer):
    """Handles each request in a thread, and only so many at once."""

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], *, at_once: int
    ) -> None:
        self._places = threading.BoundedSemaphore(at_once)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            # Whoever holds all places loses them soon, by the handler's time limit.
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()
