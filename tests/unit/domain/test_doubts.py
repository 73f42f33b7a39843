"""Main that somebody turned red is not blamed on the change that comes next."""

from __future__ import annotations

import pytest

from caloron.domain.model.effects import CreateIssue
from caloron.domain.model.status import Status
from caloron.domain.reporting.explain import why
from caloron.testing import SprintDriver, new_state, planned


def begun(*names: str) -> SprintDriver:
    """A sprint whose main was green when it began."""
    state = new_state(*(planned(name) for name in names))
    state.sprint.main_health.baseline = ""
    made = SprintDriver(state)
    made.tick()
    (item,) = made.queue
    made.end(item, verify_command="make test")
    made.settle()
    return made


def verify_main(made: SprintDriver, **how: object) -> None:
    """The verification of main by itself ends; a red one is run twice."""
    for _ in range(2):
        items = [i for i in made.queue if "/baseline/" in i]
        if items:
            made.end(items[0], main_author="Ada", **how)  # type: ignore[arg-type]
            made.settle()


def verify(made: SprintDriver, task: str) -> None:
    while task in made.state.tasks and made.task(task).work and made.role(task) == "verify":
        made.finish(task)


def looks(made: SprintDriver) -> list[str]:
    return sorted(i for i in made.tokens if "/baseline/" in i)


def red_main(made: SprintDriver) -> str:
    """A person pushes something to main that is red."""
    made.person.push_main()
    commit = made.forge.branches["main"]
    made.red.add(commit)
    made.settle()
    return commit


def test_a_main_that_a_person_turned_red_is_told_to_people_and_no_agent_fixes_it() -> None:
    made = begun("a")
    made.finish("a")
    commit = red_main(made)
    verify(made, "a")
    assert why(made.state, made.task("a")).endswith("main is being verified by itself")
    verify_main(made, answer="1 failed")
    assert made.status("a") is Status.ESCALATED
    assert made.task("a").reason == f"main itself is red since {commit[:12]} by Ada: 1 failed"
    assert made.task("a").review.rejected == ()
    assert made.queue == {}


def test_once_main_is_put_right_and_a_person_says_so_the_change_is_merged() -> None:
    made = begun("a")
    made.finish("a")
    commit = red_main(made)
    verify(made, "a")
    verify_main(made)
    made.red.discard(commit)
    made.person.push_main()
    made.person.comment(made.task("a").escalation.issue or 0, "resolved")
    made.run()
    assert made.status("a") is Status.DONE


def test_a_change_that_is_red_on_a_green_main_that_moved_is_blamed_after_one_look() -> None:
    made = begun("a")
    made.finish("a")
    made.person.push_main()
    made.settle()
    made.red.add(made.task("a").change.head)
    verify(made, "a")
    assert made.task("a").review.rejected == ()
    verify_main(made)
    assert made.role("a") == "fix"
    assert len(looks(made)) == 2, "main before the sprint, and now"
    # That main is green is known from now on.
    made.finish("a")
    made.red.add(made.task("a").change.head)
    verify(made, "a")
    assert made.role("a") == "fix"
    assert len(looks(made)) == 2


def test_on_the_main_that_the_sprint_began_with_a_red_change_is_blamed_at_once() -> None:
    made = begun("a")
    made.finish("a")
    made.red.add(made.task("a").change.head)
    verify(made, "a")
    assert made.role("a") == "fix"
    assert len(looks(made)) == 1


def test_on_a_main_that_our_own_merge_made_a_red_change_is_blamed_at_once() -> None:
    made = begun("a", "b")
    made.bring_to_review("a")
    made.finish("a")
    assert made.status("a") is Status.DONE
    made.finish("b")
    made.red.add(made.task("b").change.head)
    verify(made, "b")
    assert made.role("b") == "fix"
    assert len(looks(made)) == 1


def test_one_issue_tells_of_a_red_main_however_many_changes_wait_for_it() -> None:
    made = begun("a", "b", "c")
    for name in "abc":
        made.finish(name)
    commit = red_main(made)
    for name in "abc":
        verify(made, name)
    verify_main(made)
    assert len(looks(made)) == 2
    told = [e for e in made.effects(CreateIssue) if "caloron:escalated" in str(e)]
    assert len(told) == 1
    assert sorted(made.statuses().values()) == ["Escalated", "InReview", "InReview"]
    waiting = [t for t in made.state.tasks.values() if t.status is Status.IN_REVIEW]
    assert all(why(made.state, t).startswith("main itself is red since") for t in waiting)
    # Nobody but a person can help: the sprint ends, and goes on once main has moved.
    assert made.state.sprint.phase == "ended"
    made.red.discard(commit)
    made.person.push_main()
    (issue,) = [t.escalation.issue for t in made.state.tasks.values() if t.escalation.issue]
    made.person.comment(issue, "resolved")
    made.run()
    assert set(made.statuses().values()) == {"Done"}


@pytest.mark.parametrize("how", [{"internal_error": "no disk"}, {}])
def test_where_main_cannot_be_looked_at_or_is_green_the_change_is_judged_by_its_result(
    how: dict[str, str],
) -> None:
    made = begun("a")
    made.finish("a")
    made.person.push_main()
    made.settle()
    made.red.add(made.task("a").change.head)
    verify(made, "a")
    verify_main(made, **how)
    assert made.role("a") == "fix"
