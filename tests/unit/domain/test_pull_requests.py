"""People take part on the forge at any time; their later act wins."""

from __future__ import annotations

import msgspec
import pytest

from caloron.domain.model.effects import CancelWork, Merge, Push, StartWork
from caloron.domain.model.snapshots import PullSnapshot
from caloron.domain.model.status import Status
from caloron.testing import SprintDriver, planned
from tests.support.sprints import act, escalation_of, finish_twice, finishes, issue_of, pull_of


def in_review() -> SprintDriver:
    made = SprintDriver.start(planned("a"), planned("b", "a"))
    made.bring_to_review("a")
    return made


def test_a_person_cancels_a_task_by_closing_its_issue_and_restores_it_by_reopening_it() -> None:
    made = in_review()
    act(made).close_issue(issue_of(made))
    assert made.statuses() == {"a": "Cancelled", "b": "Blocked"}
    assert made.queue == {}
    assert "closed by ada" in made.task("a").reason
    act(made).reopen_issue(issue_of(made))
    assert made.statuses() == {"a": "InReview", "b": "Pending"}
    assert finishes(made)


def test_an_issue_closed_during_the_push_of_its_branch_can_be_reopened(made: SprintDriver) -> None:
    made.end(made.item("a"))
    made.tick()
    for effect in list(made.journal):
        made.journal.remove(effect)
        made.refuse(effect, "refused")
    act(made).close_issue(issue_of(made))
    assert made.status("a") is Status.CANCELLED
    made.person.reopen_issue(issue_of(made))
    assert finishes(made)


def test_a_person_who_merges_completes_the_task_and_stops_its_agent(reviewed: SprintDriver) -> None:
    act(reviewed).merge_pull(pull_of(reviewed))
    assert reviewed.statuses() == {"a": "Done", "b": "InProgress"}
    assert "merged by ada" in reviewed.task("a").reason


def test_a_merge_seen_with_the_end_of_a_fix_pushes_nothing_more(reviewed: SprintDriver) -> None:
    reviewed.finish("a", answer="CHANGES_NEEDED: x")
    reviewed.person.merge_pull(pull_of(reviewed))
    reviewed.end(reviewed.item("a"))
    decision = reviewed.tick()
    assert not [a for a in decision.actions if isinstance(a, Push)]
    assert reviewed.status("a") is Status.DONE


def test_a_persons_approval_replaces_the_reviewer(reviewed: SprintDriver) -> None:
    reviewed.person.review(pull_of(reviewed), "approved")
    decision = reviewed.tick()
    assert [type(a) for a in decision.actions] == [CancelWork, Merge]
    reviewed.settle()
    assert reviewed.status("a") is Status.DONE


def test_a_persons_approval_overrides_the_reviewers_request(reviewed: SprintDriver) -> None:
    reviewed.finish("a", answer="CHANGES_NEEDED: x")
    assert reviewed.role("a") == "fix"
    act(reviewed).review(pull_of(reviewed), "approved")
    assert reviewed.status("a") is Status.DONE


def test_a_persons_request_after_an_approval_starts_a_fix(reviewed: SprintDriver) -> None:
    pull = pull_of(reviewed)
    reviewed.finish("a", answer="CHANGES_NEEDED: x")
    reviewed.person.review(pull, "approved")
    reviewed.tick()
    reviewed.person.review(pull, "changes_requested", "wait, y is wrong")
    reviewed.tick()
    assert reviewed.work("a").reason == "wait, y is wrong"


def test_a_person_who_requests_changes_sends_the_task_back_to_its_agent() -> None:
    made = in_review()
    act(made).review(pull_of(made), "changes_requested", "please no globals\nthanks")
    work = made.work("a")
    assert (work.role, work.reason) == ("fix", "please no globals\nthanks")
    assert made.task("a").reason == "please no globals"


def test_a_comment_in_a_review_is_no_verdict(reviewed: SprintDriver) -> None:
    act(reviewed).review(pull_of(reviewed), "commented", "nice")
    assert reviewed.role("a") == "review"


def test_a_review_of_an_older_head_does_not_count_for_the_current_head(
    reviewed: SprintDriver,
) -> None:
    pull = pull_of(reviewed)
    old = reviewed.person.review(pull, "approved")
    reviewed.facts.clear()
    reviewed.person.push(pull)
    reviewed.tick(old)
    assert reviewed.role("a") == "verify"
    assert reviewed.task("a").merge.merging == ""


def test_a_conflict_is_resolved_although_a_person_approved_the_change() -> None:
    made = in_review()
    made.person.push_main()
    act(made).review(pull_of(made), "approved")
    made.finish("a", conflicts=("x.py",))
    assert made.role("a") == "resolve"
    assert finishes(made)


def test_a_failed_verification_is_fixed_although_a_person_approved_the_change() -> None:
    made = in_review()
    task = made.task("a")
    made.person.push_main()
    made.red.add(task.change.head)
    act(made).review(pull_of(made), "approved")
    finish_twice(made, "a")
    assert made.role("a") == "fix"
    assert finishes(made)


def test_an_approval_of_a_change_that_never_verified_does_not_merge_it() -> None:
    made = SprintDriver.start(planned("a"), max_fix_rounds=0)
    made.finish("a")
    head = made.task("a").change.head
    made.red.add(head)
    finish_twice(made, "a")
    assert made.status("a") is Status.ESCALATED
    act(made).review(pull_of(made), "approved")
    assert made.role("a") == "verify"
    assert not made.effects(Merge)


def test_a_closed_pull_request_is_reworked_in_a_new_pull_request(reviewed: SprintDriver) -> None:
    first = pull_of(reviewed)
    act(reviewed).close_pull(first)
    assert reviewed.work("a").role == "fix"
    assert "closed by ada" in reviewed.work("a").reason
    reviewed.bring_to_review("a")
    second = pull_of(reviewed)
    assert second != first
    act(reviewed).close_pull(second)
    assert reviewed.status("a") is Status.ESCALATED
    assert "for the second time" in reviewed.task("a").reason


def test_deleting_the_branch_of_a_persons_pull_request_closes_it(made: SprintDriver) -> None:
    pull = act(made).open_pull(issue_of(made))
    made.person.review(pull.number, "approved")
    made.person.delete_branch(pull.branch)
    made.finish("a")
    assert made.forge.pull(pull.number).state == "closed"
    assert (made.role("a"), made.task("a").links.pull) == ("fix", None)
    assert made.task("a").reason == "the branch ada/own was deleted by a person"
    assert finishes(made)


def test_a_pull_request_for_another_branch_counts_as_closed_with_that_reason() -> None:
    made = in_review()
    seen = made.forge.pull(pull_of(made))
    made.tick(msgspec.structs.replace(seen, version=10**6, state="closed", base="dev"))
    assert made.role("a") == "fix"
    reason = f"pull request #{seen.number} is for dev now, not for main"
    assert (made.task("a").reason, made.work("a").reason) == (reason, reason)


def test_a_merge_into_another_branch_escalates(reviewed: SprintDriver) -> None:
    reviewed.person.review(pull_of(reviewed), "approved")
    reviewed.tick()
    (merge,) = [effect for effect in reviewed.journal if isinstance(effect, Merge)]
    reviewed.journal.remove(merge)
    seen = reviewed.forge.pull(merge.pull)
    reviewed.facts.append(msgspec.structs.replace(seen, version=10**6, state="closed", base="dev"))
    reviewed.refuse(merge, "elsewhere", "it is not on main")
    reviewed.tick()
    assert reviewed.status("a") is Status.ESCALATED
    assert reviewed.task("a").reason == "it is not on main"
    assert not reviewed.queue
    reviewed.settle()
    act(reviewed).comment(escalation_of(reviewed), "resolved")
    assert reviewed.role("a") == "fix"


def test_a_pull_request_that_is_closed_while_its_task_is_escalated_can_still_be_released() -> None:
    made = in_review()
    finish_twice(made, "a", answer="hm")
    assert made.status("a") is Status.ESCALATED
    act(made).close_pull(pull_of(made))
    act(made).comment(escalation_of(made), "resolved")
    assert made.role("a") == "fix"
    assert finishes(made)


def test_a_push_by_a_person_makes_their_commit_the_change(reviewed: SprintDriver) -> None:
    commit = act(reviewed).push(pull_of(reviewed))
    task = reviewed.task("a")
    assert (task.change.head, task.change.pushed) == (commit, commit)
    assert reviewed.role("a") == "verify"


def test_a_push_of_a_person_replaces_our_pending_push(reviewed: SprintDriver) -> None:
    reviewed.finish("a", answer="CHANGES_NEEDED: x")
    reviewed.end(reviewed.item("a"))
    reviewed.tick()
    commit = act(reviewed).push(pull_of(reviewed))
    assert reviewed.task("a").change.head == commit
    assert finishes(reviewed)


def test_a_persons_own_pull_request_replaces_the_agents_work(made: SprintDriver) -> None:
    pull = act(made).open_pull(issue_of(made))
    task = made.task("a")
    assert (task.links.pull, task.change.head) == (pull.number, pull.head)
    assert task.change.branch == "ada/own"
    assert made.role("a") == "verify"
    assert finishes(made)
    assert isinstance(made.forge.objects[pull.object], PullSnapshot)


def test_after_a_persons_closed_pull_request_the_task_uses_its_own_branch() -> None:
    made = SprintDriver.start(planned("a"))
    pull = act(made).open_pull(issue_of(made))
    made.person.close_pull(pull.number)
    assert finishes(made)
    branches = {e.branch for e in made.effects(Push)}
    assert branches == {"agent/a/shop-1"}


def test_a_running_agent_never_overwrites_a_persons_pull_request(reviewed: SprintDriver) -> None:
    act(reviewed).close_pull(pull_of(reviewed))
    fix = reviewed.item("a")
    reviewed.person.open_pull(issue_of(reviewed))
    reviewed.end(fix)
    reviewed.settle()
    assert not [e for e in reviewed.effects(Push) if e.branch == "ada/own"]


def test_a_persons_pull_request_after_an_empty_change_is_merged(made: SprintDriver) -> None:
    made.finish("a", changes=False)
    made.person.open_pull(issue_of(made))
    made.run()
    assert "merged" in made.task("a").reason


def test_an_obsolete_effect_may_fail(reviewed: SprintDriver) -> None:
    reviewed.end(reviewed.item("a"))
    reviewed.tick()
    (post,) = reviewed.journal
    reviewed.journal.clear()
    reviewed.person.push(pull_of(reviewed))
    reviewed.tick()
    reviewed.refuse(post, "refused")
    reviewed.settle()
    assert reviewed.status("a") is Status.IN_REVIEW


def test_a_verdict_after_a_person_closed_the_pull_request_escalates_nothing() -> None:
    made = in_review()
    made.end(made.item("a"))
    made.tick()
    (post,) = made.journal
    made.journal.clear()
    made.person.close_pull(pull_of(made))
    made.refuse(post, "refused")
    made.tick()
    assert made.status("a") is Status.IN_PROGRESS
    assert "was closed by" in made.task("a").reason


def test_every_refused_effect_is_retried_after_a_release(made: SprintDriver) -> None:
    made.end(made.item("a"))
    made.tick()
    for effect in list(made.journal):
        made.journal.remove(effect)
        made.refuse(effect, "refused", "no rights")
    made.settle()
    assert made.status("a") is Status.ESCALATED
    assert "no rights" in made.task("a").reason
    made.person.comment(escalation_of(made), "resolved")
    assert finishes(made)


def test_an_escalation_that_ends_before_its_issue_exists_is_closed(reviewed: SprintDriver) -> None:
    for _ in range(2):
        reviewed.end(reviewed.item("a"), answer="hm")
        reviewed.tick()
    assert reviewed.status("a") is Status.ESCALATED
    reviewed.person.review(pull_of(reviewed), "approved")
    reviewed.tick()
    assert reviewed.status("a") is Status.IN_REVIEW
    reviewed.settle()
    assert reviewed.forge.issue(reviewed.task("a").escalation.issue).state == "closed"


@pytest.mark.parametrize("answer", ["APPROVED", "CHANGES_NEEDED: x"])
def test_a_verdict_on_a_just_closed_pull_request_is_ignored(answer: str) -> None:
    made = in_review()
    made.end(made.item("a"), answer=answer)
    made.person.close_pull(pull_of(made))
    decision = made.tick()
    assert [a.work.role for a in decision.actions if isinstance(a, StartWork)] == ["fix"]
    assert finishes(made)


# Acts of people on an escalated task


def escalated() -> SprintDriver:
    made = in_review()
    finish_twice(made, "a", answer="hm")
    assert made.status("a") is Status.ESCALATED
    return made


def test_a_push_to_an_escalated_task_resolves_it_and_is_reviewed() -> None:
    made = escalated()
    escalation = escalation_of(made)
    commit = act(made).push(pull_of(made))
    assert (made.status("a"), made.task("a").change.head) == (Status.IN_REVIEW, commit)
    assert made.forge.issue(escalation).state == "closed"
    moves = [move.reason for move in made.moves if move.task == "a"]
    assert "released by a push to agent/a/shop-1" in moves
    assert finishes(made)


def test_a_push_to_a_taken_over_task_waits_for_the_hand_back(reviewed: SprintDriver) -> None:
    act(reviewed).comment(issue_of(reviewed), "caloron:take-over")
    reviewed.person.push(pull_of(reviewed))
    act(reviewed).review(pull_of(reviewed), "changes_requested", "a note to myself")
    assert reviewed.status("a") is Status.ESCALATED
    act(reviewed).comment(issue_of(reviewed), "resolved")
    assert finishes(reviewed)


def test_a_request_for_changes_on_an_escalated_task_starts_a_fix() -> None:
    made = escalated()
    act(made).review(pull_of(made), "changes_requested", "make it blue")
    assert (made.role("a"), made.work("a").reason) == ("fix", "make it blue")
    assert made.status("a") is Status.IN_PROGRESS
    assert finishes(made)


def test_closing_the_pull_request_of_an_escalated_task_extends_its_reason() -> None:
    made = escalated()
    before, pull = made.task("a").reason, pull_of(made)
    act(made).close_pull(pull)
    assert made.status("a") is Status.ESCALATED
    expected = f"{before}; then pull request #{pull} was closed by ada without merging"
    assert made.task("a").reason == expected


def test_an_untrusted_review_does_not_resolve_an_escalated_task() -> None:
    made = escalated()
    review = made.user("eve").review(pull_of(made), "changes_requested", "evil")
    made.forge.objects[review.object] = msgspec.structs.replace(review, trusted=False)
    made.facts.clear()
    made.settle()
    assert made.status("a") is Status.ESCALATED
