"""The filtering proxy as a process of its own, spoken to over its socket."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from caloron.agents import proxy
from caloron.agents.proxy import AllowList, Refused, split_port
from tests.integration.agents.conftest import lives, until

_PROXY = str(Path(proxy.__file__))


class Proxied:
    """A running proxy and connections to it."""

    def __init__(self, folder: Path, hosts: tuple[str, ...]) -> None:
        self.path = folder / "proxy.sock"
        argv = (sys.executable, "-S", "-E", _PROXY, str(self.path), *hosts)
        self.process = subprocess.Popen(argv, stderr=subprocess.PIPE, env={}, text=True)
        until(self.is_ready, "the proxy listens")

    def is_ready(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.path)) == 0

    def connect(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(120)
        made.connect(str(self.path))
        return made

    def ask(self, request: str) -> str:
        """Everything that comes back for one request."""
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
def proxied(*hosts: str) -> Iterator[Proxied]:
    folder = Path(tempfile.mkdtemp(prefix="caloron-proxy-"))
    made = Proxied(folder, hosts)
    try:
        yield made
    finally:
        made.end()
        assert not folder.exists()


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that sends back what it is sent, until the sender has ended."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                visitor = server.accept()[0]
            except OSError:
                return
            threading.Thread(target=answer, args=(visitor,), daemon=True).start()

    def answer(visitor: socket.socket) -> None:
        # A proxy that is ended resets what it had open.
        with visitor, suppress(ConnectionError):
            while data := visitor.recv(65536):
                visitor.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    yield server.getsockname()[1]
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


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
def test_the_list_allows_what_it_names(entry: str, target: str, allowed: bool) -> None:
    assert AllowList([entry]).allows(*split_port(target)) is allowed


def test_a_port_that_is_none_is_refused() -> None:
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
def test_what_cannot_be_done_is_answered(request_line: str, status: str) -> None:
    with proxied("x.org", "gone.example.invalid") as made:
        tail = "" if status == "431" else "\n\n"
        assert made.ask(request_line + tail).startswith(f"HTTP/1.1 {status} ")


def test_a_name_that_leads_to_this_machine_is_no_way_to_its_servers(echo: int) -> None:
    with proxied(f"127.0.0.2:{echo}", f"127.0.0.1.:{echo}") as made:
        answer = made.ask(f"CONNECT 127.0.0.2:{echo} HTTP/1.1\n\n")
        assert answer.startswith("HTTP/1.1 502 ")
        assert "this machine" in answer


def test_a_server_that_is_down_is_told_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with proxied(f"127.0.0.1:{port}") as made:
        assert made.ask(f"CONNECT 127.0.0.1:{port} HTTP/1.1\n\n").startswith("HTTP/1.1 502 ")


def test_who_says_nothing_or_goes_away_does_not_stop_the_others(echo: int) -> None:
    with proxied(f"127.0.0.1:{echo}") as made:
        silent = [made.connect() for _ in range(50)]
        with made.tunnel(f"127.0.0.1:{echo}") as tunnel:
            tunnel.sendall(b"hi")
            assert tunnel.recv(2) == b"hi"
        for connection in silent:
            connection.close()


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="caloron-proxy-"))
    argv = (sys.executable, "-S", "-E", _PROXY, str(folder / "proxy.sock"), "x.org")
    script = (
        f"import subprocess, time\nprint(subprocess.Popen({argv!r}).pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen((sys.executable, "-c", script), stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        until((folder / "proxy.sock").exists, "the proxy listens")
        parent.send_signal(signal.SIGKILL)
    until(lambda: not lives(pid), "the proxy has ended")
    assert not folder.exists()


def test_it_is_small(echo: int) -> None:
    with proxied(f"127.0.0.1:{echo}") as made, made.tunnel(f"127.0.0.1:{echo}") as tunnel:
        tunnel.sendall(b"x" * 100_000)
        status = Path(f"/proc/{made.process.pid}/status").read_text()
        resident = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        assert int(resident.split()[1]) <= 15 * 1024, resident
