"""The filtering proxy as a process, used through its socket."""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from caloron.agents.sandbox import proxy
from caloron.agents.sandbox.proxy import (
    LITERAL,
    NAMED,
    PUBLIC,
    AllowList,
    Proxy,
    Refused,
    Upstream,
    permits,
    split_port,
)
from tests.support import sockets
from tests.support.sockets import serving
from tests.support.wait import process_lives, wait_for

_PROXY = str(Path(proxy.__file__))


class Proxied:
    """A running proxy and connections to it."""

    def __init__(self, folder: Path, hosts: tuple[str, ...], env: dict[str, str]) -> None:
        self.path = folder / "proxy.sock"
        argv = (sys.executable, "-S", "-E", _PROXY, str(self.path), *hosts)
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE, env=env, text=True)
        wait_for(self.is_ready, "the proxy listens")

    def is_ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.path)) == 0

    def connect(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(120)
        made.connect(str(self.path))
        return made

    def ask(self, request: str) -> str:
        """Return the whole answer to one request."""
        with self.connect() as connection:
            connection.sendall(request.replace("\n", "\r\n").encode("latin-1"))
            answer = b""
            while part := connection.recv(65536):
                answer += part
        return answer.decode("utf-8", "replace")

    def tunnel(self, target: str) -> socket.socket:
        connection = self.connect()
        connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += connection.recv(1)
        assert b" 200 " in head, head
        return connection

    def end(self) -> str:
        self.process.terminate()
        return self.process.communicate(timeout=120)[1]


@contextmanager
def proxied(*hosts: str, env: dict[str, str] | None = None) -> Iterator[Proxied]:
    folder = Path(tempfile.mkdtemp(prefix="caloron-proxy-"))
    made = Proxied(folder, hosts, env or {})
    try:
        yield made
    finally:
        made.end()
        assert not folder.exists()


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back all data until the sender has ended."""
    with serving(sockets.echo) as port:
        yield port


@pytest.mark.parametrize(
    ("entry", "target", "allowed"),
    [
        ("api.x.org", "api.x.org:443", True),
        ("api.x.org", "API.X.org.:443", True),
        ("api.x.org", "api.x.org:80", True),
        ("api.x.org", "api.x.org:22", False),
        ("api.x.org", "evil-api.x.org:443", False),
        ("api.x.org", "api.x.org.evil.net:443", False),
        ("api.x.org:8443", "api.x.org:8443", True),
        ("api.x.org:8443", "api.x.org:443", False),
        ("*.x.org", "a.x.org:443", True),
        ("*.x.org", "a.b.x.org:443", True),
        ("*.x.org", "x.org:443", False),
        ("*.x.org", "evilx.org:443", False),
        ("127.0.0.1:5000", "localhost:5000", True),
        ("localhost:5000", "127.0.0.1:5000", True),
        ("127.0.0.1:5000", "127.0.0.1:5001", False),
        ("[2001:db8::1]:443", "[2001:db8::1]:443", True),
    ],
)
def test_the_list_allows_only_its_entries(entry: str, target: str, allowed: bool) -> None:
    assert (AllowList([entry]).trust(*split_port(target)) > 0) is allowed


def test_an_invalid_port_is_refused() -> None:
    for authority in ("x.org:", "x.org:http", "x.org:99999", "x.org:٤٤٣"):
        with pytest.raises(Refused):
            split_port(authority)


def test_much_data_goes_both_ways_unchanged_and_ends_when_the_sender_ends(echo: int) -> None:
    data = os.urandom(3 << 20)
    with proxied(f"127.0.0.1:{echo}") as made, made.tunnel(f"127.0.0.1:{echo}") as tunnel:

        def send() -> None:
            tunnel.sendall(data)
            tunnel.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        digest = hashlib.sha256()
        while part := tunnel.recv(65536):
            digest.update(part)
        sender.join()
    assert digest.digest() == hashlib.sha256(data).digest()


def test_a_refusal_names_the_host_and_the_way_to_allow_it_and_is_logged_once(echo: int) -> None:
    with proxied("api.example.invalid") as made:
        for _ in range(3):
            answer = made.ask(f"CONNECT 127.0.0.1:{echo} HTTP/1.1\n\n")
            assert answer.startswith("HTTP/1.1 403 ")
            assert f"127.0.0.1:{echo}" in answer
            assert "caloron config set allow_hosts" in answer
        assert made.end() == f"refused: 127.0.0.1:{echo}\n"


def test_plain_http_reaches_the_server_as_a_request_of_its_own(echo: int) -> None:
    with proxied(f"127.0.0.1:{echo}") as made:
        request = f"GET http://127.0.0.1:{echo}/a/b?c=d HTTP/1.1\nHost: other.invalid\n"
        with made.connect() as connection:
            headers = "Proxy-Authorization: x\nConnection: keep-alive\nAccept: */*\n\nbody"
            connection.sendall((request + headers).replace("\n", "\r\n").encode())
            connection.shutdown(socket.SHUT_WR)
            echoed = b""
            while part := connection.recv(65536):
                echoed += part
    lines = echoed.decode().split("\r\n")
    assert lines[0] == "GET /a/b?c=d HTTP/1.1"
    assert sorted(lines[1:4]) == ["Accept: */*", "Connection: close", f"Host: 127.0.0.1:{echo}"]
    assert lines[-1] == "body"


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        ("GET / HTTP/1.1", "400"),
        ("nonsense", "400"),
        ("GET ftp://x.org/ HTTP/1.1", "400"),
        ("CONNECT x.org:port HTTP/1.1", "400"),
        ("CONNECT x.org/..:443 HTTP/1.1", "400"),
        ("CONNECT xn\xe4me.org:443 HTTP/1.1", "400"),
        ("CONNECT :443 HTTP/1.1", "400"),
        ("GET http://x.org@evil.invalid/ HTTP/1.1", "403"),
        ("GET http://evil.invalid#x.org/ HTTP/1.1", "400"),
        ("CONNECT gone.example.invalid:443 HTTP/1.1", "502"),
        ("GET http://x.org/" + "a" * 100_000 + " HTTP/1.1", "431"),
    ],
)
def test_an_impossible_request_is_answered_with_an_error(request_line: str, status: str) -> None:
    with proxied("x.org", "gone.example.invalid") as made:
        tail = "" if status == "431" else "\n\n"
        assert made.ask(request_line + tail).startswith(f"HTTP/1.1 {status} ")


def test_a_name_that_resolves_to_this_machine_is_refused(echo: int) -> None:
    """The resolver reads `127.1` as an address, but it is not how an address is written."""
    with proxied(f"127.1:{echo}", "*") as made:
        for target in (f"127.1:{echo}", f"0x7f000001:{echo}", f"127.0.0.1:{echo}"):
            answer = made.ask(f"CONNECT {target} HTTP/1.1\n\n")
            assert answer.startswith("HTTP/1.1 403 ")
            assert "not a public address" in answer


@contextmanager
def corporate_proxy() -> Iterator[tuple[int, list[str]]]:
    """A proxy of this machine that leads every CONNECT to itself; its port and its requests."""
    requests: list[str] = []

    def answer(visitor: socket.socket) -> None:
        head, _ = proxy.read_head(visitor)
        requests.append(head.decode())
        if head.startswith(b"CONNECT"):
            visitor.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        visitor.sendall(b"from far away")

    with serving(answer) as port:
        yield port, requests


def test_connections_use_the_proxy_of_this_machine() -> None:
    with corporate_proxy() as (port, requests):
        env = {
            "HTTPS_PROXY": f"http://me:p%40ss@127.0.0.1:{port}",
            "http_proxy": f"127.0.0.1:{port}",
        }
        with proxied("far.invalid", "*.near.invalid", env=env) as made:
            with made.tunnel("far.invalid:443") as tunnel:
                assert tunnel.recv(100) == b"from far away"
            answer = made.ask("GET http://far.invalid/a?b HTTP/1.1\nAccept: x\n\n")
            assert answer == "from far away"
            assert made.ask("CONNECT other.invalid:443 HTTP/1.1\n\n").startswith("HTTP/1.1 403 ")
    connect, get = requests
    assert connect.startswith("CONNECT far.invalid:443 HTTP/1.1\r\n")
    assert f"Basic {base64.b64encode(b'me:p@ss').decode()}" in connect
    assert get.startswith("GET http://far.invalid:80/a?b HTTP/1.1\r\n")


def test_hosts_that_need_no_proxy_are_reached_directly(echo: int) -> None:
    with corporate_proxy() as (port, requests):
        env = {"https_proxy": f"http://127.0.0.1:{port}", "NO_PROXY": "x.test, .near.invalid"}
        hosts = (f"127.0.0.1:{echo}", "*.near.invalid")
        with proxied(*hosts, env=env) as made:
            with made.tunnel(f"127.0.0.1:{echo}") as tunnel:
                tunnel.sendall(b"hi")
                assert tunnel.recv(2) == b"hi"
            answer = made.ask("CONNECT a.near.invalid:443 HTTP/1.1\n\n")
            assert answer.startswith("HTTP/1.1 502 ")
    assert requests == []


_LOOPBACK_IN_DISGUISE = (
    "127.0.0.1", "0.0.0.0", "0.1.2.3", "169.254.169.254", "::", "::1", "fe80::1", "feb0::1",
    "::ffff:127.0.0.1", "::ffff:0.0.0.0", "::ffff:169.254.169.254", "::127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a9fe:a9fe::1",
    "224.0.0.1", "ff02::1",
)  # fmt: skip
_OTHER_NETWORKS = (
    "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "198.18.0.1", "240.0.0.1", "fd00::1",
    "fec0::1", "::ffff:10.1.2.3", "64:ff9b::a01:203", "2002:a01:203::1", "64:ff9b:1::1",
    "::10.1.2.3",
)  # fmt: skip
_PUBLIC = ("8.8.8.8", "::ffff:8.8.8.8", "2606:4700::1111", "64:ff9b::808:808")


@pytest.mark.parametrize(
    ("addresses", "least_trust"),
    [(_LOOPBACK_IN_DISGUISE, LITERAL), (_OTHER_NETWORKS, NAMED), (_PUBLIC, PUBLIC)],
    ids=["this machine", "other machines", "public"],
)
def test_an_address_in_any_form_is_reached_only_with_the_trust_that_it_needs(
    addresses: tuple[str, ...], least_trust: int
) -> None:
    """PUBLIC: any listed host; NAMED: one with its port; LITERAL: an address itself."""
    for address in addresses:
        trusts = [trust for trust in (PUBLIC, NAMED, LITERAL) if permits(trust, address)]
        assert trusts == [trust for trust in (PUBLIC, NAMED, LITERAL) if trust >= least_trust]


_ANY_IPV4 = st.integers(0, 2**32 - 1).map(ipaddress.IPv4Address)
_ANY_IPV6 = st.integers(0, 2**128 - 1).map(ipaddress.IPv6Address)
#: Networks that `ipaddress` does not call global, and that are not in use.
_DOCUMENTATION = [
    ipaddress.IPv4Network(network)
    for network in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
]
_SPECIAL = (
    "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
    "192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4", "8.8.8.0/24",
)  # fmt: skip
_SPECIAL_IPV4 = st.sampled_from(_SPECIAL).flatmap(
    lambda name: st.integers(
        int(ipaddress.IPv4Network(name)[0]), int(ipaddress.IPv4Network(name)[-1])
    ).map(ipaddress.IPv4Address)
)
_WRAPPED = st.tuples(
    st.sampled_from([0, 0xFFFF << 32, 0x0064_FF9B << 96]), _ANY_IPV4 | _SPECIAL_IPV4
)
_SIX_TO_FOUR = st.tuples(_ANY_IPV4 | _SPECIAL_IPV4, st.integers(0, 2**80 - 1))


def _public(address: ipaddress.IPv4Address) -> bool:
    documented = any(address in network for network in _DOCUMENTATION)
    return (address.is_global and not address.is_multicast) or documented


@given(_WRAPPED)
def test_an_ipv4_address_inside_another_is_judged_too(
    wrapped: tuple[int, ipaddress.IPv4Address],
) -> None:
    prefix, inner = wrapped
    address = ipaddress.IPv6Address(prefix | int(inner))
    outer = prefix == 0xFFFF << 32 or address.is_global
    assert permits(PUBLIC, str(address)) == (outer and _public(inner))


@given(_SIX_TO_FOUR)
def test_a_6to4_address_is_never_public(tunnel: tuple[ipaddress.IPv4Address, int]) -> None:
    inner, rest = tunnel
    address = ipaddress.IPv6Address(0x2002 << 112 | int(inner) << 80 | rest)
    assert not permits(PUBLIC, str(address))


@given(_ANY_IPV6)
def test_no_ipv6_address_is_public_that_ipaddress_does_not_call_global(
    address: ipaddress.IPv6Address,
) -> None:
    if permits(PUBLIC, str(address)):
        assert (address.ipv4_mapped or address).is_global
        assert not address.is_multicast


@given(st.text())
def test_an_invalid_address_is_not_public(text: str) -> None:
    assume(not re.fullmatch(r"[0-9a-fA-F:.%]+.*", text, re.DOTALL))
    assert not permits(LITERAL, text)


def test_a_name_is_resolved_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that answers differently the second time gains nothing."""
    answers = iter(["8.8.8.8", "169.254.169.254"])
    reached: list[Any] = []

    class Never(socket.socket):
        def connect(self, address: Any) -> None:
            reached.append(address)
            raise ConnectionRefusedError("tests open no connections")

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setattr(socket, "socket", Never)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"CONNECT api.x.org:443 HTTP/1.1\r\n\r\n")
        made = Proxy(theirs, AllowList(["api.x.org"]), Upstream({}))
        made.answer(theirs)
        assert ours.recv(65536).startswith(b"HTTP/1.1 502 ")
    assert reached == [("8.8.8.8", 443)]


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:169.254.169.254", "10.1.2.3", "fd00::1"])
def test_a_name_that_leads_to_an_address_that_is_not_public_is_not_connected_to(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    resolved = [(family, socket.SOCK_STREAM, 6, "", (address, 443))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: resolved)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"CONNECT a.x.org:443 HTTP/1.1\r\n\r\n")
        Proxy(theirs, AllowList(["*.x.org", "a.x.org"]), Upstream({})).answer(theirs)
        answer = ours.recv(65536).decode()
    assert answer.startswith("HTTP/1.1 403 ")
    assert address in answer
    assert '"… a.x.org:443"' in answer
    assert address in capsys.readouterr().err


def test_a_server_that_is_down_is_reported_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with proxied(f"127.0.0.1:{port}") as made:
        assert made.ask(f"CONNECT 127.0.0.1:{port} HTTP/1.1\n\n").startswith("HTTP/1.1 502 ")


def test_silent_and_closed_connections_do_not_block_others(echo: int) -> None:
    with proxied(f"127.0.0.1:{echo}") as made:
        silent = [made.connect() for _ in range(50)]
        with made.tunnel(f"127.0.0.1:{echo}") as tunnel:
            tunnel.sendall(b"hi")
            assert tunnel.recv(2) == b"hi"
        for connection in silent:
            connection.close()


def test_the_proxy_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="caloron-proxy-"))
    argv = (sys.executable, "-S", "-E", _PROXY, str(folder / "proxy.sock"), "x.org")
    script = (
        f"import subprocess, time\nprint(subprocess.Popen({argv!r}).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen((sys.executable, "-c", script), stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_for((folder / "proxy.sock").exists, "the proxy listens")
        parent.send_signal(signal.SIGKILL)
    wait_for(lambda: not process_lives(pid), "the proxy has ended")
    assert not folder.exists()


def test_the_proxy_needs_little_memory(echo: int) -> None:
    with proxied(f"127.0.0.1:{echo}") as made, made.tunnel(f"127.0.0.1:{echo}") as tunnel:
        tunnel.sendall(b"x" * 100_000)
        status = Path(f"/proc/{made.process.pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        assert int(resident.split()[1]) <= 15 * 1024, resident
