"""The facts that the executor reports about a merge, on a real forge and real git."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from caloron.domain.model.effects import MakeRevert, Merge, OpenPull, Push
from caloron.domain.model.facts import EffectDone, EffectFailed, Fact
from caloron.domain.model.snapshots import BranchSnapshot, PullSnapshot, marker
from caloron.engine.forge import merging
from caloron.engine.forge.merging import make_revert, verified_merge
from caloron.errors import MergeConflict
from caloron.forge.local.forge import LocalForge, create_local_forge
from caloron.git.command import git
from caloron.git.mirror import Conflict, Mirror
from caloron.ports import Checks, Merged, VerifiedMerge
from tests.integration.engine.parts import Parts

BRANCH = "agent/a/demo-1"
ADA = ("-c", "user.name=Ada", "-c", "user.email=ada@localhost")
TITLE = "Merge pull request #1: [a] A"


class BlindForge:
    """A forge that accepts no base for a merge, like a forge on another machine."""

    def __init__(self, forge: LocalForge) -> None:
        self._forge = forge
        self.before_merge: Callable[[], object] = lambda: None
        self.state = Checks(state="none")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._forge, name)

    def checks(self, head: str) -> Checks:
        return self.state

    def merge(
        self, number: int, head: str, base: str, message: str, verified: VerifiedMerge | None
    ) -> Merged:
        self.before_merge()
        return self._forge.merge(number, head, "", message)


class Bench(Parts):
    """The engine's parts around a blind forge with one open pull request."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.forge = create_local_forge(home, name="demo")
        self.blind = BlindForge(self.forge)
        self.mirror = Mirror(home / "mirror.git", self.forge.remote())
        self.mirror.ensure()
        self.main = self.mirror.fetch_main()
        self.use(self.blind)
        self.head = self.commit("a.txt", "a\n", self.main)
        key = "pull/demo-1/a/1"
        self.do(Push(key="push/a", task="a", branch=BRANCH, old="", new=self.head))
        self.do(OpenPull(key=key, task="a", title="[a] A", body=marker(key), branch=BRANCH))

    def use(self, forge: Any) -> None:
        """Perform effects on this forge from now on."""
        self.effect_operations = self.operations(forge, self.mirror)
        self.effects = self.executor(self.effect_operations)

    def close(self) -> None:
        self.ledger.close()
        self.forge.close()

    def commit(self, name: str, text: str, *parents: str) -> str:
        """A commit in our own repository that changes one file of its first parent."""
        clone = self.home / "clone"
        if not clone.exists():
            git(self.home, "clone", "-q", str(self.mirror.path), str(clone))
        git(clone, "fetch", "-q", "origin", "+refs/*:refs/all/*")
        git(clone, "checkout", "-q", "--detach", parents[0])
        (clone / name).write_text(text, "utf-8")
        git(clone, "add", "-A")
        git(clone, *ADA, "commit", "-q", "-m", f"{name}: {text.strip()}")
        made = git(clone, "rev-parse", "HEAD")
        git(clone, "push", "-q", str(self.mirror.path), f"{made}:refs/caloron/test/{made}")
        return made

    def push_main(self, name: str, text: str) -> str:
        made = self.commit(name, text, self.mirror.fetch_main())
        self.move_main(made)
        return made

    def move_main(self, commit: str) -> None:
        url = self.forge.remote().url
        git(self.mirror.path, "push", "-q", url, f"{commit}:refs/heads/main")

    def do(self, effect: Any) -> list[Fact]:
        self.plan(effect)
        self.effects.perform(self.entry())
        return list(self.ledger.load(self.sprint).facts)

    def merge(self) -> Merge:
        return Merge(key="merge/1", task="a", pull=1, head=self.head, base=self.main, message=TITLE)

    def revert(self, merged: str, **changes: str) -> MakeRevert:
        how = {"merged_as": TITLE, "head": self.head, "base": self.main} | changes
        return MakeRevert(
            key="revert/a",
            task="a",
            branch="caloron/revert/demo-1/a/1",
            commit=merged,
            merged_as=how["merged_as"],
            head=how["head"],
            base=how["base"],
            message="Revert #1",
        )

    def text(self, commit: str) -> dict[str, str]:
        names = self.mirror.files(commit)
        return {name: self.mirror.read(commit, name) for name in names if name != "README.md"}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def done(facts: list[Fact]) -> EffectDone:
    (fact,) = [f for f in facts if isinstance(f, EffectDone) and f.kind != "push"]
    return fact


def failed(facts: list[Fact]) -> EffectFailed:
    (fact,) = [f for f in facts if isinstance(f, EffectFailed)]
    return fact


def verified(bench: Bench) -> tuple[Merge, str]:
    """A merge whose tree was verified, and its commit."""
    merged = bench.mirror.merge(bench.main, bench.head, TITLE)
    assert not isinstance(merged, Conflict)
    return msgspec.structs.replace(bench.merge(), tree=merged.tree), merged.commit


def test_a_merge_reports_its_commit_and_the_tree_of_main(bench: Bench) -> None:
    effect, _ = verified(bench)
    fact = done(bench.do(bench.merge()))
    assert fact.commit == bench.forge.pull(1).merge_commit
    assert (fact.tree, fact.by_us) == (effect.tree, True)


def test_a_merge_into_a_moved_main_reports_another_tree(bench: Bench) -> None:
    effect, _ = verified(bench)
    bench.blind.before_merge = lambda: bench.push_main("b.txt", "b\n")
    fact = done(bench.do(bench.merge()))
    assert fact.tree not in ("", effect.tree)
    assert bench.text(fact.commit) == {"a.txt": "a\n", "b.txt": "b\n"}


def test_a_merge_with_a_lost_answer_reports_the_same_facts(bench: Bench) -> None:
    bench.blind.before_merge = lambda: bench.push_main("b.txt", "b\n")
    first = bench.effect_operations.do(bench.merge())
    bench.push_main("c.txt", "c\n")
    again = bench.effect_operations.find(bench.merge())
    assert again is not None
    assert done(list(again)) == done(list(first))


def merge_as_person(bench: Bench) -> None:
    person = LocalForge(bench.home, actor="ada")
    person.merge(1, bench.head, "", "Merge branch a")
    person.close()


def test_a_merge_by_a_person_is_not_reported_as_ours(bench: Bench) -> None:
    merge_as_person(bench)
    facts = bench.effect_operations.find(bench.merge())
    assert facts is not None
    assert not done(list(facts)).by_us
    assert not done(bench.do(bench.merge())).by_us


def test_a_merge_by_a_person_after_the_last_check_is_the_persons(bench: Bench) -> None:
    """The person merges after our last check, so a red main is not reverted by the sprint."""
    bench.blind.before_merge = lambda: merge_as_person(bench)
    fact = done(bench.do(bench.merge()))
    assert (fact.commit, fact.by_us) == (bench.forge.pull(1).merge_commit, False)


class ForgeWithAnotherBranch(BlindForge):
    """A forge where a person changes the base of the pull request just before its merge."""

    commit = ""

    def pull(self, number: int) -> PullSnapshot:
        seen = self._forge.pull(number)
        if not self.commit:
            return seen
        return msgspec.structs.replace(seen, state="merged", merge_commit=self.commit)

    def merge(
        self, number: int, head: str, base: str, message: str, verified: VerifiedMerge | None
    ) -> Merged:
        self.before_merge()
        return Merged(self.pull(number), did_it=True)


@pytest.mark.parametrize("fetched", [False, True])
def test_a_merge_into_another_branch_is_reported_as_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fetched: bool
) -> None:
    monkeypatch.setattr(merging, "_PAUSES_S", (0.0,))
    elsewhere = ForgeWithAnotherBranch(bench.forge)
    bench.use(elsewhere)
    commit = bench.commit("dev.txt", "dev\n", bench.head) if fetched else "d" * 40
    elsewhere.before_merge = lambda: setattr(elsewhere, "commit", commit)
    facts = bench.do(bench.merge())
    failure = failed(facts)
    assert (failure.refusal, failure.message) == (
        "elsewhere",
        f"pull request #1 was merged as {commit[:12]}, which is not on main",
    )
    assert [f.state for f in facts if isinstance(f, PullSnapshot)][-1] == "closed"
    assert not [f for f in facts if isinstance(f, EffectDone) and f.kind == "merge"]


@pytest.mark.parametrize(
    ("state", "refusal", "message", "events"),
    [
        # A pending CI is asked every few seconds: no event for that.
        ("pending", "waiting", "waits for the forge's CI: build, lint", 0),
        ("red", "checks", "the forge's CI failed: build, lint", 1),
    ],
)
def test_a_merge_waits_for_the_forges_ci_and_obeys_it(
    bench: Bench, state: Any, refusal: str, message: str, events: int
) -> None:
    bench.blind.state = Checks(state=state, detail="build, lint")
    failure = failed(bench.do(bench.merge()))
    assert (failure.refusal, failure.message) == (refusal, message)
    assert bench.forge.pull(1).state == "open"
    rows = bench.ledger.db.rows("SELECT type FROM events WHERE type LIKE 'effect_failed'")
    assert len(rows) == events


def test_a_late_merge_reports_the_main_of_that_moment(bench: Bench) -> None:
    bench.push_main("b.txt", "b\n")
    bench.use(bench.forge)
    facts = bench.do(bench.merge())
    assert failed(facts).refusal == "stale_base"
    mains = [f.commit for f in facts if isinstance(f, BranchSnapshot)]
    assert mains == [bench.mirror.fetch_main()]


def test_a_green_ci_lets_the_merge_through(bench: Bench) -> None:
    bench.blind.state = Checks(state="green")
    assert done(bench.do(bench.merge())).by_us


def reverted(bench: Bench, effect: MakeRevert) -> tuple[str, str]:
    """Main without the change, and main with the change that was brought back."""
    made = make_revert(bench.mirror, effect)
    main = bench.mirror.fetch_main()
    without = bench.mirror.merge(main, made.head, "m")
    assert not isinstance(without, Conflict)
    again = bench.mirror.merge(without.commit, made.reapply_commit, "m")
    assert not isinstance(again, Conflict)
    return without.commit, again.commit


def test_a_revert_removes_only_its_change(bench: Bench) -> None:
    bench.blind.before_merge = lambda: bench.push_main("b.txt", "b\n")
    merged = done(bench.do(bench.merge())).commit
    bench.push_main("c.txt", "c\n")
    without, again = reverted(bench, bench.revert(merged))
    assert bench.text(without) == {"b.txt": "b\n", "c.txt": "c\n"}
    assert bench.text(again) == {"a.txt": "a\n", "b.txt": "b\n", "c.txt": "c\n"}


def test_a_squashed_merge_can_be_reverted(bench: Bench) -> None:
    parent = bench.push_main("b.txt", "b\n")
    squashed = bench.commit("a.txt", "a\n", parent)
    bench.move_main(squashed)
    subject = bench.mirror.subject(squashed)
    without, again = reverted(bench, bench.revert(squashed, merged_as=subject))
    assert bench.text(without) == {"b.txt": "b\n"}
    assert bench.text(again) == {"a.txt": "a\n", "b.txt": "b\n"}


def test_a_rebased_merge_of_several_commits_is_reverted_as_a_whole(bench: Bench) -> None:
    second = bench.commit("a2.txt", "a2\n", bench.head)
    parent = bench.push_main("b.txt", "b\n")
    rebased = bench.commit("a2.txt", "a2\n", bench.commit("a.txt", "a\n", parent))
    bench.move_main(rebased)
    without, again = reverted(bench, bench.revert(rebased, head=second))
    assert bench.text(without) == {"b.txt": "b\n"}
    assert bench.text(again) == {"a.txt": "a\n", "a2.txt": "a2\n", "b.txt": "b\n"}


def test_a_fast_forwarded_merge_can_be_reverted(bench: Bench) -> None:
    bench.move_main(bench.head)
    without, _ = reverted(bench, bench.revert(bench.head))
    assert bench.text(without) == {}


def test_the_same_revert_made_twice_is_the_same_commit(bench: Bench) -> None:
    merged = done(bench.do(bench.merge())).commit
    effect = bench.revert(merged)
    first = bench.effect_operations.do(effect)
    bench.push_main("c.txt", "c\n")
    assert bench.effect_operations.find(effect) == first
    assert bench.effect_operations.do(effect) == first


def test_a_revert_of_a_file_that_changed_since_is_a_conflict_that_names_the_file(
    bench: Bench,
) -> None:
    merged = done(bench.do(bench.merge())).commit
    bench.push_main("a.txt", "a and more\n")
    with pytest.raises(MergeConflict, match=r"a\.txt"):
        make_revert(bench.mirror, bench.revert(merged))
    facts = bench.do(bench.revert(merged))
    assert failed(facts).refusal == "conflict"
    assert bench.forge.branch("caloron/revert/demo-1/a/1") is None


class ForgeWithoutDetection(BlindForge):
    """A forge that does not detect a merge by a push to main."""

    marked_commit = ""

    def pull(self, number: int) -> PullSnapshot:
        seen = self._forge.pull(number)
        return (
            seen
            if self.marked_commit
            else msgspec.structs.replace(seen, state="open", merge_commit="")
        )

    def mark_merged(self, number: int, commit: str) -> PullSnapshot:
        self.marked_commit = commit
        return self.pull(number)


def test_the_verified_commit_itself_is_pushed_to_main(bench: Bench) -> None:
    bench.use(bench.forge)
    effect, commit = verified(bench)
    facts = done(bench.do(effect))
    assert (facts.commit, facts.tree, facts.by_us) == (commit, effect.tree, True)
    assert bench.mirror.fetch_main() == commit


def test_a_merge_that_was_killed_after_its_push_is_found_again(bench: Bench) -> None:
    forge = ForgeWithoutDetection(bench.forge)
    bench.use(forge)
    effect, commit = verified(bench)
    assert bench.effect_operations.find(effect) is None
    bench.forge.push(bench.mirror.path, "main", commit, bench.main)
    bench.push_main("b.txt", "b\n")
    facts = bench.effect_operations.find(effect)
    assert facts is not None
    assert (done(list(facts)).commit, done(list(facts)).by_us) == (commit, True)
    assert forge.marked_commit == commit


def test_another_tree_than_the_verified_one_is_left_to_the_forge(bench: Bench) -> None:
    effect, commit = verified(bench)
    assert verified_merge(bench.mirror, effect, TITLE) == commit
    other = msgspec.structs.replace(effect, tree=bench.mirror.tree(bench.main))
    assert verified_merge(bench.mirror, other, TITLE) == ""
    assert done(bench.do(other)).tree == effect.tree
