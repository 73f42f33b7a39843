"""The connections to one host, and what comes over them."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

import httpx
import msgspec

from caloron.errors import ForgeError, PreconditionFailed

T = TypeVar("T")
Params = Mapping[str, str | int]

_TIMEOUT = httpx.Timeout(30.0, connect=10.0)
#: A server that sends a byte now and then never runs into the time-out of a single read.
_WHOLE_ANSWER_S = 120.0
_ANSWER_CAP = 32 << 20


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a forge answered to one request."""

    status: int
    headers: dict[str, str]
    body: bytes
    #: When the request began, in milliseconds; by the forge's clock where ours is far from it.
    began_ms: int
    #: The parameters of the next page; empty on the last one.
    next_page: dict[str, str] = {}

    def read(self, what: type[T]) -> T:
        try:
            return msgspec.json.decode(self.body, type=what)
        except msgspec.MsgspecError as error:
            raise ForgeError(
                f"the forge's answer is not understood: {error}",
                hint="is the host really a forge of this kind, of a recent version?",
            ) from None

    @property
    def date_s(self) -> int:
        """The forge's own clock when it answered; ours where it does not tell."""
        try:
            return int(parsedate_to_datetime(self.headers["date"]).timestamp())
        except (KeyError, ValueError):
            return self.began_ms // 1000


class Client:
    """The connections to one host, opened with the first request."""

    def __init__(self, ca_file: str = "") -> None:
        self._ca_file = ca_file
        self._client: httpx.Client | None = None
        self._lock = threading.Lock()

    def exchange(
        self,
        method: str,
        url: str,
        params: Params | None,
        headers: Mapping[str, str],
        content: bytes | None,
        began_ms: int,
    ) -> Answer:
        """Send one request and read its whole answer, up to a size and a time."""
        deadline = time.monotonic() + _WHOLE_ANSWER_S
        query = dict(params) if params else None
        with self._open().stream(
            method, url, params=query, headers=dict(headers), content=content
        ) as response:
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > _ANSWER_CAP:
                    raise ForgeError(f"the answer to {url} is larger than {_ANSWER_CAP >> 20} MB")
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the answer does not come to its end")
            return Answer(
                status=response.status_code,
                headers={name.lower(): value for name, value in response.headers.items()},
                body=bytes(body),
                began_ms=began_ms,
                next_page=_next_page(response),
            )

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._client = None

    def _open(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                self._client = httpx.Client(
                    timeout=_TIMEOUT, verify=self._certificates(), follow_redirects=False
                )
            return self._client

    def _certificates(self) -> ssl.SSLContext:
        context = httpx.create_ssl_context()
        if self._ca_file:
            try:
                context.load_verify_locations(self._ca_file)
            except OSError as error:
                raise PreconditionFailed(
                    f"the certificates in {self._ca_file} cannot be read: {error}",
                    hint="ca_file must name a file of certificates in PEM form",
                ) from None
        return context


def _next_page(response: httpx.Response) -> dict[str, str]:
    address = response.links.get("next", {}).get("url", "")
    return dict(parse_qsl(urlsplit(address).query))
