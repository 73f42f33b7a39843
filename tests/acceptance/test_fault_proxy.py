"""The proxy that other tests break connections with does what it says."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.fault_proxy import FaultProxy, Way
from tests.support.git import git
from tests.support.gitea import Person, Repository, Server


@pytest.fixture
def repository(gitea: Server) -> Repository:
    return gitea.repository(gitea.person("anna"))


@pytest.fixture
def proxy(gitea: Server) -> Iterator[FaultProxy]:
    made = FaultProxy(gitea.url)
    yield made
    made.close()


@pytest.fixture
def proxied(proxy: FaultProxy, repository: Repository) -> Iterator[Repository]:
    who = Person(proxy.url, "anna", repository.who.token)
    yield repository.acting_as(who)
    who.close()


def test_the_proxy_forwards_and_counts_requests(proxy: FaultProxy, proxied: Repository) -> None:
    with proxy.counting() as heard:
        proxied.open_issue("größe")
        proxied.issues()
    assert [h.method for h in heard] == ["POST", "GET"]
    assert (heard[0].json["title"], heard[0].status) == ("größe", 201)
    assert heard[1].query["state"] == "all"


def test_links_in_answers_lead_back_to_the_proxy(
    proxy: FaultProxy, proxied: Repository, gitea: Server
) -> None:
    made = proxied.open_issue("one")
    proxied.open_issue("two")
    assert made["url"].startswith(proxy.url)
    answer = httpx.get(
        f"{proxy.url}/api/v1{proxied.path}/issues?limit=1&state=all", trust_env=False
    )
    assert answer.links["next"]["url"].startswith(proxy.url)


@pytest.mark.parametrize(("way", "done"), [("cut before", 0), ("cut after", 1), ("half answer", 1)])
def test_an_answer_is_lost_before_or_after_the_forge_acted(
    proxy: FaultProxy, proxied: Repository, repository: Repository, way: Way, done: int
) -> None:
    proxy.fault("POST", "/issues$", way)
    with pytest.raises(httpx.TransportError):
        proxied.open_issue("one")
    assert len(repository.issues()) == done
    proxied.open_issue("two")


def test_a_connection_is_closed_between_two_requests(
    proxy: FaultProxy, proxied: Repository
) -> None:
    proxy.fault("GET", "/issues$", "close after")
    assert proxied.issues() == []
    assert proxied.issues() == []


def test_the_proxy_answers_by_itself(proxy: FaultProxy, proxied: Repository) -> None:
    proxy.fault("GET", "/issues$", "answer", status=429, headers={"Retry-After": "7"})
    answer = httpx.get(f"{proxy.url}/api/v1{proxied.path}/issues", trust_env=False)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert proxied.issues() == []


def test_a_hanging_request_runs_into_its_time_out(proxy: FaultProxy, proxied: Repository) -> None:
    proxy.fault("GET", "/issues$", "hang")
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(f"{proxy.url}/api/v1{proxied.path}/issues", timeout=0.2, trust_env=False)


def test_git_clones_and_pushes_through_the_proxy(
    proxy: FaultProxy, proxied: Repository, repository: Repository, tmp_path
) -> None:
    git(tmp_path, "clone", "--quiet", proxied.push_url, "clone")
    clone = tmp_path / "clone"
    (clone / "large.bin").write_bytes(bytes(range(256)) * 12_000)
    git(clone, "add", "--all")
    git(clone, "commit", "--quiet", "-m", "large")
    git(clone, "push", "--quiet", "origin", "HEAD:refs/heads/feature")
    assert repository.branches()["feature"] == git(clone, "rev-parse", "HEAD")
    assert any(h.path.endswith("git-receive-pack") for h in proxy.heard)
