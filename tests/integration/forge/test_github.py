"""What is special about GitHub: its adapter against its official description.

Nothing here ran against github.com: requests are held against the description, and answers are its
own examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from caloron.errors import ApprovalMissing, ForgeError, MergeConflict, StaleBase, StaleHead
from caloron.forge.connect import connect
from caloron.forge.remote.forge import RemoteForge
from caloron.ports import Checks
from tests.support.github_api import LEFT_OUT, GithubApi

REPO = "/repos/{owner}/{repo}"
PULL = f"{REPO}/pulls/{{pull_number}}"
ISSUE = f"{REPO}/issues/{{issue_number}}"
HEAD = "6dcb09b5b57875f334f61aebed695e2e4193db5e"
BASE = "7fd1a60b01f91b314f59955a4e4d4e80d8edf11d"
OPEN: dict[str, Any] = {
    "state": "open", "merged": False, "merged_at": None, "mergeable": True, "number": 7,
    "head": {"ref": "agent/login/s-1", "sha": HEAD, "repo": {"full_name": "octocat/Hello-World"}},
}  # fmt: skip


@pytest.fixture
def forge(github_api: GithubApi) -> Iterator[RemoteForge]:
    github_api.reply("GET", REPO, change={"default_branch": "master", "allow_merge_commit": True})
    github_api.reply("GET", f"{REPO}/branches/{{branch}}", change={"commit": {"sha": BASE}})
    github_api.reply("GET", PULL, change=OPEN)
    made = connect("github", github_api.url, "octocat/Hello-World", "token-1")
    yield made
    made.close()


@pytest.fixture
def two(github_api: GithubApi, forge: RemoteForge) -> Iterator[RemoteForge]:
    github_api.reply("GET", "/user", change={"login": "robot"}, times=1)
    github_api.reply("GET", "/user", change={"login": "octocat"}, times=1)
    made = connect("github", github_api.url, "octocat/Hello-World", "token-1", "token-2")
    assert (made.author, made.reviewer) == ("octocat", "robot")
    yield made
    made.close()


def test_every_request_is_one_of_the_description_and_says_its_version(
    github_api: GithubApi, two: RemoteForge
) -> None:
    """The fixture fails the test if any request or answer is not as described."""
    forge = two
    for name in ("caloron:task", "bug"):
        github_api.reply("POST", f"{REPO}/labels", change={"name": name}, times=1)
    github_api.text("application/vnd.github.diff", "diff --git")
    issue = {"number": 7, "state": "open", "pull_request": LEFT_OUT}
    github_api.reply("GET", ISSUE, change=issue)
    comment = {"issue_url": "https://api.github.com/repos/octocat/Hello-World/issues/7"}
    github_api.reply("GET", f"{REPO}/issues/comments/{{comment_id}}", change=comment)
    github_api.reply("GET", f"{REPO}/labels", change=[{"name": n} for n in _labels(forge)])
    calls: list[Callable[[], object]] = [
        forge.about, forge.issues, forge.pulls, lambda: forge.poll(forge.poll("").cursor),
        lambda: forge.issue(7), lambda: forge.comments(7), lambda: forge.pull(7),
        lambda: forge.reviews(7), lambda: forge.branch("agent/login/s-1"),
        lambda: forge.mergeable(7), lambda: forge.diff(7), lambda: forge.checks(HEAD),
        lambda: forge.find_issue("key"), lambda: forge.find_comment(7, "key"),
        lambda: forge.find_pull("agent/login/s-1", "key"), lambda: forge.find_review(7, "key"),
        lambda: forge.create_issue("title", "body", ()), lambda: forge.comment(7, "text"),
        lambda: forge.edit_comment(7, 1, "text"), lambda: forge.edit_issue(7, "text"),
        lambda: forge.label(7, "bug"), lambda: forge.unlabel(7, "bug"),
        lambda: forge.close_issue(7), lambda: forge.open_pull("title", "body", "agent/login/s-1"),
        lambda: forge.edit_pull(7, "text"), lambda: forge.close_pull(7),
        lambda: forge.review(7, HEAD, "approved", "APPROVED"),
    ]  # fmt: skip
    for call in calls:
        call()
    merged = OPEN | {"state": "closed", "merged": True, "merge_commit_sha": BASE}
    github_api.reply("GET", PULL, change=merged, times=1)
    github_api.reply("GET", PULL, change=OPEN, times=1)
    assert forge.merge(7, HEAD, BASE, "Merge it\n\nbecause").pull.merge_commit == BASE
    github_api.reply("GET", ISSUE, change=issue | {"state": "closed"})
    forge.reopen_issue(7)
    asked = [one for one in github_api.asked if one.method == "PUT"]
    assert [one.body for one in asked] == [
        {
            "sha": HEAD,
            "merge_method": "merge",
            "commit_title": "Merge it",
            "commit_message": "because",
        }
    ]
    assert {one.headers["x-github-api-version"] for one in github_api.asked} == {"2022-11-28"}
    assert {one.headers["authorization"] for one in github_api.asked} == {
        "Bearer token-1", "Bearer token-2",
    }  # fmt: skip
    reviews = [one for one in github_api.asked if one.method == "POST" and "reviews" in one.path]
    assert [(one.body["event"], one.headers["authorization"]) for one in reviews] == [
        ("APPROVE", "Bearer token-2")
    ]


def _labels(forge: RemoteForge) -> list[str]:
    from caloron.forge.remote.labels import _MEANINGS

    return [*_MEANINGS, "bug"]


def test_an_idle_poll_asks_only_whether_anything_changed(
    github_api: GithubApi, forge: RemoteForge
) -> None:
    """A request that GitHub answers with 304 counts against no quota."""
    tag = {"ETag": '"same"'}
    github_api.reply("GET", f"{REPO}/issues", change=[], headers=tag)
    github_api.reply("GET", f"{REPO}/issues/comments", change=[], headers=tag)
    matching = f"{REPO}/git/matching-refs/{{ref}}"
    refs = [{"ref": "refs/heads/master", "object": {"sha": BASE}}]
    github_api.reply("GET", matching, change=refs, headers=tag)
    cursor = "1000000001/1000000000/0"
    forge.poll(cursor)
    for _ in range(3):
        before = len(github_api.asked)
        cursor = forge.poll(cursor).cursor
        asked = github_api.asked[before:]
        assert [one.headers.get("if-none-match") for one in asked] == ['"same"'] * 3


@pytest.mark.parametrize(
    ("status", "said", "error"),
    [
        (409, "Head branch was modified. Review and try the merge again.", ForgeError),
        (409, "Base branch was modified. Review and try the merge again.", StaleBase),
        (405, "Base branch was modified. Review and try the merge again.", StaleBase),
        (405, "Required status check is expected.", ForgeError),
        (
            405,
            "At least 2 approving reviews are required by reviewers with write access.",
            ApprovalMissing,
        ),
    ],
)
def test_a_refused_merge_is_told_apart(
    github_api: GithubApi, forge: RemoteForge, status: int, said: str, error: type[Exception]
) -> None:
    github_api.reply("PUT", f"{PULL}/merge", status, change={"message": said})
    with pytest.raises(error):
        forge.merge(7, HEAD, BASE, "m")
    assert github_api.asked[-1].method == "GET"


def test_a_conflict_is_one_once_github_has_looked(
    github_api: GithubApi, forge: RemoteForge
) -> None:
    said = {"message": "Pull Request is not mergeable"}
    github_api.reply("PUT", f"{PULL}/merge", 405, change=said)
    github_api.reply("GET", PULL, change=OPEN | {"mergeable": False})
    github_api.reply("GET", PULL, change=OPEN | {"mergeable": None}, times=3)
    with pytest.raises(MergeConflict, match="conflicts with master"):
        forge.merge(7, HEAD, BASE, "m")


def test_pages_of_issues_and_pull_requests_have_their_own_addresses(forge: RemoteForge) -> None:
    assert forge.url(7).endswith("/issues/7")
    assert forge.url(7, pull=True).endswith("/pull/7")


def test_a_head_that_moved_is_no_merge(github_api: GithubApi, forge: RemoteForge) -> None:
    with pytest.raises(StaleHead):
        forge.merge(7, "1" * 40, BASE, "m")
    assert all(one.method == "GET" for one in github_api.asked)


def test_mergeable_is_asked_again_while_it_is_being_computed(
    github_api: GithubApi, forge: RemoteForge
) -> None:
    github_api.reply("GET", PULL, change=OPEN | {"mergeable": None}, times=2)
    assert forge.mergeable(7)
    assert len([a for a in github_api.asked if a.template == PULL]) == 3


def test_a_trial_merge_of_an_open_pull_request_is_no_merge(
    github_api: GithubApi, forge: RemoteForge
) -> None:
    github_api.reply("GET", PULL, change=OPEN | {"merge_commit_sha": BASE})
    pull = forge.pull(7)
    assert (pull.state, pull.merge_commit, pull.branch) == ("open", "", "agent/login/s-1")
    other = {"head": {"ref": "idea", "sha": HEAD, "repo": {"full_name": "anna/Hello-World"}}}
    github_api.reply("GET", PULL, change=OPEN | other)
    assert forge.pull(7).branch == "anna:idea"


def test_checks_are_statuses_and_check_runs_and_what_is_required(
    github_api: GithubApi, forge: RemoteForge
) -> None:
    commit = f"{REPO}/commits/{{ref}}"
    ours = {"context": "caloron/review", "state": "failure"}
    statuses = _examples(
        github_api, f"{commit}/status", "statuses", [ours, {"context": "ci", "state": "success"}]
    )
    github_api.reply("GET", f"{commit}/status", change={"statuses": statuses})
    runs = _examples(
        github_api,
        f"{commit}/check-runs",
        "check_runs",
        [{"name": "lint", "status": "in_progress", "conclusion": None}],
    )
    github_api.reply("GET", f"{commit}/check-runs", change={"check_runs": runs})
    github_api.reply("GET", f"{REPO}/rules/branches/{{branch}}", change=[])
    required = {"enforcement_level": "everyone", "contexts": ["deploy"], "checks": []}
    branch = {
        "commit": {"sha": BASE},
        "protected": True,
        "protection": {"required_status_checks": required},
    }
    github_api.reply("GET", f"{REPO}/branches/{{branch}}", change=branch)
    assert forge.checks(HEAD) == Checks(state="pending", detail="lint: pending, deploy: pending")


def _examples(api: GithubApi, template: str, name: str, changes: list[dict[str, Any]]) -> list[Any]:
    """Items of a list within an answer, each the official example with other values."""
    from tests.support.github_api import _Reply

    _, value = api.description.answer("GET", template, _Reply())
    return [value[name][0] | change for change in changes]


def test_a_body_that_github_would_refuse_is_cut(github_api: GithubApi, forge: RemoteForge) -> None:
    forge.comment(7, "x" * 70_000 + "\n\n<!-- caloron:comment/a/b/c/d -->")
    body = github_api.asked[-1].body["body"]
    assert len(body) == 65_536
    assert body.endswith("<!-- caloron:comment/a/b/c/d -->")
