"""A server with few connections: an unfinished request loses its connection to others."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from caloron.engine.forge.bounded_http import BoundedServer

_PLACES = 4


class _Handler(BaseHTTPRequestHandler):
    server: BoundedServer

    def do_GET(self) -> None:
        self.server.has_read(self.connection)
        if self.path == "/slow":
            time.sleep(2)
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Discard the log of the server."""


@contextmanager
def _serving(patience_s: float = 600.0) -> Iterator[BoundedServer]:
    made = BoundedServer(("127.0.0.1", 0), _Handler, at_once=_PLACES, patience_s=patience_s)
    thread = threading.Thread(target=made.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


def _connect(server: BoundedServer, host: str = "127.0.0.1") -> socket.socket:
    made = socket.socket()
    made.settimeout(60)
    made.bind((host, 0))
    made.connect(("127.0.0.1", server.server_address[1]))
    return made


def _answer(connection: socket.socket, path: str = "/") -> bytes:
    with connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return connection.recv(100)


def test_a_head_has_one_deadline_for_all_its_bytes() -> None:
    """Each byte arrives within the timeout, but the head never ends."""
    with _serving(patience_s=1.0) as server, _connect(server) as slow:
        slow.sendall(b"GET / HTTP/1.0\r\nX: ")
        slow.settimeout(0.1)
        closed = False
        give_up = time.monotonic() + 60
        while not closed and time.monotonic() < give_up:
            try:
                slow.send(b"x")
                closed = slow.recv(1) == b""
            except TimeoutError:
                continue
            except OSError:
                closed = True
        assert closed


def test_the_client_with_the_most_open_requests_loses_the_oldest() -> None:
    """A flood from one address does not replace a slow caller from another address."""
    with _serving() as server:
        patient = _connect(server, "127.0.0.2")
        patient.sendall(b"GET /")
        flood = [_connect(server) for _ in range(_PLACES * 5)]
        try:
            assert b" 204 " in _answer(_connect(server))
            patient.sendall(b" HTTP/1.0\r\n\r\n")
            assert b" 204 " in patient.recv(100)
        finally:
            for client in (patient, *flood):
                client.close()


def test_a_request_with_a_running_answer_is_not_dropped() -> None:
    with _serving() as server:
        answers: list[bytes] = []
        threads = [
            threading.Thread(target=lambda: answers.append(_answer(_connect(server), "/slow")))
            for _ in range(_PLACES)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        # Every connection has a request in progress, so further requests are refused at once.
        with _connect(server) as refused:
            assert refused.recv(1) == b""
        for thread in threads:
            thread.join()
        assert [b" 204 " in answer for answer in answers] == [True] * _PLACES
