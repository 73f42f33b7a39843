"""The conformance suite for branches and merges: a change names the head and base it expects."""

from __future__ import annotations

import pytest

from caloron.domain.model.merge import MergeStyle
from caloron.domain.model.snapshots import PullSnapshot
from caloron.errors import ForgeError, MergeConflict, StaleBase, StaleHead, UsageError
from caloron.git.mirror import Merged, Mirror
from caloron.ports import VerifiedMerge
from tests.integration.forge.people import files_at, main_of
from tests.integration.forge.worlds import World, plain
from tests.support.git import git

UNSAFE = ("", "/a", "-a", "a..b", "a b", "a\n", "x" * 300, "a/", "a//b", ".a", "a.lock", "a/./b")


def files_on_main(world: World) -> dict[str, str]:
    world.clone.git("fetch", "--quiet", "origin")
    files = files_at(world.clone.path, "origin/main")
    return {name: text for name, text in files.items() if name != "README.md"}


def test_a_push_moves_a_branch_and_its_pull_request_at_once(world: World) -> None:
    pull = world.clone.open_pull(world.forge, "feature")
    before = world.forge.branch("feature")
    second = world.clone.commit("feature", {"more.txt": "more"})
    pushed = world.forge.push(world.clone.path, "feature", second, pull.head)
    assert before is not None
    assert (pushed.name, pushed.commit) == ("feature", second)
    assert pushed.version > before.version
    now = world.forge.branch("feature")
    assert now is not None
    assert plain(now) == plain(pushed)
    assert world.forge.pull(pull.number).head == second


def test_a_push_replaces_only_what_it_expects(world: World) -> None:
    forge, clone = world.forge, world.clone
    first = clone.commit("feature", {"a.txt": "1"})
    second = clone.commit("feature", {"a.txt": "2"})
    with pytest.raises(StaleHead, match="not there"):
        forge.push(clone.path, "feature", second, first)
    forge.push(clone.path, "feature", first, "")
    with pytest.raises(StaleHead, match=first):
        forge.push(clone.path, "feature", second, "")
    with pytest.raises(StaleHead, match=first):
        forge.push(clone.path, "feature", second, main_of(forge))
    branch = forge.branch("feature")
    assert branch is not None
    assert branch.commit == first


def test_a_push_may_rewrite_a_branch_and_may_be_repeated(world: World) -> None:
    first = world.clone.commit("feature", {"a.txt": "1"})
    rewritten = world.clone.commit("rewritten", {"a.txt": "2"})
    done = world.forge.push(world.clone.path, "feature", first, "")
    assert plain(world.forge.push(world.clone.path, "feature", first, "")) == plain(done)
    assert world.forge.push(world.clone.path, "feature", rewritten, first).commit == rewritten


def test_a_branch_name_that_is_not_safe_is_refused(world: World) -> None:
    main = main_of(world.forge)
    # A hosted forge may have branches that people named by other rules.
    only_local = ("A", "x" * 129) if world.kind == "local" else ()
    for name in (*UNSAFE, *only_local):
        with pytest.raises(UsageError, match="branch"):
            world.forge.push(world.clone.path, name, main, "")
        with pytest.raises(UsageError, match="branch"):
            world.forge.open_pull("title", "", name)
        with pytest.raises(UsageError, match="branch"):
            world.forge.branch(name)


def test_a_push_of_an_invalid_commit_is_refused(world: World) -> None:
    with pytest.raises(UsageError, match="full commit id"):
        world.forge.push(world.clone.path, "feature", "HEAD", "")
    with pytest.raises(ForgeError, match="push"):
        world.forge.push(world.clone.path, "feature", "1" * 40, "")
    assert world.forge.branch("feature") is None


def test_a_merge_joins_exactly_the_expected_head_and_base(world: World) -> None:
    forge, clone = world.forge, world.clone
    issue = forge.create_issue("one", "", ())
    base = main_of(forge)
    pull = clone.open_pull(forge, "feature", {"a.txt": "A"}, f"Closes #{issue.number}, fixes #99")
    merged = forge.merge(pull.number, pull.head, base, "Merge it\n\nBody 漢").pull
    assert (merged.state, merged.ended_by, merged.head) == ("merged", "caloron", pull.head)
    assert merged.merge_commit == main_of(forge)
    clone.git("fetch", "--quiet", "origin")
    assert clone.git("show", "-s", "--format=%P", "origin/main") == f"{base} {pull.head}"
    assert clone.git("show", "-s", "--format=%B", "origin/main") == "Merge it\n\nBody 漢"
    assert files_on_main(world) == {"a.txt": "A"}
    assert forge.issue(issue.number).state == "closed"
    (listed,) = forge.pulls("merged")
    assert (listed.number, listed.state) == (pull.number, "merged")
    assert listed.merge_commit == merged.merge_commit
    assert not forge.pulls("open")


def test_a_repeated_merge_returns_the_first_result(world: World) -> None:
    forge = world.forge
    pull = world.clone.open_pull(forge, "feature")
    base = main_of(forge)
    merged = forge.merge(pull.number, pull.head, base, "").pull
    assert plain(forge.merge(pull.number, pull.head, base, "").pull) == plain(merged)
    assert plain(forge.merge(pull.number, "", "", "").pull) == plain(merged)
    assert not forge.merge(pull.number, pull.head, base, "").did_it
    assert main_of(forge) == merged.merge_commit
    with pytest.raises(StaleHead, match=pull.head):
        forge.merge(pull.number, base, "", "")


def test_a_merge_of_a_head_that_moved_is_refused(world: World) -> None:
    forge, clone = world.forge, world.clone
    pull = clone.open_pull(forge, "feature")
    base = main_of(forge)
    second = clone.commit("feature", {"more.txt": "more"})
    forge.push(clone.path, "feature", second, pull.head)
    with pytest.raises(StaleHead, match=second):
        forge.merge(pull.number, pull.head, base, "")
    assert main_of(forge) == base
    assert forge.pull(pull.number).state == "open"


def test_a_merge_onto_a_main_that_moved_is_refused(world: World) -> None:
    forge = world.forge
    base = main_of(forge)
    first = world.clone.open_pull(forge, "one")
    second = world.clone.open_pull(forge, "two")
    forge.merge(first.number, first.head, base, "")
    with pytest.raises(StaleBase, match=base):
        forge.merge(second.number, second.head, base, "")
    merged = forge.merge(second.number, second.head, main_of(forge), "").pull
    assert merged.state == "merged"
    assert files_on_main(world).keys() == {"one.txt", "two.txt"}


STYLES: tuple[MergeStyle, ...] = ("merge", "squash", "rebase")


def verified_merge(
    world: World, pull: PullSnapshot, base: str, style: MergeStyle = "merge"
) -> VerifiedMerge:
    """Create the commit for main in our mirror, as the engine does."""
    mirror = Mirror(world.clone.path.parent / "mirror.git", world.forge.remote())
    mirror.ensure()
    mirror.fetch_main()
    mirror.fetch_branch(pull.branch)
    merged = mirror.merge(base, pull.head, "Merge it\n\nBody 漢", style=style)
    assert isinstance(merged, Merged)
    return VerifiedMerge(merged.commit, mirror.path, style)


def move_main(world: World) -> str:
    """Push a commit to main, so that no branch can be fast-forwarded."""
    commit = world.clone.commit("theirs", {"theirs.txt": "theirs"})
    world.clone.push(f"{commit}:refs/heads/main")
    return commit


@pytest.mark.parametrize("style", STYLES)
def test_a_verified_merge_is_pushed_byte_for_byte(world: World, style: MergeStyle) -> None:
    forge, clone = world.forge, world.clone
    issue = forge.create_issue("one", "", ())
    pull = clone.open_pull(forge, "feature", body=f"Closes #{issue.number}")
    base = move_main(world)
    verified = verified_merge(world, pull, base, style)
    assert verified.commit != pull.head
    # With the same message a merge that the forge makes could be the same commit.
    done = forge.merge(pull.number, pull.head, base, "Another message", verified)
    assert done.did_it
    assert (done.pull.state, done.pull.ended_by, done.pull.head) == ("merged", "caloron", pull.head)
    assert done.pull.merge_commit == main_of(forge) == verified.commit
    clone.git("fetch", "--quiet", "origin")
    parents = clone.git("log", "-1", "--format=%P", "origin/main").split()
    assert parents == ([base, pull.head] if style == "merge" else [base])
    commit_on_main = clone.git("cat-file", "commit", "origin/main")
    assert commit_on_main == git(verified.source, "cat-file", "commit", verified.commit)
    assert forge.issue(issue.number).state == "closed"
    assert not forge.merge(pull.number, pull.head, base, "Merge it", verified).did_it


def test_a_verified_merge_onto_a_main_that_moved_is_refused(
    world: World,
) -> None:
    forge, clone = world.forge, world.clone
    base = main_of(forge)
    pull = clone.open_pull(forge, "feature")
    verified = verified_merge(world, pull, base)
    other_commit = clone.commit("theirs", {"theirs.txt": "theirs"})
    clone.push(f"{other_commit}:refs/heads/main")
    with pytest.raises(StaleBase, match=base):
        forge.merge(pull.number, pull.head, base, "Merge it", verified)
    assert main_of(forge) == other_commit
    assert forge.pull(pull.number).state == "open"


@pytest.mark.parametrize("style", STYLES)
def test_a_verified_merge_that_was_killed_after_its_push_is_shown_as_merged(
    world: World, style: MergeStyle
) -> None:
    forge = world.forge
    issue = forge.create_issue("one", "", ())
    pull = world.clone.open_pull(forge, "feature", body=f"Closes #{issue.number}")
    base = move_main(world)
    verified = verified_merge(world, pull, base, style)
    git(world.clone.path, "fetch", "--quiet", str(verified.source), verified.commit)
    git(world.clone.path, "push", "--quiet", "origin", f"{verified.commit}:refs/heads/main")
    again = world.reopened()
    shown = again.mark_merged(pull.number, verified.commit)
    assert (shown.state, shown.merge_commit) == ("merged", verified.commit)
    assert again.issue(issue.number).state == "closed"
    assert plain(again.mark_merged(pull.number, verified.commit)) == plain(shown)
    assert not again.merge(pull.number, pull.head, base, "Merge it", verified).did_it
    assert main_of(again) == verified.commit
    again.close()


def test_a_conflict_changes_nothing(world: World) -> None:
    forge = world.forge
    first = world.clone.open_pull(forge, "one", {"same näme.txt": "1"})
    second = world.clone.open_pull(forge, "two", {"same näme.txt": "2"})
    assert forge.mergeable(first.number)
    assert forge.mergeable(second.number)
    forge.merge(first.number, "", "", "")
    base = main_of(forge)
    assert not forge.mergeable(first.number)
    # Only the local forge runs git itself and names the conflicting files.
    files = ".*same näme.txt" if world.kind == "local" else ""
    with pytest.raises(MergeConflict, match=f"#{second.number}{files}"):
        forge.merge(second.number, second.head, base, "")
    assert main_of(forge) == base
    assert plain(forge.pull(second.number)) == plain(second)


def test_a_conflict_that_was_resolved_in_the_branch_merges(world: World) -> None:
    forge, clone = world.forge, world.clone
    first = clone.open_pull(forge, "one", {"a.txt": "1"})
    second = clone.open_pull(forge, "two", {"a.txt": "2"})
    forge.merge(first.number, "", "", "")
    clone.git("fetch", "--quiet", "origin")
    clone.git("merge", "--quiet", "-s", "ours", "-m", "resolve", "origin/main")
    forge.push(clone.path, "two", clone.git("rev-parse", "HEAD"), second.head)
    assert forge.mergeable(second.number)
    assert forge.merge(second.number, "", "", "").pull.state == "merged"
    assert files_on_main(world)["a.txt"] == "2"


def test_a_branch_without_own_commits_cannot_be_merged(world: World) -> None:
    world.forge.push(world.clone.path, "empty", main_of(world.forge), "")
    with pytest.raises(ForgeError, match="nothing to merge"):
        world.forge.merge(world.forge.open_pull("empty", "", "empty").number, "", "", "")


def test_the_diff_is_the_same_before_and_after_the_merge(
    world: World,
) -> None:
    forge = world.forge
    first = world.clone.open_pull(forge, "one", {"one.txt": "één\n"})
    second = world.clone.open_pull(forge, "two", {"two.txt": "2\n"})
    forge.merge(second.number, "", "", "")
    before = forge.diff(first.number)
    assert "+één" in before
    assert "two.txt" not in before
    forge.merge(first.number, "", "", "")
    assert forge.diff(first.number) == before
    assert "two.txt" in forge.diff(second.number)


def test_a_pull_request_merged_by_a_person_who_removes_the_branch_is_merged(world: World) -> None:
    pull = world.clone.open_pull(world.forge, "feature")
    world.anna.merge(pull.number)
    world.clone.push(":refs/heads/feature")
    merged = world.forge.pull(pull.number)
    assert (merged.state, merged.ended_by, merged.head) == ("merged", "anna", pull.head)
    assert merged.merge_commit == main_of(world.forge)
    assert world.forge.branch("feature") is None


def test_a_commit_without_checks_has_the_state_none(world: World) -> None:
    assert world.forge.checks(main_of(world.forge)).state == "none"
