"""People use plain git on the local forge, and the forge recognises their changes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from caloron.errors import ForgeError, ForgeUnavailable, StaleHead
from caloron.forge.local.forge import LocalForge
from tests.integration.forge.people import Clone, main_of
from tests.support.git import git


def test_every_read_of_a_pull_request_knows_its_newest_head(
    forge: LocalForge, clone: Clone
) -> None:
    pull = clone.open_pull(forge, "feature")
    for read in (
        lambda: forge.pull(pull.number).head,
        lambda: forge.pulls("open")[0].head,
        lambda: forge.review(pull.number, "", "approved", "").head,
        lambda: forge.merge(pull.number, "", "", "").pull.head,
    ):
        head = clone.commit("feature", {"more.txt": f"{read}"})
        clone.push("feature")
        assert read() == head


def test_a_branch_deleted_by_hand_leaves_the_pull_request_its_last_head(
    forge: LocalForge, clone: Clone
) -> None:
    pull = clone.open_pull(forge, "feature")
    cursor = forge.poll("").cursor
    clone.push(":feature")
    assert forge.poll(cursor).snapshots == ()
    assert forge.pull(pull.number) == pull
    assert forge.branch("feature") is None
    assert "feature.txt" in forge.diff(pull.number)
    with pytest.raises(StaleHead, match="feature is not there"):
        forge.merge(pull.number, pull.head, "", "")


def test_an_idle_poll_starts_no_process(
    forge: LocalForge, clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone.open_pull(forge, "feature")
    cursor = forge.poll("").cursor

    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", refuse)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert forge.poll(cursor).snapshots == ()


def test_a_merge_by_hand_is_recognised_with_its_author(forge: LocalForge, clone: Clone) -> None:
    issue = forge.create_issue("one", "", ())
    pull = clone.open_pull(forge, "feature", body=f"Closes #{issue.number}")
    cursor = forge.poll("").cursor
    clone.git("checkout", "--quiet", "main")
    clone.git("merge", "--quiet", "--no-ff", "-m", "by hand", "feature")
    clone.push("main")
    merge_commit = clone.git("rev-parse", "HEAD")
    clone.commit("main", {"later.txt": "later"})
    clone.push("main")
    objects = [s.object for s in forge.poll(cursor).snapshots]
    assert objects == [f"pull:{pull.number}", f"issue:{issue.number}", "branch:main"]
    merged = forge.pull(pull.number)
    assert (merged.state, merged.ended_by, merged.head) == ("merged", "Anna", pull.head)
    assert merged.merge_commit == merge_commit
    closed = forge.issue(issue.number)
    assert (closed.state, closed.closed_by) == ("closed", "Anna")
    assert "later.txt" not in forge.diff(pull.number)


def test_a_fast_forward_by_hand_is_a_merge_with_its_complete_diff(
    forge: LocalForge, clone: Clone
) -> None:
    clone.commit("feature", {"first.txt": "1"})
    pull = clone.open_pull(forge, "feature", {"second.txt": "2"})
    clone.push("feature:main")
    merged = forge.pull(pull.number)
    assert (merged.state, merged.ended_by) == ("merged", "git push")
    assert merged.merge_commit == pull.head
    assert "first.txt" in forge.diff(pull.number)
    assert "second.txt" in forge.diff(pull.number)


def test_a_head_pushed_together_with_the_merge_of_it_is_merged(
    forge: LocalForge, clone: Clone
) -> None:
    pull = clone.open_pull(forge, "feature")
    amended = clone.commit("other", {"feature.txt": "better"})
    clone.push("other:feature", "other:main")
    merged = forge.pull(pull.number)
    assert (merged.state, merged.head) == ("merged", amended)


def test_commits_pushed_after_the_merge_by_hand_do_not_reopen_it(
    forge: LocalForge, clone: Clone
) -> None:
    pull = clone.open_pull(forge, "feature")
    clone.push("feature:main")
    clone.commit("feature", {"later.txt": "later"})
    clone.push("feature")
    merged = forge.pull(pull.number)
    assert (merged.state, merged.head) == ("merged", pull.head)


def test_an_empty_branch_is_not_merged_when_main_moves_on(forge: LocalForge, clone: Clone) -> None:
    forge.push(clone.path, "empty", main_of(forge), "")
    pull = forge.open_pull("empty", "", "empty")
    clone.commit("work", {"a.txt": "1"})
    clone.push("work:main")
    assert forge.pull(pull.number).state == "open"


def test_a_branch_that_was_reset_to_main_is_not_merged_by_it(
    forge: LocalForge, clone: Clone
) -> None:
    pull = clone.open_pull(forge, "feature")
    clone.commit("work", {"a.txt": "1"})
    clone.push("work:main")
    assert forge.pull(pull.number).state == "open"
    forge.push(clone.path, "feature", main_of(forge), pull.head)
    clone.commit("work", {"a.txt": "2"})
    clone.push("work:main")
    assert forge.pull(pull.number).state == "open"


def test_a_closed_pull_request_stays_closed_when_its_commits_reach_main(
    forge: LocalForge, clone: Clone
) -> None:
    pull = clone.open_pull(forge, "feature")
    forge.close_pull(pull.number)
    clone.push("feature:main")
    assert forge.pull(pull.number).state == "closed"


def test_a_merge_also_merges_the_pull_requests_that_it_contains(
    forge: LocalForge, clone: Clone
) -> None:
    below = clone.open_pull(forge, "below")
    above = clone.open_pull(forge, "above", start="below")
    apart = clone.open_pull(forge, "apart")
    merged = forge.merge(above.number, "", "", "").pull
    also = forge.pull(below.number)
    assert (also.state, also.ended_by) == ("merged", "caloron")
    assert also.merge_commit == merged.merge_commit
    assert forge.pull(apart.number).state == "open"


def test_a_missing_main_fails_the_read_and_changes_nothing(forge: LocalForge, clone: Clone) -> None:
    pull = clone.open_pull(forge, "feature")
    cursor = forge.poll("").cursor
    bare = Path(forge.remote().url)
    ref = bare / "refs" / "heads" / "main"
    ref.rename(bare / "aside")
    with pytest.raises(ForgeUnavailable, match="no branch main"):
        forge.poll(cursor)
    (bare / "aside").rename(ref)
    assert forge.poll(cursor).snapshots == ()
    assert forge.pull(pull.number) == pull


def test_a_damaged_ref_is_named(forge: LocalForge, clone: Clone) -> None:
    clone.open_pull(forge, "feature")
    (Path(forge.remote().url) / "refs" / "heads" / "feature").write_text("", "utf-8")
    with pytest.raises(ForgeError, match="branch feature is damaged"):
        forge.poll("")


def test_heads_whose_objects_are_gone_do_not_stop_the_forge(
    forge: LocalForge, clone: Clone
) -> None:
    pull = clone.open_pull(forge, "feature")
    clone.push(":feature")
    git(Path(forge.remote().url), "gc", "--quiet", "--prune=now")
    clone.commit("work", {"a.txt": "1"})
    clone.push("work:main")
    assert forge.pull(pull.number) == pull
    with pytest.raises(ForgeError, match="diff failed"):
        forge.diff(pull.number)


def test_a_push_does_not_overwrite_a_concurrent_push_by_hand(
    forge: LocalForge, clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    pull = clone.open_pull(forge, "feature")
    our_commit = clone.commit("ours", {"a.txt": "ours"}, start="feature")
    annas_commit = clone.commit("hers", {"a.txt": "hers"}, start="feature")
    push_from = forge._repository.push_from

    def late(source: Path, branch: str, new: str, old: str) -> str:
        clone.push("hers:feature")
        return push_from(source, branch, new, old)

    monkeypatch.setattr(forge._repository, "push_from", late)
    with pytest.raises(StaleHead, match=annas_commit):
        forge.push(clone.path, "feature", our_commit, pull.head)
    assert forge.pull(pull.number).head == annas_commit
