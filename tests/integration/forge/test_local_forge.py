"""Promises of the local forge alone: a total order of changes, and merges by Caloron's git."""

from __future__ import annotations

import pytest

from caloron.errors import MergeConflict
from caloron.forge.local.forge import LocalForge
from tests.integration.forge.people import Clone


def test_the_poll_reports_each_change_once_in_order(forge: LocalForge, clone: Clone) -> None:
    start = forge.poll("").cursor
    issue = forge.create_issue("one", "", ())
    pull = clone.open_pull(forge, "feature", body="Closes #1")
    review = forge.review(pull.number, "", "approved", "")
    comment = forge.comment(issue.number, "text")
    first = forge.poll(start)
    assert first.snapshots == (issue, pull, review, comment)
    assert forge.poll(first.cursor).snapshots == ()
    merged = forge.merge(pull.number, "", "", "").pull
    after = forge.poll(first.cursor)
    assert after.snapshots == (merged, forge.issue(issue.number), forge.branch("main"))
    versions = [s.version for s in (*first.snapshots, *after.snapshots)]
    assert versions == sorted(set(versions))
    assert int(after.cursor) > int(first.cursor) > int(start)
    assert forge.poll(after.cursor).cursor == after.cursor


def test_a_merge_is_committed_by_caloron(forge: LocalForge, clone: Clone) -> None:
    pull = clone.open_pull(forge, "feature")
    forge.merge(pull.number, pull.head, "", "Merge it")
    clone.git("fetch", "--quiet", "origin")
    shown = clone.git("show", "-s", "--format=%cn <%ce>", "origin/main")
    assert shown == "Caloron <caloron@localhost>"


def test_histories_with_nothing_in_common_are_a_conflict(forge: LocalForge, clone: Clone) -> None:
    clone.git("checkout", "--quiet", "--orphan", "alone")
    clone.git("commit", "--quiet", "--allow-empty", "-m", "alone")
    alone = clone.git("rev-parse", "HEAD")
    forge.push(clone.path, "alone", alone, "")
    pull = forge.open_pull("alone", "", "alone")
    assert not forge.mergeable(pull.number)
    with pytest.raises(MergeConflict, match="share no history"):
        forge.merge(pull.number, "", "", "")
