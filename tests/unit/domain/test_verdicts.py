"""The form of a verdict, and which of several verdicts on a head decides."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloron.domain.model.snapshots import PART_BITS, ReviewSnapshot, Verdict, marker
from caloron.domain.model.sprint import Sprint, SprintSettings
from caloron.domain.rules.verdicts import ReviewPolicy, latest, parse_verdict


@pytest.mark.parametrize("answer", ["APPROVED", "fine\n\n  APPROVED  \n\n", "\r\nAPPROVED\r\n"])
def test_approved_on_the_last_line_is_an_approval(answer: str) -> None:
    assert parse_verdict(answer) == ""


@pytest.mark.parametrize(
    "answer", ["CHANGES_NEEDED: no tests", "It cannot be APPROVED.\nCHANGES_NEEDED:   no tests  "]
)
def test_changes_needed_carries_its_reason(answer: str) -> None:
    assert parse_verdict(answer) == "no tests"


def test_a_reason_may_hold_a_colon() -> None:
    assert parse_verdict("CHANGES_NEEDED: a: b") == "a: b"


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "\n \n",
        "APPROVED\nor not",
        "approved",
        "Approved.",
        "APPROVED!",
        "**APPROVED**",
        "NOT APPROVED",
        "APPROVED: yes",
        "CHANGES_NEEDED",
        "CHANGES_NEEDED:",
        "CHANGES_NEEDED:   ",
        "changes_needed: x",
        "hmm, dunno",
        "APPROVED or CHANGES_NEEDED: x",
        "CHANGES_NEEDED: no tests\nAPPROVED",
        "APPROVED\nCHANGES_NEEDED: no tests",
        "**CHANGES_NEEDED**: no tests\n\nAPPROVED",
    ],
)
def test_anything_else_is_not_a_verdict(answer: str) -> None:
    assert parse_verdict(answer) is None


@given(st.text())
def test_only_the_exact_word_approves(answer: str) -> None:
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    assert (parse_verdict(answer) == "") == (lines[-1:] == ["APPROVED"])


_LINES = st.one_of(
    st.just("APPROVED"), st.builds("CHANGES_NEEDED: {}".format, st.text(min_size=1)), st.text()
)


@given(st.lists(_LINES))
def test_an_answer_with_both_verdicts_is_never_one_of_them(parts: list[str]) -> None:
    answer = "\n".join(parts)
    lines = [line.strip() for line in answer.splitlines()]
    if "APPROVED" in lines and any(line.startswith("CHANGES_NEEDED:") for line in lines):
        assert parse_verdict(answer) is None


@given(st.text(), st.text(), st.text())
def test_an_approval_names_the_other_verdict_nowhere(before: str, after: str, more: str) -> None:
    assert parse_verdict(f"{before}CHANGES_NEEDED{after}\n{more}\nAPPROVED") is None


SPRINT = Sprint(id="shop-1", number=1, goal="g", settings=SprintSettings(author="robot"))
SECOND = 1 << 30


def review(verdict: Verdict, author: str, id: int, at: int, poll_part: int = 0) -> ReviewSnapshot:
    body = marker("review/2/abc/1/x") if author == "robot" else ""
    version = at << PART_BITS | poll_part
    return ReviewSnapshot(
        version=version, id=id, pull=2, head="abc", verdict=verdict, author=author, body=body
    )


@pytest.mark.parametrize("approving", ["robot", "bob"])
def test_a_persons_request_counts_over_an_approval_by_comment_of_the_same_second(
    approving: str,
) -> None:
    """Comments are read after reviews, so the order of reading is not the order of writing."""
    request = review("changes_requested", "anna", 7, SECOND, poll_part=1)
    approval = review("approved", approving, -9, SECOND, poll_part=2)
    assert latest(SPRINT, [request, approval]) == request


@pytest.mark.parametrize("approving", ["robot", "bob"])
def test_an_approval_by_comment_of_a_later_second_counts(approving: str) -> None:
    request = review("changes_requested", "anna", 7, SECOND)
    approval = review("approved", approving, -9, SECOND + 1)
    assert latest(SPRINT, [request, approval]) == approval


def test_of_two_reviews_of_one_second_the_later_number_counts() -> None:
    """The forge returns reviews in one ordered list."""
    request = review("changes_requested", "anna", 7, SECOND)
    approval = review("approved", "bob", 8, SECOND)
    assert latest(SPRINT, [approval, request]) == approval


def test_our_request_does_not_override_a_later_approval_of_the_same_second() -> None:
    request = review("changes_requested", "robot", -7, SECOND, poll_part=1)
    approval = review("approved", "bob", -9, SECOND, poll_part=2)
    assert latest(SPRINT, [request, approval]) == approval


@pytest.mark.parametrize(
    ("verdicts", "approved"),
    [
        (["ann:approved"], False),
        (["ann:approved", "ann:approved"], False),
        (["ann:approved", "bob:approved"], True),
        # An author's later verdict replaces the earlier one.
        (["ann:approved", "ann:changes_requested", "bob:approved"], False),
        (["ann:changes_requested", "ann:approved", "bob:approved"], True),
        (["ann:approved", "bob:commented"], False),
        # Our reviewer is no person.
        (["ann:approved", "robot:approved"], False),
    ],
)
def test_a_policy_of_two_people_needs_two_of_them(verdicts: list[str], approved: bool) -> None:
    reviews = []
    for number, line in enumerate(verdicts, 1):
        author, _, verdict = line.partition(":")
        reviews.append(review(cast(Verdict, verdict), author, number, SECOND + number))
    last = ReviewPolicy(people=2).judge(SPRINT, None, reviews, 2, "abc").decisive
    assert (last is not None and last.verdict == "approved") == approved


def test_a_person_whose_request_is_newer_than_the_own_approval_does_not_approve() -> None:
    """Within one second a request counts over an approval by comment, whatever was read later."""
    reviews = [
        review("changes_requested", "ann", 7, SECOND, poll_part=1),
        review("approved", "ann", -9, SECOND, poll_part=2),
        review("approved", "bob", 11, SECOND + 1),
    ]
    assert ReviewPolicy(people=2).judge(SPRINT, None, reviews, 2, "abc").missing == 1


def test_our_approval_waits_for_a_person_and_a_person_needs_none_of_ours() -> None:
    policy, ours = ReviewPolicy(people=1), review("approved", "robot", 7, SECOND)
    persons = review("approved", "ann", 8, SECOND + 1)
    ruling = policy.judge(SPRINT, None, [ours], 2, "abc")
    assert (ruling.last, ruling.missing, ruling.decisive) == (ours, 1, None)
    for reviews in ([ours, persons], [persons]):
        assert policy.judge(SPRINT, None, reviews, 2, "abc").decisive == persons
