"""The last checks before a merge: verdicts, the forge's own CI, conflicts git does not find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from caloron.domain.model.effects import Merge
from caloron.domain.model.snapshots import ReviewSnapshot, marker
from caloron.domain.model.task import MergeState, ReviewState, Task
from caloron.engine.forge.merging import MergeGate
from caloron.errors import MergeConflict, StaleHead
from caloron.forge.local.forge import LocalForge, create_local_forge
from caloron.git.mirror import Mirror
from caloron.ports import Checks, Clock, Forge, Merged
from caloron.testing import new_state, planned
from tests.integration.engine.loop import Loop
from tests.integration.forge.people import Clone
from tests.integration.forge.worlds import LocalPerson

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


def test_a_merge_whose_approval_by_a_person_was_withdrawn_is_stopped() -> None:
    plan = msgspec.structs.replace(planned("a"), require_human_review=True)
    ours = review(1, "approved", "caloron", f"APPROVED\n\n{marker(OURS)}")
    task = Task(plan=plan, merge=MergeState(merging=HEAD))
    check_merge(task, ours, review(2, "approved", "ada"))
    with pytest.raises(StaleHead, match="approval of a person"):
        check_merge(task, ours)


# A CI that has not reported on a new head yet


class ForgeWithCI:
    """A forge with pages, on which a CI may report."""

    def __init__(self, forge: LocalForge) -> None:
        self._forge = forge
        self.pages = "https://forge.invalid/"
        self.state = Checks(state="none")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._forge, name)

    def url(self, number: int) -> str:
        return self.pages and f"{self.pages}{number}"

    def checks(self, head: str) -> Checks:
        return self.state


@pytest.fixture
def forge(tmp_path: Path) -> Iterator[ForgeWithCI]:
    made = create_local_forge(tmp_path / "project", name="sample")
    yield ForgeWithCI(made)
    made.close()


@pytest.fixture
def loop(forge: ForgeWithCI, tmp_path: Path) -> Iterator[Loop]:
    (tmp_path / "home").mkdir()
    made = Loop(tmp_path / "home", cast(Forge, forge))
    yield made
    made.close()


def decide(loop: Loop, folder: Path, file: str) -> None:
    """Decide a merge in a repository with this file, and try it."""
    clone = Clone(loop.forge.remote().url, folder / "clone")
    LocalPerson(folder / "project", clone).push_main(file)
    loop.bring_to("merging")
    loop.perform()
    loop.tick()


def test_a_merge_waits_a_limited_time_for_a_ci_without_a_report(loop: Loop, tmp_path: Path) -> None:
    decide(loop, tmp_path, ".gitlab-ci.yml")
    waits = loop.task().merge.waiting
    assert waits is not None
    assert waits.what == "waits for the forge's CI: nothing reported yet"
    assert [p.state for p in loop.pulls()] == ["open"]
    loop.clock.time = loop.task().review.seen_at + 60
    loop.settle()
    assert loop.status() == "Done"


def test_a_ci_report_during_the_wait_decides(
    forge: ForgeWithCI, loop: Loop, tmp_path: Path
) -> None:
    decide(loop, tmp_path, ".gitlab-ci.yml")
    forge.state = Checks(state="red", detail="build")
    loop.clock.time = loop.task().review.seen_at + 60
    loop.settle()
    assert (loop.role(), loop.work().reason) == ("fix", "the forge's CI failed: build")


@pytest.mark.parametrize(("file", "pages"), [("notes.txt", "https://x/"), (".gitlab-ci.yml", "")])
def test_a_merge_without_a_ci_does_not_wait(
    forge: ForgeWithCI, loop: Loop, tmp_path: Path, file: str, pages: str
) -> None:
    forge.pages = pages
    decide(loop, tmp_path, file)
    assert loop.status() == "Done"


# A forge may report a conflict before it has checked the merge, as a busy Gitea does.


def report_conflicts(at: Loop, times: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    merge = at.forge.merge
    merge_calls: list[int] = []

    def merge_late(number: int, head: str, base: str, message: str, verified: Any) -> Merged:
        merge_calls.append(number)
        if len(merge_calls) <= times:
            raise MergeConflict(f"pull request #{number} conflicts with main")
        return merge(number, head, base, message, verified)

    monkeypatch.setattr(at.forge, "merge", merge_late)
    return merge_calls


def test_a_conflict_that_git_does_not_find_is_checked_again(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.bring_to("merging")
    merge_calls = report_conflicts(loop, 2, monkeypatch)
    loop.settle()
    assert (loop.status(), len(merge_calls)) == ("Done", 3)


def test_a_forge_that_keeps_reporting_a_conflict_is_believed_in_the_end(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop.bring_to("merging")
    report_conflicts(loop, 99, monkeypatch)
    loop.settle()
    assert loop.role() == "resolve"
