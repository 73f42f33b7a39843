"""The one HTTP client of the forges: patient with reads, careful with changes.

A read is tried again; a change never is, because whether it was made is unknown once its answer is
lost: the journal looks first. A token stands in a request's header and nowhere else.
"""

from __future__ import annotations

import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from caloron.errors import CaloronError, ForgeError, ForgeUnavailable, NotFound, PreconditionFailed
from caloron.forge.connection import Answer, Client, Params
from caloron.forge.limits import pause_s, rest_s
from caloron.forge.line import Line
from caloron.forge.tokens import Token
from caloron.store import log

T = TypeVar("T")

_READ_TRIES = 3
_FIRST_WAIT_S = 0.2
_REDIRECTS = 3
_REMEMBERED = 256
_MORE_PAGES = 1000
_NO_TOKEN = 401
_NO_SUCH_HOST = ("Name or service not known", "name resolution", "nodename nor servname")


class Http:
    """Requests of one account to one forge."""

    def __init__(
        self,
        root: str,
        repo: str,
        token: Token,
        line: Line,
        client: Client,
        headers: Mapping[str, str],
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.root = root.rstrip("/")
        self.repo = repo
        self.line = line
        self._token = token
        self._client = client
        self._headers = dict(headers)
        self._sleep = sleep
        self._known: OrderedDict[str, Answer] = OrderedDict()
        self._lock = threading.Lock()
        #: Whether the forge ever took the token.
        self._let_in = False

    def __repr__(self) -> str:
        return f"Http({self.root!r}, {self.repo!r})"

    def get(
        self, path: str, params: Params | None = None, *, accept: str = "", polled: bool = False
    ) -> Answer:
        """Read; `polled` asks only whether it changed since it was read last."""
        extra = {"Accept": accept} if accept else {}
        key = str(httpx.URL(self._url(path), params=dict(params or {})))
        with self._lock:
            known = self._known.get(key) if polled else None
        if known is not None:
            extra["If-None-Match"] = known.headers["etag"]
        for attempt in range(_READ_TRIES):
            try:
                answer = self._send("GET", path, params, extra=extra)
                break
            except _Passing as error:
                if attempt == _READ_TRIES - 1:
                    raise error.told from None
                log.warning("a read of the forge is retried", error=error.told, path=path)
                self._sleep(_FIRST_WAIT_S * 2**attempt * random.uniform(0.5, 1.5))
        if answer.status == 304 and known is not None:
            return _as_known(known, answer)
        self._check(answer, "GET", path)
        if polled and "etag" in answer.headers:
            self._remember(key, answer)
        return answer

    def pages(
        self,
        path: str,
        params: Params,
        what: type[T],
        *,
        polled: bool = False,
        most: int = _MORE_PAGES,
    ) -> Iterator[tuple[Answer, list[T]]]:
        """All pages of a list, by `Link`, or by the total where a forge gives only that."""
        ask: dict[str, str | int] = dict(params)
        told, page = 0, 1
        for _ in range(most):
            answer = self.get(path, ask, polled=polled)
            found = answer.read(list[what])  # type: ignore[valid-type]
            yield answer, found
            told, page = told + len(found), page + 1
            if answer.next_page:
                # Only its parameters: where we ask is not for an answer to decide.
                ask = {**params, **answer.next_page}
            elif found and "link" not in answer.headers and told < _total(answer):
                ask = {**params, "page": page}
            else:
                return

    def change(self, method: str, path: str, body: Any = None) -> Answer:
        """Change something, once; `ForgeUnavailable` if nobody knows whether it happened."""
        try:
            answer = self._send(method, path, None, body=body)
        except _Passing as error:
            raise error.told from None
        self._check(answer, method, path)
        return answer

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
    ) -> Answer:
        tried = self._token.value()
        answer = self._follow(method, path, params, body, extra)
        if answer.status == _NO_TOKEN and self._token.renew(tried):
            # Whoever is not let in has changed nothing: that may be sent again.
            answer = self._follow(method, path, params, body, extra)
        self._let_in = self._let_in or answer.status != _NO_TOKEN
        return answer

    def _follow(
        self,
        method: str,
        path: str,
        params: Params | None,
        body: Any,
        extra: Mapping[str, str] | None,
    ) -> Answer:
        headers = {**self._headers, **(extra or {}), "Authorization": self._token.header()}
        content = None if body is None else msgspec.json.encode(body)
        if content is not None:
            headers["Content-Type"] = "application/json"
        url, asked = self._url(path), params
        for _ in range(_REDIRECTS):
            answer = self._exchange(method, url, asked, headers, content)
            if answer.status not in (301, 302, 307, 308):
                return answer
            url, asked = self._moved(method, path, answer), None
        raise ForgeError(f"{self.line.host} sends {path} in a circle")

    def _exchange(
        self,
        method: str,
        url: str,
        params: Params | None,
        headers: Mapping[str, str],
        content: bytes | None,
    ) -> Answer:
        self.line.enter()
        began = self.line.count(method)
        try:
            answer = self._client.exchange(method, url, params, headers, content, began)
        except httpx.HTTPError as error:
            # Not of the transport alone: an answer whose encoding is broken is one, too.
            self.line.failed()
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise PreconditionFailed(
                    f"the certificate of {self.line.host} is not trusted: {error}",
                    hint="name the certificates of its own authority with --ca-file, later with the"
                    " setting ca_file",
                ) from None
            raise _Passing(self._lost(method, url, _what(error))) from None
        except BaseException:
            self.line.failed()
            raise
        began = self.line.on_its_clock(began, answer.date_s)
        answer = msgspec.structs.replace(answer, began_ms=began)
        if pause := pause_s(answer):
            self.line.worked()
            self.line.pause(self.line.now() + pause)
            if answer.status in (403, 429):
                raise self.line.pause_error()
        if rest := rest_s(answer):
            self.line.failed()
            raise self.line.rest(rest)
        if answer.status >= 500:
            # A 500 is about one request; the others say that the host itself cannot.
            self.line.failed() if answer.status > 500 else self.line.worked()
            words = f"HTTP {answer.status} {_message(answer)}".strip()
            raise _Passing(self._lost(method, url, self._token.hidden_in(words)))
        self.line.worked()
        return answer

    def _lost(self, method: str, url: str, words: str) -> ForgeUnavailable:
        return ForgeUnavailable(
            f"{self.line.host} did not answer {method} {urlsplit(url).path}: {words}",
            hint=_advice(words),
        )

    def _moved(self, method: str, path: str, answer: Answer) -> str:
        """Where a read goes on: on the same host, or not at all."""
        target = httpx.URL(self.root).join(answer.headers.get("location", ""))
        here = httpx.URL(self.root)
        same = (target.scheme, target.host, target.port) == (here.scheme, here.host, here.port)
        if method != "GET" or not same:
            raise ForgeError(
                f"{self.line.host} sends {path} to {target.copy_with(query=None)}",
                hint="the repository was moved or renamed: put its new host and name in config.yml",
            )
        return str(target)

    def _remember(self, key: str, answer: Answer) -> None:
        with self._lock:
            self._known[key] = answer
            self._known.move_to_end(key)
            while len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)

    def _check(self, answer: Answer, method: str, path: str) -> None:
        if answer.status >= 300:
            raise self._refused(answer, method, path)

    def _refused(self, answer: Answer, method: str, path: str) -> CaloronError:
        said = self._token.hidden_in(_message(answer))
        words = f"{self.line.host} refused {method} {path} ({answer.status}): {said}"
        match answer.status:
            case 401:
                return self._not_let_in(said)
            case 403:
                return Refused(
                    words,
                    answer,
                    said,
                    hint=f"the account or the token from {self._token.source} lacks a right"
                    " or a scope for this",
                )
            case 404 | 410:
                return NotFound(
                    f"{self.line.host} has no {path or self.repo}: {said}",
                    hint="a repository that the token may not see looks the same",
                )
            case _:
                return Refused(words, answer, said)

    def _not_let_in(self, said: str) -> CaloronError:
        """A token that was good ran out or was replaced: that is waited for, as for the forge."""
        host, source = self.line.host, self._token.source
        if not self._let_in:
            return PreconditionFailed(
                f"{host} does not take the token from {source}: {said}",
                hint="make a new token on the forge and put it there",
            )
        hint = (
            "make a new one on the forge and put it there: it is read again by itself"
            if self._token.can_change
            else "make a new one on the forge, stop the sprint, set the variable, `caloron resume`"
        )
        return ForgeUnavailable(
            f"{host} does not take the token from {source} any more: {said}", hint=hint
        )


class Refused(ForgeError):
    """The forge answered that it will not; carries its answer for whoever knows what it means."""

    def __init__(self, message: str, answer: Answer, said: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = answer.status
        self.said = said


class _Passing(Exception):
    """An exchange that failed for a cause that may pass."""

    def __init__(self, told: ForgeUnavailable) -> None:
        super().__init__(str(told))
        self.told = told


def _as_known(known: Answer, answer: Answer) -> Answer:
    """What was read before and has not changed, at the time of now: clocks go on."""
    headers = {name: value for name, value in known.headers.items() if name != "date"}
    if "date" in answer.headers:
        headers["date"] = answer.headers["date"]
    return msgspec.structs.replace(known, began_ms=answer.began_ms, headers=headers)


def _advice(words: str) -> str:
    """What to do about a host that was not reached."""
    if any(known in words for known in _NO_SUCH_HOST):
        return "no such host is known here: check its name, and the network of this machine"
    if "WRONG_VERSION_NUMBER" in words:
        return "what answers there speaks no TLS: should its address begin with http:// ?"
    return "is it running, and reachable from here?"


def _total(answer: Answer) -> int:
    total = answer.headers.get("x-total-count", "")
    return int(total) if total.isdecimal() else 0


def _what(error: httpx.HTTPError) -> str:
    return str(error) or type(error).__name__


class _Said(msgspec.Struct):
    message: str = ""
    errors: list[Any] | None = None


def _message(answer: Answer) -> str:
    """The forge's own words about a refusal, in one line."""
    try:
        said = msgspec.json.decode(answer.body, type=_Said)
    except msgspec.MsgspecError:
        return " ".join(answer.body[:200].decode("utf-8", "replace").split())
    details = [
        str(one.get("message") or one.get("code") or one) if isinstance(one, dict) else str(one)
        for one in said.errors or []
    ]
    return " ".join("; ".join(filter(None, (said.message, *details))).split())[:1000]
