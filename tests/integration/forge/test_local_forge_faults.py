"""Errors of the local forge if its files, git or the disk fail."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest

from caloron.errors import ForgeError, ForgeUnavailable
from caloron.forge.local import refs
from caloron.forge.local.forge import LocalForge
from caloron.store import database
from tests.integration.forge.people import Clone, main_of


def test_a_locked_database_may_be_tried_again(
    forge: LocalForge, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_BUSY_S", 0.05)
    hasty = LocalForge(project)
    other = sqlite3.connect(project / "forge.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(ForgeUnavailable, match=r"forge\.sqlite.*locked") as raised:
        hasty.create_issue("one", "", ())
    assert "close that program" in raised.value.hint
    assert hasty.issues() == []
    other.execute("ROLLBACK")
    assert hasty.create_issue("one", "", ()).number == 1
    other.close()
    hasty.close()


def test_a_damaged_database_is_a_permanent_error(forge: LocalForge, project: Path) -> None:
    forge.close()
    (project / "forge.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(ForgeError, match="not a database") as raised:
        LocalForge(project)
    assert not isinstance(raised.value, ForgeUnavailable)


def test_a_full_disk_is_reported_and_loses_no_issue(forge: LocalForge, project: Path) -> None:
    forge.create_issue("one", "", ())
    pages = forge._records._database.row("PRAGMA page_count")
    assert pages is not None
    forge._records._database.row(f"PRAGMA max_page_count = {pages[0]}")
    with pytest.raises(ForgeUnavailable, match="full") as raised:
        forge.create_issue("two", "x" * 200_000, ())
    assert "free some space" in raised.value.hint
    forge._records._database.row("PRAGMA max_page_count = 100000")
    assert [i.title for i in forge.issues()] == ["one"]
    assert forge.create_issue("two", "", ()).number == 2


def test_a_lock_left_on_main_is_named_and_the_merge_may_be_tried_again(
    forge: LocalForge, clone: Clone
) -> None:
    pull = clone.open_pull(forge, "feature")
    base = main_of(forge)
    lock = Path(forge.remote().url) / "refs" / "heads" / "main.lock"
    lock.touch()
    with pytest.raises(ForgeUnavailable, match=r"main\.lock"):
        forge.merge(pull.number, pull.head, base, "")
    assert main_of(forge) == base
    lock.unlink()
    assert forge.merge(pull.number, pull.head, base, "").pull.state == "merged"


@pytest.mark.parametrize("branch", ["main", "feature"])
def test_an_old_lock_of_a_killed_git_blocks_no_change(
    forge: LocalForge, clone: Clone, branch: str
) -> None:
    """Without this rule each retry fails, and the sprint never ends."""
    pull = clone.open_pull(forge, "feature")
    lock = Path(forge.remote().url) / "refs" / "heads" / f"{branch}.lock"
    lock.touch()
    os.utime(lock, (1, 1))

    def change() -> str:
        if branch == "main":
            return forge.merge(pull.number, pull.head, main_of(forge), "").pull.state
        new = clone.commit("feature", {"more.txt": "more\n"}, pull.head)
        return forge.push(clone.path, "feature", new, pull.head).commit

    with suppress(ForgeUnavailable):
        change()
    assert change()


@pytest.mark.parametrize(
    "stderr",
    [
        "error: pack-objects died of signal 9\nerror: failed to push some refs to 'x'",
        "error: unpack-objects died of signal 9\nerror: remote unpack failed: unpack-objects",
        "Killed\nsend-pack: unexpected disconnect while reading sideband packet",
        "fatal: Could not read from remote repository.\n\nPlease make sure you have the",
    ],
)
def test_a_push_whose_helper_was_killed_may_be_tried_again(stderr: str) -> None:
    """Git prints these messages if a process that it started for a push is killed."""
    failure = refs.forge_error(Path("mirror.git"), "push", 1, stderr)
    assert isinstance(failure, ForgeUnavailable)


def test_a_push_to_a_missing_forge_is_a_permanent_error(
    forge: LocalForge, clone: Clone, tmp_path: Path
) -> None:
    head = clone.commit("feature", {"f": "1\n"})
    gone = refs.ForgeRepository(tmp_path / "gone.git")
    with pytest.raises(ForgeError, match="push failed") as raised:
        gone.push_from(clone.path, "feature", head, "")
    assert not isinstance(raised.value, ForgeUnavailable)


def test_a_merge_waits_for_another_merge_up_to_a_limit(
    forge: LocalForge, clone: Clone, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refs, "_MERGE_WAIT_S", 0.1)
    pull = clone.open_pull(forge, "feature")
    cursor = forge.poll("").cursor
    with (project / "forge.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ForgeUnavailable, match="another process has been merging"):
            forge.merge(pull.number, "", "", "")
        clone.push("feature:main")
        assert forge.poll(cursor).snapshots == ()
    assert [s.object for s in forge.poll(cursor).snapshots] == ["pull:1", "branch:main"]


def test_a_missing_git_is_named(
    forge: LocalForge, clone: Clone, project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pull = clone.open_pull(forge, "feature")
    monkeypatch.setenv("PATH", str(tmp_path))
    without = LocalForge(project)
    with pytest.raises(ForgeError, match="git was not found") as raised:
        without.mergeable(pull.number)
    assert "install git" in raised.value.hint
    without.close()


def test_a_branch_name_below_another_branch_is_a_permanent_error(
    forge: LocalForge, clone: Clone
) -> None:
    commit = clone.commit("work", {"a.txt": "1"})
    forge.push(clone.path, "agent", commit, "")
    with pytest.raises(ForgeError, match="push failed") as raised:
        forge.push(clone.path, "agent/one", commit, "")
    assert not isinstance(raised.value, ForgeUnavailable)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_ref_that_cannot_be_read_is_a_failed_read(forge: LocalForge) -> None:
    (Path(forge.remote().url) / "refs" / "heads" / "main").chmod(0)
    with pytest.raises(ForgeUnavailable, match="cannot open"):
        forge.poll("")
