"""Listens for the forge's webhooks: a signed webhook wakes the poller, and does nothing else.

The content of a webhook is not read: only polls report facts. So a webhook that is lost, doubled or
forged changes nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from caloron.engine.forge.bounded_http import BoundedServer
from caloron.errors import PreconditionFailed
from caloron.ledger.settings import ProjectConfig
from caloron.store import log

_LONGEST_BODY = 4 << 20
_PATIENCE_S = 10.0
#: For a whole request: a large body may come over a slow line.
_READING_S = 30.0
_AT_ONCE = 8
_SIGNATURES = ("X-Hub-Signature-256", "X-Gitea-Signature")


def webhooks_of(config: ProjectConfig, wake: Callable[[], None]) -> Webhooks | None:
    """Return the listener that the settings configure; None: no webhooks."""
    if not config.webhook or config.forge == "local":
        return None
    refuse_unsigned(config)
    host, _, port = config.webhook.rpartition(":")
    secret = os.environ.get(config.webhook_secret_env, "") if config.webhook_secret_env else ""
    if config.webhook_secret_env and not secret:
        raise PreconditionFailed(
            f"the environment variable {config.webhook_secret_env} (webhook_secret_env) is not set",
            hint="export it with the secret that the webhook has on the forge",
        )
    return Webhooks(host.strip("[]"), int(port), secret, wake)


def refuse_unsigned(config: ProjectConfig) -> None:
    """Refuse to listen beyond loopback without a secret that proves the sender."""
    host = config.webhook.rpartition(":")[0].strip("[]")
    if config.webhook and not config.webhook_secret_env and not _is_loopback(host):
        raise PreconditionFailed(
            f"webhooks on {config.webhook} could be sent by anybody in the network",
            hint="name the variable with their secret first (caloron config set"
            " webhook_secret_env NAME), or listen on 127.0.0.1",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Webhooks:
    """An HTTP server in threads of its own."""

    def __init__(self, host: str, port: int, secret: str, wake: Callable[[], None]) -> None:
        self._address = (host, port)
        self._secret = secret.encode()
        self._wake = wake
        self._server: _Server | None = None
        #: Why the server could not listen, for example because the port is taken.
        self.problem = ""

    @property
    def port(self) -> int:
        return int(self._server.server_address[1]) if self._server else self._address[1]

    def start(self) -> None:
        """Listen; if that fails, `problem` has the reason and polling goes on alone."""
        try:
            self._server = _Server(self._address, _Handler)
        except (OSError, OverflowError) as error:
            log.warning("cannot listen for webhooks", error=error, port=self.port)
            self.problem = f"cannot listen for webhooks on {self._address[0]}:{self.port}: {error}"
            return
        self._server.receive = self._receive
        threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="webhooks", daemon=True
        ).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _receive(self, body: bytes, signatures: list[str]) -> bool:
        """Wake the poller if a webhook is from the forge; return whether it is."""
        if self._secret and not self._is_signed(body, signatures):
            return False
        self._wake()
        return True

    def _is_signed(self, body: bytes, signatures: list[str]) -> bool:
        expected = hmac.new(self._secret, body, hashlib.sha256).hexdigest().encode()
        sent = [text.removeprefix("sha256=").encode("utf-8", "replace") for text in signatures]
        return any(hmac.compare_digest(expected, signature) for signature in sent)


class _Server(BoundedServer):
    receive: Callable[[bytes, list[str]], bool]

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        # Polling makes up for webhooks that are dropped while all threads are busy.
        super().__init__(address, handler, at_once=_AT_ONCE, patience_s=_READING_S)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a sender that disconnects in the middle."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE_S
    server: _Server

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal() and len(length) < 20):
            self._answer(HTTPStatus.LENGTH_REQUIRED)
            return
        if int(length) > _LONGEST_BODY:
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
            return
        body = self.rfile.read(int(length))
        self.server.has_read(self.connection)
        signatures = [value for name in _SIGNATURES for value in self.headers.get_all(name, [])]
        whole = len(body) == int(length)
        accepted = whole and self.server.receive(body, signatures)
        self._answer(HTTPStatus.NO_CONTENT if accepted else HTTPStatus.UNAUTHORIZED)

    def _answer(self, status: HTTPStatus) -> None:
        self.close_connection = True
        self.send_response_only(status)
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: strangers decide what a request contains."""
