"""A verdict is one of two forms on the last line that is not empty; anything else is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloron.domain.review import Approved, ChangesNeeded, parse_verdict


@pytest.mark.parametrize("answer", ["APPROVED", "fine\n\n  APPROVED  \n\n", "\r\nAPPROVED\r\n"])
def test_approved_on_the_last_line_is_an_approval(answer: str) -> None:
    assert parse_verdict(answer) == Approved()


@pytest.mark.parametrize(
    "answer", ["CHANGES_NEEDED: no tests", "APPROVED\nCHANGES_NEEDED:   no tests  "]
)
def test_changes_needed_carries_its_reason(answer: str) -> None:
    assert parse_verdict(answer) == ChangesNeeded("no tests")


def test_a_reason_may_hold_a_colon() -> None:
    assert parse_verdict("CHANGES_NEEDED: a: b") == ChangesNeeded("a: b")


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
    ],
)
def test_anything_else_is_not_a_verdict(answer: str) -> None:
    assert parse_verdict(answer) is None


@given(st.text())
def test_only_the_exact_word_approves(answer: str) -> None:
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    assert (parse_verdict(answer) == Approved()) == (lines[-1:] == ["APPROVED"])
