"""The last check before a merge counts the same verdicts as the decision to merge."""

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


class ReviewedForge:
    def __init__(self, *reviews: ReviewSnapshot) -> None:
        self._reviews = list(reviews)

    def reviews(self, pull: int) -> list[ReviewSnapshot]:
        return self._reviews

    def checks(self, head: str) -> Checks:
        return Checks(state="green")


def review(version: int, verdict: Any, author: str, body: str = "") -> ReviewSnapshot:
    return ReviewSnapshot(
        version=version, id=version, pull=7, head=HEAD, verdict=verdict, author=author, body=body
    )


def check_merge(task: Task, *reviews: ReviewSnapshot) -> None:
    state = new_state(planned("a"))
    state.tasks["a"] = task
    forge = cast(Forge, ReviewedForge(*reviews))
    MergeGate(forge, cast(Mirror, None), cast(Clock, None), lambda: state).check(EFFECT)


def test_a_voided_verdict_of_our_reviewer_does_not_stop_a_merge() -> None:
    objection = review(2, "changes_requested", "caloron", f"CHANGES_NEEDED: more\n\n{marker(OURS)}")
    approval = review(1, "approved", "ada")
    with pytest.raises(StaleHead, match="caloron asked for changes"):
        check_merge(Task(plan=planned("a"), merge=MergeState(merging=HEAD)), approval, objection)
    check_merge(
        Task(plan=planned("a"), merge=MergeState(merging=HEAD), review=ReviewState(voided=(OURS,))),
        approval,
        objection,
    )


def test_a_later_objection_of_a_person_stops_a_merge() -> None:
    task = Task(
        plan=planned("a"), merge=MergeState(merging=HEAD), review=ReviewState(voided=(OURS,))
    )
    with pytest.raises(StaleHead, match="ada asked for changes"):
        check_merge(task, review(1, "approved", "caloron"), review(2, "changes_requested", "ada"))
