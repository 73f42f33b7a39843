"""A webhook wakes the poller if the forge signed it, and does nothing in any other case."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import socket
from collections.abc import Iterator

import pytest

from caloron.engine.forge.webhooks import Webhooks, webhooks_of
from caloron.errors import PreconditionFailed
from caloron.ledger.settings import ProjectConfig

SECRET = "a secret of the webhook"


class Woken:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


@pytest.fixture
def woken() -> Woken:
    return Woken()


@pytest.fixture
def listener(woken: Woken) -> Iterator[Webhooks]:
    webhooks = Webhooks("127.0.0.1", 0, SECRET, woken)
    webhooks.start()
    assert not webhooks.problem
    yield webhooks
    webhooks.stop()


def post(
    port: int, body: bytes, headers: dict[str, str] | None = None, method: str = "POST"
) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, "/", body, headers or {})
        return connection.getresponse().status
    finally:
        connection.close()


def signature(body: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


@pytest.mark.parametrize(
    ("header", "prefix"), [("X-Gitea-Signature", ""), ("X-Hub-Signature-256", "sha256=")]
)
def test_a_signed_webhook_wakes_the_poller(
    listener: Webhooks, woken: Woken, header: str, prefix: str
) -> None:
    body = b'{"action": "created"}'
    assert post(listener.port, body, {header: prefix + signature(body)}) == 204
    assert woken.times == 1


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Gitea-Signature": ""},
        {"X-Gitea-Signature": signature(b"{}", "another secret")},
        {"X-Gitea-Signature": signature(b"another body")},
        {"X-Hub-Signature-256": "sha256=ffff"},
        {"X-Hub-Signature-256": "sha1=" + signature(b"{}")},
        {"X-Gitea-Signature": "ü" * 64},
    ],
)
def test_a_webhook_without_a_valid_signature_is_refused(
    listener: Webhooks, woken: Woken, headers: dict[str, str]
) -> None:
    encoded = {name: value.encode().decode("latin-1") for name, value in headers.items()}
    assert post(listener.port, b"{}", encoded) == 401
    assert woken.times == 0


@pytest.mark.parametrize(
    ("length", "status"),
    [
        ("", b" 411 "),
        ("Content-Length: many\r\n", b" 411 "),
        ("Content-Length: -1\r\n", b" 411 "),
        ("Content-Length: 999999999\r\n", b" 413 "),
    ],
)
def test_a_body_without_a_length_or_that_is_too_large_is_refused_before_it_is_read(
    listener: Webhooks, woken: Woken, length: str, status: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", listener.port), 20) as there:
        there.sendall(f"POST / HTTP/1.1\r\nHost: x\r\n{length}\r\n".encode())
        assert status in there.recv(100)
    assert woken.times == 0


def test_the_listener_serves_no_content(listener: Webhooks, woken: Woken) -> None:
    assert post(listener.port, b"", method="GET") == 501
    assert woken.times == 0


def test_silent_senders_do_not_block_the_others(listener: Webhooks, woken: Woken) -> None:
    silent = [socket.create_connection(("127.0.0.1", listener.port), 20) for _ in range(30)]
    try:
        body = b"{}"
        assert post(listener.port, body, {"X-Gitea-Signature": signature(body)}) == 204
    finally:
        for sender in silent:
            sender.close()
    assert woken.times == 1


def test_a_port_in_use_is_reported_and_stops_nothing(listener: Webhooks, woken: Woken) -> None:
    second = Webhooks("127.0.0.1", listener.port, SECRET, woken)
    second.start()
    assert "cannot listen" in second.problem
    second.stop()


def config(webhook: str = "", webhook_secret_env: str = "") -> ProjectConfig:
    return ProjectConfig(
        name="shop",
        forge="gitea",
        host="http://127.0.0.1:3000",
        webhook=webhook,
        webhook_secret_env=webhook_secret_env,
    )


def test_without_a_secret_the_listener_binds_loopback_only(woken: Woken) -> None:
    with pytest.raises(PreconditionFailed, match="anybody in the network"):
        webhooks_of(config(webhook="0.0.0.0:9443"), woken)
    assert webhooks_of(config(webhook="127.0.0.1:9443"), woken) is not None
    assert webhooks_of(config(webhook="[::1]:9443"), woken) is not None
    assert webhooks_of(config(), woken) is None


def test_a_configured_secret_must_exist(woken: Woken, monkeypatch: pytest.MonkeyPatch) -> None:
    named = config(webhook="0.0.0.0:9443", webhook_secret_env="HOOK_SECRET")
    monkeypatch.delenv("HOOK_SECRET", raising=False)
    with pytest.raises(PreconditionFailed, match="HOOK_SECRET"):
        webhooks_of(named, woken)
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    assert webhooks_of(named, woken) is not None
