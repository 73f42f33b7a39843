"""The merge train: its number of verifications; only innocent changes are merged."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caloron.domain.model.effects import Merge
from caloron.domain.model.facts import EffectDone
from caloron.domain.model.status import Status
from caloron.domain.reporting.explain import why
from caloron.testing import SprintDriver, planned
from tests.support.sprints import act, escalation_of, finishes, issue_of, pull_of

NAMES = "abcdefgh"


def ready(count: int) -> SprintDriver:
    """Start a sprint with `count` verified and approved changes on a main that moved since."""
    names = NAMES[:count]
    made = SprintDriver.start(*(planned(name) for name in names), parallel=count)
    for name in names:
        made.bring_to_review(name)
    made.person.push_main()
    made.poll()
    for name in names:
        made.end(made.item(name))
    made.tick()
    # The pending reviews arrive together, so all changes are ready for merging at once.
    while made.journal:
        made.perform(0)
    made.verifications.clear()
    made.poll()
    made.tick()
    return made


def verified(count: int) -> SprintDriver:
    """Start a sprint with `count` changes verified together; the first merge is decided."""
    made = ready(count)
    (item,) = made.queue
    made.end(item)
    made.poll()
    made.tick()
    return made


def head(made: SprintDriver, name: str) -> str:
    return made.task(name).change.head


def verify_once(made: SprintDriver) -> None:
    """End the running verification and execute its effects; agents make no progress."""
    (item,) = [i for i, (_, work) in made.queue.items() if work.role == "verify"]
    made.end(item)
    made.settle()


def verify_all(made: SprintDriver) -> None:
    """Let verifications end until none is under way."""
    while any(work.role == "verify" for _, work in made.queue.values()):
        verify_once(made)


def statuses(made: SprintDriver) -> str:
    letters = {Status.DONE: "D", Status.IN_PROGRESS: "G", Status.IN_REVIEW: "V"}
    return "".join(letters.get(t.status, "?") for t in made.state.tasks.values())


def every_merge_was_covered(made: SprintDriver) -> None:
    """Assert that a green verification covers the main after each merge."""
    greens = [tree for tree, green in made.verifications if green]
    for merge in made.effects(Merge):
        tree = made.forge.trees[made.forge.pull(merge.pull).merge_commit]
        unverified_merge = made.forge.ignores_base and tree[-2] not in made.forge.trees[merge.base]
        assert unverified_merge or any(green[: len(tree)] == tree for green in greens), (
            tree,
            greens,
        )


def main_is_green(made: SprintDriver) -> None:
    """Assert that main and the end of each batch were verified."""
    every_merge_was_covered(made)
    assert (made.forge.trees[made.forge.branches["main"]], True) in made.verifications


def decisions(made: SprintDriver) -> int:
    """Count the verifications; the second run of a red one does not count."""
    red = sum(1 for _, green in made.verifications if not green)
    return len(made.verifications) - red // 2


# Costs in verifications


def test_one_ready_change_on_an_unchanged_main_costs_only_its_own_verification() -> None:
    made = SprintDriver.start(planned("a"))
    made.run()
    assert len(made.verifications) == 1


def test_one_ready_change_on_a_main_that_moved_costs_one() -> None:
    made = ready(1)
    assert made.work("a").batch == ()
    verify_all(made)
    assert (statuses(made), len(made.verifications)) == ("D", 1)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_ready_changes_are_verified_once_together_and_merged_in_order(count: int) -> None:
    made = ready(count)
    heads = tuple(head(made, name) for name in NAMES[:count])
    assert made.work("a").batch == heads
    verify_all(made)
    assert statuses(made) == "D" * count
    assert len(made.verifications) == 1
    merges = made.effects(Merge)
    assert tuple(m.head for m in merges) == heads
    assert len({m.base for m in merges}) == count, "each on top of the one before"
    main_is_green(made)


def test_a_train_is_never_longer_than_eight() -> None:
    many = [f"t{n}" for n in range(10)]
    made = SprintDriver.start(*(planned(name) for name in many), parallel=10)
    for name in many:
        made.bring_to_review(name)
    made.person.push_main()
    for name in many:
        made.end(made.item(name))
    made.verifications.clear()
    made.settle()
    verify_all(made)
    assert set(made.statuses().values()) == {"Done"}
    assert [len(tree) - 2 for tree, _ in made.verifications] == [8, 10]


def test_a_fresh_change_is_merged_at_once_without_a_train() -> None:
    made = SprintDriver.start(planned("a"), planned("b"))
    for name in "ab":
        made.bring_to_review(name)
    made.finish("a")
    assert made.status("a") is Status.DONE
    assert len(made.verifications) == 2
    made.finish("b")
    assert made.work("b").batch == ()


@pytest.mark.parametrize("culprit", range(8))
def test_one_culprit_of_eight_is_found_in_four_or_five_verifications(culprit: int) -> None:
    made = ready(8)
    bad = NAMES[culprit]
    made.red.add(head(made, bad))
    verify_all(made)
    assert statuses(made) == "".join("G" if name == bad else "D" for name in NAMES)
    assert decisions(made) <= 1 + 3 + 1
    assert len(made.verifications) <= 2 * (1 + 3) + 1
    work = made.work(bad)
    assert (work.role, work.onto_main) == ("fix", True)
    assert "verification of the merged result failed" in work.reason
    main_is_green(made)


def test_the_last_remaining_culprit_needs_no_further_verification() -> None:
    made = ready(2)
    made.red.add(head(made, "b"))
    verify_all(made)
    assert statuses(made) == "DG"
    # Both are red (twice) and the first alone is green, so the second is the culprit.
    assert [green for _, green in made.verifications] == [False, False, True]


def test_of_changes_that_break_only_together_the_later_change_is_removed() -> None:
    made = ready(3)
    made.red_together.append({head(made, "a"), head(made, "c")})
    verify_all(made)
    assert statuses(made) == "DDG"
    main_is_green(made)


def test_the_culprit_gets_the_log_of_the_red_run() -> None:
    made = ready(2)
    made.red.add(head(made, "a"))
    (item,) = made.queue
    for _ in range(2):
        made.end(item, log="/runs/red.log")
        made.settle()
    (item,) = made.queue
    for _ in range(2):
        made.end(item, log="/runs/alone.log")
        made.settle()
    assert made.work("a").verify_log == "/runs/alone.log"


def test_a_batch_that_is_red_only_once_is_merged() -> None:
    made = ready(2)
    (item,) = made.queue
    made.end(item, exit_code=1)
    made.settle()
    assert made.item("a") == item
    verify_all(made)
    assert statuses(made) == "DD"


# Conflicts


def test_a_member_that_conflicts_in_the_batch_leaves_it_and_continues_alone() -> None:
    made = ready(3)
    made.conflicting.append({head(made, "a"), head(made, "b")})
    verify_once(made)
    assert statuses(made) == "DVD"
    assert made.work("b").batch == ()
    verify_once(made)
    assert made.role("b") == "resolve"


def test_members_that_all_conflict_with_main_are_resolved_one_by_one() -> None:
    made = ready(2)
    main = made.forge.trees[made.forge.branches["main"]][0]
    made.conflicting += [{main, head(made, name)} for name in "ab"]
    verify_all(made)
    assert [made.role(name) for name in "ab"] == ["resolve", "resolve"]


# People


def test_a_main_that_a_person_moved_verifies_the_batch_again() -> None:
    made = ready(3)
    (item,) = made.queue
    made.end(item)
    act(made).push_main()
    assert made.work("a").batch == tuple(head(made, name) for name in "abc")
    verify_all(made)
    assert (statuses(made), len(made.verifications)) == ("DDD", 2)
    main_is_green(made)


def test_a_main_moved_between_two_merges_verifies_the_rest_again() -> None:
    made = verified(3)
    made.perform(0)
    act(made).push_main()
    assert statuses(made) == "DVV"
    assert not made.refused, "no merge was tried on a main that is known to have moved"
    assert made.work("b").batch == (head(made, "b"), head(made, "c"))
    verify_all(made)
    assert (statuses(made), len(made.verifications)) == ("DDD", 2)
    main_is_green(made)


def test_no_change_is_blamed_for_a_red_run_on_another_main() -> None:
    made = ready(2)
    made.red_together.append({made.forge.trees[made.forge.branches["main"]][-1], head(made, "b")})
    verify_once(made)
    verify_once(made)
    assert made.work("a").batch == (head(made, "a"),)
    # A person repairs main during the verification of the first half.
    made.red_together.clear()
    made.person.push_main()
    verify_all(made)
    assert statuses(made) == "DD"


def test_a_member_that_a_person_merged_into_another_main_does_not_count_as_verified() -> None:
    made = verified(2)
    merge = made.journal.pop(0)
    assert isinstance(merge, Merge)
    made.person.push_main()
    made.person.merge_pull(merge.pull)
    commit = made.forge.branches["main"]
    fact = EffectDone(
        key=merge.key, task="a", kind="merge", commit=commit, tree="another", by_us=False
    )
    made.tick(fact)
    assert (made.status("a"), made.task("b").merge.merging) == (Status.DONE, "")
    assert made.role("b") == "verify"


def test_a_member_that_is_withdrawn_while_it_is_verified_leaves_and_the_rest_starts_anew() -> None:
    for name in "abc":
        made = ready(3)
        act(made).review(pull_of(made, name), "changes_requested", "not like this")
        others = [n for n in "abc" if n != name]
        assert made.work(others[0]).batch == tuple(head(made, n) for n in others)
        assert made.role(name) == "fix"
        verify_all(made)
        assert statuses(made) == "".join("G" if n == name else "D" for n in "abc")
        main_is_green(made)


def test_a_member_withdrawn_after_the_verification_verifies_the_rest_again() -> None:
    made = verified(3)
    made.perform(0)
    act(made).close_issue(issue_of(made, "b"))
    assert statuses(made)[0] == "D"
    assert made.status("b") is Status.CANCELLED
    verify_all(made)
    assert made.status("c") is Status.DONE
    assert len(made.verifications) == 2
    assert head(made, "b") not in made.forge.trees[made.forge.branches["main"]]
    main_is_green(made)


def test_all_members_may_be_withdrawn_during_the_first_merge() -> None:
    made = verified(2)
    (merge,) = [effect for effect in made.journal if isinstance(effect, Merge)]
    for name in "ab":
        made.person.close_issue(issue_of(made, name))
    made.perform(made.journal.index(merge))
    made.settle()
    assert made.state.sprint.merge_train is None
    assert {made.status(name) for name in "ab"} == {Status.CANCELLED}


def test_a_push_by_a_person_takes_the_change_out_of_the_train() -> None:
    made = ready(2)
    act(made).push(pull_of(made, "b"))
    assert made.state.sprint.merge_train is None
    assert made.work("a").batch == ()


def test_each_member_names_the_other_members_of_its_train() -> None:
    made = ready(3)
    assert why(made.state, made.task("a")) == ("in a train of 3 with b, c: being verified together")
    assert why(made.state, made.task("b")).startswith("in a train of 3 with a, c: ")


def test_a_late_merge_verifies_the_batch_again() -> None:
    made = verified(2)
    made.refuse(made.journal.pop(0), "stale_base")
    made.settle()
    assert made.work("a").batch == (head(made, "a"), head(made, "b"))
    verify_all(made)
    assert statuses(made) == "DD"


def test_a_member_with_another_tree_on_main_is_checked_before_the_others_continue() -> None:
    made = ready(2)
    made.forge.ignores_base = True
    (item,) = made.queue
    made.end(item)
    made.poll()
    made.tick()
    merge = made.journal[0]
    made.person.push_main()
    made.perform(0)
    made.settle()
    assert made.task("a").merge.unverified == made.forge.pull(merge.pull).merge_commit  # type: ignore[union-attr]
    assert made.state.sprint.merge_train is None
    assert made.work("a").head == ""
    verify_all(made)
    assert statuses(made) == "DD"
    main_is_green(made)


# The forge's CI


def test_a_change_with_a_pending_ci_lets_others_merge_first() -> None:
    made = SprintDriver.start(planned("a"), planned("b"))
    for name in "ab":
        made.bring_to_review(name)
    made.forge.ci[head(made, "a")] = "pending"
    made.finish("a")
    assert (made.task("a").merge.merging, made.role("b")) == ("", "review")
    assert why(made.state, made.task("a")) == "waits for the forge's CI: not told yet"
    made.finish("b")
    assert made.status("b") is Status.DONE
    made.now += 100
    made.settle()
    verify_all(made)
    assert made.status("a") is Status.IN_REVIEW
    made.forge.ci.clear()
    made.now += 100
    made.settle()
    assert made.status("a") is Status.DONE


def test_the_pauses_grow_to_fifteen_seconds(reviewed: SprintDriver) -> None:
    reviewed.forge.ci[head(reviewed, "a")] = "pending"
    reviewed.finish("a")
    pauses = []
    for _ in range(8):
        waits = reviewed.task("a").merge.waiting
        assert waits is not None
        pauses.append(waits.until - reviewed.now)
        reviewed.now = waits.until
        reviewed.settle()
    assert pauses == sorted(pauses)
    assert max(pauses) <= 15


def test_a_ci_that_never_ends_needs_a_person_after_two_hours(reviewed: SprintDriver) -> None:
    reviewed.forge.ci[head(reviewed, "a")] = "pending"
    reviewed.finish("a")
    reviewed.now += 2 * 3600 + 20
    reviewed.settle()
    assert reviewed.status("a") is Status.ESCALATED
    reviewed.forge.ci.clear()
    act(reviewed).comment(escalation_of(reviewed), "resolved")
    assert reviewed.status("a") is Status.DONE


def test_a_red_ci_sends_the_change_back_as_a_fix_round_that_an_approval_does_not_undo() -> None:
    made = SprintDriver.start(planned("a"))
    made.bring_to_review("a")
    made.forge.ci[head(made, "a")] = "red"
    old = head(made, "a")
    made.finish("a")
    assert made.role("a") == "fix"
    act(made).review(pull_of(made), "approved")
    assert made.role("a") == "fix"
    assert made.task("a").review.rejected == (old,)
    assert finishes(made)


def test_a_train_waits_a_minute_for_the_ci_of_a_member_and_then_continues_without_it() -> None:
    made = ready(3)
    made.forge.ci[head(made, "a")] = "pending"
    verify_once(made)
    assert statuses(made) == "VVV"
    assert len(made.verifications) == 1, "nothing is verified again while it waits"
    made.now += 61
    made.settle()
    assert made.work("b").batch == (head(made, "b"), head(made, "c"))
    verify_all(made)
    assert statuses(made) == "VDD"
    made.forge.ci.clear()
    made.now += 61
    made.settle()
    verify_all(made)
    assert statuses(made) == "DDD"
    main_is_green(made)


def test_a_member_that_waits_for_its_ci_is_verified_alone_when_the_others_are_withdrawn() -> None:
    made = ready(2)
    made.forge.ci[head(made, "a")] = "pending"
    verify_once(made)
    made.person.close_issue(issue_of(made, "b"))
    made.forge.ci.clear()
    made.now += 20
    made.settle()
    assert (made.status("a"), made.role("a")) == (Status.IN_REVIEW, "verify")
    verify_all(made)
    assert made.status("a") is Status.DONE
    main_is_green(made)


# Any combination of culprits


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_all_innocent_changes_are_merged_and_no_culprit_with_few_verifications(
    data: st.DataObject,
) -> None:
    """Random culprits, pairs that do not go together, and people who withdraw changes."""
    count = data.draw(st.integers(2, 8), "ready changes")
    made = ready(count)
    names = list(NAMES[:count])
    culprits = data.draw(st.sets(st.sampled_from(names), max_size=3), "culprits")
    withdrawals = data.draw(st.lists(st.sampled_from(names), max_size=2), "withdrawn")
    moves, moved = data.draw(st.integers(0, 2), "moves of main by others"), 0
    made.red |= {head(made, name) for name in culprits}
    heads = {name: head(made, name) for name in names}
    withdrawn: set[str] = set()
    for _ in range(200):
        withdraw, move = data.draw(st.tuples(st.booleans(), st.booleans()))
        if withdrawals and withdraw:
            name = withdrawals.pop()
            if made.status(name) is Status.IN_REVIEW:
                withdrawn.add(name)
                made.person.close_issue(issue_of(made, name))
        if moves and move:
            moves, moved = moves - 1, moved + 1
            made.person.push_main()
        made.poll()
        made.tick()
        verifying = [i for i, (_, work) in made.queue.items() if work.role == "verify"]
        if made.journal:
            made.perform(0)
        elif verifying:
            made.end(verifying[0])
        elif not made.facts:
            break
    else:
        raise AssertionError("the sprint never ends")
    main = set(made.forge.trees[made.forge.branches["main"]])
    for name in names:
        innocent = name not in culprits and name not in withdrawn
        assert (heads[name] in main) == innocent or name in withdrawn, name
        assert not (name in culprits and heads[name] in main), name
    every_merge_was_covered(made)
    # A disturbed search starts again.
    searches = len(culprits) + len(withdrawn) + moved
    steps = math.ceil(math.log2(count))
    assert decisions(made) <= 1 + searches * (1 + steps), made.verifications
