"""Providers and forges that are unavailable for a while."""

from __future__ import annotations

import pytest

from caloron.domain.model.effects import StartWork
from caloron.domain.model.facts import Halt
from caloron.domain.model.status import Status
from caloron.domain.reporting.explain import why, why_sprint
from caloron.domain.reporting.waiting import Outage, outage_after
from caloron.testing import SprintDriver, new_state, planned
from tests.support.sprints import configure


def _starts(made: SprintDriver, **end: object) -> StartWork:
    """End the work of task a; the start that follows at once."""
    made.end(made.item("a"), changes=False, framework="claude-code", **end)  # type: ignore[arg-type]
    decision = made.tick()
    (start,) = [a for a in decision.actions if isinstance(a, StartWork)]
    return start


@pytest.fixture
def made() -> SprintDriver:
    made = SprintDriver.start(planned("a"), planned("b"))
    configure(made.state, framework="claude-code")
    made.settle()
    return made


def test_a_quota_pauses_the_provider_until_its_reset_and_counts_no_failure(
    made: SprintDriver,
) -> None:
    item = made.item("a")
    waiting = made.item("b")
    made.unclaimed = {waiting}
    start = _starts(
        made, provider_error="quota", reset_at=5000.0, provider_message="limit reached", exit_code=1
    )
    assert (start.work.item, start.not_before) == (item, 5000.0)
    assert made.postponed == {waiting: 5000.0}, "what waits for the same provider waits too"
    assert made.task("a").attempts.failures == 0
    assert made.status("a") is Status.IN_PROGRESS
    made.unclaimed = {item, waiting}
    made.tick()
    line = "its implement waits: claude-code: quota until 1970-01-01 01:23 UTC"
    assert why(made.state, made.task("a")) == why(made.state, made.task("b")) == line


def test_a_rate_limit_without_a_reset_waits_longer_each_time(made: SprintDriver) -> None:
    pauses = []
    for _ in range(9):
        start = _starts(made, provider_error="rate_limit")
        pauses.append(start.not_before - made.now)
        made.now = start.not_before
    assert pauses[:3] == [60, 120, 240]
    assert pauses[-1] == 3600
    assert made.task("a").attempts.failures == 0


def test_the_pause_is_over_once_the_provider_answers(made: SprintDriver) -> None:
    _starts(made, provider_error="quota", reset_at=5000.0)
    made.finish("a", framework="claude-code")
    assert made.state.sprint.availability.providers == {}


def test_a_refused_credential_pauses_the_sprint_and_keeps_the_work(made: SprintDriver) -> None:
    item = made.item("a")
    start = _starts(made, provider_error="auth", provider_message="invalid x-api-key", exit_code=1)
    assert start.work.item == item
    assert (
        "claude-code has no valid credential: invalid x-api-key"
        in made.state.sprint.availability.pause_reason
    )
    assert made.task("a").attempts.failures == 0
    assert why_sprint(made.state.sprint) == made.state.sprint.availability.pause_reason


@pytest.mark.parametrize("trouble", ["overflow", "crash", "budget"])
def test_any_other_error_is_a_failure_and_the_second_failure_escalates(
    made: SprintDriver, trouble: str
) -> None:
    made.task("a").attempts.session = "s-1"
    _starts(made, provider_error=trouble, provider_message="why")
    assert made.task("a").attempts.failures == 1
    assert (made.task("a").attempts.session == "") is (trouble == "overflow")
    made.finish("a", changes=False, provider_error=trouble, provider_message="why")
    assert made.status("a") is Status.ESCALATED
    assert made.task("a").reason == f"the agent failed ({trouble}): why"


def test_the_author_resumes_its_conversation_and_the_reviewer_starts_anew(
    made: SprintDriver,
) -> None:
    made.finish("a", session="author")
    made.finish("a")
    assert made.role("a") == "review"
    made.finish("a", session="reviewer", answer="CHANGES_NEEDED: more")
    assert made.role("a") == "fix"
    assert made.task("a").attempts.session == "author"


def test_a_planner_without_quota_is_asked_again_after_the_reset() -> None:
    made = SprintDriver(new_state())
    configure(made.state, framework="claude-code")
    made.tick()
    (item,) = made.queue
    for _ in range(3):
        made.end(item, framework="claude-code", provider_error="quota", reset_at=9000.0)
        decision = made.tick()
        (start,) = decision.actions
        assert isinstance(start, StartWork)
        assert start.not_before == 9000.0
    assert made.state.sprint.phase == "planning"
    assert why_sprint(made.state.sprint) == "claude-code: quota until 1970-01-01 02:30 UTC"


def test_a_pause_survives_the_next_tick(made: SprintDriver) -> None:
    made.tick(Halt(reason="the budget of $1.00 is used up"))
    made.tick()
    assert made.state.sprint.availability.pause_reason == "the budget of $1.00 is used up"


NOON = 1_790_000_000 // 86_400 * 86_400 + 12 * 3600.0


def test_an_outage_keeps_the_time_it_began_and_its_first_cause() -> None:
    first = outage_after(None, "connection\n refused", None, NOON)
    later = outage_after(first, "another cause", None, NOON + 600)
    assert later == first
    assert str(later) == "forge does not answer since 12:00 UTC (connection refused)"


def test_a_quota_names_its_end_and_differs_from_silence() -> None:
    silent = outage_after(None, "connection refused", None, NOON)
    quota = outage_after(silent, "used up", NOON + 2400, NOON + 60)
    assert str(quota) == "forge quota until 12:40 UTC"
    assert quota.since == NOON + 60
    longer = outage_after(quota, "used up", NOON + 4800, NOON + 120)
    assert str(longer) == "forge quota until 13:20 UTC"
    assert longer.since == quota.since


def test_another_day_is_named() -> None:
    assert str(Outage(NOON, NOON + 86_400, "")).startswith("forge quota until 2026-")
