"""Requests to a forge: reads are retried, changes never.

Once the response to a change is lost, it is unknown whether the change happened: the journal reads
the forge first. A token is in a request's header and nowhere else.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urlencode, urljoin, urlsplit

import msgspec

from caloron.errors import CaloronError, ForgeError, ForgeUnavailable, NotFound, PreconditionFailed
from caloron.forge.breaker import HostBreaker
from caloron.forge.tokens import Token
from caloron.http import HttpClient, HttpError, Params, Response
from caloron.store import log

T = TypeVar("T")

_READ_TRIES = 3
_FIRST_WAIT_S = 0.2
_REDIRECTS = 3
_REMEMBERED = 256
_MORE_PAGES = 1000
_UNAUTHORIZED = 401
#: A server that sends a byte now and then never reaches the time-out of a single read.
_WHOLE_ANSWER_S = 120.0
SIZE_LIMIT = 32 << 20
_LONGEST_DELAY_S = 24 * 3600.0
#: For a limit without a time, as GitHub asks for it.
_UNKNOWN_DELAY_S = 60.0
_NO_SUCH_HOST = ("Name or service not known", "name resolution", "nodename nor servname")


_decoders: dict[object, msgspec.json.Decoder[Any]] = {}
_building = threading.Lock()


def _decoder(kind: object) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a type; it is built once, by one thread.

    The process crashes if one thread decodes a type that another thread is still building: msgspec
    runs Python code, which may switch threads, between the parts of a type.
    """
    with _building:
        if kind not in _decoders:
            _decoders[kind] = msgspec.json.Decoder(kind)
        return _decoders[kind]


class ForgeResponse(Response, frozen=True, kw_only=True):
    """The answer of a forge to one request."""

    #: When the request began, in milliseconds; by the forge's clock where ours is far from it.
    began_ms: int

    def read(self, kind: type[T]) -> T:
        try:
            decoded: T = _decoder(kind).decode(self.body)
            return decoded
        except msgspec.MsgspecError as error:
            raise ForgeError(
                f"the forge's answer is not understood: {error}",
                hint="is the host really a forge of this kind, of a recent version?",
            ) from None

    @property
    def date_s(self) -> int:
        """The forge's clock when it answered; ours where the answer has no date."""
        try:
            return int(parsedate_to_datetime(self.headers["date"]).timestamp())
        except (KeyError, ValueError):
            return self.began_ms // 1000


class ForgeHttp:
    """The requests of one account to one forge."""

    def __init__(
        self,
        root: str,
        repo: str,
        token: Token,
        breaker: HostBreaker,
        client: HttpClient,
        headers: Mapping[str, str],
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.root = root.rstrip("/")
        self.repo = repo
        self.breaker = breaker
        self._token = token
        self._client = client
        self._headers = dict(headers)
        self._sleep = sleep
        self._known: dict[str, ForgeResponse] = {}
        self._lock = threading.Lock()
        #: True once the forge has accepted the token.
        self._authorized = False

    def __repr__(self) -> str:
        return f"ForgeHttp({self.root!r}, {self.repo!r})"

    def get(
        self, path: str, params: Params | None = None, *, accept: str = "", polled: bool = False
    ) -> ForgeResponse:
        """Read; `polled` asks whether the object changed since the last read."""
        extra = {"Accept": accept} if accept else {}
        key = f"{self._url(path)}?{urlencode(dict(params or {}))}"
        with self._lock:
            known = self._known.get(key) if polled else None
        if known is not None:
            extra["If-None-Match"] = known.headers["etag"]
        for attempt in range(_READ_TRIES):
            try:
                response = self._send("GET", path, params, extra=extra)
                break
            except _Unanswered as error:
                if attempt == _READ_TRIES - 1:
                    raise
                log.warning("a read of the forge is retried", error=error, path=path)
                self._sleep(_FIRST_WAIT_S * 2**attempt * random.uniform(0.5, 1.5))
        if response.status == 304 and known is not None:
            return _as_known(known, response)
        if response.status >= 300:
            raise self._refused(response, "GET", path)
        if polled and "etag" in response.headers:
            with self._lock:
                if len(self._known) >= _REMEMBERED:
                    self._known.clear()
                self._known[key] = response
        return response

    def pages(
        self,
        path: str,
        params: Params,
        kind: type[T],
        *,
        polled: bool = False,
        most: int = _MORE_PAGES,
    ) -> Iterator[tuple[ForgeResponse, list[T]]]:
        """All pages of a list, by `Link`, or by the total where a forge gives only that."""
        ask: dict[str, str | int] = dict(params)
        count, page = 0, 1
        for _ in range(most):
            response = self.get(path, ask, polled=polled)
            items = response.read(list[kind])  # type: ignore[valid-type]
            yield response, items
            count, page = count + len(items), page + 1
            if response.next_page:
                # Only its parameters: an answer must not choose the host we ask.
                ask = {**params, **response.next_page}
            elif items and "link" not in response.headers and count < _total(response):
                ask = {**params, "page": page}
            else:
                return

    def change(self, method: str, path: str, body: Any = None) -> ForgeResponse:
        """Send a change once; `ForgeUnavailable` if it is unknown whether it happened."""
        response = self._send(method, path, None, body=body)
        if response.status >= 300:
            raise self._refused(response, method, path)
        return response

    def _url(self, path: str) -> str:
        """A path of the repository, or of the whole API where it begins with a slash."""
        return (
            self.root + path
            if path.startswith("/")
            else f"{self.root}/repos/{self.repo}/{path}".rstrip("/")
        )

    def _send(
        self,
        method: str,
        path: str,
        params: Params | None,
        *,
        body: Any = None,
        extra: Mapping[str, str] | None = None,
    ) -> ForgeResponse:
        tried = self._token.value()
        response = self._follow(method, path, params, body, extra)
        if response.status == _UNAUTHORIZED and self._token.renew(tried):
            # A request that is not authorized has changed nothing and may be sent again.
            response = self._follow(method, path, params, body, extra)
        self._authorized = self._authorized or response.status != _UNAUTHORIZED
        return response

    def _follow(
        self,
        method: str,
        path: str,
        params: Params | None,
        body: Any,
        extra: Mapping[str, str] | None,
    ) -> ForgeResponse:
        headers = {**self._headers, **(extra or {}), "Authorization": self._token.header()}
        content = None if body is None else msgspec.json.encode(body)
        if content is not None:
            headers["Content-Type"] = "application/json"
        url, asked = self._url(path), params
        for _ in range(_REDIRECTS):
            response = self._exchange(method, url, asked, headers, content)
            if response.status not in (301, 302, 307, 308):
                return response
            url, asked = self._moved(method, path, response), None
        raise ForgeError(f"{self.breaker.host} sends {path} in a circle")

    def _exchange(
        self,
        method: str,
        url: str,
        params: Params | None,
        headers: Mapping[str, str],
        content: bytes | None,
    ) -> ForgeResponse:
        self.breaker.before_request()
        began = self.breaker.count_request(method)
        try:
            raw = self._client.exchange(
                method,
                url,
                params=params,
                headers=headers,
                content=content,
                seconds=_WHOLE_ANSWER_S,
            )
        except HttpError as error:
            self.breaker.record_failure()
            if error.kind == "size":
                raise ForgeError(f"the answer to {url} {error}") from None
            if error.kind == "certificate":
                raise PreconditionFailed(
                    f"the certificate of {self.breaker.host} is not trusted: {error}",
                    hint="name the certificates of its own authority with --ca-file, later with the"
                    " setting ca_file",
                ) from None
            raise self._unanswered(method, url, str(error)) from None
        except BaseException:
            self.breaker.record_failure()
            raise
        response = ForgeResponse(began_ms=began, **msgspec.structs.asdict(raw))
        began = self.breaker.to_server_clock(began, response.date_s)
        response = msgspec.structs.replace(response, began_ms=began)
        if delay := _rate_limit_delay(response):
            self.breaker.record_success()
            self.breaker.limit_rate(self.breaker.now() + delay)
            if response.status in (403, 429):
                raise self.breaker.rate_limit_error()
        if delay := _unavailable_delay(response):
            self.breaker.record_failure()
            raise self.breaker.mark_unavailable(delay)
        if response.status >= 500:
            # A 500 is about one request; the others mean that the host itself cannot work.
            if response.status > 500:
                self.breaker.record_failure()
            else:
                self.breaker.record_success()
            reason = f"HTTP {response.status} {_message(response)}".strip()
            raise self._unanswered(method, url, self._token.hidden_in(reason))
        self.breaker.record_success()
        return response

    def _unanswered(self, method: str, url: str, reason: str) -> _Unanswered:
        return _Unanswered(
            f"{self.breaker.host} did not answer {method} {urlsplit(url).path}: {reason}",
            hint=_advice(reason),
        )

    def _moved(self, method: str, path: str, response: ForgeResponse) -> str:
        """The target of a redirect: on the same host, and for reads only."""
        target = urlsplit(urljoin(self.root, response.headers.get("location", "")))
        same = target[:2] == urlsplit(self.root)[:2]
        if method != "GET" or not same:
            raise ForgeError(
                f"{self.breaker.host} sends {path} to {target._replace(query='').geturl()}",
                hint="the repository was moved or renamed: put its new host and name in config.yml",
            )
        return target.geturl()

    def _refused(self, response: ForgeResponse, method: str, path: str) -> CaloronError:
        reason = self._token.hidden_in(_message(response))
        message = f"{self.breaker.host} refused {method} {path} ({response.status}): {reason}"
        match response.status:
            case 401:
                return self._unauthorized(reason)
            case 403:
                return Forbidden(
                    message,
                    response,
                    reason,
                    hint=f"the account or the token from {self._token.source} lacks a right"
                    " or a scope for this",
                )
            case 404 | 410:
                return NotFound(
                    f"{self.breaker.host} has no {path or self.repo}: {reason}",
                    hint="a repository that the token may not see looks the same",
                )
            case _:
                return Refused(message, response, reason)

    def _unauthorized(self, reason: str) -> CaloronError:
        """Wait for a new token if this one was good before: it expired or was replaced."""
        host, source = self.breaker.host, self._token.source
        if not self._authorized:
            return PreconditionFailed(
                f"{host} does not take the token from {source}: {reason}",
                hint="make a new token on the forge and put it there",
            )
        hint = (
            "make a new one on the forge and put it there: it is read again by itself"
            if self._token.can_change
            else "make a new one on the forge, stop the sprint, set the variable, `caloron resume`"
        )
        return ForgeUnavailable(
            f"{host} does not take the token from {source} any more: {reason}", hint=hint
        )


class Refused(ForgeError):
    """The forge refused a request; callers that know the meaning read status and reason."""

    def __init__(
        self, message: str, response: ForgeResponse, reason: str, *, hint: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = response.status
        self.reason = reason


class Forbidden(Refused):
    """The account or its token lacks a right."""


class _Unanswered(ForgeUnavailable):
    """An exchange without a usable answer; a read may be tried again."""


def _as_known(known: ForgeResponse, response: ForgeResponse) -> ForgeResponse:
    """A response that has not changed, with the time of now."""
    headers = {name: value for name, value in known.headers.items() if name != "date"}
    if "date" in response.headers:
        headers["date"] = response.headers["date"]
    return msgspec.structs.replace(known, began_ms=response.began_ms, headers=headers)


def _advice(reason: str) -> str:
    """Return the hint for a host that was not reached."""
    if any(known in reason for known in _NO_SUCH_HOST):
        return "no such host is known here: check its name, and the network of this machine"
    if "WRONG_VERSION_NUMBER" in reason:
        return "what answers there speaks no TLS: should its address begin with http:// ?"
    return "is it running, and reachable from here?"


def _total(response: ForgeResponse) -> int:
    total = response.headers.get("x-total-count", "")
    return int(total) if total.isdecimal() else 0


def _rate_limit_delay(response: ForgeResponse) -> float:
    """Return the seconds in which the forge takes no requests of ours; 0: it takes them."""
    headers, limited = response.headers, response.status in (403, 429)
    if limited and "retry-after" in headers:
        return _retry_after_s(response)
    if headers.get("x-ratelimit-remaining") == "0" and (limited or response.status < 400):
        reset = headers.get("x-ratelimit-reset", "")
        delay = float(reset) - response.date_s if reset.isdecimal() else _UNKNOWN_DELAY_S
        return min(max(delay, 1.0), _LONGEST_DELAY_S)
    if response.status == 429 or (limited and b"rate limit" in response.body.lower()):
        return _UNKNOWN_DELAY_S
    return 0.0


def _unavailable_delay(response: ForgeResponse) -> float:
    """Return the seconds in which the forge cannot work; 0: its answer has no time."""
    named = response.status == 503 and "retry-after" in response.headers
    return _retry_after_s(response) if named else 0.0


def _retry_after_s(response: ForgeResponse) -> float:
    delay = response.retry_after_s(response.date_s)
    return min(max(_UNKNOWN_DELAY_S if delay is None else delay, 1.0), _LONGEST_DELAY_S)


class _ErrorBody(msgspec.Struct):
    message: str = ""
    errors: list[Any] | None = None


def _message(response: ForgeResponse) -> str:
    """The forge's own message about a refusal, in one line."""
    try:
        error = _decoder(_ErrorBody).decode(response.body)
    except msgspec.MsgspecError:
        return " ".join(response.body[:200].decode("utf-8", "replace").split())
    details = [
        str(item.get("message") or item.get("code") or item)
        if isinstance(item, dict)
        else str(item)
        for item in error.errors or []
    ]
    return " ".join("; ".join(filter(None, (error.message, *details))).split())[:1000]
