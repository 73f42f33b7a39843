"""The conformance suite of the forge port: the tests use only the port, and act as people do.

This file covers issues, comments, labels, pull requests and reviews; merges and polls follow in
other files. The same tests run on a real Gitea: tests/acceptance/test_gitea_conformance.py.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caloron.domain.model.snapshots import IssueSnapshot, Verdict, marker
from caloron.errors import ForgeError, NotFound, UsageError
from caloron.ports import Forge
from tests.integration.forge.worlds import World, plain, review_body

LARGE = "ÅΩ漢字🚀\n" * 8000


def test_a_forge_reports_its_account_kind_and_address(world: World) -> None:
    port: Forge = world.forge
    assert (port.author, port.main) == ("caloron", "main")
    about = port.about()
    expected = (world.kind.removesuffix("+reviewer"), False, True, True)
    assert (about.kind, about.empty, about.can_push, about.can_merge) == expected
    assert "@" not in port.remote().url
    number = port.create_issue("one", "", ()).number
    assert (port.url(number) == "") == (world.kind == "local")


def test_issues_and_pull_requests_share_one_sequence_of_numbers(world: World) -> None:
    first = world.forge.create_issue("one", "", ())
    second = world.clone.open_pull(world.forge, "feature")
    third = world.forge.create_issue("three", "", ())
    assert (first.number, second.number, third.number) == (1, 2, 3)


def test_an_issue_is_read_back_as_it_was_written(world: World) -> None:
    written = world.forge.create_issue("Größe 漢字 🚀", LARGE, ("b", "a", "b"))
    assert len(LARGE.encode()) > 64 * 1024
    assert plain(world.forge.issue(written.number)) == plain(written)
    assert (written.title, written.body) == ("Größe 漢字 🚀", LARGE)
    assert (written.state, written.author, written.closed_by) == ("open", "caloron", "")
    assert written.labels == ("a", "b")


def test_editing_an_issue_changes_only_its_body(world: World) -> None:
    issue = world.forge.create_issue("one", "before", ("label",))
    edited = world.forge.edit_issue(issue.number, LARGE)
    assert plain(edited) == plain(world.forge.issue(issue.number))
    assert (edited.title, edited.body, edited.labels) == ("one", LARGE, ("label",))
    assert edited.version > issue.version


def test_an_issue_gets_another_title_with_its_body(world: World) -> None:
    issue = world.forge.create_issue("one", "before", ("label",))
    edited = world.forge.edit_issue(issue.number, "after", "zwei 漢字")
    assert plain(edited) == plain(world.forge.issue(issue.number))
    assert (edited.title, edited.body, edited.labels) == ("zwei 漢字", "after", ("label",))
    again = world.forge.edit_issue(issue.number, "later")
    assert (again.title, again.body) == ("zwei 漢字", "later")


def test_labels_are_a_set(world: World) -> None:
    issue = world.forge.create_issue("one", "", ("caloron:ready",))
    labelled = world.forge.label(issue.number, "caloron:blocked")
    assert labelled.labels == ("caloron:blocked", "caloron:ready")
    assert plain(world.forge.label(issue.number, "caloron:ready")) == plain(labelled)
    assert world.forge.unlabel(issue.number, "caloron:ready").labels == ("caloron:blocked",)
    again = world.forge.unlabel(issue.number, "caloron:ready")
    assert (again.labels, world.forge.issue(issue.number).labels) == (("caloron:blocked",),) * 2


def test_closing_a_closed_issue_keeps_its_closer(world: World) -> None:
    issue = world.forge.create_issue("one", "", ())
    world.anna.close_issue(issue.number)
    closed = world.forge.issue(issue.number)
    assert (closed.state, _closer(world, closed)) == ("closed", "anna")
    assert plain(world.forge.close_issue(issue.number)) == plain(closed)


def _closer(world: World, issue: IssueSnapshot) -> str:
    """Return the closer of an issue; Gitea does not report the closer."""
    return issue.closed_by or ("anna" if world.kind == "gitea" else "")


def test_a_reopened_issue_has_no_closer(world: World) -> None:
    issue = world.forge.create_issue("one", "", ())
    assert plain(world.forge.reopen_issue(issue.number)) == plain(issue)
    world.anna.close_issue(issue.number)
    again = world.forge.reopen_issue(issue.number)
    assert (again.state, again.closed_by) == ("open", "")
    assert again.version > issue.version


def test_issues_are_listed_by_state_and_without_pull_requests(world: World) -> None:
    for title in ("one", "two", "three"):
        world.forge.create_issue(title, "", ())
    world.clone.open_pull(world.forge, "feature")
    world.forge.close_issue(2)
    assert [i.number for i in world.forge.issues()] == [1, 2, 3]
    assert [i.number for i in world.forge.issues("open")] == [1, 3]
    assert [i.number for i in world.forge.issues("closed")] == [2]
    assert world.forge.issues("merged") == []


def test_a_list_longer_than_a_page_is_complete(world: World) -> None:
    """Gitea returns at most 50 entries per page."""
    start = world.forge.poll("").cursor
    pull = world.clone.open_pull(world.forge, "feature")
    many = 120 if world.kind == "local" else 55
    for n in range(many):
        world.anna.open_issue(f"issue {n}")
        world.anna.comment(pull.number, f"comment {n}")
    assert [i.title for i in world.forge.issues()] == [f"issue {n}" for n in range(many)]
    comments = world.forge.comments(pull.number)
    assert [c.body for c in comments] == [f"comment {n}" for n in range(many)]
    objects = [s.object for s in world.forge.poll(start).snapshots]
    assert len([name for name in objects if name != "branch:main"]) == many + many + 1
    last = world.forge.create_issue("ours", marker("the/last"), ())
    issue = world.forge.find_issue("the/last")
    assert issue
    assert plain(issue) == plain(last)


def test_issues_and_pull_requests_have_comments(world: World) -> None:
    issue = world.forge.create_issue("one", "", ())
    pull = world.clone.open_pull(world.forge, "feature")
    ours = world.forge.comment(issue.number, LARGE)
    world.anna.comment(pull.number, "resolved")
    assert [plain(c) for c in world.forge.comments(issue.number)] == [plain(ours)]
    (hers,) = world.forge.comments(pull.number)
    assert (ours.body, ours.author, ours.issue) == (LARGE, "caloron", issue.number)
    assert (hers.body, hers.author, hers.issue) == ("resolved", "anna", pull.number)
    assert hers.trusted


def test_an_edited_comment_keeps_its_position(world: World) -> None:
    issue = world.forge.create_issue("one", "", ())
    first = world.forge.comment(issue.number, "progress: 1")
    world.anna.comment(issue.number, "in between")
    edited = world.forge.edit_comment(issue.number, first.id, "progress: 2")
    assert (edited.id, edited.body, edited.issue) == (first.id, "progress: 2", issue.number)
    bodies = [c.body for c in world.forge.comments(issue.number)]
    assert bodies == ["progress: 2", "in between"]
    with pytest.raises(NotFound):
        world.forge.edit_comment(issue.number, 10**6, "nowhere")


def test_a_pull_request_has_its_branch_its_head_and_the_issues_it_closes(world: World) -> None:
    body = "Closes #4, fixes #12.\nRESOLVED: #7\nencloses #9, closes #4, see #1, fix 3"
    pull = world.clone.open_pull(world.forge, "agent/one/sample-1", body=body)
    assert pull.head == world.clone.git("rev-parse", "HEAD")
    assert (pull.branch, pull.state, pull.closes) == ("agent/one/sample-1", "open", (4, 12, 7))
    assert (pull.author, pull.ended_by, pull.merge_commit) == ("caloron", "", "")
    assert plain(world.forge.pull(pull.number)) == plain(pull)
    assert [plain(p) for p in world.forge.pulls("open")] == [plain(pull)]
    assert [plain(p) for p in world.forge.pulls()] == [plain(pull)]


def test_editing_a_pull_request_changes_only_its_description(world: World) -> None:
    pull = world.clone.open_pull(world.forge, "feature", body=f"Closes #4\n\n{marker('pull/s/t')}")
    body = f"Closes #4 and #5\n\n{marker('pull/s/t')}\n\n<!-- caloron-section:s/t -->\nß\n"
    edited = world.forge.edit_pull(pull.number, body)
    assert (edited.number, edited.body.rstrip(), edited.closes) == (
        pull.number, body.rstrip(), (4,)
    )  # fmt: skip
    same = ("title", "state", "head", "branch", "author")
    assert [getattr(edited, name) for name in same] == [getattr(pull, name) for name in same]
    assert plain(world.forge.pull(pull.number)) == plain(edited)
    pull_again = world.forge.find_pull("feature", "pull/s/t")
    assert pull_again is not None
    assert pull_again.number == pull.number
    world.anna.close_pull(pull.number)
    assert world.forge.edit_pull(pull.number, "ended").state == "closed"


def test_a_branch_has_one_open_pull_request_at_most(world: World) -> None:
    pull = world.clone.open_pull(world.forge, "feature")
    with pytest.raises(ForgeError, match=f"#{pull.number}"):
        world.forge.open_pull("again", "", "feature")
    world.forge.close_pull(pull.number)
    assert world.forge.open_pull("again", "", "feature").number == pull.number + 1


def test_a_pull_request_needs_a_branch_that_exists(world: World) -> None:
    with pytest.raises(NotFound, match="agent/none"):
        world.forge.open_pull("title", "", "agent/none")
    with pytest.raises(UsageError, match="main"):
        world.forge.open_pull("title", "", "main")


def test_a_closed_pull_request_stays_closed(world: World) -> None:
    pull = world.clone.open_pull(world.forge, "feature")
    world.anna.close_pull(pull.number)
    closed = world.forge.pull(pull.number)
    assert (closed.state, closed.head) == ("closed", pull.head)
    assert closed.ended_by in (("anna",) if world.kind == "local" else ("anna", ""))
    assert plain(world.forge.close_pull(pull.number)) == plain(closed)
    with pytest.raises(ForgeError, match="closed"):
        world.forge.merge(pull.number, pull.head, "", "")
    assert not world.forge.mergeable(pull.number)


def test_a_review_is_bound_to_the_reviewed_head(world: World) -> None:
    forge = world.forge
    pull = world.clone.open_pull(forge, "feature")
    body, _ = review_body("changes_requested", pull.number, pull.head)
    first = forge.review(pull.number, pull.head, "changes_requested", body)
    second = world.clone.commit("feature", {"more.txt": "more"})
    forge.push(world.clone.path, "feature", second, pull.head)
    world.anna.review(pull.number, "approved", LARGE)
    again, _ = review_body("approved", pull.number, second, "b")
    last = forge.review(pull.number, second, "approved", again)
    reviews = {r.id: r for r in forge.reviews(pull.number)}
    assert len(reviews) == 3
    # Gitea withdraws a verdict when its author submits another verdict.
    assert reviews[first.id].verdict in ("changes_requested", "commented")
    assert reviews[first.id].head == pull.head
    assert plain(reviews[last.id]) == plain(last)
    (hers,) = (r for r in reviews.values() if r.author == "anna")
    assert (hers.head, hers.verdict, hers.body, hers.trusted) == (second, "approved", LARGE, True)
    assert (first.head, first.verdict) == (pull.head, "changes_requested")
    assert (last.head, last.verdict, last.pull) == (second, "approved", pull.number)
    assert {first.author, last.author} == {forge.reviewer}
    assert (forge.reviewer != forge.author) == (world.kind == "gitea+reviewer")


def test_our_verdict_is_a_review_and_never_a_comment(world: World) -> None:
    start = world.forge.poll("").cursor
    pull = world.clone.open_pull(world.forge, "feature")
    body, _ = review_body("approved", pull.number, pull.head)
    world.forge.review(pull.number, pull.head, "approved", body)
    assert world.forge.comments(pull.number) == []
    kinds = [type(s).__name__ for s in world.forge.poll(start).snapshots]
    assert (kinds.count("ReviewSnapshot"), kinds.count("CommentSnapshot")) == (1, 0)


def test_a_review_with_an_unknown_verdict_or_half_a_commit_is_refused(world: World) -> None:
    pull = world.clone.open_pull(world.forge, "feature")
    unknown: Verdict = "lgtm"  # type: ignore[assignment]
    with pytest.raises(UsageError, match="lgtm"):
        world.forge.review(pull.number, "", unknown, "")
    with pytest.raises(UsageError, match="full commit id"):
        world.forge.review(pull.number, pull.head[:10], "approved", "")
    assert world.forge.reviews(pull.number) == []


def test_our_own_objects_are_found_again_by_their_marker_in_any_state(world: World) -> None:
    forge, key = world.forge, "sample-1/one"
    issue = forge.create_issue("one", f"text\n{marker(key)}", ())
    comment = forge.comment(issue.number, f"{marker(key)}\nprobe")
    pull = world.clone.open_pull(forge, "feature", body=f"Closes #1 {marker(key)}")
    body, review_key = review_body("approved", pull.number, pull.head)
    review = forge.review(pull.number, pull.head, "approved", body)
    closed_issue, closed_pull = forge.close_issue(issue.number), forge.close_pull(pull.number)
    snapshots = (
        forge.find_issue(key),
        forge.find_comment(issue.number, key),
        forge.find_pull("feature", key),
        forge.find_review(pull.number, review_key),
    )
    expected = (closed_issue, comment, closed_pull, review)
    assert [f and plain(f) for f in snapshots] == [plain(w) for w in expected]


def test_a_marker_counts_only_if_complete_on_its_object_and_from_our_account(world: World) -> None:
    forge, anna = world.forge, world.anna
    anna.open_issue("hers", marker("key"))
    ours = forge.create_issue("ours", marker("key/longer"), ())
    commit = world.clone.commit("feature", {"feature.txt": "feature"})
    forge.push(world.clone.path, "feature", commit, "")
    pull = anna.open_pull("feature", marker("key"))
    review, review_key = review_body("commented", pull, commit)
    anna.comment(ours.number, marker("key"))
    forge.comment(1, marker("key"))
    anna.review(pull, "commented", review)
    anna.comment(pull, review)
    world.clone.open_pull(forge, "other", body=marker("key"))
    assert forge.find_issue("key") is None
    assert forge.find_comment(ours.number, "key") is None
    assert forge.find_pull("feature", "key") is None
    assert forge.find_review(pull, review_key) is None
    assert forge.find_issue("") is None
    assert forge.find_pull("feature", "") is None
    # A comment of a person in the form of our reviews is not a verdict of ours.
    assert {r.author for r in forge.reviews(pull)} == {"anna"}
    assert [c.author for c in forge.comments(pull)] == ["anna"]


def test_an_unknown_number_is_named_in_the_error(world: World) -> None:
    forge = world.forge
    issue = forge.create_issue("one", "", ())
    pull = world.clone.open_pull(forge, "feature")
    calls: list[Callable[[int], object]] = [
        forge.issue,
        forge.comments,
        forge.pull,
        forge.reviews,
        forge.mergeable,
        forge.diff,
        forge.close_issue,
        forge.reopen_issue,
        forge.close_pull,
        lambda n: forge.comment(n, "text"),
        lambda n: forge.edit_comment(n, 1, "text"),
        lambda n: forge.edit_issue(n, "text"),
        lambda n: forge.edit_pull(n, "text"),
        lambda n: forge.label(n, "label"),
        lambda n: forge.unlabel(n, "label"),
        lambda n: forge.review(n, "", "approved", ""),
        lambda n: forge.merge(n, "", "", ""),
        lambda n: forge.find_comment(n, "key"),
        lambda n: forge.find_review(n, "key"),
    ]
    for call in calls:
        for number in (77, 0, -1, 10**30):
            with pytest.raises(NotFound, match=f"[#/]{number}\\b"):
                call(number)
    with pytest.raises(NotFound, match=f"[#/]{pull.number}\\b"):
        forge.issue(pull.number)
    with pytest.raises(NotFound, match=f"[#/]{issue.number}\\b"):
        forge.pull(issue.number)


def test_text_that_is_empty_or_cannot_be_stored_is_refused(world: World) -> None:
    forge = world.forge
    pull = world.clone.open_pull(forge, "feature")
    for bad in ("", "  \n", "a\0b", "\ud800"):
        with pytest.raises(UsageError, match="title"):
            forge.create_issue(bad, "", ())
        with pytest.raises(UsageError, match="title"):
            forge.open_pull(bad, "", "feature")
        with pytest.raises(UsageError, match="comment"):
            forge.comment(pull.number, bad)
        with pytest.raises(UsageError, match="label"):
            forge.create_issue("title", "", (bad,))
    for bad in ("a\0b", "\ud800"):
        with pytest.raises(UsageError, match="body"):
            forge.create_issue("title", bad, ())
        with pytest.raises(UsageError, match="body"):
            forge.open_pull("title", bad, "feature")
        with pytest.raises(UsageError, match="body"):
            forge.review(pull.number, "", "approved", bad)
        with pytest.raises(UsageError, match="message"):
            forge.merge(pull.number, "", "", bad)
    assert forge.issues() == []
    assert plain(forge.pull(pull.number)) == plain(pull)
