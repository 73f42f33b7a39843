"""Discarding a sprint ends all its work and plans no further effects."""

from __future__ import annotations

from caloron.domain.model.effects import CloseIssue, ClosePull, PostComment, ReportProgress
from caloron.domain.model.facts import SprintDiscarded
from caloron.domain.reporting.forge_texts import DISCARD_KEY
from caloron.domain.rules.discard import can_be_discarded
from caloron.testing import SprintDriver, new_state, planned
from tests.support.sprints import act, configure, issue_of, pull_of

UNWANTED = SprintDiscarded(by="ada")


def _discard(made: SprintDriver) -> None:
    """Execute only the effects of the discarded sprint, as the executor does."""
    made.tick(UNWANTED)
    made.journal = [e for e in made.journal if e.key.startswith(DISCARD_KEY)]
    made.settle()


def test_a_running_sprint_ends_with_everything_cancelled_and_closed() -> None:
    made = SprintDriver.start(planned("a"), planned("b", "a"), planned("c"))
    made.bring_to_review("a")
    _discard(made)
    assert set(made.statuses().values()) == {"Cancelled"}
    assert made.state.sprint.phase == "ended"
    assert made.queue == {}
    assert made.forge.pull(pull_of(made)).state == "closed"
    issues = {o for o in made.state.objects.values() if o.object.startswith("issue:")}
    assert {getattr(issue, "state", "") for issue in issues} == {"closed"}
    assert not can_be_discarded(made.state)


def test_each_object_gets_one_comment_and_is_closed_once(made: SprintDriver) -> None:
    made.bring_to_review("a")
    _discard(made)
    for _ in range(3):
        made.tick(UNWANTED)
        made.settle()
    mine = [e for e in made.done if e.key.startswith(DISCARD_KEY)]
    assert sorted(type(e).__name__ for e in mine) == sorted(
        kind.__name__ for kind in (ClosePull, PostComment, CloseIssue, ReportProgress)
    )


def test_a_task_merged_during_the_discard_counts_as_done() -> None:
    made = SprintDriver.start(planned("a"), planned("b"))
    made.bring_to_review("a")
    made.person.merge_pull(pull_of(made))
    made.poll()
    _discard(made)
    assert made.statuses() == {"a": "Done", "b": "Cancelled"}
    assert made.state.sprint.phase == "ended"


def test_a_sprint_that_is_done_cannot_be_discarded(made: SprintDriver) -> None:
    made.run()
    before = made.state
    made.tick(UNWANTED)
    assert made.state.sprint.discard.by == ""
    assert made.statuses() == {"a": "Done"}
    assert made.state.sprint.phase == before.sprint.phase == "ended"


def test_a_close_that_the_forge_refuses_does_not_keep_the_sprint_from_ending() -> None:
    made = SprintDriver.start(planned("a"))
    made.bring_to_review("a")
    made.tick(UNWANTED)
    for effect in list(made.journal):
        made.journal.remove(effect)
        made.refuse(effect, "refused")
    made.settle()
    assert made.state.sprint.phase == "ended"


def test_a_plan_issue_that_waits_for_approval_is_closed_with_a_comment() -> None:
    state = new_state(planned("a"), ask=True)
    configure(state, plan_on_forge=True)
    made = SprintDriver(state)
    made.settle()
    number = made.state.sprint.plan_issue
    _discard(made)
    assert made.forge.issue(number).state == "closed"
    assert made.state.sprint.phase == "ended"


def test_an_issue_that_a_person_opened_gets_a_comment_and_stays_open(made: SprintDriver) -> None:
    number = act(made).open_issue("Theirs", "x", "caloron:task")
    _discard(made)
    assert made.status(f"issue-{number}") == "Cancelled"
    assert made.forge.issue(number).state == "open"
    words = [e for e in made.done if isinstance(e, PostComment) and e.key.startswith(DISCARD_KEY)]
    assert [word.issue for word in words].count(number) == 1
    assert made.state.sprint.phase == "ended"


def test_no_later_comment_reopens_a_discarded_task(made: SprintDriver) -> None:
    number = issue_of(made)
    _discard(made)
    made.person.comment(number, "caloron:retry")
    act(made).reopen_issue(number)
    assert made.statuses() == {"a": "Cancelled"}
