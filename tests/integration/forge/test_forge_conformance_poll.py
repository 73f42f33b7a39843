"""What every forge must tell: each act of a person with the very next poll, and nothing twice."""

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


def test_what_happens_to_issues_is_told_by_the_next_poll(world: World) -> None:
    anna, watch = world.anna, Watch(world.forge)
    task = world.forge.create_issue("task", f"body\n{marker('issue/s/t')}", ("caloron:task",))
    assert watch.look().keys() == {f"issue:{task.number}"}

    hers = anna.open_issue("hers", "text", ("caloron:task",))
    seen = _only(watch, IssueSnapshot)
    assert (seen.number, seen.author, seen.labels) == (hers, "anna", ("caloron:task",))

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
    assert watch.look() == {}


def test_what_is_said_is_told_by_the_next_poll(world: World) -> None:
    anna, watch = world.anna, Watch(world.forge)
    issue = world.forge.create_issue("task", "", ())
    pull = world.clone.open_pull(world.forge, "feature")
    watch.look()
    first = anna.comment(issue.number, "first")
    assert _only(watch, CommentSnapshot).body == "first"
    anna.comment(pull.number, "caloron:retry\n\nplease")
    seen = _only(watch, CommentSnapshot)
    assert (seen.issue, seen.author, seen.trusted) == (pull.number, "anna", True)
    anna.edit_comment(issue.number, first, "resolved")
    assert _only(watch, CommentSnapshot).body == "resolved"
    assert watch.look() == {}


def test_what_happens_to_pull_requests_is_told_by_the_next_poll(world: World) -> None:
    anna, clone, watch = world.anna, world.clone, Watch(world.forge)
    first = clone.commit("feature", {"a.txt": "1"})
    clone.push("feature")
    number = anna.open_pull("feature", "Closes #9")
    seen = _only(watch, PullSnapshot)
    assert (seen.number, seen.branch, seen.head) == (number, "feature", first)
    assert (seen.author, seen.closes) == ("anna", (9,))

    second = clone.commit("feature", {"a.txt": "2"})
    clone.push("feature")
    assert _only(watch, PullSnapshot).head == second
    third = clone.commit("rewritten", {"a.txt": "3"})
    clone.push("rewritten:feature")
    assert _only(watch, PullSnapshot).head == third
    anna.close_pull(number)
    assert _only(watch, PullSnapshot).state == "closed"
    assert watch.look() == {}


def test_a_merge_by_a_person_is_told_with_main_and_the_issue_it_closes(world: World) -> None:
    watch = Watch(world.forge)
    issue = world.forge.create_issue("task", "", ())
    pull = world.clone.open_pull(world.forge, "feature", body=f"Closes #{issue.number}")
    watch.look()
    world.anna.merge(pull.number)
    seen = watch.look()
    assert seen.keys() == {f"issue:{issue.number}", f"pull:{pull.number}", "branch:main"}
    merged, main = seen[f"pull:{pull.number}"], seen["branch:main"]
    assert isinstance(merged, PullSnapshot)
    assert isinstance(main, BranchSnapshot)
    assert (merged.state, merged.ended_by) == ("merged", "anna")
    assert merged.merge_commit == main.commit == main_of(world.forge)
    assert watch.look() == {}


def test_a_review_by_a_person_is_told_by_the_next_poll(world: World) -> None:
    watch = Watch(world.forge)
    pull = world.clone.open_pull(world.forge, "feature")
    watch.look()
    world.anna.review(pull.number, "changes_requested", "not yet")
    seen = _only(watch, ReviewSnapshot)
    assert (seen.pull, seen.head, seen.verdict) == (pull.number, pull.head, "changes_requested")
    assert (seen.author, seen.body, seen.trusted) == ("anna", "not yet", True)
    world.anna.review(pull.number, "approved", "now it is")
    # Gitea withdraws her first verdict, and that is told as well.
    second, *first = reversed(list(watch.look().values()))
    assert isinstance(second, ReviewSnapshot)
    assert (second.id > seen.id, second.verdict) == (True, "approved")
    assert [one.object for one in first] in ([], [seen.object])
    assert watch.look() == {}


def test_a_push_to_main_is_told_by_the_next_poll(world: World) -> None:
    watch = Watch(world.forge)
    commit = world.clone.commit("main", {"a.txt": "by hand"})
    world.clone.push("main")
    assert _only(watch, BranchSnapshot).commit == commit
    assert watch.look() == {}


def test_what_we_do_ourselves_is_told_as_it_was_answered(world: World) -> None:
    forge, watch = world.forge, Watch(world.forge)
    issue = forge.create_issue("one", "", ())
    pull = world.clone.open_pull(forge, "feature", body="Closes #1")
    comment = forge.comment(issue.number, "text")
    told = {name: plain(snapshot) for name, snapshot in watch.look().items()}
    assert told == {s.object: plain(s) for s in (issue, pull, comment)}
    merged = forge.merge(pull.number, "", "", "").pull
    after = {name: plain(snapshot) for name, snapshot in watch.look().items()}
    main = forge.branch("main")
    assert main
    assert after == {s.object: plain(s) for s in (merged, forge.issue(issue.number), main)}
    assert watch.look() == {}


def test_a_poll_from_an_old_cursor_tells_everything_since(world: World) -> None:
    """The engine was down: nothing that happened meanwhile is lost."""
    old = world.forge.poll("").cursor
    issue = world.forge.create_issue("one", "", ())
    world.anna.comment(issue.number, "resolved")
    world.forge.poll(world.forge.poll(old).cursor)
    objects = {type(s).__name__ for s in world.forge.poll(old).snapshots}
    assert objects >= {"IssueSnapshot", "CommentSnapshot"}


def test_a_new_process_goes_on_from_the_cursor_of_the_last_one(world: World) -> None:
    cursor = world.forge.poll("").cursor
    issue = world.forge.create_issue("one", "", ())
    world.anna.comment(issue.number, "meanwhile")
    after_restart = world.reopened()
    told = {s.object for s in after_restart.poll(cursor).snapshots}
    after_restart.close()
    assert f"issue:{issue.number}" in told
    assert any(name.startswith("comment:") for name in told)


def test_a_cursor_that_is_none_is_refused(world: World) -> None:
    with pytest.raises(UsageError, match="cursor"):
        world.forge.poll("yesterday")


def test_what_changes_nothing_is_not_told(world: World) -> None:
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
    assert watch.look() == {}


def _only(watch: Watch, kind: type[Kind]) -> Kind:
    """The one object of this kind whose picture is another one now; what goes along is left out.

    A comment or a review may move the time of the issue it stands on, never its picture.
    """
    (found,) = watch.look().values()
    assert isinstance(found, kind)
    return found
