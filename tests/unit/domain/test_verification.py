"""Verifications of main before the sprint, and of red changes on a main that may be red."""

from __future__ import annotations

import pytest

from caloron.domain.model.effects import CreateIssue
from caloron.domain.model.facts import Skipped
from caloron.domain.model.status import Status
from caloron.domain.reporting.explain import why, why_sprint
from caloron.testing import SprintDriver, new_state, planned
from tests.support.sprints import act, configure, escalation_of, finish_twice, finishes


@pytest.fixture
def made() -> SprintDriver:
    state = new_state(planned("a"))
    state.sprint.main_health.baseline = ""
    made = SprintDriver(state)
    made.tick()
    return made


def _end(made: SprintDriver, **how: object) -> None:
    (item,) = made.queue
    made.end(item, **how)  # type: ignore[arg-type]
    made.tick()


def test_no_task_starts_before_main_is_known_to_be_green(made: SprintDriver) -> None:
    ((task, work),) = made.queue.values()
    assert (task, work.role, work.item) == ("", "verify", "shop-1/baseline/1-verify")
    assert not made.state.tasks
    assert why_sprint(made.state.sprint) == "main is being verified before the sprint starts"
    _end(made, verify_command="make test")
    health = made.state.sprint.main_health
    assert (health.baseline, health.verify_line) == ("green", "make test")
    assert list(made.state.tasks) == ["a"]


def test_a_red_main_is_verified_twice_and_then_stops_the_sprint(made: SprintDriver) -> None:
    _end(made, exit_code=1)
    assert made.queue, "main is verified a second time"
    _end(made, exit_code=1, answer="1 failed")
    assert made.state.sprint.phase == "ended"
    assert made.state.sprint.planning.failure == "main is red before the sprint: 1 failed"
    assert not made.state.tasks
    assert not made.queue


def test_a_main_that_is_red_only_once_is_flaky_and_accepted(made: SprintDriver) -> None:
    _end(made, exit_code=1)
    _end(made)
    assert made.state.sprint.main_health.baseline == "green"


@pytest.mark.parametrize("skipped", ["none", "unverified"])
def test_a_main_without_anything_to_verify_is_never_red(
    made: SprintDriver, skipped: Skipped
) -> None:
    _end(made, skipped=skipped)
    assert made.state.sprint.main_health.baseline == skipped
    assert list(made.state.tasks) == ["a"]


def test_red_changes_pass_on_an_allowed_red_main_until_a_merge_turns_it_green() -> None:
    state = new_state(planned("a"), planned("b", "a"), planned("c", "b"))
    state.sprint.main_health.baseline = ""
    configure(state, allow_red=True)
    made = SprintDriver(state)
    made.tick()
    _end(made, exit_code=1)
    _end(made, exit_code=1)
    assert made.state.sprint.main_health.baseline == "red"
    made.settle()
    made.finish("a")
    finish_twice(made, "a", exit_code=1)
    assert made.role("a") == "review", "the reviewer decides, with the log"
    made.finish("a")
    assert (made.status("a"), made.state.sprint.main_health.baseline) == (Status.DONE, "red")
    made.finish("b")
    finish_twice(made, "b")
    assert (made.status("b"), made.state.sprint.main_health.baseline) == (Status.DONE, "green")
    made.finish("c")
    finish_twice(made, "c", exit_code=1)
    assert made.role("c") == "fix", "main is green now, and stays so"


def test_an_empty_main_that_gets_code_without_tests_is_unverified_from_then_on() -> None:
    made = SprintDriver(new_state(planned("a")))
    made.state.sprint.main_health.baseline = "none"
    made.settle()
    made.finish("a")
    made.finish("a", skipped="unverified")
    assert str(made.state.sprint.main_health.baseline) == "unverified"


def test_a_change_that_removes_the_tests_is_red(made: SprintDriver) -> None:
    _end(made, verify_command="make test")
    made.settle()
    made.finish("a")
    finish_twice(made, "a", skipped="unverified")
    assert made.role("a") == "fix"
    assert "nothing is left of what verified main (make test)" in made.task("a").reason


def test_a_main_that_could_not_be_verified_is_not_called_red(made: SprintDriver) -> None:
    configure(made.state, allow_red=True)
    _end(made, internal_error="agents cannot be given / to read")
    _end(made, internal_error="agents cannot be given / to read")
    sprint = made.state.sprint
    assert sprint.planning.failure == "main could not be verified: agents cannot be given / to read"
    assert sprint.planning.failure_kind == ""


def test_the_next_attempt_gets_the_failure_of_the_last_attempt(made: SprintDriver) -> None:
    _end(made)
    made.settle()
    made.finish("a", internal_error="the commits hold\nthe value of MY_KEY")
    assert made.work("a").previous_failure == "the commits hold the value of MY_KEY"


def test_a_main_whose_tests_exceeded_a_limit_is_red(made: SprintDriver) -> None:
    """A program may exit with 0 after the signal to stop."""
    for _ in range(2):
        _end(made, limit_hit="memory: more than 4096 MB", answer="")
    assert (
        made.state.sprint.planning.failure
        == "main is red before the sprint: memory: more than 4096 MB"
    )


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
    """End the verification of main; a red verification runs twice."""
    for _ in range(2):
        items = [i for i in made.queue if "/baseline/" in i]
        if items:
            made.end(items[0], main_author="Ada", **how)  # type: ignore[arg-type]
            made.settle()


def verify(made: SprintDriver, task: str) -> None:
    while task in made.state.tasks and made.task(task).work and made.role(task) == "verify":
        made.finish(task)


def main_verifications(made: SprintDriver) -> list[str]:
    return sorted(i for i in made.tokens if "/baseline/" in i)


def red_main(made: SprintDriver) -> str:
    """Let a person push a red commit to main."""
    made.person.push_main()
    commit = made.forge.branches["main"]
    made.red.add(commit)
    made.settle()
    return commit


def test_a_main_that_a_person_turned_red_escalates_until_it_is_repaired() -> None:
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
    made.red.discard(commit)
    made.person.push_main()
    made.person.comment(escalation_of(made), "resolved")
    assert finishes(made)


def test_a_red_change_on_a_moved_main_is_blamed_after_one_verification_of_main() -> None:
    made = begun("a")
    made.finish("a")
    act(made).push_main()
    made.red.add(made.task("a").change.head)
    verify(made, "a")
    assert made.task("a").review.rejected == ()
    verify_main(made)
    assert made.role("a") == "fix"
    assert len(main_verifications(made)) == 2, "main before the sprint, and now"
    # From here on main is known to be green.
    made.finish("a")
    made.red.add(made.task("a").change.head)
    verify(made, "a")
    assert made.role("a") == "fix"
    assert len(main_verifications(made)) == 2


def test_a_red_change_on_the_first_main_is_blamed_at_once() -> None:
    made = begun("a")
    made.finish("a")
    made.red.add(made.task("a").change.head)
    verify(made, "a")
    assert made.role("a") == "fix"
    assert len(main_verifications(made)) == 1


def test_a_red_change_on_a_main_of_our_own_merge_is_blamed_at_once() -> None:
    made = begun("a", "b")
    made.bring_to_review("a")
    made.finish("a")
    assert made.status("a") is Status.DONE
    made.finish("b")
    made.red.add(made.task("b").change.head)
    verify(made, "b")
    assert made.role("b") == "fix"
    assert len(main_verifications(made)) == 1


def test_a_red_main_opens_one_issue_for_all_waiting_changes() -> None:
    made = begun("a", "b", "c")
    for name in "abc":
        made.finish(name)
    commit = red_main(made)
    for name in "abc":
        verify(made, name)
    verify_main(made)
    assert len(main_verifications(made)) == 2
    escalations = [e for e in made.effects(CreateIssue) if "caloron:escalated" in str(e)]
    assert len(escalations) == 1
    assert sorted(made.statuses().values()) == ["Escalated", "InReview", "InReview"]
    waiting = [t for t in made.state.tasks.values() if t.status is Status.IN_REVIEW]
    assert all(why(made.state, t).startswith("main itself is red since") for t in waiting)
    # Only a person can help: the sprint ends, and continues once main has moved.
    assert made.state.sprint.phase == "ended"
    made.red.discard(commit)
    made.person.push_main()
    (issue,) = [t.escalation.issue for t in made.state.tasks.values() if t.escalation.issue]
    made.person.comment(issue, "resolved")
    assert finishes(made)


def test_if_main_cannot_be_verified_the_change_is_judged_by_its_own_result() -> None:
    made = begun("a")
    made.finish("a")
    act(made).push_main()
    made.red.add(made.task("a").change.head)
    verify(made, "a")
    verify_main(made, internal_error="no disk")
    assert made.role("a") == "fix"
