"""The adapter of Gitea repeats nothing and loses nothing when the server is unreliable.

A proxy between the adapter and a real server breaks the requests that a test chooses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from caloron.domain.model.snapshots import marker
from caloron.errors import (
    ForgeUnavailable,
)
from caloron.forge.remote.forge import RemoteForge
from caloron.ports import Forge
from tests.integration.forge.people import main_of
from tests.integration.forge.worlds import Watch, World, gitea_world, review_body
from tests.support.fault_proxy import FaultProxy, Way
from tests.support.gitea import Repository, Server

KEY = "issue/sample-1/one"


@dataclass
class Broken:
    """A world whose every part is there."""

    world: World
    forge: Forge
    proxy: FaultProxy
    server: Repository


@pytest.fixture
def broken(gitea: Server, tmp_path: Path) -> Iterator[Broken]:
    yield from _broken(gitea, tmp_path, reviewer=False)


@pytest.fixture
def two_accounts(gitea: Server, tmp_path: Path) -> Iterator[Broken]:
    yield from _broken(gitea, tmp_path, reviewer=True)


def _broken(gitea: Server, folder: Path, *, reviewer: bool) -> Iterator[Broken]:
    with gitea_world(gitea, folder, reviewer=reviewer) as world:
        assert world.proxy
        assert world.repository
        # The account and the labels are read once, before anything is broken.
        world.forge.create_issue("the first", "", ("caloron:task",))
        yield Broken(world, world.forge, world.proxy, world.repository)


LOST: tuple[Way, ...] = ("cut after", "half answer")


@dataclass
class Made:
    """An object that the adapter creates: its request, and functions to make, find and list it."""

    path: str
    make: Callable[[Broken], object]
    find: Callable[[Forge], object]
    listed: Callable[[Repository], list[Any]]


PULL_KEY, COMMENT_KEY = "pull/s/t/1", "comment/s/t/probe/1"
MADE = {
    "issue": Made(
        "/issues$",
        lambda b: b.forge.create_issue("one", marker(KEY), ("caloron:task",)),
        lambda f: (issue := f.find_issue(KEY)) and issue.labels == ("caloron:task",),
        lambda r: [issue for issue in r.issues() if issue["title"] == "one"],
    ),
    "comment": Made(
        "/comments$",
        lambda b: b.forge.comment(1, marker(COMMENT_KEY)),
        lambda f: f.find_comment(1, COMMENT_KEY),
        lambda r: r.comments(1),
    ),
    "pull": Made(
        "/pulls$",
        lambda b: b.world.clone.open_pull(b.forge, "feature", body=f"Closes #1 {marker(PULL_KEY)}"),
        lambda f: (pull := f.find_pull("feature", PULL_KEY)) and pull.closes == (1,),
        lambda r: r.pulls(),
    ),
}


@pytest.mark.parametrize("way", LOST)
@pytest.mark.parametrize("name", MADE)
def test_an_object_whose_response_was_lost_exists_exactly_once(
    broken: Broken, name: str, way: Way
) -> None:
    made = MADE[name]
    broken.proxy.fault("POST", made.path, way)
    with broken.proxy.counting() as heard, pytest.raises(ForgeUnavailable):
        made.make(broken)
    assert sum(h.method == "POST" and bool(re.search(made.path, h.path)) for h in heard) == 1
    assert made.find(broken.forge)
    assert len(made.listed(broken.server)) == 1


def test_a_request_that_never_arrived_leaves_nothing(broken: Broken) -> None:
    broken.proxy.fault("POST", "/issues$", "cut before")
    with pytest.raises(ForgeUnavailable):
        broken.forge.create_issue("one", marker(KEY), ())
    assert broken.forge.find_issue(KEY) is None
    assert broken.forge.create_issue("one", marker(KEY), ()).number == 2


def test_a_verdict_comment_whose_response_was_lost_exists_exactly_once(broken: Broken) -> None:
    pull = broken.world.clone.open_pull(broken.forge, "feature")
    body, key = review_body("approved", pull.number, pull.head)
    broken.proxy.fault("POST", "/comments$", "cut after")
    with pytest.raises(ForgeUnavailable):
        broken.forge.review(pull.number, pull.head, "approved", body)
    review = broken.forge.find_review(pull.number, key)
    assert review
    assert (review.verdict, review.head) == ("approved", pull.head)
    assert len(broken.server.comments(pull.number)) == 1
    statuses = {s["context"]: s["status"] for s in broken.server.statuses(pull.head)}
    assert statuses == {"caloron/review": "success"}


def test_a_review_whose_response_was_lost_exists_exactly_once(two_accounts: Broken) -> None:
    pull = two_accounts.world.clone.open_pull(two_accounts.forge, "feature")
    body, key = review_body("approved", pull.number, pull.head)
    two_accounts.proxy.fault("POST", "/reviews$", "cut after")
    with pytest.raises(ForgeUnavailable):
        two_accounts.forge.review(pull.number, pull.head, "approved", body)
    review = two_accounts.forge.find_review(pull.number, key)
    assert review
    assert (review.verdict, review.head, review.author) == ("approved", pull.head, "judge")
    path = f"{two_accounts.server.path}/pulls/{pull.number}/reviews"
    assert len(two_accounts.server.who.get(path)) == 1


def test_a_merge_whose_response_was_lost_happens_once(broken: Broken) -> None:
    pull = broken.world.clone.open_pull(broken.forge, "feature")
    base = main_of(broken.forge)
    broken.proxy.fault("POST", "/merge$", "cut after")
    with pytest.raises(ForgeUnavailable):
        broken.forge.merge(pull.number, pull.head, base, "")
    again = broken.forge.merge(pull.number, pull.head, base, "").pull
    assert (again.state, again.merge_commit) == ("merged", main_of(broken.forge))
    broken.world.clone.git("fetch", "--quiet", "origin")
    count = broken.world.clone.git("rev-list", "--count", "--merges", "origin/main")
    assert count == "1"


def test_a_push_whose_response_was_lost_is_done(broken: Broken) -> None:
    commit = broken.world.clone.commit("feature", {"a.txt": "1"})
    broken.proxy.fault("POST", "git-receive-pack$", "cut after")
    # The adapter checks this itself: the branch shows whether it was moved.
    assert broken.forge.push(broken.world.clone.path, "feature", commit, "").commit == commit
    broken.proxy.fault("POST", "git-receive-pack$", "cut before", times=None)
    with pytest.raises(ForgeUnavailable):
        broken.forge.push(broken.world.clone.path, "other", commit, "")
    assert broken.forge.branch("other") is None


CHANGES: dict[str, tuple[str, str, Callable[[Forge], Any], Callable[[Any], Any]]] = {
    "label": ("POST", "/labels$", lambda f: f.label(1, "caloron:done"),
              lambda i: sorted(x["name"] for x in i["labels"]) == ["caloron:done", "caloron:task"]),
    "unlabel": ("DELETE", "/labels/", lambda f: f.unlabel(1, "caloron:task"),
                lambda i: i["labels"] == []),
    "close": ("PATCH", "/issues/1$", lambda f: f.close_issue(1), lambda i: i["state"] == "closed"),
    "edit": ("PATCH", "/issues/1$", lambda f: f.edit_issue(1, "new"), lambda i: i["body"] == "new"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_whose_response_was_lost_may_be_repeated(broken: Broken, name: str) -> None:
    method, path, change, holds = CHANGES[name]
    broken.proxy.fault(method, path, "cut after")
    with broken.proxy.counting() as heard, pytest.raises(ForgeUnavailable):
        change(broken.forge)
    assert [h.method for h in heard].count(method) == 1
    change(broken.forge)
    assert holds(broken.server.issue(1))
    names = [label["name"] for label in broken.server.labels()]
    assert len(names) == len(set(names))


def test_labels_are_created_once_even_if_a_response_is_lost(gitea: Server, tmp_path: Path) -> None:
    """Gitea makes a second label of the same name without a word."""
    with gitea_world(gitea, tmp_path) as world:
        assert world.proxy
        assert world.repository
        world.proxy.fault("POST", "/labels$", "cut after")
        with pytest.raises(ForgeUnavailable):
            world.forge.create_issue("one", marker(KEY), ("caloron:task",))
        world.forge.create_issue("one", marker(KEY), ("caloron:task",))
        other = world.reopened()
        other.create_issue("two", "", ("caloron:task", "caloron:done"))
        other.close()
        names = [label["name"] for label in world.repository.labels()]
        assert len(names) == len(set(names))
        assert {"caloron:task", "caloron:done", "caloron:escalated"} <= set(names)


def test_a_request_to_a_server_that_never_answers_times_out(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = broken.world.reopened()
    assert isinstance(fresh, RemoteForge)
    monkeypatch.setattr(fresh.http._client, "_read_timeout_s", 0.3)
    assert fresh.issue(1).title == "the first"
    broken.proxy.fault("GET", "/issues/1$", "hang", times=None)
    with pytest.raises(ForgeUnavailable):
        fresh.issue(1)
    broken.proxy.fault("POST", "/issues$", "hang after")
    with pytest.raises(ForgeUnavailable):
        fresh.create_issue("one", marker(KEY), ())
    assert fresh.find_issue(KEY)
    fresh.close()


def test_a_poll_that_fails_loses_nothing(broken: Broken) -> None:
    watch = Watch(broken.forge)
    issue = broken.forge.create_issue("one", "", ())
    broken.world.anna.comment(issue.number, "resolved")
    for path in ("/issues$", "/issues/comments$", "/refs"):
        broken.proxy.fault("GET", path, "answer", times=3)
        with pytest.raises(ForgeUnavailable):
            watch.poll_changes()
    snapshots = watch.poll_changes()
    # Main too: after a failed poll everything is reported again.
    assert {name.split(":")[0] for name in snapshots} == {"issue", "comment", "branch"}
    assert watch.poll_changes() == {}
