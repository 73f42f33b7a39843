"""The last look before a merge counts the same words as the decision to merge."""

from __future__ import annotations

from typing import Any, cast

import pytest

from caloron.domain.model.effects import Merge
from caloron.domain.model.snapshots import ReviewSnapshot, marker
from caloron.domain.model.task import MergeState, ReviewState, Task
from caloron.engine.forge.merging import MergeGate
from caloron.errors import StaleHead
from caloron.git.mirror import Mirror
from caloron.ports import Checks, Clock, Forge
from caloron.testing import new_state, planned

HEAD = "c2"
OURS = "review/7/c2/1/3-review-1"
EFFECT = Merge(key="merge/7/c2/c1", task="a", pull=7, head=HEAD, base="c1", message="")


class ForgeThatAnswers:
    def __init__(self, *reviews: ReviewSnapshot) -> None:
        self._reviews = list(reviews)

    def reviews(self, pull: int) -> list[ReviewSnapshot]:
        return self._reviews

    def checks(self, head: str) -> Checks:
        return Checks(state="green")


def said(version: int, verdict: Any, author: str, body: str = "") -> ReviewSnapshot:
    return ReviewSnapshot(
        version=version, id=version, pull=7, head=HEAD, verdict=verdict, author=author, body=body
    )


def look(task: Task, *reviews: ReviewSnapshot) -> None:
    state = new_state(planned("a"))
    state.tasks["a"] = task
    forge = cast(Forge, ForgeThatAnswers(*reviews))
    MergeGate(forge, cast(Mirror, None), cast(Clock, None), lambda: state).check(EFFECT)


def test_a_verdict_of_ours_that_was_taken_back_does_not_stop_a_merge() -> None:
    no = said(2, "changes_requested", "caloron", f"CHANGES_NEEDED: more\n\n{marker(OURS)}")
    yes = said(1, "approved", "ada")
    with pytest.raises(StaleHead, match="caloron asked for changes"):
        look(Task(plan=planned("a"), merge=MergeState(merging=HEAD)), yes, no)
    look(
        Task(plan=planned("a"), merge=MergeState(merging=HEAD), review=ReviewState(voided=(OURS,))),
        yes,
        no,
    )


def test_a_later_no_of_a_person_stops_a_merge() -> None:
    task = Task(
        plan=planned("a"), merge=MergeState(merging=HEAD), review=ReviewState(voided=(OURS,))
    )
    with pytest.raises(StaleHead, match="ada asked for changes"):
        look(task, said(1, "approved", "caloron"), said(2, "changes_requested", "ada"))
