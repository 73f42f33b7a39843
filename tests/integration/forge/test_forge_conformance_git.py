"""What every forge must do with branches and merges: exactly this head, on exactly this base."""

from __future__ import annotations

import pytest

from caloron.domain.model.snapshots import PullSnapshot
from caloron.errors import ForgeError, MergeConflict, StaleBase, StaleHead, UsageError
from caloron.git.mirror import Merged, Mirror
from caloron.ports import VerifiedMerge
from tests.integration.forge.people import files_at, main_of
from tests.integration.forge.worlds import World, plain
from tests.support.git import git

UNSAFE = (
    "",
    "/a",
    "-a",
    "a..b",
    "a b",
    "a\n",
    "x" * 300,
    "a/",
    "a//b",
    ".a",
    "a.lock",
    "a/./b",
)


def files_on_main(world: World) -> dict[str, str]:
    world.clone.git("fetch", "--quiet", "origin")
    found = files_at(world.clone.path, "origin/main")
    return {name: text for name, text in found.items() if name != "README.md"}


def test_a_push_moves_a_branch_and_its_pull_request_at_once(world: World) -> None:
    pull = world.clone.open_pull(world.forge, "feature")
    before = world.forge.branch("feature")
    second = world.clone.commit("feature", {"more.txt": "more"})
    seen = world.forge.push(world.clone.path, "feature", second, pull.head)
    assert before is not None
    assert (seen.name, seen.commit) == ("feature", second)
    assert seen.version > before.version
    now = world.forge.branch("feature")
    assert now is not None
    assert plain(now) == plain(seen)
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
    seen = forge.branch("feature")
    assert seen is not None
    assert seen.commit == first


def test_a_push_may_rewrite_a_branch(world: World) -> None:
    first = world.clone.commit("feature", {"a.txt": "1"})
    rewritten = world.clone.commit("rewritten", {"a.txt": "2"})
    world.forge.push(world.clone.path, "feature", first, "")
    assert world.forge.push(world.clone.path, "feature", rewritten, first).commit == rewritten


def test_a_push_that_was_done_already_is_done(world: World) -> None:
    first = world.clone.commit("feature", {"a.txt": "1"})
    done = world.forge.push(world.clone.path, "feature", first, "")
    assert plain(world.forge.push(world.clone.path, "feature", first, "")) == plain(done)


def test_a_branch_name_that_is_not_safe_is_refused(world: World) -> None:
    main = main_of(world.forge)
    # On a forge of other people a branch has the name that they gave it.
    only_local = ("A", "x" * 129) if world.kind == "local" else ()
    for name in (*UNSAFE, *only_local):
        with pytest.raises(UsageError, match="branch"):
            world.forge.push(world.clone.path, name, main, "")
        with pytest.raises(UsageError, match="branch"):
            world.forge.open_pull("title", "", name)
        with pytest.raises(UsageError, match="branch"):
            world.forge.branch(name)


def test_a_push_of_what_is_no_commit_is_refused(world: World) -> None:
    with pytest.raises(UsageError, match="full commit id"):
        world.forge.push(world.clone.path, "feature", "HEAD", "")
    with pytest.raises(ForgeError, match="push"):
        world.forge.push(world.clone.path, "feature", "1" * 40, "")
    assert world.forge.branch("feature") is None


def test_a_merge_puts_exactly_this_head_on_exactly_this_base(world: World) -> None:
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


def test_a_merge_that_was_done_already_is_done(world: World) -> None:
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
    one = world.clone.open_pull(forge, "one")
    two = world.clone.open_pull(forge, "two")
    forge.merge(one.number, one.head, base, "")
    with pytest.raises(StaleBase, match=base):
        forge.merge(two.number, two.head, base, "")
    merged = forge.merge(two.number, two.head, main_of(forge), "").pull
    assert merged.state == "merged"
    assert files_on_main(world).keys() == {"one.txt", "two.txt"}


def verified_merge(world: World, pull: PullSnapshot, base: str) -> VerifiedMerge:
    """A merge commit of ours, in our own copy of the repository, as the engine makes it."""
    mirror = Mirror(world.clone.path.parent / "mirror.git", world.forge.remote())
    mirror.ensure()
    mirror.fetch_main()
    mirror.fetch_branch(pull.branch)
    merged = mirror.merge(base, pull.head, "Merge it\n\nBody 漢")
    assert isinstance(merged, Merged)
    return VerifiedMerge(merged.commit, mirror.path)


def test_a_verified_merge_lands_byte_for_byte(world: World) -> None:
    forge, clone = world.forge, world.clone
    issue = forge.create_issue("one", "", ())
    base = main_of(forge)
    pull = clone.open_pull(forge, "feature", body=f"Closes #{issue.number}")
    verified = verified_merge(world, pull, base)
    done = forge.merge(pull.number, pull.head, base, "Merge it\n\nBody 漢", verified)
    assert done.did_it
    assert (done.pull.state, done.pull.ended_by, done.pull.head) == ("merged", "caloron", pull.head)
    assert done.pull.merge_commit == main_of(forge) == verified.commit
    clone.git("fetch", "--quiet", "origin")
    there = clone.git("cat-file", "commit", "origin/main")
    assert there == git(verified.source, "cat-file", "commit", verified.commit)
    assert forge.issue(issue.number).state == "closed"
    assert not forge.merge(pull.number, pull.head, base, "Merge it", verified).did_it


def test_a_verified_merge_onto_a_main_that_moved_is_refused_and_nothing_lands(
    world: World,
) -> None:
    forge, clone = world.forge, world.clone
    base = main_of(forge)
    pull = clone.open_pull(forge, "feature")
    verified = verified_merge(world, pull, base)
    theirs = clone.commit("theirs", {"theirs.txt": "theirs"})
    clone.push(f"{theirs}:refs/heads/main")
    with pytest.raises(StaleBase, match=base):
        forge.merge(pull.number, pull.head, base, "Merge it", verified)
    assert main_of(forge) == theirs
    assert forge.pull(pull.number).state == "open"


def test_a_verified_merge_that_was_killed_after_its_push_is_shown_as_merged(world: World) -> None:
    forge, base = world.forge, main_of(world.forge)
    pull = world.clone.open_pull(forge, "feature")
    verified = verified_merge(world, pull, base)
    git(world.clone.path, "fetch", "--quiet", str(verified.source), verified.commit)
    git(world.clone.path, "push", "--quiet", "origin", f"{verified.commit}:refs/heads/main")
    again = world.reopened()
    shown = again.mark_merged(pull.number, verified.commit)
    assert (shown.state, shown.merge_commit) == ("merged", verified.commit)
    assert plain(again.mark_merged(pull.number, verified.commit)) == plain(shown)
    assert not again.merge(pull.number, pull.head, base, "Merge it", verified).did_it
    assert main_of(again) == verified.commit
    again.close()


def test_a_conflict_changes_nothing(world: World) -> None:
    forge = world.forge
    one = world.clone.open_pull(forge, "one", {"same näme.txt": "1"})
    two = world.clone.open_pull(forge, "two", {"same näme.txt": "2"})
    assert forge.mergeable(one.number)
    assert forge.mergeable(two.number)
    forge.merge(one.number, "", "", "")
    base = main_of(forge)
    assert not forge.mergeable(one.number)
    # Only where git runs for us does it say which files they are.
    files = ".*same näme.txt" if world.kind == "local" else ""
    with pytest.raises(MergeConflict, match=f"#{two.number}{files}"):
        forge.merge(two.number, two.head, base, "")
    assert main_of(forge) == base
    assert plain(forge.pull(two.number)) == plain(two)


def test_a_conflict_that_was_resolved_in_the_branch_merges(world: World) -> None:
    forge, clone = world.forge, world.clone
    one = clone.open_pull(forge, "one", {"a.txt": "1"})
    two = clone.open_pull(forge, "two", {"a.txt": "2"})
    forge.merge(one.number, "", "", "")
    clone.git("fetch", "--quiet", "origin")
    clone.git("merge", "--quiet", "-s", "ours", "-m", "resolve", "origin/main")
    forge.push(clone.path, "two", clone.git("rev-parse", "HEAD"), two.head)
    assert forge.mergeable(two.number)
    assert forge.merge(two.number, "", "", "").pull.state == "merged"
    assert files_on_main(world)["a.txt"] == "2"


def test_a_branch_without_commits_of_its_own_has_nothing_to_merge(world: World) -> None:
    world.forge.push(world.clone.path, "empty", main_of(world.forge), "")
    with pytest.raises(ForgeError, match="nothing to merge"):
        world.forge.merge(world.forge.open_pull("empty", "", "empty").number, "", "", "")


def test_the_diff_is_what_the_pull_request_changes_before_and_after_the_merge(
    world: World,
) -> None:
    forge = world.forge
    one = world.clone.open_pull(forge, "one", {"one.txt": "één\n"})
    two = world.clone.open_pull(forge, "two", {"two.txt": "2\n"})
    forge.merge(two.number, "", "", "")
    before = forge.diff(one.number)
    assert "+één" in before
    assert "two.txt" not in before
    forge.merge(one.number, "", "", "")
    assert forge.diff(one.number) == before
    assert "two.txt" in forge.diff(two.number)


def test_a_person_who_merges_with_the_branch_removed_ends_the_pull_request(world: World) -> None:
    pull = world.clone.open_pull(world.forge, "feature")
    world.anna.merge(pull.number)
    world.clone.push(":refs/heads/feature")
    seen = world.forge.pull(pull.number)
    assert (seen.state, seen.ended_by, seen.head) == ("merged", "anna", pull.head)
    assert seen.merge_commit == main_of(world.forge)
    assert world.forge.branch("feature") is None


def test_a_commit_without_checks_of_the_forge_waits_for_none(world: World) -> None:
    assert world.forge.checks(main_of(world.forge)).state == "none"
