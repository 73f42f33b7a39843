"""The HTTP client of forges and models: each exchange is bounded in size and time.

`httpx` is heavy, so that no other module imports it, and only forges and models import this one.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

import httpx
import msgspec

from caloron.errors import PreconditionFailed

Params = Mapping[str, str | int]

_CONNECT_S = 10.0


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one request."""

    status: int
    headers: dict[str, str]
    body: bytes
    #: The parameters of the next page; empty on the last one.
    next_page: dict[str, str] = {}

    def retry_after_s(self, now_s: float) -> float | None:
        """The wait that the server asks for, as seconds or as a date; None: it asks for none."""
        value = self.headers.get("retry-after", "").strip()
        if value.replace(".", "", 1).isdecimal():
            return float(value)
        try:
            return max(parsedate_to_datetime(value).timestamp() - now_s, 0.0)
        except (ValueError, TypeError):
            return None


class HttpError(Exception):
    """An exchange that did not end with a whole answer."""

    def __init__(
        self,
        message: str,
        kind: Literal["unreachable", "timeout", "encoding", "certificate", "size"] = "unreachable",
    ) -> None:
        super().__init__(message)
        self.kind = kind


class HttpClient:
    """The connections to one host, opened with the first request."""

    def __init__(self, *, size_limit: int, read_timeout_s: float = 30.0, ca_file: str = "") -> None:
        self._size_limit = size_limit
        self._read_timeout_s = read_timeout_s
        self._ca_file = ca_file
        self._client: httpx.Client | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._client = None

    def exchange(
        self,
        method: str,
        url: str,
        *,
        params: Params | None = None,
        headers: Mapping[str, str],
        content: bytes | None,
        seconds: float,
        check: Callable[[], None] = lambda: None,
    ) -> Response:
        """Send one request and read its whole answer; `check` may raise to give up."""
        deadline = time.monotonic() + seconds
        read_s = min(seconds, self._read_timeout_s)
        timeout = httpx.Timeout(read_s, connect=min(seconds, _CONNECT_S))
        try:
            with self._open().stream(
                method,
                url,
                params=dict(params) if params else None,
                headers=dict(headers),
                content=content,
                timeout=timeout,
            ) as response:
                body = bytearray()
                for chunk in response.iter_bytes():
                    body += chunk
                    if len(body) > self._size_limit:
                        raise HttpError(f"is over {self._size_limit >> 20} MB", "size")
                    # A server that sends a byte now and then never reaches the read time-out.
                    if time.monotonic() > deadline:
                        raise HttpError("the answer does not come to its end", "timeout")
                    check()
                next_url = response.links.get("next", {}).get("url", "")
                return Response(
                    status=response.status_code,
                    headers={name.lower(): value for name, value in response.headers.items()},
                    body=bytes(body),
                    next_page=dict(parse_qsl(urlsplit(next_url).query)),
                )
        except httpx.HTTPError as error:
            raise _translated(error) from None

    def _open(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                self._client = httpx.Client(verify=self._certificates(), follow_redirects=False)
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


def _translated(error: httpx.HTTPError) -> HttpError:
    message = str(error) or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in message:
        return HttpError(message, "certificate")
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
        return HttpError(message, "timeout")
    # An error of the encoding is not one of the transport, but the answer is as lost.
    return HttpError(
        message, "encoding" if isinstance(error, httpx.DecodingError) else "unreachable"
    )
