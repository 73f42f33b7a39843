"""Lets a sandbox reach the hosts of a list and no others: `proxy.py SOCKET HOST…`.

Runs outside, beside one agent, and takes HTTP proxy requests on a UNIX socket: CONNECT, and
absolute URIs of plain HTTP. HOST may be `*`: every public host. Where the environment names a proxy
(HTTPS_PROXY, HTTP_PROXY, NO_PROXY), connections go through that one. It ends with the process that
started it, and prints the hosts that it refuses on standard error. Standard library only.
"""

from __future__ import annotations

import base64
import ipaddress
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

#: At once; an agent that opens more waits.
_CONNECTIONS = 128
_HEAD_BYTES = 64 * 1024
_HEAD_S = 30.0
_CONNECT_S = 20.0
#: A model may think for long before it answers.
_SILENCE_S = 1800.0
_CHUNK = 1 << 16
_DEFAULT_PORTS = (443, 80)
_MOST_REPORTED = 500
_LOOPBACK = ("127.0.0.1", "localhost")
#: Between us and the other side only, or set anew.
_OWN_HEADERS = ("connection", "keep-alive", "host")


TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    _Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]


class Refused(Exception):
    """A request that gets no connection: a status line and a message."""

    def __init__(self, status: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


#: How far an entry of the list goes: to public addresses, to every address but those of this
#: machine and its link, or to the address that it spells out.
PUBLIC, NAMED, LITERAL = 1, 2, 3


class AllowList:
    """The hosts that may be reached: `host`, `host:port`, `*.domain`, `127.0.0.1:port`, `*`."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._entries = [split_port(entry.lower()) for entry in entries]

    def trust(self, host: str, port: int) -> int:
        """Return how far a host is trusted at a port; 0: not at all."""
        return max((_trust(*entry, host, port) for entry in self._entries), default=0)


def _trust(pattern: str, only: int, host: str, port: int) -> int:
    if pattern == "*":
        return PUBLIC
    if not _matches(pattern, host) or port not in ((only,) if only else _DEFAULT_PORTS):
        return 0
    if pattern in _LOOPBACK or _parsed(pattern) is not None:
        return LITERAL
    return NAMED if only and not pattern.startswith("*.") else PUBLIC


def _matches(pattern: str, host: str) -> bool:
    if pattern.startswith("*."):
        return host.endswith(pattern[1:])
    return host == pattern or (pattern in _LOOPBACK and host in _LOOPBACK)


Address = ipaddress.IPv4Address | ipaddress.IPv6Address
#: IPv6 prefixes whose last four bytes are an IPv4 address: compatible, mapped, NAT64.
_WITH_IPV4 = tuple(map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0/96", "64:ff9b::/96")))
_MAPPED = _WITH_IPV4[1]
#: A NAT64 of the local network, whose form only that network knows.
_LOCAL_NAT64 = ipaddress.IPv6Network("64:ff9b:1::/48")
#: Documentation networks: no machine owns such an address, but resolvers of build machines use
#: them for the names of registries that are mirrored nearby.
_DOCUMENTATION = tuple(
    map(ipaddress.IPv4Network, ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24"))
)


def permits(trust: int, address: str) -> bool:
    """True if a host with this trust may be reached at an address that it resolves to."""
    parsed = _parsed(address)
    if parsed is None or trust == 0:
        return False
    if trust == LITERAL:
        return True
    accepts = _is_other_machine if trust == NAMED else _is_public
    return all(map(accepts, _embedded(parsed)))


def _parsed(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _embedded(address: Address) -> Iterator[Address]:
    """Yield an address and the IPv4 addresses in it, which a gateway or the kernel connects to."""
    if isinstance(address, ipaddress.IPv4Address):
        yield address
        return
    if address not in _MAPPED:
        yield address
    if any(address in network for network in _WITH_IPV4):
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address.sixtofour:
        yield address.sixtofour
    yield from address.teredo or ()


def _is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv4Address):
        documented = any(address in network for network in _DOCUMENTATION)
        return (address.is_global or documented) and not address.is_multicast
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_site_local
        and address not in _LOCAL_NAT64
        # Versions of Python disagree about 6to4, which is deprecated: it counts as private.
        and address.sixtofour is None
    )


def _is_other_machine(address: Address) -> bool:
    return not (
        address.is_loopback
        or address.is_link_local
        or address.is_unspecified
        or address.is_multicast
        # All of 0.0.0.0/8 leads to this machine.
        or (address.version == 4 and int(address) >> 24 == 0)
    )


class Upstream:
    """The proxy that this machine has to use, as the usual variables name it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        known = {name.lower(): value.strip() for name, value in environment.items()}
        always = known.get("all_proxy", "")
        self._secure = _proxy_address(known.get("https_proxy") or always)
        self._plain = _proxy_address(known.get("http_proxy") or always)
        self._direct = [word.strip().lower() for word in known.get("no_proxy", "").split(",")]

    def of(self, method: str, host: str) -> tuple[str, int, str] | None:
        """Return host, port and credentials of the proxy for a request; None: none is needed."""
        for word in filter(None, self._direct):
            bare = word.removeprefix("*").removeprefix(".")
            if word == "*" or host == bare or host.endswith(f".{bare}"):
                return None
        return self._secure if method == "CONNECT" else self._plain


def _proxy_address(url: str) -> tuple[str, int, str] | None:
    if not url:
        return None
    scheme, separator, rest = url.rpartition("://")
    if separator and scheme.lower() != "http":
        print(f"a proxy of the kind {scheme}:// is not used", file=sys.stderr, flush=True)  # noqa: T201
        return None
    # Imported only where there is a proxy, for the memory that it takes.
    from urllib.parse import unquote

    credentials, _, authority = rest.partition("/")[0].rpartition("@")
    try:
        host, port = split_port(authority)
    except Refused:
        print("the proxy of the environment has no valid address", file=sys.stderr, flush=True)  # noqa: T201
        return None
    return host, port or 80, unquote(credentials, "latin-1")


def split_port(authority: str) -> tuple[str, int]:
    """Split an authority into host and port; 0: it names no port."""
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        host, port = authority, "0"
    if not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise Refused("400 Bad Request", f"{authority!r} is not a host with a port")
    return host.strip("[]").lower().rstrip("."), int(port)


def accept(
    listener: socket.socket,
    free: threading.BoundedSemaphore,
    attend: Callable[[socket.socket], object],
) -> None:
    """Attend to the client that waits at a listener, in a thread of its own."""
    if not free.acquire(timeout=1):
        # It waits until another client has left.
        return
    try:
        client = listener.accept()[0]
    except OSError:
        # The client left before it was accepted.
        free.release()
        return

    def run() -> None:
        try:
            # Either side may close the connection at any time.
            with suppress(OSError), client:
                attend(client)
        finally:
            free.release()

    threading.Thread(target=run, daemon=True).start()


class Proxy:
    """The connections of one sandbox."""

    def __init__(self, listener: socket.socket, allowed: AllowList, upstream: Upstream) -> None:
        self._listener = listener
        self._allowed = allowed
        self._upstream = upstream
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        self._reported: set[str] = set()

    def serve(self, parent: int, signals: int) -> None:
        """Serve until the parent has ended; `signals` is readable when a signal has come."""
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
            accept(self._listener, self._free, self.answer)

    def answer(self, client: socket.socket) -> None:
        client.settimeout(_HEAD_S)
        try:
            head, rest = read_head(client)
            method, host, port, request = _parse_request(head)
            server, request, first = self._reach(method, host, port, request)
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
                client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n" + first)
            server.sendall(request + rest)
            relay(client, server, _SILENCE_S)

    def _reach(
        self, method: str, host: str, port: int, request: bytes
    ) -> tuple[socket.socket, bytes, bytes]:
        """Connect for a request; return also the request as it is sent, and the first answer."""
        trust = self._allowed.trust(host, port)
        if not trust:
            self._report(f"{host}:{port}")
            raise Refused(
                "403 Forbidden",
                f"Caloron does not let this agent reach {host}:{port}. {_remedy(host, port)}",
            )
        upstream = self._upstream.of(method, host) if trust != LITERAL else None
        try:
            addresses = _resolve(host, port)
        except Refused:
            if upstream is None:
                raise
            # Behind a proxy, names of the outside are often known to that proxy only.
            addresses = []
        good = [entry for entry in addresses if permits(trust, str(entry[4][0]))]
        if addresses and not good:
            address = str(addresses[0][4][0])
            self._report(f"{host}:{port}, because {address} is not a public address")
            raise Refused(
                "403 Forbidden",
                f"{host}:{port} leads to {address}, which is not a public address. "
                f"{_remedy(host, port)}",
            )
        if upstream is None:
            return _connected(f"{host}:{port}", good), request, b""
        return _through(upstream, method, host, port, request)

    def _report(self, target: str) -> None:
        if target not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(target)
            print(f"refused: {target}", file=sys.stderr, flush=True)  # noqa: T201


def _remedy(host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f'A person can allow it: caloron config set allow_hosts "… {shown}:{port}"'


def _resolve(host: str, port: int, name: str = "") -> Sequence[_Address]:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = f"{name or host} cannot be resolved: {error}"
        raise Refused("502 Bad Gateway", why) from error


def _connected(target: str, addresses: Sequence[_Address]) -> socket.socket:
    """Connect to the first of these addresses that answers; no name is resolved again."""
    problem = "it has no address"
    for family, kind, protocol, _, address in addresses:
        server = socket.socket(family, kind, protocol)
        server.settimeout(_CONNECT_S)
        try:
            server.connect(address)
        except OSError as error:
            server.close()
            problem = str(error)
        else:
            return server
    raise Refused("502 Bad Gateway", f"{target} cannot be reached: {problem}")


def _through(
    upstream: tuple[str, int, str], method: str, host: str, port: int, request: bytes
) -> tuple[socket.socket, bytes, bytes]:
    """Reach a host through the proxy of this machine."""
    name, number, credentials = upstream
    addresses = _resolve(name, number, f"the proxy {name} of this machine")
    server = _connected(f"the proxy {name}:{number} of this machine", addresses)
    login = ""
    if credentials:
        word = base64.b64encode(credentials.encode("latin-1", "replace")).decode()
        login = f"Proxy-Authorization: Basic {word}\r\n"
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if method != "CONNECT":
        line, _, headers = request.partition(b"\r\n")
        verb, path, version = line.decode("latin-1").split(" ")
        absolute = f"{verb} http://{target}{path} {version}\r\n{login}"
        return server, absolute.encode("latin-1") + headers, b""
    try:
        server.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n".encode())
        head, first = read_head(server)
    except BaseException:
        server.close()
        raise
    status = head.partition(b"\r\n")[0].decode("latin-1")
    if status.split(" ")[1:2] != ["200"]:
        server.close()
        why = f"the proxy {name}:{number} of this machine refuses {target}: {status}"
        raise Refused("502 Bad Gateway", why)
    return server, b"", first


def read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """Read the head of a request; return also the bytes that came after it."""
    data = b""
    while b"\r\n\r\n" not in data:
        if len(data) > _HEAD_BYTES:
            raise Refused("431 Request Header Fields Too Large", "the request is too long")
        part = client.recv(_CHUNK)
        if not part:
            raise ConnectionError("the other side went away")
        data += part
    head, _, rest = data.partition(b"\r\n\r\n")
    return head, rest


def _parse_request(head: bytes) -> tuple[str, str, int, bytes]:
    """Return method, host and port of a request, and the request as the server gets it."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3:
        raise Refused("400 Bad Request", "this is not a request to a proxy")
    method, target, version = words
    if method == "CONNECT":
        host, port = split_port(target)
        return method, _checked_host(host), port or 443, b""
    scheme, separator, remainder = target.partition("://")
    if scheme.lower() != "http" or not separator:
        raise Refused("400 Bad Request", "only CONNECT and http:// are understood")
    authority, slash, path = remainder.partition("/")
    host, port = split_port(authority.rpartition("@")[2])
    kept = [line for line in lines[1:] if not _is_own(line.partition(":")[0].strip().lower())]
    own = [f"{method} {slash or '/'}{path} {version}", f"Host: {authority}", "Connection: close"]
    request = "\r\n".join((*own, *kept)) + "\r\n\r\n"
    return method, _checked_host(host), port or 80, request.encode("latin-1")


def _checked_host(host: str) -> str:
    if not host or not all(c.isascii() and (c.isalnum() or c in "-._:") for c in host):
        raise Refused("400 Bad Request", f"{host!r} is not the name of a host")
    return host


def _is_own(header: str) -> bool:
    return header in _OWN_HEADERS or header.startswith("proxy-")


def relay(one: socket.socket, other: socket.socket, silence_s: float) -> None:
    """Pass bytes both ways until both sides have ended, or neither sent anything for long."""
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
                # It may be closed already.
                target.shutdown(socket.SHUT_WR)


def main(arguments: Sequence[str]) -> None:
    path, *hosts = arguments
    fresh = f"{path}~"
    allowed = AllowList(hosts)
    parent = os.pidfd_open(os.getppid())
    # A parent that ended before this moment left us to the first process.
    if os.getppid() == 1:
        return

    def leave(code: int = 0) -> None:
        for name in (path, fresh):
            with suppress(OSError):
                # It may be removed already.
                os.unlink(name)  # noqa: PTH108
        with suppress(OSError):
            # It may be removed already, or shared.
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
            # The agent has a user id of its own.
            os.chmod(fresh, 0o666)  # noqa: PTH101
            listener.listen(_CONNECTIONS)
            listener.setblocking(False)
            # Only now, since a socket without a listener counts as dead.
            os.rename(fresh, path)  # noqa: PTH104
            Proxy(listener, allowed, Upstream(os.environ)).serve(parent, signals)
    except OSError as error:
        print(f"the proxy ends: {error}", file=sys.stderr, flush=True)  # noqa: T201
        leave(1)
    leave()


if __name__ == "__main__":
    # Not our own folder: its modules may have the names of others.
    sys.path[0] = __file__.rsplit("/", 4)[0]
    main(sys.argv[1:])
