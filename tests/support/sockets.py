"""Ports on loopback, and servers of tests that speak no HTTP."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def serving(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """Let a function answer each visitor in a thread of its own; yield the port."""

    def serve_client(visitor: socket.socket) -> None:
        # The visitor may be gone before the answer ends.
        with visitor, suppress(ConnectionError):
            answer(visitor)

    def serve() -> None:
        while True:
            try:
                visitor = server.accept()[0]
            except OSError:
                return
            threading.Thread(target=serve_client, args=(visitor,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def echo(visitor: socket.socket) -> None:
    """Send back all data until the visitor has ended."""
    while data := visitor.recv(65536):
        visitor.sendall(data)


def greet(visitor: socket.socket) -> None:
    visitor.sendall(b"hello")
