"""A merge into a moved main is verified again, and reverted if it turned main red."""

from __future__ import annotations

import pytest

from caloron.domain.model.effects import ClosePull, MakeRevert, Merge, OpenPull, ReopenIssue
from caloron.domain.model.facts import EffectDone
from caloron.domain.model.status import Status
from caloron.domain.reporting.explain import why
from caloron.testing import SprintDriver, planned
from tests.support.sprints import PERSON, act, escalation_of, finish_twice, finishes
from tests.unit.domain.test_evaluate import merge_is_due


def merge_into_moved_main(*more: str) -> SprintDriver:
    """Merge `a` on a forge that accepts no base, into a main that just moved."""
    made = SprintDriver.start(planned("a"), *(planned(name) for name in more))
    made.forge.ignores_base = True
    made.bring_to_review("a")
    made.end(made.item("a"))
    merge = merge_is_due(made)
    made.person.push_main()
    made.journal.insert(0, merge)
    made.perform(0)
    made.poll()
    made.tick()
    return made


@pytest.fixture
def moved() -> SprintDriver:
    return merge_into_moved_main()


def reverted(made: SprintDriver, *, until: type) -> None:
    """Turn main red with `a`; continue until the next effect is of this kind."""
    made.red_together.append({made.task("a").change.head, commit_of_a_person(made)})
    for _ in range(2):
        made.end(made.item("a"))
        made.tick()
    for _ in range(40):
        made.poll()
        made.tick()
        if made.journal and isinstance(made.journal[0], until):
            return
        if made.journal:
            made.perform(0)
        elif made.queue:
            made.end(made.item("a"))
    raise AssertionError(f"no {until.__name__} was planned")


def commit_of_a_person(made: SprintDriver) -> str:
    """The commit that a person pushed to main just before the merge."""
    return made.forge.trees[made.forge.branches["main"]][-2]


def test_a_merge_into_a_moved_main_is_done_after_main_is_verified_again() -> None:
    made = merge_into_moved_main()
    task = made.task("a")
    assert made.forge.pull(task.links.pull).state == "merged"
    assert (task.status, task.merge.unverified) == (Status.IN_REVIEW, made.forge.branches["main"])
    assert (made.role("a"), made.work("a").head) == ("verify", "")
    assert why(made.state, task) == "merged, main is being verified again"
    made.finish("a")
    assert made.status("a") is Status.DONE
    assert made.verifications[-1] == (made.forge.trees[made.forge.branches["main"]], True)
    assert not made.effects(MakeRevert)


def test_a_merge_that_the_poller_sees_first_waits_for_the_facts_of_the_executor() -> None:
    made = SprintDriver.start(planned("a"))
    made.forge.ignores_base = True
    made.bring_to_review("a")
    made.end(made.item("a"))
    merge = merge_is_due(made)
    made.person.push_main()
    facts = made.facts_of(merge)
    made.poll()
    made.tick()
    assert made.forge.pull(made.task("a").links.pull).state == "merged"
    assert made.status("a") is Status.IN_REVIEW
    made.tick(*facts)
    assert made.task("a").merge.unverified


def test_no_other_change_is_merged_before_the_post_merge_check_ends() -> None:
    made = merge_into_moved_main("b")
    made.bring_to_review("b")
    made.finish("b")
    assert made.role("a") == "verify"
    assert made.task("b").merge.merging == ""
    line = "approved: waiting for its turn to merge, after the merge of a is settled"
    assert why(made.state, made.task("b")) == line
    made.finish("a")
    assert finishes(made)


def test_a_change_that_turned_main_red_is_reverted_and_returns_in_a_new_pull_request() -> None:
    made = merge_into_moved_main()
    task = made.task("a")
    old_pull, old_head, issue = task.links.pull, task.change.head, task.links.issue
    made.forge.change_issue(issue or 0, state="closed", closed_by="caloron")
    reverted(made, until=Merge)
    task = made.task("a")
    assert why(made.state, task) == "merged, but main fails with it: being reverted"
    made.settle()
    task = made.task("a")
    (revert,) = made.effects(MakeRevert)
    assert revert.branch == "caloron/revert/shop-1/a/1"
    opened = made.effects(OpenPull)[-1]
    assert opened.title == f"Revert #{old_pull}: [a] Title of a"
    assert old_head not in made.forge.trees[made.forge.branches["main"]]
    assert made.forge.issue(issue).state == "open"
    work = made.work("a")
    assert (task.status, work.role, work.onto_main) == (Status.IN_PROGRESS, "fix", True)
    assert work.head not in ("", old_head)
    assert "main was red with" in work.reason
    assert (task.links.generation, task.links.pull, task.merge.unverified) == (2, None, "")
    assert old_head in task.review.rejected
    assert finishes(made)
    assert task.links.pull != old_pull


def test_the_revert_is_verified_before_it_is_merged(moved: SprintDriver) -> None:
    reverted(moved, until=Merge)
    tree, green = moved.verifications[-1]
    assert green
    assert moved.task("a").change.head not in tree
    merge = moved.journal[0]
    assert isinstance(merge, Merge)
    assert merge.base == moved.forge.branches["main"]


def test_a_main_that_is_red_without_the_change_needs_a_person_and_stops_the_merge_queue() -> None:
    made = merge_into_moved_main("b")
    made.bring_to_review("b")
    made.red.add(commit_of_a_person(made))
    finish_twice(made, "a")
    finish_twice(made, "a")
    assert made.status("a") is Status.ESCALATED
    assert "red also without" in made.task("a").reason
    assert made.effects(ClosePull)
    made.finish("b")
    assert (made.status("b"), made.task("b").merge.merging) == (Status.IN_REVIEW, "")
    assert made.state.sprint.phase == "ended", "nothing can move without a person"
    made.red.clear()
    made.person.comment(escalation_of(made), "resolved")
    assert finishes(made)


def test_a_revert_that_conflicts_needs_a_person(moved: SprintDriver) -> None:
    reverted(moved, until=MakeRevert)
    moved.refuse(moved.journal.pop(0), "conflict", "what came after it changed x.py")
    moved.settle()
    assert moved.status("a") is Status.ESCALATED
    assert "cannot be taken out: what came after it changed x.py" in moved.task("a").reason
    assert moved.task("a").merge.unverified


def test_a_main_that_moved_again_is_verified_again_before_a_revert(moved: SprintDriver) -> None:
    moved.red_together.append({moved.task("a").change.head, commit_of_a_person(moved)})
    for _ in range(2):
        moved.end(moved.item("a"))
        moved.red_together.clear()
        act(moved).push_main()
        moved.red_together.append({moved.task("a").change.head, "c3"})
    assert moved.role("a") == "verify"
    moved.red_together.clear()
    moved.finish("a")
    assert moved.status("a") is Status.DONE
    assert not moved.effects(MakeRevert)


def test_a_merge_by_a_person_is_never_reverted(made: SprintDriver) -> None:
    made.forge.ignores_base = True
    made.bring_to_review("a")
    made.end(made.item("a"))
    merge = merge_is_due(made)
    made.person.push_main()
    made.person.merge_pull(merge.pull)
    made.refuse(merge, "refused")
    made.tick()
    assert made.status("a") is Status.DONE
    assert PERSON in made.task("a").reason


def test_a_merge_reported_as_a_persons_is_not_reverted(made: SprintDriver) -> None:
    made.bring_to_review("a")
    made.end(made.item("a"))
    merge = merge_is_due(made)
    made.person.push_main()
    made.person.merge_pull(merge.pull)
    key, commit = merge.key, made.forge.branches["main"]
    fact = EffectDone(key=key, task="a", kind="merge", commit=commit, tree="x", by_us=False)
    made.tick(fact)
    assert (made.status("a"), made.task("a").merge.unverified) == (Status.DONE, "")


def test_a_revert_that_a_person_merges_is_followed_by_a_verification_of_main() -> None:
    made = merge_into_moved_main()
    reverted(made, until=Merge)
    merge = made.journal.pop(0)
    assert isinstance(merge, Merge)
    made.person.merge_pull(merge.pull)
    made.refuse(merge, "refused")
    made.settle()
    assert (made.role("a"), made.work("a").head) == ("verify", "")
    made.finish("a")
    assert made.role("a") == "fix"


def test_a_person_who_closes_the_revert_stops_it(moved: SprintDriver) -> None:
    reverted(moved, until=Merge)
    merge = moved.journal.pop(0)
    assert isinstance(merge, Merge)
    moved.person.close_pull(merge.pull)
    moved.refuse(merge, "refused")
    moved.settle()
    assert moved.status("a") is Status.ESCALATED
    assert f"{PERSON} closed the revert" in moved.task("a").reason


def test_the_issue_is_reopened_before_the_agent_continues(moved: SprintDriver) -> None:
    reverted(moved, until=ReopenIssue)
    assert moved.task("a").merge.revert is not None
    assert "a" not in [owner for owner, _ in moved.queue.values()]
    moved.settle()
    assert moved.role("a") == "fix"


@pytest.mark.parametrize("refusal", ["stale_base", "stale_head"])
def test_a_late_revert_is_verified_and_retried(refusal: str) -> None:
    made = merge_into_moved_main()
    reverted(made, until=Merge)
    merge = made.journal.pop(0)
    made.refuse(merge, refusal)  # type: ignore[arg-type]
    made.tick()
    assert (made.role("a"), made.work("a").head) == ("verify", merge.head)  # type: ignore[union-attr]
    made.finish("a")
    assert made.role("a") == "fix"
