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
def serving(answer: Callable[[socket.socket], object], *, abstract: str = "") -> Iterator[int]:
    """Let a function answer each visitor in a thread of its own; yield the port.

    With a name, the server has an abstract socket of that name instead of a port.
    """

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

    with socket.socket(socket.AF_UNIX if abstract else socket.AF_INET) as server:
        server.bind(f"\0{abstract}" if abstract else ("127.0.0.1", 0))
        server.listen()
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield 0 if abstract else server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def echo(visitor: socket.socket) -> None:
    """Send back all data until the visitor has ended."""
    while data := visitor.recv(65536):
        visitor.sendall(data)


def greet(visitor: socket.socket) -> None:
    visitor.sendall(b"hello")
