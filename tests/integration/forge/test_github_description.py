"""The server that stands for GitHub refuses requests that the official description lacks."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.github_api import GithubApi

REPO = "/repos/{owner}/{repo}"


@pytest.fixture
def client(github_api: GithubApi) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=github_api.url, trust_env=False) as client:
        yield client


@pytest.mark.parametrize(
    ("method", "path", "body", "problem"),
    [
        ("GET", "/repos/o/r/nothing", None, "no such path"),
        ("DELETE", "/repos/o/r/issues", None, "has no DELETE"),
        ("GET", "/repos/o/r/issues?state=merged", None, "state=merged"),
        ("GET", "/repos/o/r/issues?limit=50", None, "limit is no parameter"),
        ("GET", "/repos/o/r/issues?per_page=x", None, "per_page=x"),
        ("POST", "/repos/o/r/issues", {"titel": "one"}, "'title' is a required property"),
        ("POST", "/repos/o/r/issues", {"title": "one", "labl": []}, "'labl', which is no field"),
        ("PUT", "/repos/o/r/pulls/1/merge", {"merge_method": "x"}, "'x' is not one of"),
        ("GET", "/repos/o/r/issues", {"title": "one"}, "takes no body"),
    ],
)
def test_the_server_refuses_and_reports_an_invalid_request(
    github_api: GithubApi, client: httpx.Client, method: str, path: str, body: object, problem: str
) -> None:
    answer = client.request(method, path, json=body)
    assert answer.status_code == 400
    assert problem in " ".join(github_api.problems)
    github_api.problems.clear()


def test_a_changed_example_must_conform_to_the_description(
    github_api: GithubApi, client: httpx.Client
) -> None:
    issue = f"{REPO}/issues/{{issue_number}}"
    github_api.reply("GET", issue, change={"state": "closed"}, times=1)
    github_api.reply("GET", issue, change={"number": "seven"}, times=1)
    client.get("/repos/o/r/issues/1")
    assert "'seven' is not of type 'integer'" in " ".join(github_api.problems)
    github_api.problems.clear()
    assert client.get("/repos/o/r/issues/1").json()["state"] == "closed"
    assert client.get("/repos/o/r/issues/1").json()["state"] == "open"
    assert github_api.problems == []
