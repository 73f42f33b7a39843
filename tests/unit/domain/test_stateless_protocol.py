"""The protocol on flat records: the table of the comparison sprint and former defects."""

from __future__ import annotations

from typing import Any

import pytest

from caloron.domain.compat.stateless_protocol import (
    ForgeEvent,
    TaskRecord,
    action_summary,
    evaluate_stateless,
    event_of_snapshot,
)
from caloron.domain.model.snapshots import (
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    marker,
)
from caloron.domain.model.status import Status

LABELS = ("caloron:task",)


class Sprint:
    """Two tasks and one that needs both, driven by events alone; the threshold is an hour."""

    def __init__(self) -> None:
        self.tasks = {
            "task-1": TaskRecord(agent_id="dev-1", reviewer_id="rev-1"),
            "task-2": TaskRecord(agent_id="dev-2", reviewer_id="rev-1"),
            "task-3": TaskRecord(agent_id="qa-1", depends_on=("task-1", "task-2")),
        }
        self.now = 0.0

    def tick(self, *events: ForgeEvent, after_s: float = 1.0) -> list[str]:
        self.now += after_s
        self.tasks, actions = evaluate_stateless(self.tasks, events, self.now, 3600.0)
        return [action_summary(action) for action in actions]

    @property
    def statuses(self) -> list[str]:
        return [str(task.status) for task in self.tasks.values()]


def issue(number: int, task: str = "") -> ForgeEvent:
    return ForgeEvent(type="issue_opened", issue_number=number, labels=LABELS, task_id=task)


def opened(number: int, issue: int, head: str = "") -> ForgeEvent:
    return ForgeEvent(type="pr_opened", pr_number=number, linked_issue=issue, head=head)


def review(number: int, state: str, id: int = 0) -> ForgeEvent:
    return ForgeEvent(type="pr_review_submitted", pr_number=number, review_state=state, review=id)


def merged(number: int) -> ForgeEvent:
    return ForgeEvent(type="pr_merged", pr_number=number)


def closed(number: int) -> ForgeEvent:
    return ForgeEvent(type="pr_closed", pr_number=number)


@pytest.fixture
def sprint() -> Sprint:
    return Sprint()


@pytest.fixture
def in_review(sprint: Sprint) -> Sprint:
    sprint.tick(issue(10), issue(11))
    sprint.tick(opened(100, 10), opened(101, 11))
    return sprint


def test_the_comparison_sprint(sprint: Sprint) -> None:
    assert sprint.tick() == []
    assert sprint.statuses == ["Ready", "Ready", "Pending"]
    assert sprint.tick(issue(10), issue(11)) == ["spawn:dev-1", "spawn:dev-2"]
    assert sprint.tick(opened(100, 10), opened(101, 11)) == ["review:PR#100", "review:PR#101"]
    assert sprint.statuses == ["InReview", "InReview", "Pending"]
    assert sprint.tick(review(100, "approved")) == ["merge:PR#100"]
    assert sprint.tick(merged(100)) == ["done:#10"]
    assert sprint.statuses == ["Done", "InReview", "Pending"]
    assert sprint.tick(merged(101)) == ["done:#11"]
    assert sprint.statuses == ["Done", "Done", "Ready"]
    assert sprint.tick(issue(12), opened(102, 12), merged(102)) == [
        "spawn:qa-1",
        "review:PR#102",
        "done:#12",
    ]
    assert sprint.statuses == ["Done", "Done", "Done"]


def test_repeated_events_are_reported_once(in_review: Sprint) -> None:
    assert in_review.tick(issue(10), opened(100, 10), opened(101, 11)) == []
    assert in_review.tick(review(100, "approved"), review(100, "approved")) == ["merge:PR#100"]
    assert in_review.tick(merged(100), merged(100)) == ["done:#10"]
    before = in_review.tasks["task-1"].completed_at
    assert in_review.tick(merged(100)) == []
    assert in_review.tasks["task-1"].completed_at == before


def test_an_approval_after_rework_counts(in_review: Sprint) -> None:
    assert in_review.tick(review(100, "changes_requested")) == ["notify:dev-1"]
    assert in_review.statuses[0] == "InProgress"
    assert in_review.tick(review(100, "approved")) == ["merge:PR#100"]
    assert in_review.tick(merged(100)) == ["done:#10"]


def test_a_new_commit_is_reviewed_again_and_old_reviews_do_not_count_for_it(sprint: Sprint) -> None:
    sprint.tick(issue(10))
    sprint.tick(opened(100, 10, "a1"))
    sprint.tick(review(100, "changes_requested", 1))
    assert sprint.tick(opened(100, 10, "a1")) == []
    assert sprint.tick(opened(100, 10, "a2")) == ["review:PR#100"]
    assert sprint.tick(review(100, "changes_requested", 1)) == []
    assert sprint.statuses[0] == "InReview"


def test_a_closed_pull_request_returns_the_task_and_another_may_follow(in_review: Sprint) -> None:
    assert in_review.tick(closed(100)) == ["notify:dev-1"]
    assert (in_review.statuses[0], in_review.tasks["task-1"].pr_number) == ("InProgress", None)
    assert in_review.tick(closed(100)) == []
    assert in_review.tick(opened(200, 10)) == ["review:PR#200"]


def test_a_merge_that_is_seen_first_is_the_end(sprint: Sprint) -> None:
    sprint.tick(issue(10))
    assert sprint.tick(ForgeEvent(type="pr_merged", pr_number=100, linked_issue=10)) == ["done:#10"]
    assert sprint.tick(opened(100, 10), review(100, "approved")) == []
    assert sprint.statuses[0] == "Done"


def test_silence_has_its_steps_each_after_as_long_again(in_review: Sprint) -> None:
    in_review.tick(review(100, "changes_requested"))
    assert in_review.tick(after_s=3500) == []
    assert in_review.tick(after_s=101) == ["probe:dev-1 (no news for 60 min)"]
    assert in_review.tick(after_s=60) == []
    assert in_review.tick(after_s=3600) == ["restart:dev-1"]
    assert in_review.tick(after_s=3600) == ["escalate:dev-1"]
    # An event resets the interventions.
    in_review.tick(review(100, "approved"), merged(100))
    assert in_review.tasks["task-1"].intervention_count == 0


def test_an_issue_finds_its_task_by_its_marker(sprint: Sprint) -> None:
    assert sprint.tick(issue(10, "task-2")) == ["spawn:dev-2"]
    # The dependent task is not ready and has no other owner.
    assert sprint.tick(issue(11, "task-3")) == []
    assert sprint.tick(issue(12, "of-another-sprint")) == ["spawn:dev-1"]


def test_an_event_without_a_number_matches_no_task(sprint: Sprint) -> None:
    sprint.tick(issue(10))
    none = ForgeEvent(type="pr_opened", pr_number=7)
    assert sprint.tick(none, ForgeEvent(type="pr_merged"), ForgeEvent(type="label_added")) == []
    assert sprint.tick(ForgeEvent(type="issue_opened", issue_number=12)) == []


_SEEN: dict[str, Any] = {"version": 1, "author": "a", "body": ""}


def _pull(state: str) -> PullSnapshot:
    fields: Any = {"number": 5, "title": "t", "state": state, "branch": "b", "head": "h"}
    return PullSnapshot(**_SEEN, **fields, closes=(3,))


def test_snapshots_of_a_forge_are_accepted_as_events() -> None:
    body = marker("issue/shop-1/task-2")
    seen = _SEEN | {"number": 3, "title": "t", "body": body, "state": "open", "labels": LABELS}
    assert event_of_snapshot(IssueSnapshot(**seen)) == issue(3, "task-2")
    assert event_of_snapshot(_pull("open")) == opened(5, 3, "h")
    for state, kind in (("merged", "pr_merged"), ("closed", "pr_closed")):
        event = event_of_snapshot(_pull(state))
        assert event is not None
        assert event.type == kind
    snapshot = ReviewSnapshot(**_SEEN, id=-4, pull=5, head="h", verdict="approved")
    assert event_of_snapshot(snapshot) == review(5, "approved", 4)
    assert event_of_snapshot(CommentSnapshot(**_SEEN, id=1, issue=3)) is None


def test_the_input_records_are_not_changed(sprint: Sprint) -> None:
    before = sprint.tasks
    sprint.tick(issue(10))
    assert before["task-1"].status is Status.PENDING
