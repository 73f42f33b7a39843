"""The conformance suite for polls: the next poll reports each change, and reports it once."""

from __future__ import annotations

from typing import TypeVar

import pytest

from caloron.domain.model.snapshots import (
    BranchSnapshot,
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    marker,
)
from caloron.errors import UsageError
from tests.integration.forge.people import main_of
from tests.integration.forge.worlds import Watch, World, plain

Kind = TypeVar("Kind")


def test_the_next_poll_reports_changes_of_issues(world: World) -> None:
    anna, watch = world.anna, Watch(world.forge)
    task = world.forge.create_issue("task", f"body\n{marker('issue/s/t')}", ("caloron:task",))
    assert watch.poll_changes().keys() == {f"issue:{task.number}"}

    annas_issue = anna.open_issue("hers", "text", ("caloron:task",))
    issue = _only(watch, IssueSnapshot)
    assert (issue.number, issue.author, issue.labels) == (annas_issue, "anna", ("caloron:task",))

    anna.edit_issue(task.number, "another body, without the marker")
    assert _only(watch, IssueSnapshot).body == "another body, without the marker"
    anna.label(task.number, "caloron:blocked")
    assert _only(watch, IssueSnapshot).labels == ("caloron:blocked", "caloron:task")
    anna.unlabel(task.number, "caloron:task")
    assert _only(watch, IssueSnapshot).labels == ("caloron:blocked",)
    anna.close_issue(task.number)
    assert _only(watch, IssueSnapshot).state == "closed"
    anna.reopen_issue(task.number)
    assert _only(watch, IssueSnapshot).state == "open"
    assert watch.poll_changes() == {}


def test_the_next_poll_reports_comments(world: World) -> None:
    anna, watch = world.anna, Watch(world.forge)
    issue = world.forge.create_issue("task", "", ())
    pull = world.clone.open_pull(world.forge, "feature")
    watch.poll_changes()
    first = anna.comment(issue.number, "first")
    assert _only(watch, CommentSnapshot).body == "first"
    anna.comment(pull.number, "caloron:retry\n\nplease")
    comment = _only(watch, CommentSnapshot)
    assert (comment.issue, comment.author, comment.trusted) == (pull.number, "anna", True)
    anna.edit_comment(issue.number, first, "resolved")
    assert _only(watch, CommentSnapshot).body == "resolved"
    assert watch.poll_changes() == {}


def test_the_next_poll_reports_changes_of_pull_requests(world: World) -> None:
    anna, clone, watch = world.anna, world.clone, Watch(world.forge)
    first = clone.commit("feature", {"a.txt": "1"})
    clone.push("feature")
    number = anna.open_pull("feature", "Closes #9")
    pull = _only(watch, PullSnapshot)
    assert (pull.number, pull.branch, pull.head) == (number, "feature", first)
    assert (pull.author, pull.closes) == ("anna", (9,))

    second = clone.commit("feature", {"a.txt": "2"})
    clone.push("feature")
    assert _only(watch, PullSnapshot).head == second
    third = clone.commit("rewritten", {"a.txt": "3"})
    clone.push("rewritten:feature")
    assert _only(watch, PullSnapshot).head == third
    anna.close_pull(number)
    assert _only(watch, PullSnapshot).state == "closed"
    assert watch.poll_changes() == {}


def test_the_next_poll_reports_a_merge_by_a_person_with_main_and_the_closed_issue(
    world: World,
) -> None:
    watch = Watch(world.forge)
    issue = world.forge.create_issue("task", "", ())
    pull = world.clone.open_pull(world.forge, "feature", body=f"Closes #{issue.number}")
    watch.poll_changes()
    world.anna.merge(pull.number)
    changes = watch.poll_changes()
    assert changes.keys() == {f"issue:{issue.number}", f"pull:{pull.number}", "branch:main"}
    merged, main = changes[f"pull:{pull.number}"], changes["branch:main"]
    assert isinstance(merged, PullSnapshot)
    assert isinstance(main, BranchSnapshot)
    assert (merged.state, merged.ended_by) == ("merged", "anna")
    assert merged.merge_commit == main.commit == main_of(world.forge)
    assert watch.poll_changes() == {}


def test_the_next_poll_reports_reviews_by_a_person(world: World) -> None:
    watch = Watch(world.forge)
    pull = world.clone.open_pull(world.forge, "feature")
    watch.poll_changes()
    world.anna.review(pull.number, "changes_requested", "not yet")
    review = _only(watch, ReviewSnapshot)
    assert (review.pull, review.head, review.verdict) == (
        pull.number,
        pull.head,
        "changes_requested",
    )
    assert (review.author, review.body, review.trusted) == ("anna", "not yet", True)
    world.anna.review(pull.number, "approved", "now it is")
    # Gitea withdraws her first verdict, and the poll reports that, too.
    second, *first = reversed(list(watch.poll_changes().values()))
    assert isinstance(second, ReviewSnapshot)
    assert (second.id > review.id, second.verdict) == (True, "approved")
    assert [snapshot.object for snapshot in first] in ([], [review.object])
    assert watch.poll_changes() == {}


def test_the_next_poll_reports_a_push_to_main(world: World) -> None:
    watch = Watch(world.forge)
    commit = world.clone.commit("main", {"a.txt": "by hand"})
    world.clone.push("main")
    assert _only(watch, BranchSnapshot).commit == commit
    assert watch.poll_changes() == {}


def test_the_next_poll_reports_our_own_changes_as_the_calls_returned_them(world: World) -> None:
    forge, watch = world.forge, Watch(world.forge)
    issue = forge.create_issue("one", "", ())
    pull = world.clone.open_pull(forge, "feature", body="Closes #1")
    comment = forge.comment(issue.number, "text")
    changes = {name: plain(snapshot) for name, snapshot in watch.poll_changes().items()}
    assert changes == {s.object: plain(s) for s in (issue, pull, comment)}
    merged = forge.merge(pull.number, "", "", "").pull
    after = {name: plain(snapshot) for name, snapshot in watch.poll_changes().items()}
    main = forge.branch("main")
    assert main
    assert after == {s.object: plain(s) for s in (merged, forge.issue(issue.number), main)}
    assert watch.poll_changes() == {}


def test_a_poll_from_an_old_cursor_reports_all_later_changes(world: World) -> None:
    """The engine was down; no change of that time is lost."""
    old = world.forge.poll("").cursor
    issue = world.forge.create_issue("one", "", ())
    world.anna.comment(issue.number, "resolved")
    world.forge.poll(world.forge.poll(old).cursor)
    objects = {type(s).__name__ for s in world.forge.poll(old).snapshots}
    assert objects >= {"IssueSnapshot", "CommentSnapshot"}


def test_a_new_process_continues_from_the_cursor_of_the_last_process(world: World) -> None:
    cursor = world.forge.poll("").cursor
    issue = world.forge.create_issue("one", "", ())
    world.anna.comment(issue.number, "meanwhile")
    after_restart = world.reopened()
    objects = {s.object for s in after_restart.poll(cursor).snapshots}
    after_restart.close()
    assert f"issue:{issue.number}" in objects
    assert any(name.startswith("comment:") for name in objects)


def test_an_invalid_cursor_is_refused(world: World) -> None:
    with pytest.raises(UsageError, match="cursor"):
        world.forge.poll("yesterday")


def test_a_change_without_effect_is_not_reported(world: World) -> None:
    forge = world.forge
    issue = forge.create_issue("one", "", ("label",))
    pull = world.clone.open_pull(forge, "feature")
    forge.close_issue(issue.number)
    forge.close_pull(pull.number)
    watch = Watch(forge)
    forge.close_issue(issue.number)
    forge.close_pull(pull.number)
    forge.label(issue.number, "label")
    forge.push(world.clone.path, "feature", pull.head, "")
    assert watch.poll_changes() == {}


def _only(watch: Watch, kind: type[Kind]) -> Kind:
    """Return the only object whose snapshot changed, and check its kind.

    A comment or a review may change the time of its issue, but never the snapshot of the issue.
    """
    (snapshot,) = watch.poll_changes().values()
    assert isinstance(snapshot, kind)
    return snapshot
