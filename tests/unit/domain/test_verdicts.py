"""Which of several words about one head is the last."""

from __future__ import annotations

import pytest

from caloron.domain.model.snapshots import PART_BITS, ReviewSnapshot, Verdict, marker
from caloron.domain.model.sprint import Sprint, SprintSettings
from caloron.domain.rules.verdicts import latest

SPRINT = Sprint(id="shop-1", number=1, goal="g", settings=SprintSettings(author="robot"))
SECOND = 1 << 30


def said(verdict: Verdict, author: str, id: int, at: int, look: int = 0) -> ReviewSnapshot:
    body = marker("review/2/abc/1/x") if author == "robot" else ""
    version = at << PART_BITS | look
    return ReviewSnapshot(
        version=version, id=id, pull=2, head="abc", verdict=verdict, author=author, body=body
    )


@pytest.mark.parametrize("approving", ["robot", "bob"])
def test_a_persons_request_counts_over_an_approval_by_comment_of_the_same_second(
    approving: str,
) -> None:
    """Comments are read after reviews, so the later look says nothing about who was first."""
    request = said("changes_requested", "anna", 7, SECOND, look=1)
    approval = said("approved", approving, -9, SECOND, look=2)
    assert latest(SPRINT, [request, approval]) == request


@pytest.mark.parametrize("approving", ["robot", "bob"])
def test_an_approval_by_comment_of_a_later_second_counts(approving: str) -> None:
    request = said("changes_requested", "anna", 7, SECOND)
    approval = said("approved", approving, -9, SECOND + 1)
    assert latest(SPRINT, [request, approval]) == approval


def test_of_two_reviews_of_one_second_the_later_number_counts() -> None:
    """They come in one list, and are counted as they come."""
    request = said("changes_requested", "anna", 7, SECOND)
    approval = said("approved", "bob", 8, SECOND)
    assert latest(SPRINT, [approval, request]) == approval


def test_a_request_of_ours_does_not_count_over_a_later_approval_of_the_same_second() -> None:
    request = said("changes_requested", "robot", -7, SECOND, look=1)
    approval = said("approved", "bob", -9, SECOND, look=2)
    assert latest(SPRINT, [request, approval]) == approval
