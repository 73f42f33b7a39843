"""The HTTP client of the forges, against a server with scripted responses."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

import pytest

from caloron.errors import (
    CaloronError,
    ForgeError,
    ForgePaused,
    ForgeUnavailable,
    NotFound,
    PreconditionFailed,
)
from caloron.forge.api.types import User
from caloron.forge.breaker import HostBreaker
from caloron.forge.http import SIZE_LIMIT, ForgeHttp
from caloron.forge.remote.snapshots import version
from caloron.forge.tokens import Token, TokenSource
from caloron.http import HttpClient
from caloron.store import log
from tests.support.endpoint import Endpoint
from tests.support.http_server import Reply

SECRET = "0123456789abcdef-secret"


def answer(
    status: int = 200,
    body: Any = None,
    headers: dict[str, str] | None = None,
    cut: Literal["", "before", "half"] = "",
) -> Reply:
    return Reply({} if body is None else body, status, headers or {}, cut)


class Scripted(Endpoint):
    """Returns the scripted responses in turn; the last response is repeated."""

    @property
    def asked(self) -> list[tuple[str, str, dict[str, str], dict[str, str]]]:
        """The method, path, query and headers of each request."""
        parts = [(request, urlsplit(request.path)) for request in self.requests]
        return [(r.method, p.path, dict(parse_qsl(p.query)), r.headers) for r, p in parts]


class Wait:
    """A clock that only its own `sleep` moves."""

    def __init__(self) -> None:
        self.time = 1_800_000_000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


@pytest.fixture
def server() -> Iterator[Scripted]:
    scripted = Scripted(answer())
    yield scripted
    scripted.close()


@pytest.fixture
def wait() -> Wait:
    return Wait()


@pytest.fixture
def http(server: Scripted, wait: Wait, monkeypatch: pytest.MonkeyPatch) -> Iterator[ForgeHttp]:
    monkeypatch.setenv("FORGE_TOKEN", SECRET)
    token = Token(TokenSource(env="FORGE_TOKEN"), server.url, "token")
    client = HttpClient(size_limit=SIZE_LIMIT)
    breaker = HostBreaker("forge", wait.now)
    yield ForgeHttp(f"{server.url}/api/v1", "o/r", token, breaker, client, {}, sleep=wait.sleep)
    client.close()


@pytest.mark.parametrize(
    "failures",
    [(answer(cut="before"), answer(502)), (answer(body={"id": 1}, cut="half"), answer(500))],
)
def test_a_read_that_fails_temporarily_is_retried(
    server: Scripted, http: ForgeHttp, wait: Wait, failures: tuple[Reply, ...]
) -> None:
    server.replies = [*failures, answer(body={"login": "anna"})]
    assert http.get("/user").read(User).login == "anna"
    assert len(wait.slept) == 2
    assert http.breaker.requests == {"GET": 3}
    server.replies = [answer(503)]
    with pytest.raises(ForgeUnavailable, match="HTTP 503"):
        http.get("issues")
    assert http.breaker.requests == {"GET": 6}


def test_a_retried_read_is_logged_without_the_token(
    server: Scripted, http: ForgeHttp, tmp_path: Path
) -> None:
    server.replies = [answer(503, {"message": f"{SECRET} is not wanted now"}), answer()]
    log.pin(log.log_of(tmp_path), sprint="shop-3")
    try:
        assert http.get("issues").status == 200
    finally:
        log.unpin()
    text = log.log_of(tmp_path).read_text("utf-8")
    (entry,) = map(json.loads, text.splitlines())
    assert (entry["message"], entry["sprint"]) == ("a read of the forge is retried", "shop-3")
    assert "HTTP 503" in entry["error"]
    assert SECRET not in text


@pytest.mark.parametrize(
    "reply",
    [
        answer(cut="before"),
        answer(500),
        answer(502),
        answer(body={"id": 1}, cut="half"),
        answer(body=b"no gzip at all", headers={"Content-Encoding": "gzip"}),
    ],
)
def test_a_change_is_not_retried_if_its_response_is_lost(
    server: Scripted, http: ForgeHttp, reply: Reply
) -> None:
    server.replies = [reply]
    with pytest.raises(ForgeUnavailable, match="did not answer POST"):
        http.change("POST", "issues", {"title": "one"})
    assert [request[0] for request in server.asked] == ["POST"]


def test_parameters_are_encoded(server: Scripted, http: ForgeHttp) -> None:
    http.get("issues", {"since": "2026-01-01T00:00:00+00:00", "q": "a&b ü#"})
    assert server.asked[0][2] == {"since": "2026-01-01T00:00:00+00:00", "q": "a&b ü#"}


@pytest.mark.parametrize(
    ("status", "headers", "body", "seconds"),
    [
        (429, {"Retry-After": "90"}, {}, 90),
        (403, {"Retry-After": "90"}, {}, 90),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": ""}, {}, 600),
        (429, {}, {}, 60),
        (403, {}, {"message": "You have exceeded a secondary rate limit"}, 60),
    ],
)
def test_a_rate_limit_pauses_every_request_to_the_host(
    server: Scripted,
    http: ForgeHttp,
    wait: Wait,
    status: int,
    headers: dict[str, str],
    body: Any,
    seconds: int,
) -> None:
    if "X-RateLimit-Reset" in headers:
        # The header counts seconds of the forge's clock.
        headers = headers | {"X-RateLimit-Reset": str(http.get("/version").date_s + 600)}
    server.replies = [answer(status, body, headers), answer()]
    before = len(server.asked)
    with pytest.raises(ForgePaused) as paused:
        http.change("POST", "issues", {})
    assert paused.value.until == pytest.approx(wait.time + seconds, abs=5)
    with pytest.raises(ForgePaused):
        http.get("issues")
    assert len(server.asked) == before + 1
    wait.time = paused.value.until
    http.get("issues")
    assert len(server.asked) == before + 2


@pytest.fixture
def tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("tokyo")
def test_a_host_with_a_retry_time_is_unavailable_until_then(
    server: Scripted, http: ForgeHttp, wait: Wait
) -> None:
    server.replies = [answer(503, {}, {"Retry-After": "90"}), answer()]
    with pytest.raises(ForgeUnavailable, match="not available until 08:01 UTC") as down:
        http.get("issues")
    assert not isinstance(down.value, ForgePaused)
    wait.time += 80
    with pytest.raises(ForgeUnavailable, match="as it says"):
        http.get("issues")
    assert len(server.asked) == 1
    wait.time += 20
    http.get("issues")


def test_the_request_after_the_last_one_of_a_quota_waits(server: Scripted, http: ForgeHttp) -> None:
    server.replies = [answer(headers={"X-RateLimit-Remaining": "0"})]
    assert http.get("issues").status == 200
    with pytest.raises(ForgePaused):
        http.get("issues")
    assert len(server.asked) == 1


def test_a_host_that_does_not_answer_is_paused_and_then_tried_once(
    server: Scripted, http: ForgeHttp, wait: Wait
) -> None:
    server.replies = [answer(cut="before")]
    for _ in range(5):
        with pytest.raises(ForgeUnavailable):
            http.change("POST", "issues", {})
    sent = len(server.asked)
    with pytest.raises(ForgeUnavailable, match="5 times in a row"):
        http.change("POST", "issues", {})
    assert len(server.asked) == sent
    wait.time += 3
    with pytest.raises(ForgeUnavailable, match="did not answer"):
        http.change("POST", "issues", {})
    with pytest.raises(ForgeUnavailable, match="6 times in a row"):
        http.change("POST", "issues", {})
    wait.time += 60
    server.replies = [answer()]
    http.change("POST", "issues", {})
    http.change("POST", "issues", {})


def test_a_polled_read_reuses_an_unchanged_response_with_the_current_time(
    server: Scripted, http: ForgeHttp
) -> None:
    """Polls use the forge's clock, which goes on while nothing changes."""
    then, now = "Mon, 16 Nov 2026 12:00:00 GMT", "Mon, 16 Nov 2026 12:00:09 GMT"
    server.replies = [
        answer(body={"login": "anna"}, headers={"ETag": '"v1"', "Date": then}),
        answer(304, headers={"Date": now}),
        answer(body={"login": "bea"}),
    ]
    first = http.get("/user", polled=True)
    assert first.read(User).login == "anna"
    again = http.get("/user", polled=True)
    assert (again.read(User).login, again.date_s - first.date_s) == ("anna", 9)
    assert server.asked[1][3]["if-none-match"] == '"v1"'
    assert http.get("/user").read(User).login == "bea"
    assert "if-none-match" not in server.asked[2][3]


@pytest.mark.parametrize("hours", [-10, -2, 0, 2, 10])
def test_versions_rise_within_a_second_even_if_our_clock_is_wrong(
    server: Scripted, http: ForgeHttp, wait: Wait, hours: int
) -> None:
    server_s = int(wait.time) + hours * 3600
    server.replies = [answer(headers={"Date": formatdate(server_s, usegmt=True)})]
    versions = []
    for _ in range(4):
        versions.append(version(server_s, http.get("issues").began_ms))
        wait.time += 0.002
    assert versions == sorted(set(versions))
    before = http.breaker.server_time_ms()
    assert version(server_s, before) > versions[-1]


def test_all_pages_are_read_from_the_configured_address(server: Scripted, http: ForgeHttp) -> None:
    link = '<http://elsewhere.example/api/v1/repos/o/r/issues?page=2&limit=1>; rel="next"'
    server.replies = [
        answer(body=[{"login": "a"}], headers={"Link": link}),
        answer(body=[{"login": "b"}]),
    ]
    logins = [user.login for _, page in http.pages("issues", {"limit": 1}, User) for user in page]
    assert logins == ["a", "b"]
    assert [asked[2] for asked in server.asked] == [{"limit": "1"}, {"limit": "1", "page": "2"}]


def test_a_list_with_a_total_and_no_link_is_complete(server: Scripted, http: ForgeHttp) -> None:
    total = {"X-Total-Count": "3"}
    server.replies = [
        answer(body=[{"login": "a"}, {"login": "b"}], headers=total),
        answer(body=[{"login": "c"}], headers=total),
    ]
    logins = [user.login for _, page in http.pages("labels", {}, User) for user in page]
    assert logins == ["a", "b", "c"]


def test_a_redirect_is_followed_for_reads_on_the_same_host_only(
    server: Scripted, http: ForgeHttp
) -> None:
    for status in (301, 302, 307, 308):
        redirect = answer(status, headers={"Location": "/api/v1/repositories/7"})
        server.replies = [redirect, answer(body={"login": "new"})]
        assert http.get("").read(User).login == "new"
        server.replies = [answer(status, headers={"Location": "http://elsewhere.example/"})]
        with pytest.raises(ForgeError, match=r"elsewhere\.example"):
            http.get("")
    server.replies = [answer(307, headers={"Location": "/api/v1/repos/o/new"})]
    with pytest.raises(ForgeError, match="sends issues to"):
        http.change("POST", "issues", {})


def test_a_response_over_the_size_limit_is_refused(
    server: Scripted, http: ForgeHttp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http._client, "_size_limit", 1000)
    server.replies = [answer(body=b"x" * 2000)]
    with pytest.raises(ForgeError, match=r"the answer to .* is over"):
        http.get("issues")


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, PreconditionFailed, "environment variable FORGE_TOKEN"),
        (403, ForgeError, "refused GET issues"),
        (404, NotFound, "has no issues"),
        (409, ForgeError, "it is so"),
        (422, ForgeError, "title is missing"),
    ],
)
def test_a_refusal_names_the_request_and_the_reason(
    server: Scripted, http: ForgeHttp, status: int, kind: type[CaloronError], words: str
) -> None:
    body = {"message": f"it is so {SECRET}", "errors": [{"message": "title is missing"}]}
    server.replies = [answer(status, body)]
    with pytest.raises(kind, match=words) as refused:
        http.get("issues")
    assert SECRET not in f"{refused.value} {refused.value.hint} {refused.value!r}"
    assert not isinstance(refused.value, ForgeUnavailable)


def test_a_refused_request_is_sent_again_once_with_the_replaced_token(
    server: Scripted, wait: Wait, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("first")
    file.chmod(0o600)
    token = Token(TokenSource(file=str(file)), server.url, "token")
    client = HttpClient(size_limit=SIZE_LIMIT)
    http = ForgeHttp(
        f"{server.url}/api/v1", "o/r", token, HostBreaker("forge", wait.now), client, {}
    )
    http.get("issues")
    file.write_text("second")
    server.replies = [answer(401), answer(201), answer(401)]
    http.change("POST", "issues", {"title": "x"})
    assert [headers["authorization"] for *_, headers in server.asked] == [
        "token first", "token first", "token second",
    ]  # fmt: skip
    # The client does not try the same token twice.
    with pytest.raises(ForgeUnavailable, match=f"the file {file} any more"):
        http.change("POST", "issues", {"title": "x"})
    assert len(server.asked) == 4
    file.unlink()
    with pytest.raises(ForgeUnavailable, match="any more"):
        http.get("issues")
    assert len(server.asked) == 5
    client.close()


def test_an_expired_token_of_a_variable_has_the_hint_to_stop_the_sprint(
    server: Scripted, http: ForgeHttp
) -> None:
    http.get("issues")
    server.replies = [answer(401)]
    with pytest.raises(ForgeUnavailable, match="FORGE_TOKEN any more") as refused:
        http.get("issues")
    assert "stop the sprint" in refused.value.hint
    assert len(server.asked) == 2


@pytest.mark.parametrize("body", [b"<html>sign in</html>", b'{"login": "a"', b"[]", b"null"])
def test_a_response_without_the_expected_json_is_refused(
    server: Scripted, http: ForgeHttp, body: bytes
) -> None:
    server.replies = [answer(body=body)]
    with pytest.raises(ForgeError, match="not understood"):
        http.get("/user").read(User)


def test_the_token_is_only_in_the_header(server: Scripted, http: ForgeHttp) -> None:
    http.get("issues")
    assert server.asked[0][3]["authorization"] == f"token {SECRET}"
    assert SECRET not in repr(http) + repr(http.__dict__) + server.asked[0][1]


def test_a_failure_of_the_connection_never_shows_the_token(
    http: ForgeHttp, server: Scripted
) -> None:
    server.close()
    with pytest.raises(ForgeUnavailable) as lost:
        http.get("issues")
    chain: BaseException | None = lost.value
    while chain is not None:
        assert SECRET not in repr(chain)
        chain = chain.__cause__ or chain.__context__


_READ_A_NEW_TYPE_AT_ONCE = """
import sys, threading
from caloron.forge.http import ForgeResponse

sys.setswitchinterval(1e-6)
SOURCE = '''
import msgspec
class Inner(msgspec.Struct):
    text: "str | None" = None
class Outer(msgspec.Struct):
    first: "Inner"
    more: "list[Inner]"
'''
for _ in range(500):
    exec(SOURCE, globals())
    answer = ForgeResponse(status=200, headers={}, began_ms=0, body=b'{"first": {}, "more": [{}]}')
    threads = [threading.Thread(target=answer.read, args=(Outer,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_that_read_a_new_type_at_once_do_not_crash_the_process() -> None:
    done = subprocess.run(
        (sys.executable, "-c", _READ_A_NEW_TYPE_AT_ONCE),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done
