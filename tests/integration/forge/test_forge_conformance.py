"""What every forge must do, whoever runs it: only the port is used, git and the clone apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from caloron.domain.observations import Verdict, marker
from caloron.errors import (
    ForgeError,
    MergeConflict,
    NotFound,
    StaleBase,
    StaleHead,
    UsageError,
)
from caloron.forge.local import LocalForge
from caloron.ports import Forge
from tests.integration.forge.people import Clone, files_on_main, main_of

LARGE = "ÅΩ漢字🚀\n" * 8000


def test_the_local_forge_is_a_forge(forge: LocalForge) -> None:
    port: Forge = forge
    assert (port.author, port.main) == ("caloron", "main")
    assert port.remote().url.endswith("forge.git")


def test_issues_and_pull_requests_share_one_sequence_of_numbers(
    forge: LocalForge, clone: Clone
) -> None:
    first = forge.create_issue("one", "", ())
    second = clone.open_pull(forge, "feature")
    third = forge.create_issue("three", "", ())
    assert (first.number, second.number, third.number) == (1, 2, 3)


def test_an_issue_is_read_back_as_it_was_written(forge: LocalForge) -> None:
    written = forge.create_issue("Größe 漢字 🚀", LARGE, ("b", "a", "b"))
    assert len(LARGE.encode()) > 64 * 1024
    assert forge.issue(written.number) == written
    assert (written.title, written.body) == ("Größe 漢字 🚀", LARGE)
    assert (written.state, written.author, written.closed_by) == ("open", "caloron", "")
    assert written.labels == ("a", "b")


def test_labels_are_a_set(forge: LocalForge) -> None:
    issue = forge.create_issue("one", "", ("caloron:ready",))
    labelled = forge.label(issue.number, "caloron:blocked")
    assert labelled.labels == ("caloron:blocked", "caloron:ready")
    assert forge.label(issue.number, "caloron:ready") == labelled


def test_a_closed_issue_says_who_closed_it_and_closing_it_again_changes_nothing(
    forge: LocalForge, anna: LocalForge
) -> None:
    issue = forge.create_issue("one", "", ())
    closed = anna.close_issue(issue.number)
    assert (closed.state, closed.closed_by) == ("closed", "anna")
    assert forge.close_issue(issue.number) == closed


def test_a_reopened_issue_is_open_and_closed_by_nobody(forge: LocalForge, anna: LocalForge) -> None:
    issue = forge.create_issue("one", "", ())
    assert anna.reopen_issue(issue.number) == issue
    anna.close_issue(issue.number)
    again = anna.reopen_issue(issue.number)
    assert (again.state, again.closed_by) == ("open", "")
    assert again.version > issue.version


def test_issues_are_listed_by_state(forge: LocalForge) -> None:
    for title in ("one", "two", "three"):
        forge.create_issue(title, "", ())
    forge.close_issue(2)
    assert [i.number for i in forge.issues()] == [1, 2, 3]
    assert [i.number for i in forge.issues("open")] == [1, 3]
    assert [i.number for i in forge.issues("closed")] == [2]
    assert forge.issues("merged") == []


def test_lists_are_whole_however_long_they_are(forge: LocalForge, clone: Clone) -> None:
    pull = clone.open_pull(forge, "feature")
    for n in range(120):
        forge.create_issue(f"issue {n}", "", ())
        forge.comment(pull.number, f"comment {n}")
    assert len(forge.issues()) == 120
    assert [c.body for c in forge.comments(pull.number)] == [f"comment {n}" for n in range(120)]
    assert len(forge.poll("").snapshots) == 120 + 120 + 1 + 1


def test_comments_stand_on_issues_and_on_pull_requests(
    forge: LocalForge, anna: LocalForge, clone: Clone
) -> None:
    issue = forge.create_issue("one", "", ())
    pull = clone.open_pull(forge, "feature")
    ours = forge.comment(issue.number, LARGE)
    hers = anna.comment(pull.number, "resolved")
    assert forge.comments(issue.number) == [ours]
    assert forge.comments(pull.number) == [hers]
    assert (ours.body, ours.author, hers.author) == (LARGE, "caloron", "anna")


def test_a_pull_request_carries_its_branch_its_head_and_what_it_closes(
    forge: LocalForge, clone: Clone
) -> None:
    body = "Closes #4, fixes #12.\nRESOLVED: #7\nencloses #9, closes #4, see #1, fix 3"
    pull = clone.open_pull(forge, "agent/one/sample-1", body=body)
    assert pull.head == clone.git("rev-parse", "HEAD")
    assert (pull.branch, pull.state, pull.closes) == ("agent/one/sample-1", "open", (4, 12, 7))
    assert forge.pull(pull.number) == pull
    assert forge.pulls("open") == forge.pulls() == [pull]


@pytest.mark.parametrize(
    "word",
    ["close", "closes", "closed", "fix", "fixes", "fixed", "resolve", "Resolves", "RESOLVED"],
)
def test_each_closing_word_is_understood(forge: LocalForge, clone: Clone, word: str) -> None:
    assert clone.open_pull(forge, "feature", body=f"This {word} #31").closes == (31,)


def test_a_branch_has_one_open_pull_request_at_most(forge: LocalForge, clone: Clone) -> None:
    pull = clone.open_pull(forge, "feature")
    with pytest.raises(ForgeError, match=f"#{pull.number}"):
        forge.open_pull("again", "", "feature")
    forge.close_pull(pull.number)
    assert forge.open_pull("again", "", "feature").number == pull.number + 1


def test_a_pull_request_needs_a_branch_that_exists(forge: LocalForge) -> None:
    with pytest.raises(NotFound, match="agent/none"):
        forge.open_pull("title", "", "agent/none")
    with pytest.raises(UsageError, match="main"):
        forge.open_pull("title", "", "main")


def test_a_closed_pull_request_says_who_closed_it_and_stays_closed(
    forge: LocalForge, anna: LocalForge, clone: Clone
) -> None:
    pull = clone.open_pull(forge, "feature")
    closed = anna.close_pull(pull.number)
    assert (closed.state, closed.ended_by, closed.head) == ("closed", "anna", pull.head)
    assert forge.close_pull(pull.number) == closed
    with pytest.raises(ForgeError, match="closed"):
        forge.merge(pull.number, pull.head, "", "")
    assert not forge.mergeable(pull.number)


def test_a_review_is_bound_to_the_head_it_looked_at(
    forge: LocalForge, anna: LocalForge, clone: Clone
) -> None:
    pull = clone.open_pull(forge, "feature")
    first = forge.review(pull.number, pull.head, "changes_requested", "more tests")
    second = clone.commit("feature", {"more.txt": "more"})
    forge.push(clone.path, "feature", second, pull.head)
    late = forge.review(pull.number, pull.head, "commented", "")
    hers = anna.review(pull.number, "", "approved", LARGE)
    assert forge.reviews(pull.number) == [first, late, hers]
    assert [r.head for r in (first, late, hers)] == [pull.head, pull.head, second]
    assert (first.verdict, hers.verdict, hers.author) == ("changes_requested", "approved", "anna")


def test_a_review_with_an_unknown_verdict_or_half_a_commit_is_refused(
    forge: LocalForge, clone: Clone
) -> None:
    pull = clone.open_pull(forge, "feature")
    unknown: Verdict = "lgtm"  # type: ignore[assignment]
    with pytest.raises(UsageError, match="lgtm"):
        forge.review(pull.number, "", unknown, "")
    with pytest.raises(UsageError, match="full commit id"):
        forge.review(pull.number, pull.head[:10], "approved", "")
    assert forge.reviews(pull.number) == []


def test_our_own_objects_are_found_again_by_their_marker_in_any_state(
    forge: LocalForge, clone: Clone
) -> None:
    key = "sample-1/one"
    issue = forge.create_issue("one", f"text\n{marker(key)}", ())
    comment = forge.comment(issue.number, f"{marker(key)}\nprobe")
    pull = clone.open_pull(forge, "feature", body=f"Closes #1 {marker(key)}")
    review = forge.review(pull.number, pull.head, "approved", marker(key))
    closed_issue, closed_pull = forge.close_issue(issue.number), forge.close_pull(pull.number)
    assert forge.find_issue(key) == closed_issue
    assert forge.find_comment(issue.number, key) == comment
    assert forge.find_pull("feature", key) == closed_pull
    assert forge.find_review(pull.number, key) == review


def test_a_marker_counts_only_whole_in_its_place_and_from_our_own_account(
    forge: LocalForge, anna: LocalForge, clone: Clone
) -> None:
    anna.create_issue("hers", marker("key"), ())
    ours = forge.create_issue("ours", marker("key/longer"), ())
    pull = clone.open_pull(anna, "feature", body=marker("key"))
    anna.comment(ours.number, marker("key"))
    forge.comment(1, marker("key"))
    anna.review(pull.number, "", "approved", marker("key"))
    clone.open_pull(forge, "other", body=marker("key"))
    assert forge.find_issue("key") is None
    assert forge.find_comment(ours.number, "key") is None
    assert forge.find_pull("feature", "key") is None
    assert forge.find_review(pull.number, "key") is None
    assert forge.find_issue("") is None
    assert forge.find_pull("feature", "") is None


def test_a_push_moves_a_branch_and_its_pull_request_at_once(
    forge: LocalForge, clone: Clone
) -> None:
    pull = clone.open_pull(forge, "feature")
    before = forge.branch("feature")
    second = clone.commit("feature", {"more.txt": "more"})
    seen = forge.push(clone.path, "feature", second, pull.head)
    assert before is not None
    assert (seen.name, seen.commit) == ("feature", second)
    assert seen.version > before.version
    assert forge.branch("feature") == seen
    assert forge.pull(pull.number).head == second


def test_a_push_replaces_only_what_it_expects(forge: LocalForge, clone: Clone) -> None:
    first = clone.commit("feature", {"a.txt": "1"})
    second = clone.commit("feature", {"a.txt": "2"})
    with pytest.raises(StaleHead, match="not there"):
        forge.push(clone.path, "feature", second, first)
    forge.push(clone.path, "feature", first, "")
    with pytest.raises(StaleHead, match=first):
        forge.push(clone.path, "feature", second, "")
    with pytest.raises(StaleHead, match=first):
        forge.push(clone.path, "feature", second, main_of(forge))
    seen = forge.branch("feature")
    assert seen is not None
    assert seen.commit == first


def test_a_push_may_rewrite_a_branch(forge: LocalForge, clone: Clone) -> None:
    first = clone.commit("feature", {"a.txt": "1"})
    rewritten = clone.commit("rewritten", {"a.txt": "2"})
    forge.push(clone.path, "feature", first, "")
    assert forge.push(clone.path, "feature", rewritten, first).commit == rewritten


def test_a_push_that_was_done_already_is_done(forge: LocalForge, clone: Clone) -> None:
    first = clone.commit("feature", {"a.txt": "1"})
    done = forge.push(clone.path, "feature", first, "")
    assert forge.push(clone.path, "feature", first, "") == done


@pytest.mark.parametrize(
    "name",
    ["", "/a", "-a", "a..b", "A", "a b", "a\n", "x" * 129, "a/", "a//b", ".a", "a.lock", "a/./b"],
)
def test_a_branch_name_that_is_not_safe_is_refused(
    forge: LocalForge, clone: Clone, name: str
) -> None:
    with pytest.raises(UsageError, match="branch"):
        forge.push(clone.path, name, main_of(forge), "")
    with pytest.raises(UsageError, match="branch"):
        forge.open_pull("title", "", name)
    with pytest.raises(UsageError, match="branch"):
        forge.branch(name)


def test_a_push_of_what_is_no_commit_is_refused(forge: LocalForge, clone: Clone) -> None:
    with pytest.raises(UsageError, match="full commit id"):
        forge.push(clone.path, "feature", "HEAD", "")
    with pytest.raises(ForgeError, match="push failed"):
        forge.push(clone.path, "feature", "1" * 40, "")
    assert forge.branch("feature") is None


def test_a_merge_puts_exactly_this_head_on_exactly_this_base(
    forge: LocalForge, clone: Clone
) -> None:
    issue = forge.create_issue("one", "", ())
    base = main_of(forge)
    pull = clone.open_pull(forge, "feature", {"a.txt": "A"}, f"Closes #{issue.number}, fixes #99")
    merged = forge.merge(pull.number, pull.head, base, "Merge it\n\nBody 漢")
    assert (merged.state, merged.ended_by, merged.head) == ("merged", "caloron", pull.head)
    assert merged.merge_commit == main_of(forge)
    clone.git("fetch", "--quiet", "origin")
    shown = clone.git("show", "-s", "--format=%P|%cn <%ce>|%B", "origin/main")
    assert shown == f"{base} {pull.head}|Caloron <caloron@localhost>|Merge it\n\nBody 漢"
    assert files_on_main(forge) == {"README.md": "# sample", "a.txt": "A"}
    closed = forge.issue(issue.number)
    assert (closed.state, closed.closed_by) == ("closed", "caloron")
    assert forge.pulls("merged") == [merged]


def test_a_merge_that_was_done_already_is_done(forge: LocalForge, clone: Clone) -> None:
    pull = clone.open_pull(forge, "feature")
    base = main_of(forge)
    merged = forge.merge(pull.number, pull.head, base, "")
    assert forge.merge(pull.number, pull.head, base, "") == merged
    assert forge.merge(pull.number, "", "", "") == merged
    assert main_of(forge) == merged.merge_commit
    with pytest.raises(StaleHead, match=pull.head):
        forge.merge(pull.number, base, "", "")


def test_a_merge_of_a_head_that_moved_is_refused(forge: LocalForge, clone: Clone) -> None:
    pull = clone.open_pull(forge, "feature")
    base = main_of(forge)
    second = clone.commit("feature", {"more.txt": "more"})
    forge.push(clone.path, "feature", second, pull.head)
    with pytest.raises(StaleHead, match=second):
        forge.merge(pull.number, pull.head, base, "")
    assert main_of(forge) == base
    assert forge.pull(pull.number).state == "open"


def test_a_merge_onto_a_main_that_moved_is_refused(forge: LocalForge, clone: Clone) -> None:
    base = main_of(forge)
    one = clone.open_pull(forge, "one")
    two = clone.open_pull(forge, "two")
    forge.merge(one.number, one.head, base, "")
    with pytest.raises(StaleBase, match=base):
        forge.merge(two.number, two.head, base, "")
    merged = forge.merge(two.number, two.head, main_of(forge), "")
    assert merged.state == "merged"
    assert files_on_main(forge).keys() == {"README.md", "one.txt", "two.txt"}


def test_a_conflict_is_told_with_the_files_and_changes_nothing(
    forge: LocalForge, clone: Clone
) -> None:
    one = clone.open_pull(forge, "one", {"same näme.txt": "1"})
    two = clone.open_pull(forge, "two", {"same näme.txt": "2"})
    assert forge.mergeable(one.number)
    assert forge.mergeable(two.number)
    forge.merge(one.number, "", "", "")
    base = main_of(forge)
    assert not forge.mergeable(one.number)
    assert not forge.mergeable(two.number)
    with pytest.raises(MergeConflict, match=f"#{two.number}.*same näme.txt"):
        forge.merge(two.number, two.head, base, "")
    assert main_of(forge) == base
    assert forge.pull(two.number) == two


def test_a_conflict_that_was_resolved_in_the_branch_merges(forge: LocalForge, clone: Clone) -> None:
    one = clone.open_pull(forge, "one", {"a.txt": "1"})
    two = clone.open_pull(forge, "two", {"a.txt": "2"})
    forge.merge(one.number, "", "", "")
    clone.git("fetch", "--quiet", "origin")
    clone.git("merge", "--quiet", "-s", "ours", "-m", "resolve", "origin/main")
    forge.push(clone.path, "two", clone.git("rev-parse", "HEAD"), two.head)
    assert forge.mergeable(two.number)
    assert forge.merge(two.number, "", "", "").state == "merged"
    assert files_on_main(forge)["a.txt"] == "2"


def test_histories_with_nothing_in_common_are_a_conflict(forge: LocalForge, clone: Clone) -> None:
    clone.git("checkout", "--quiet", "--orphan", "alone")
    alone = _orphan_commit(clone)
    forge.push(clone.path, "alone", alone, "")
    pull = forge.open_pull("alone", "", "alone")
    assert not forge.mergeable(pull.number)
    with pytest.raises(MergeConflict, match="share no history"):
        forge.merge(pull.number, "", "", "")


def _orphan_commit(clone: Clone) -> str:
    clone.git("commit", "--quiet", "--allow-empty", "-m", "alone")
    return clone.git("rev-parse", "HEAD")


def test_a_branch_without_commits_of_its_own_has_nothing_to_merge(
    forge: LocalForge, clone: Clone
) -> None:
    forge.push(clone.path, "empty", main_of(forge), "")
    pull = forge.open_pull("empty", "", "empty")
    with pytest.raises(ForgeError, match="nothing to merge"):
        forge.merge(pull.number, "", "", "")


def test_an_unknown_number_is_named(forge: LocalForge, clone: Clone) -> None:
    issue = forge.create_issue("one", "", ())
    pull = clone.open_pull(forge, "feature")
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
        lambda n: forge.label(n, "label"),
        lambda n: forge.review(n, "", "approved", ""),
        lambda n: forge.merge(n, "", "", ""),
        lambda n: forge.find_comment(n, "key"),
        lambda n: forge.find_review(n, "key"),
    ]
    for call in calls:
        for number in (77, 0, -1, 10**30):
            with pytest.raises(NotFound, match=f"#{number}$"):
                call(number)
    with pytest.raises(NotFound, match="issue #2"):
        forge.issue(pull.number)
    with pytest.raises(NotFound, match="pull request #1"):
        forge.pull(issue.number)


def test_text_that_is_empty_or_cannot_be_kept_is_refused(forge: LocalForge, clone: Clone) -> None:
    pull = clone.open_pull(forge, "feature")
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
    assert forge.pull(pull.number) == pull


def test_the_diff_is_what_the_pull_request_changes_before_and_after_the_merge(
    forge: LocalForge, clone: Clone
) -> None:
    one = clone.open_pull(forge, "one", {"one.txt": "één\n"})
    two = clone.open_pull(forge, "two", {"two.txt": "2\n"})
    forge.merge(two.number, "", "", "")
    before = forge.diff(one.number)
    assert "+één" in before
    assert "two.txt" not in before
    forge.merge(one.number, "", "", "")
    assert forge.diff(one.number) == before
    assert "two.txt" in forge.diff(two.number)


def test_the_poll_tells_each_change_once_in_order(forge: LocalForge, clone: Clone) -> None:
    start = forge.poll("").cursor
    issue = forge.create_issue("one", "", ())
    pull = clone.open_pull(forge, "feature", body="Closes #1")
    review = forge.review(pull.number, "", "approved", "")
    comment = forge.comment(issue.number, "text")
    seen = forge.poll(start)
    assert seen.snapshots == (issue, pull, review, comment)
    assert forge.poll(seen.cursor).snapshots == ()
    merged = forge.merge(pull.number, "", "", "")
    after = forge.poll(seen.cursor)
    assert after.snapshots == (merged, forge.issue(issue.number), forge.branch("main"))
    versions = [s.version for s in (*seen.snapshots, *after.snapshots)]
    assert versions == sorted(set(versions))
    assert int(after.cursor) > int(seen.cursor) > int(start)


def test_an_idle_poll_returns_nothing_and_keeps_its_cursor(forge: LocalForge) -> None:
    first = forge.poll("")
    assert [s.object for s in first.snapshots] == ["branch:main"]
    for _ in range(3):
        assert forge.poll(first.cursor) == forge.poll(first.cursor)
        assert forge.poll(first.cursor).snapshots == ()
        assert forge.poll(first.cursor).cursor == first.cursor
    with pytest.raises(UsageError, match="cursor"):
        forge.poll("yesterday")


def test_what_changes_nothing_is_not_told(forge: LocalForge, clone: Clone) -> None:
    issue = forge.create_issue("one", "", ("label",))
    pull = clone.open_pull(forge, "feature")
    forge.close_issue(issue.number)
    forge.close_pull(pull.number)
    cursor = forge.poll("").cursor
    forge.close_issue(issue.number)
    forge.close_pull(pull.number)
    forge.label(issue.number, "label")
    forge.push(clone.path, "feature", pull.head, "")
    assert forge.poll(cursor).snapshots == ()
    assert forge.poll(cursor).cursor == cursor
