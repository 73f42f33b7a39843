"""Lets a sandbox reach the hosts of a list and no others: `proxy.py SOCKET HOST…`.

Runs outside, beside one agent, and takes HTTP proxy requests on a UNIX socket: CONNECT, and
absolute URIs of plain HTTP. It ends with the process that started it, and what it refuses it
says on standard error. Standard library only, and little of it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

#: At once; an agent that opens more waits.
_CONNECTIONS = 128
_HEAD_BYTES = 64 * 1024
_HEAD_S = 30.0
_CONNECT_S = 20.0
#: A model may think for long before it says a word.
_SILENCE_S = 1800.0
_CHUNK = 1 << 16
_DEFAULT_PORTS = (443, 80)
_TOLD_AT_MOST = 500
_LOOPBACK = ("127.0.0.1", "localhost")
#: Between us and the other side only, or set anew.
_OWN_HEADERS = ("connection", "keep-alive", "host")


class Refused(Exception):
    """A request that gets no connection: a status line and what to say about it."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class AllowList:
    """The hosts that may be reached: `host`, `host:port`, `*.domain`, `127.0.0.1:port`."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._entries = [split_port(entry.lower()) for entry in entries]

    def allows(self, host: str, port: int) -> bool:
        return any(
            _matches(pattern, host) and port in ((only,) if only else _DEFAULT_PORTS)
            for pattern, only in self._entries
        )


def _matches(pattern: str, host: str) -> bool:
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    return host == pattern or (pattern in _LOOPBACK and host in _LOOPBACK)


def split_port(authority: str) -> tuple[str, int]:
    """A host and its port; 0 if it names none."""
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        host, port = authority, "0"
    if not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise Refused("400 Bad Request", f"{authority!r} is not a host with a port")
    return host.strip("[]").lower().rstrip("."), int(port)


class Proxy:
    """The connections of one sandbox."""

    def __init__(self, listener: socket.socket, allowed: AllowList) -> None:
        self._listener = listener
        self._allowed = allowed
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        self._told: set[str] = set()

    def serve(self, parent: int, signals: int) -> None:
        """Until the parent has ended; `signals` is readable when one has come."""
        waiting = select.poll()
        waiting.register(parent, select.POLLIN)
        waiting.register(signals, select.POLLIN)
        waiting.register(self._listener, select.POLLIN)
        while True:
            ready = {handle for handle, _ in waiting.poll()}
            if parent in ready:
                return
            if signals in ready:
                # Its handler runs here, and does not come back.
                os.read(signals, 64)
                continue
            if not self._free.acquire(timeout=1):
                continue
            try:
                client = self._listener.accept()[0]
            except OSError:
                self._free.release()
                continue
            threading.Thread(target=self._attend, args=(client,), daemon=True).start()

    def _attend(self, client: socket.socket) -> None:
        try:
            with client:
                self._answer(client)
        except OSError:
            # Either side went away: there is nobody left to tell.
            return
        finally:
            self._free.release()

    def _answer(self, client: socket.socket) -> None:
        client.settimeout(_HEAD_S)
        try:
            head, rest = read_head(client)
            method, host, port, request = _understand(head)
            server = self._connect(host, port)
        except Refused as refusal:
            body = refusal.text.encode("utf-8", "replace") + b"\n"
            client.sendall(
                f"HTTP/1.1 {refusal.status}\r\nContent-Type: text/plain; charset=utf-8\r\n"
                f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
                + body
            )
            return
        with server:
            if method == "CONNECT":
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            server.sendall(request + rest)
            relay(client, server, _SILENCE_S)

    def _connect(self, host: str, port: int) -> socket.socket:
        if not self._allowed.allows(host, port):
            self._tell(f"{host}:{port}")
            raise Refused(
                "403 Forbidden",
                f"Caloron does not let this agent reach {host}:{port}. A person can allow it:"
                f' caloron config set allow_hosts "… {host}:{port}"',
            )
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise Refused("502 Bad Gateway", f"{host} cannot be found: {error}") from error
        problem = "it has no address"
        for family, kind, protocol, _, address in found:
            if host not in _LOOPBACK and _is_this_machine(str(address[0])):
                # A name that anybody can point anywhere must not lead to servers of this machine.
                problem = "its address is one of this machine"
                continue
            server = socket.socket(family, kind, protocol)
            server.settimeout(_CONNECT_S)
            try:
                server.connect(address)
            except OSError as error:
                server.close()
                problem = str(error)
            else:
                return server
        raise Refused("502 Bad Gateway", f"{host}:{port} cannot be reached: {problem}")

    def _tell(self, target: str) -> None:
        if target not in self._told and len(self._told) < _TOLD_AT_MOST:
            self._told.add(target)
            print(f"refused: {target}", file=sys.stderr, flush=True)  # noqa: T201


def _is_this_machine(address: str) -> bool:
    return address.startswith(("127.", "0.", "169.254.", "fe80:", "::ffff:127.")) or address in (
        "::",
        "::1",
    )


def read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """The head of a request, and what came after it already."""
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > _HEAD_BYTES:
            raise Refused("431 Request Header Fields Too Large", "the request is too long")
        part = client.recv(_CHUNK)
        if not part:
            raise ConnectionError("the agent went away")
        data += part
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _understand(head: bytes) -> tuple[str, str, int, bytes]:
    """Method, host and port of a request, and the request as the server shall get it."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3:
        raise Refused("400 Bad Request", "this is not a request to a proxy")
    method, target, version = words
    if method == "CONNECT":
        host, port = split_port(target)
        return method, _plain(host), port or 443, b""
    scheme, separator, remainder = target.partition("://")
    if scheme.lower() != "http" or not separator:
        raise Refused("400 Bad Request", "only CONNECT and http:// are understood")
    authority, slash, path = remainder.partition("/")
    host, port = split_port(authority.rpartition("@")[2])
    kept = [line for line in lines[1:] if not _is_own(line.partition(":")[0].strip().lower())]
    told = [f"{method} {slash or '/'}{path} {version}", f"Host: {authority}", "Connection: close"]
    request = "\r\n".join((*told, *kept)) + "\r\n\r\n"
    return method, _plain(host), port or 80, request.encode("latin-1")


def _plain(host: str) -> str:
    if not host or not all(c.isascii() and (c.isalnum() or c in "-._:") for c in host):
        raise Refused("400 Bad Request", f"{host!r} is not the name of a host")
    return host


def _is_own(header: str) -> bool:
    return header in _OWN_HEADERS or header.startswith("proxy-")


def relay(one: socket.socket, other: socket.socket, silence_s: float) -> None:
    """Pass bytes both ways until both sides have ended, or neither said anything for long."""
    one.settimeout(silence_s)
    other.settimeout(silence_s)
    ends = {one.fileno(): (one, other), other.fileno(): (other, one)}
    waiting = select.poll()
    for handle in ends:
        waiting.register(handle, select.POLLIN)
    while ends:
        ready = waiting.poll(silence_s * 1000)
        if not ready:
            return
        for handle, _ in ready:
            source, target = ends[handle]
            if data := source.recv(_CHUNK):
                target.sendall(data)
                continue
            waiting.unregister(handle)
            del ends[handle]
            with suppress(OSError):
                target.shutdown(socket.SHUT_WR)


def main(arguments: Sequence[str]) -> None:
    path, *hosts = arguments
    fresh = f"{path}~"
    allowed = AllowList(hosts)
    parent = os.pidfd_open(os.getppid())
    # A parent that was gone before we looked left us to the first process.
    if os.getppid() == 1:
        return

    def leave(code: int = 0) -> None:
        for name in (path, fresh):
            with suppress(OSError):
                os.unlink(name)  # noqa: PTH108
        with suppress(OSError):
            os.rmdir(os.path.dirname(path))  # noqa: PTH106, PTH120
        # At once: threads may hold what an orderly end would wait for.
        os._exit(code)

    signals, noted = os.pipe()
    os.set_blocking(noted, False)
    # The system may give a signal to any thread, and then the one that waits does not wake.
    signal.set_wakeup_fd(noted, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda *_: leave())
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            # No pathlib, for the memory it takes.
            listener.bind(fresh)
            # Whoever is inside has a user id of its own.
            os.chmod(fresh, 0o666)  # noqa: PTH101
            listener.listen(_CONNECTIONS)
            listener.setblocking(False)
            # Only now, since a socket that nobody listens to is taken for a dead one.
            os.rename(fresh, path)  # noqa: PTH104
            Proxy(listener, allowed).serve(parent, signals)
    except OSError as error:
        print(f"the proxy ends: {error}", file=sys.stderr, flush=True)  # noqa: T201
        leave(1)
    leave()


if __name__ == "__main__":
    # Not our own folder: its modules may have the names of others.
    sys.path[0] = __file__.rsplit("/", 3)[0]
    main(sys.argv[1:])
