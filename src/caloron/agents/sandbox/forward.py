"""The way out, inside a sandbox: `forward.py SOCKET PROXY_PORT [PORT…] -- COMMAND…`.

Listens on ports of the sandbox, leaves a process behind that passes connections on to the proxy
outside, and becomes the command. PROXY_PORT takes proxy requests; a connection to one of the
other ports goes to the same port of the machine outside. Standard library only.
"""

from __future__ import annotations

# Every agent waits until this script is done: `socket` and `typing` would take longer to import
# than all that it does.
import _socket
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from typing import NoReturn

_CONNECTIONS = 128
_CONNECT_S = 30.0
_RETRY_S = 0.05
_SILENCE_S = 1900.0


def main(arguments: Sequence[str]) -> NoReturn:
    cut = arguments.index("--")
    path, proxy_port, *ports = arguments[:cut]
    command = arguments[cut + 1 :]
    listeners = [(listener, "") for listener in _listen(int(proxy_port))]
    for port in ports:
        listeners += [(listener, f"127.0.0.1:{port}") for listener in _listen(int(port))]
    if os.fork() == 0:
        _stay_behind(path, listeners)
    os.wait()
    for listener, _ in listeners:
        listener.close()
    try:
        os.execvp(command[0], list(command))
    except OSError as error:
        sys.exit(f"cannot start {command[0]}: {error.strerror}")


def _listen(port: int) -> list[_socket.socket]:
    """Listen at both names of this machine: some programs try the newer one only."""
    listeners = []
    for family, address in ((_socket.AF_INET, "127.0.0.1"), (_socket.AF_INET6, "::1")):
        try:
            listener = _socket.socket(family)
            listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
            listener.bind((address, port))
        except OSError as error:
            if family == _socket.AF_INET6:
                continue
            sys.exit(f"cannot offer port {port} inside the sandbox: {error.strerror}")
        listener.listen(_CONNECTIONS)
        listeners.append(listener)
    return listeners


def _stay_behind(path: str, listeners: list[tuple[_socket.socket, str]]) -> NoReturn:
    """Serve as an orphan: the command must not have a child that it did not start."""
    if os.fork() != 0:
        os._exit(0)
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    try:
        _serve(path, listeners)
    finally:
        os._exit(1)


def _serve(path: str, listeners: list[tuple[_socket.socket, str]]) -> None:
    import select
    import socket
    import threading
    from functools import partial

    # Only now: the process that becomes the command has no use for it.
    from caloron.agents.sandbox.proxy import accept, relay

    def attend(target: str, client: socket.socket) -> None:
        with _to_proxy(path) as proxy:
            rest = _ask_for(proxy, target) if target else b""
            client.sendall(rest)
            relay(client, proxy, _SILENCE_S)

    free = threading.BoundedSemaphore(_CONNECTIONS)
    waiting = select.poll()
    known = {}
    for bound, target in listeners:
        listener = socket.socket(fileno=bound.detach())
        listener.setblocking(False)
        waiting.register(listener, select.POLLIN)
        known[listener.fileno()] = (listener, partial(attend, target))
    while True:
        for handle, _ in waiting.poll():
            accept(known[handle][0], free, known[handle][1])


def _to_proxy(path: str) -> socket.socket:
    """Connect to the proxy, which may be about to start."""
    import socket

    give_up = time.monotonic() + _CONNECT_S
    while True:
        proxy = socket.socket(socket.AF_UNIX)
        try:
            proxy.connect(path)
        except OSError:
            proxy.close()
            if time.monotonic() > give_up:
                raise
            time.sleep(_RETRY_S)
        else:
            return proxy


def _ask_for(proxy: socket.socket, target: str) -> bytes:
    """Let the proxy connect to a port outside; the first bytes that the server sent."""
    from caloron.agents.sandbox.proxy import read_head

    proxy.settimeout(_CONNECT_S)
    proxy.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
    head, rest = read_head(proxy)
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise ConnectionError("the proxy refused")
    return rest


if __name__ == "__main__":
    sys.path[0] = __file__.rsplit("/", 4)[0]
    main(sys.argv[1:])
