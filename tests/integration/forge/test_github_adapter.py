"""The GitHub adapter against GitHub's official API description: its requests and its answers.

No test here contacts github.com. Each request is checked against the description, each answer is an
example of it, with other values in some fields where a test needs another state; the changed answer
must conform to its schema as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from caloron.domain.model.snapshots import (
    BranchSnapshot,
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    marker,
)
from caloron.engine.forge.access import notes_on, refuse_unfit
from caloron.errors import (
    ApprovalMissing,
    ForgeError,
    MergeConflict,
    NotFound,
    NotYet,
    PreconditionFailed,
    StaleBase,
)
from caloron.forge.connect import connect
from caloron.ledger.settings import ProjectConfig
from caloron.ports import Checks, Forge, Remote, VerifiedMerge
from tests.integration.forge.worlds import review_body
from tests.support.git import git
from tests.support.github_api import LEFT_OUT, Asked, GithubApi, _Reply

REPO = "/repos/{owner}/{repo}"
ISSUE = f"{REPO}/issues/{{issue_number}}"
PULL = f"{REPO}/pulls/{{pull_number}}"
NUMBER = 1347
HEAD = "6dcb09b5b57875f334f61aebed695e2e4193db5e"
BRANCH_TIP = "7fd1a60b01f91b314f59955a4e4d4e80d8edf11d"
DIFF = "diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1 +1 @@\n-1\n+één\n"
DOCS = Path(__file__).parents[3] / "docs" / "evidence.md"

OPEN = {"state": "open", "merged": False, "merged_at": None, "merged_by": None, "mergeable": True}
RIGHTS = {"admin": False, "push": True, "pull": True}
MERGED = {"state": "closed", "merged": True}
RULES = f"{REPO}/rules/branches/{{branch}}"
RULESET = f"{REPO}/rulesets/{{ruleset_id}}"


@pytest.fixture
def forge(github_api: GithubApi) -> Iterator[Forge]:
    adapter = connect("github", github_api.url, "octocat/Hello-World", "a-token")
    _set_up(github_api)
    yield adapter
    adapter.close()


@pytest.fixture
def two_accounts(github_api: GithubApi) -> Iterator[Forge]:
    adapter = connect("github", github_api.url, "octocat/Hello-World", "a-token", "another-token")
    _set_up(github_api)
    yield adapter
    adapter.close()


def _set_up(api: GithubApi) -> None:
    """Serve a repository of our account, with an open pull request and an issue."""

    def account(asked: Asked) -> dict[str, Any]:
        return {"login": "judge" if "another" in asked.headers["authorization"] else "octocat"}

    api.reply("GET", "/user", change=account)
    api.reply("GET", REPO, change={"permissions": RIGHTS})
    api.reply("GET", PULL, change=OPEN)
    api.reply("GET", ISSUE, change={"pull_request": LEFT_OUT})
    api.reply("GET", f"{REPO}/issues", change={"pull_request": LEFT_OUT})
    api.reply("POST", f"{REPO}/labels", change=lambda asked: {"name": asked.body["name"]})
    api.reply("POST", f"{ISSUE}/labels", change=_labels)
    api.reply("POST", f"{REPO}/issues", change=_created_issue)
    api.text("application/vnd.github.diff", DIFF)


def _labels(asked: Asked) -> list[dict[str, Any]]:
    return [{"name": name} for name in asked.body["labels"]]


def _created_issue(asked: Asked) -> dict[str, Any]:
    labels = [{"name": name} for name in asked.body.get("labels", [])]
    return {"title": asked.body["title"], "body": asked.body["body"], "labels": labels}


VERDICT, VERDICT_KEY = review_body("approved", NUMBER, HEAD)
#: One call of every method of the port that asks the forge's API.
CALLS: dict[str, Callable[[Forge], Any]] = {
    "author": lambda f: f.author,
    "reviewer": lambda f: f.reviewer,
    "main": lambda f: f.main,
    "about": lambda f: f.about(),
    "poll": lambda f: f.poll("1000000000/1000000000/0"),
    "issue": lambda f: f.issue(NUMBER),
    "issues": lambda f: [f.issues(), f.issues("open", "bug"), f.issues("closed")],
    "comments": lambda f: f.comments(NUMBER),
    "pull": lambda f: f.pull(NUMBER),
    "pulls": lambda f: [f.pulls(), f.pulls("open"), f.pulls("merged")],
    "reviews": lambda f: f.reviews(NUMBER),
    "branch": lambda f: f.branch("agent/one/sample-1"),
    "mergeable": lambda f: f.mergeable(NUMBER),
    "diff": lambda f: f.diff(NUMBER),
    "checks": lambda f: f.checks(HEAD),
    "find_issue": lambda f: f.find_issue("issue/s/t"),
    "find_comment": lambda f: f.find_comment(NUMBER, "comment/s/t"),
    "find_pull": lambda f: f.find_pull("agent/one/sample-1", "pull/s/t/1"),
    "find_review": lambda f: f.find_review(NUMBER, VERDICT_KEY),
    "create_issue": lambda f: f.create_issue("one", "body", ("caloron:task",)),
    "comment": lambda f: f.comment(NUMBER, "text"),
    "edit_comment": lambda f: f.edit_comment(NUMBER, 1, "text"),
    "edit_issue": lambda f: f.edit_issue(NUMBER, "text"),
    "label": lambda f: f.label(NUMBER, "caloron:done"),
    "unlabel": lambda f: f.unlabel(NUMBER, "bug"),
    "close_issue": lambda f: f.close_issue(NUMBER),
    "reopen_issue": lambda f: f.reopen_issue(NUMBER),
    "open_pull": lambda f: f.open_pull("one", "Closes #1", "agent/one/sample-1"),
    "edit_pull": lambda f: f.edit_pull(NUMBER, "Closes #1, in two cycles"),
    "close_pull": lambda f: f.close_pull(NUMBER),
    "review": lambda f: f.review(NUMBER, HEAD, "approved", VERDICT),
    "merge": lambda f: f.merge(NUMBER, HEAD, BRANCH_TIP, "Merge it\n\nwell"),
    "mark_merged": lambda f: f.mark_merged(NUMBER, BRANCH_TIP),
}
#: Methods of the port that do not use the API.
ELSEWHERE = {"remote", "url", "close", "push"}


def _call_everything(api: GithubApi, forges: tuple[Forge, ...]) -> None:
    outsider = {"user": {"login": "outsider"}, "body": "caloron:retry"}
    api.reply("GET", f"{ISSUE}/comments", change=outsider)
    changes = {"state": "CHANGES_REQUESTED", "user": {"login": "outsider"}}
    api.reply("GET", f"{PULL}/reviews", change=changes)
    api.reply("GET", RULES, change=[{"type": "creation", "parameters": LEFT_OUT}])
    for forge in forges:
        for name, call in CALLS.items():
            if name == "reopen_issue":
                closed = {"state": "closed", "pull_request": LEFT_OUT}
                api.reply("GET", ISSUE, change=closed, times=1)
            if name == "merge":
                api.reply("GET", PULL, change=MERGED, times=1)
                api.reply("GET", PULL, change=OPEN, times=1)
            if name == "mark_merged":
                api.reply("GET", PULL, change=MERGED, times=1)
            call(forge)


def test_every_method_of_the_port_is_called() -> None:
    port = {name for name, _ in inspect.getmembers(Forge) if not name.startswith("_")}
    assert port - ELSEWHERE == CALLS.keys()


def test_every_request_conforms_to_the_description_and_is_documented(
    github_api: GithubApi, forge: Forge, two_accounts: Forge
) -> None:
    _call_everything(github_api, (forge, two_accounts))
    assert github_api.problems == []
    asked = github_api.asked
    assert {a.headers["authorization"] for a in asked} == {
        "Bearer a-token",
        "Bearer another-token",
    }
    assert {a.headers["x-github-api-version"] for a in asked} == {"2022-11-28"}
    _check_documentation(github_api)


def _check_documentation(github_api: GithubApi) -> None:
    """Check that docs/evidence.md lists every request and states that no test contacts GitHub."""
    rows = [f"| `{method}` | `{path}` |" for path, method in github_api.used()]
    text = DOCS.read_text("utf-8")
    listed = [line for line in text.splitlines() if line.startswith("| `") and "` | `/" in line]
    assert listed == rows, "docs/evidence.md should list:\n" + "\n".join(rows)
    assert "never run against github.com" in text
    assert f"version {github_api.description.version}" in text


def test_an_issue_and_its_comments_are_read(github_api: GithubApi, forge: Forge) -> None:
    issue = forge.issue(NUMBER)
    assert (issue.number, issue.author, issue.state) == (NUMBER, "octocat", "open")
    (listed,) = forge.issues()
    assert (listed.number, listed.title, listed.labels) == (NUMBER, "Found a bug", ("bug",))
    (comment,) = forge.comments(NUMBER)
    assert (comment.issue, comment.author, comment.body) == (NUMBER, "octocat", "Me too")
    # Without other values its example is a pull request, which is not an issue.
    github_api.reply("GET", f"{REPO}/issues")
    assert forge.issues() == []


def test_a_pull_request_is_read_in_each_of_its_states(github_api: GithubApi, forge: Forge) -> None:
    pull = forge.pull(NUMBER)
    assert (pull.state, pull.branch, pull.head) == ("open", "new-topic", HEAD)
    # GitHub shows the commit of a trial merge while the pull request is open.
    assert (pull.merge_commit, pull.ended_by) == ("", "")
    github_api.reply("GET", PULL, change={**OPEN, "state": "closed", "body": None})
    closed = forge.pull(NUMBER)
    assert (closed.state, closed.body) == ("closed", "")
    github_api.reply("GET", PULL, change=MERGED)
    merged = forge.pull(NUMBER)
    assert (merged.state, merged.ended_by) == ("merged", "octocat")
    assert merged.merge_commit == "e5bd3914e2e596debea16f433f57875b5b90bcd6"
    assert forge.diff(NUMBER) == DIFF
    fork = {"head": {"ref": "idea", "sha": HEAD, "repo": {"full_name": "anna/Hello-World"}}}
    github_api.reply("GET", PULL, change=OPEN | fork)
    assert forge.pull(NUMBER).branch == "anna:idea"
    assert (forge.url(7)[-9:], forge.url(7, pull=True)[-7:]) == ("/issues/7", "/pull/7")


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        ("APPROVED", "approved"),
        ("CHANGES_REQUESTED", "changes_requested"),
        ("COMMENTED", "commented"),
        ("DISMISSED", "commented"),
        ("PENDING", ""),
    ],
)
def test_a_review_is_read(github_api: GithubApi, forge: Forge, state: str, verdict: str) -> None:
    github_api.reply("GET", f"{PULL}/reviews", change={"state": state})
    reviews = [(r.id, r.author, r.verdict, r.head) for r in forge.reviews(NUMBER)]
    head = "ecdd80bb57125d7ba9641ffaa4d7d2c19d3f3091"
    # A pending review is not submitted, so the adapter leaves it out.
    assert reviews == ([(80, "octocat", verdict, head)] if verdict else [])


@pytest.mark.parametrize(
    ("text", "permission", "trusted"),
    [
        ("caloron:retry", "read", False),
        ("caloron:retry", "admin", True),
        ("caloron:retry", "write", True),
        # Agents read the other comments of writers.
        ("caloron:nonsense", "write", True),
        ("please use tabs", "write", True),
        ("please use tabs", "read", False),
        ("progress <!-- caloron:comment/other-1/a/progress -->", "", False),
    ],
)
def test_only_writers_are_trusted_and_no_permission_is_asked_for_comments_with_a_marker(
    github_api: GithubApi, forge: Forge, text: str, permission: str, trusted: bool
) -> None:
    comment = {"user": {"login": "outsider"}, "body": text}
    github_api.reply("GET", f"{ISSUE}/comments", change=comment)
    path = f"{REPO}/collaborators/{{username}}/permission"
    github_api.reply("GET", path, change={"permission": permission})
    assert [c.trusted for c in forge.comments(NUMBER)] == [trusted]
    assert any("collaborators" in a.template for a in github_api.asked) == bool(permission)


def test_a_poll_reports_issues_comments_pull_requests_and_main(
    github_api: GithubApi, forge: Forge
) -> None:
    issue = {"number": 7, "pull_request": LEFT_OUT}
    github_api.reply("GET", f"{REPO}/issues", change=[issue, {"number": NUMBER}])
    refs = [{"ref": "refs/heads/master"}, {"ref": "refs/heads/new-topic", "object": {"sha": HEAD}}]
    github_api.reply("GET", f"{REPO}/git/matching-refs/{{ref}}", change=refs)
    snapshots = {type(s): s for s in forge.poll("1000000000/1000000000/0").snapshots}
    assert snapshots.keys() >= {IssueSnapshot, CommentSnapshot, PullSnapshot, BranchSnapshot}
    pull, main = snapshots[PullSnapshot], snapshots[BranchSnapshot]
    assert isinstance(pull, PullSnapshot)
    assert isinstance(main, BranchSnapshot)
    assert (pull.number, pull.branch, main.name) == (NUMBER, "new-topic", "master")
    (asked,) = (a for a in github_api.asked if a.template == f"{REPO}/issues")
    assert asked.query["since"] == "2001-09-09T01:46:40Z"
    assert asked.query["state"] == "all"


def test_an_idle_poll_asks_only_whether_anything_changed(
    github_api: GithubApi, forge: Forge
) -> None:
    etag = {"ETag": 'W/"abc"'}
    paths = [f"{REPO}/issues/comments", f"{REPO}/issues", f"{REPO}/git/matching-refs/{{ref}}"]
    for path in paths:
        github_api.reply("GET", path, change=[], headers=etag)
    cursor = forge.poll("1000000001/1000000000/0").cursor
    before = len(github_api.asked)
    forge.poll(cursor)
    asked = github_api.asked[before:]
    assert [a.template for a in asked] == paths
    assert {a.headers.get("if-none-match") for a in asked} == {'W/"abc"'}


def test_a_new_pull_request_is_read_again_until_its_second_is_over(
    github_api: GithubApi, forge: Forge
) -> None:
    """The pull request is read again even if the list of issues is `not modified`."""
    issue = {"number": NUMBER, "state": "open", "updated_at": "2026-11-16T12:00:00Z"}
    path = f"{REPO}/issues"
    looks = []
    cursor = "1794830390/1794830390/0"
    for second in (0, 0, 9, 9):
        date = f"Mon, 16 Nov 2026 12:00:0{second} GMT"
        headers = {"ETag": '"same"', "Date": date}
        github_api.reply("GET", path, change=[issue], headers=headers)
        before = len(github_api.asked)
        cursor = forge.poll(cursor).cursor
        looks.append(sum(a.template == PULL for a in github_api.asked[before:]))
    assert looks == [1, 1, 1, 0]


def test_the_list_of_branches_has_no_pages(github_api: GithubApi) -> None:
    """The request for branches has no parameters for pages."""
    path = f"{REPO}/git/matching-refs/{{ref}}"
    operation = github_api.description.operation("GET", path)
    assert operation
    known = {github_api.description.resolved(p)["name"] for p in operation["parameters"]}
    assert known == {"owner", "repo", "ref"}


def test_a_poll_follows_a_clock_of_the_forge_that_is_set_back(
    github_api: GithubApi, forge: Forge
) -> None:
    path = f"{REPO}/issues"
    for date in ("Mon, 16 Nov 2026 12:00:00 GMT", "Mon, 16 Nov 2026 10:00:00 GMT"):
        cursor = "1794830400/1794830400/0"
        github_api.reply("GET", path, change=[], headers={"Date": date})
        github_api.reply("GET", f"{path}/comments", change=[], headers={"Date": date})
        cursor = forge.poll(cursor).cursor
    forge.poll(cursor)
    asked = [a.query["since"] for a in github_api.asked if a.template == path]
    assert asked[-1] == "2026-11-16T09:59:30Z"


def _examples(api: GithubApi, template: str, name: str, *changes: dict[str, Any]) -> dict[str, Any]:
    """Return a list for an answer, whose items are the official example with changed values."""
    value = api.description.answer("GET", template, _Reply())[1]
    return {name: [value[name][0] | change for change in changes]}


RUNS = f"{REPO}/commits/{{ref}}/check-runs"


@pytest.mark.parametrize(
    ("other", "conclusion", "state", "detail"),
    [
        ("deploy [*]", "success", "green", ""),
        ("deploy x", "success", "pending", "deploy [*]: pending"),
        ("deploy x", None, "pending", "build: pending, deploy [*]: pending"),
        ("deploy x", "failure", "red", "build: failure, deploy [*]: pending"),
    ],
)
def test_checks_join_statuses_check_runs_and_required_names(
    github_api: GithubApi,
    forge: Forge,
    other: str,
    conclusion: str | None,
    state: Any,
    detail: str,
) -> None:
    status = "completed" if conclusion else "in_progress"
    build = {"name": "build", "status": status, "conclusion": conclusion}
    done = {"name": other, "status": "completed", "conclusion": "success"}
    runs = _examples(github_api, RUNS, "check_runs", build, done)
    github_api.reply("GET", RUNS, change=runs)
    path = f"{REPO}/commits/{{ref}}/status"
    ours = {"context": "caloron/review", "state": "failure"}
    github_api.reply("GET", path, change=_examples(github_api, path, "statuses", ours))
    required = {"enforcement_level": "everyone", "contexts": ["deploy [*]"], "checks": []}
    rules = {"protected": True, "protection": {"required_status_checks": required}}
    github_api.reply("GET", f"{REPO}/branches/{{branch}}", change=rules)
    assert forge.checks(HEAD) == Checks(state=state, detail=detail)


def test_init_warns_if_the_token_may_not_read_check_runs(
    github_api: GithubApi, forge: Forge
) -> None:
    assert forge.about().sees_check_runs
    assert not [note for note in notes_on(forge, forge.about()) if "check runs" in note]
    github_api.reply("GET", RUNS, 403)
    assert forge.checks(HEAD).state == "green"
    about = forge.about()
    assert not about.sees_check_runs
    assert [note for note in notes_on(forge, about) if "check runs" in note]


def test_find_pull_searches_by_branch_and_marker(github_api: GithubApi, forge: Forge) -> None:
    github_api.reply("GET", f"{REPO}/pulls", change={**_LISTED, "body": marker("pull/s/t/1")})
    pull = forge.find_pull("new-topic", "pull/s/t/1")
    assert pull
    assert (pull.number, pull.state) == (NUMBER, "open")
    (asked,) = (a for a in github_api.asked if a.template == f"{REPO}/pulls")
    assert asked.query["head"] == "octocat:new-topic"


_LISTED = {"state": "open", "merged_at": None}


def test_a_verdict_of_one_account_sets_a_status_of_the_commit(
    github_api: GithubApi, forge: Forge
) -> None:
    forge.review(NUMBER, HEAD, "approved", VERDICT)
    (status,) = (a.body for a in github_api.asked if a.template == f"{REPO}/statuses/{{sha}}")
    assert (status["state"], status["context"]) == ("success", "caloron/review")


def test_a_verdict_is_a_review_with_two_accounts(
    github_api: GithubApi, two_accounts: Forge
) -> None:
    assert (two_accounts.author, two_accounts.reviewer) == ("octocat", "judge")
    two_accounts.review(NUMBER, HEAD, "changes_requested", VERDICT)
    (asked,) = (a for a in github_api.asked if a.template == f"{PULL}/reviews")
    assert asked.headers["authorization"] == "Bearer another-token"
    assert asked.body == {"event": "REQUEST_CHANGES", "body": VERDICT, "commit_id": HEAD}


def test_a_merge_request_names_its_head(github_api: GithubApi, forge: Forge) -> None:
    github_api.reply("GET", PULL, change=MERGED, times=1)
    github_api.reply("GET", PULL, change=OPEN, times=1)
    merged = forge.merge(NUMBER, HEAD, BRANCH_TIP, "Merge it\n\nwell").pull
    assert merged.state == "merged"
    (asked,) = (a.body for a in github_api.asked if a.method == "PUT")
    assert asked == {
        "sha": HEAD, "merge_method": "merge", "commit_title": "Merge it", "commit_message": "well",
    }  # fmt: skip


@dataclass
class PushedMerge:
    """A bare repository in place of GitHub, and a merge commit that may be pushed to its main."""

    main: Path
    base: str
    verified: VerifiedMerge

    def tip(self) -> str:
        return git(self.main, "rev-parse", "master")


@pytest.fixture
def pushed(
    github_api: GithubApi, forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> PushedMerge:
    main, source = tmp_path / "main.git", tmp_path / "source"
    git(tmp_path, "init", "--quiet", "--bare", "-b", "master", str(main))
    git(tmp_path, "clone", "--quiet", str(main), str(source))
    commits = []
    for text in ("base", "merge"):
        git(source, "commit", "--quiet", "--allow-empty", "-m", text)
        commits.append(git(source, "rev-parse", "HEAD"))
    git(source, "push", "--quiet", "origin", f"{commits[0]}:refs/heads/master")
    monkeypatch.setattr(forge._merger, "_git_remote", lambda: Remote(str(main)))  # type: ignore[attr-defined]
    branch = {"commit": {"sha": commits[0]}, "protected": False}
    github_api.reply("GET", f"{REPO}/branches/{{branch}}", change=branch)
    github_api.reply("GET", RULES, change=[])
    github_api.reply("GET", PULL, change=MERGED)
    github_api.reply("GET", PULL, change=OPEN, times=1)
    return PushedMerge(main, commits[0], VerifiedMerge(commits[1], source))


def _asked_to_merge(github_api: GithubApi) -> bool:
    return any(a.method == "PUT" for a in github_api.asked)


def test_a_verified_merge_is_pushed_where_main_is_not_protected(
    github_api: GithubApi, forge: Forge, pushed: PushedMerge
) -> None:
    done = forge.merge(NUMBER, HEAD, pushed.base, "m", pushed.verified)
    assert (done.pull.state, done.did_it) == ("merged", True)
    assert pushed.tip() == pushed.verified.commit
    assert not _asked_to_merge(github_api)


def test_a_verified_merge_is_refused_if_main_moves_before_the_push(
    github_api: GithubApi, forge: Forge, pushed: PushedMerge
) -> None:
    theirs = git(pushed.verified.source, "commit-tree", "HEAD^{tree}", "-m", "theirs")
    git(pushed.verified.source, "push", "-q", "-f", "origin", f"{theirs}:refs/heads/master")
    with pytest.raises(StaleBase, match=theirs):
        forge.merge(NUMBER, HEAD, pushed.base, "m", pushed.verified)
    assert pushed.tip() == theirs
    assert not _asked_to_merge(github_api)


@pytest.mark.parametrize("why", ["protected", "ruleset", "only squash", "no right", "hook"])
def test_github_merges_if_main_may_not_be_pushed_to(
    github_api: GithubApi, forge: Forge, pushed: PushedMerge, why: str
) -> None:
    match why:
        case "protected":
            branch = {"commit": {"sha": pushed.base}, "protected": True}
            github_api.reply("GET", f"{REPO}/branches/{{branch}}", change=branch)
        case "ruleset":
            github_api.reply("GET", RULES, change=[{"type": "update", "parameters": LEFT_OUT}])
        case "only squash":
            ways = {"allow_merge_commit": False, "allow_squash_merge": True}
            github_api.reply("GET", REPO, change={"permissions": RIGHTS} | ways)
        case "no right":
            github_api.reply("GET", REPO, change={"permissions": RIGHTS | {"push": False}})
        case "hook":
            hook = pushed.main / "hooks" / "pre-receive"
            hook.write_text("#!/bin/sh\nexit 1\n")
            hook.chmod(0o755)
    assert forge.merge(NUMBER, HEAD, pushed.base, "m", pushed.verified).did_it
    assert pushed.tip() == pushed.base
    assert _asked_to_merge(github_api)


def test_a_pushed_merge_is_retried_until_github_shows_it(
    github_api: GithubApi, forge: Forge, pushed: PushedMerge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caloron.forge.remote.merge._PATIENCE_S", 0.0)
    github_api.reply("GET", PULL, change=OPEN)
    with pytest.raises(NotYet, match=pushed.verified.commit[:12]):
        forge.merge(NUMBER, HEAD, pushed.base, "m", pushed.verified)
    github_api.reply("GET", PULL, change=MERGED)
    assert forge.mark_merged(NUMBER, pushed.verified.commit).state == "merged"
    github_api.reply("GET", PULL, change={"state": "closed", "merged": False, "merged_at": None})
    with pytest.raises(ForgeError, match="does not show it as merged"):
        forge.mark_merged(NUMBER, pushed.verified.commit)


def test_a_merge_that_a_person_finished_first_is_not_ours(
    github_api: GithubApi, forge: Forge
) -> None:
    github_api.reply("GET", PULL, change=MERGED, times=1)
    github_api.reply("GET", PULL, change=OPEN, times=1)
    answer = {"message": "Pull Request is not mergeable"}
    github_api.reply("PUT", f"{PULL}/merge", 405, change=answer)
    assert not forge.merge(NUMBER, HEAD, BRANCH_TIP, "").did_it


@pytest.mark.parametrize("state", [OPEN, MERGED])
def test_a_pull_request_with_another_base_branch_is_closed_and_not_merged(
    github_api: GithubApi, forge: Forge, state: dict[str, Any]
) -> None:
    github_api.reply("GET", PULL, change={**state, "base": {"ref": "release"}})
    pull = forge.pull(NUMBER)
    assert (pull.state, pull.merge_commit) == ("closed", "")
    assert not forge.mergeable(NUMBER)
    with pytest.raises(ForgeError, match="into release, not into master"):
        forge.merge(NUMBER, HEAD, "", "")
    assert not [a for a in github_api.asked if a.method == "PUT"]


def test_the_adapter_follows_a_renamed_main(github_api: GithubApi, forge: Forge) -> None:
    assert forge.main == "master"
    github_api.reply("GET", REPO, change={"default_branch": "trunk"})
    refs = [{"ref": "refs/heads/trunk", "object": {"sha": HEAD}}]
    github_api.reply("GET", f"{REPO}/git/matching-refs/{{ref}}", change=refs)
    snapshots = forge.poll("1000000000/1000000000/0").snapshots
    assert [
        (branch.name, branch.commit) for branch in snapshots if isinstance(branch, BranchSnapshot)
    ] == [("trunk", HEAD)]
    assert forge.main == "trunk"


def test_a_pull_request_that_moved_to_the_renamed_main_is_still_open(
    github_api: GithubApi, forge: Forge
) -> None:
    assert forge.main == "master"
    github_api.reply("GET", REPO, change={"default_branch": "trunk"})
    github_api.reply("GET", PULL, change={**OPEN, "base": {"ref": "trunk"}})
    assert forge.pull(NUMBER).state == "open"


@pytest.mark.parametrize(
    ("status", "message", "mergeable", "error"),
    [
        (405, "Pull Request is not mergeable", False, MergeConflict),
        (409, "Head branch was modified. Review and try the merge again.", True, NotYet),
        (405, "Base branch was modified. Review and try the merge again.", True, StaleBase),
        (409, "Base branch was modified. Review and try the merge again.", True, StaleBase),
        (405, "Required status check is expected.", True, ForgeError),
        (405, "At least 2 approving reviews are required by others.", True, ApprovalMissing),
    ],
)
def test_a_refused_merge_is_explained(
    github_api: GithubApi, forge: Forge, status: int, message: str, mergeable: bool, error: type
) -> None:
    github_api.reply("GET", PULL, change={**OPEN, "mergeable": mergeable})
    github_api.reply("PUT", f"{PULL}/merge", status, change={"message": message})
    # GitHub reports null until it has computed whether the pull request is mergeable.
    github_api.reply("GET", PULL, change={**OPEN, "mergeable": None}, times=3)
    with pytest.raises(error) as refused:
        forge.merge(NUMBER, HEAD, BRANCH_TIP, "")
    assert refused.type is error
    assert github_api.asked[-1].method == "GET"


def test_mergeable_is_asked_again_while_it_is_being_computed(
    github_api: GithubApi, forge: Forge
) -> None:
    github_api.reply("GET", PULL, change=OPEN | {"mergeable": None}, times=2)
    assert forge.mergeable(NUMBER)
    assert len([a for a in github_api.asked if a.template == PULL]) == 3


def test_a_body_that_github_would_refuse_is_cut(github_api: GithubApi, forge: Forge) -> None:
    forge.comment(NUMBER, "x" * 70_000 + "\n\n<!-- caloron:comment/a/b/c/d -->")
    body = github_api.asked[-1].body["body"]
    assert len(body) == 65_536
    assert body.endswith("<!-- caloron:comment/a/b/c/d -->")


@pytest.mark.parametrize("status", [200, 404, 410])
def test_a_transferred_or_deleted_issue_is_not_found(
    github_api: GithubApi, forge: Forge, status: int
) -> None:
    """For a transferred issue GitHub returns the issue of the other repository."""
    elsewhere = {"number": 3, "pull_request": LEFT_OUT} if status == 200 else {}
    github_api.reply("GET", ISSUE, status, change=elsewhere)
    with pytest.raises(NotFound, match="1347"):
        forge.issue(NUMBER)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("creation", "may not push to agent"), ("update", "may not push to agent"),
        ("required_signatures", "only signed commits"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("bypass", ["never", "pull_requests_only", "always"])
def test_rules_that_reject_the_pushes_of_agents_are_refused(
    github_api: GithubApi, forge: Forge, kind: str, words: str, bypass: str
) -> None:
    config = ProjectConfig(name="shop", forge="github", repo="octocat/Hello-World")

    def rules(asked: Asked) -> list[dict[str, Any]]:
        ours = "/agent" in asked.path
        return [{"type": kind, "ruleset_id": 42, "parameters": LEFT_OUT}] if ours else []

    github_api.reply("GET", RULES, change=rules)
    github_api.reply("GET", RULESET, change={"name": "tidy", "current_user_can_bypass": bypass})
    about = forge.about()
    if bypass == "always":
        refuse_unfit(config, forge, about)
        return
    with pytest.raises(PreconditionFailed, match=words) as refused:
        refuse_unfit(config, forge, about)
    assert "tidy" in str(refused.value)
    assert "/settings/rules" in refused.value.hint


def test_a_second_account_that_does_not_see_the_repository_is_refused(
    github_api: GithubApi, two_accounts: Forge
) -> None:
    config = ProjectConfig(name="shop", forge="github", repo="octocat/Hello-World")
    refuse_unfit(config, two_accounts, two_accounts.about())

    # The first request is that of the first account.
    github_api.reply("GET", REPO, 404, times=1)
    github_api.reply("GET", REPO, change={"permissions": RIGHTS}, times=1)
    with pytest.raises(PreconditionFailed, match="judge, the second account"):
        refuse_unfit(config, two_accounts, two_accounts.about())


def test_a_refused_label_has_the_reason(github_api: GithubApi, forge: Forge) -> None:
    github_api.reply("POST", f"{ISSUE}/labels", 403)
    with pytest.raises(ForgeError, match="Resource not accessible"):
        forge.label(NUMBER, "caloron:done")
    github_api.reply("POST", f"{ISSUE}/labels", 422, change={"message": "it is locked"})
    with pytest.raises(ForgeError, match=r"did not put the label caloron:done.*it is locked"):
        forge.label(NUMBER, "caloron:done")
