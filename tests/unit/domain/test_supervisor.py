"""The ladder: probe, restart, escalation; output of the agent resets the count."""

from __future__ import annotations

import pytest

from caloron.domain.model.effects import (
    CancelWork,
    CreateIssue,
    PostComment,
    Probe,
    ReportProgress,
    StartWork,
)
from caloron.domain.model.status import Status
from caloron.domain.reporting.explain import why
from caloron.domain.rules.evaluation import Decision
from caloron.domain.rules.people.state_file_edit import FileEdit, apply_file_edit
from caloron.domain.rules.supervisor import AgentSeen, Limits, check_health, supervise
from caloron.testing import SprintDriver, planned
from tests.support.sprints import act, escalation_of, finish_twice

LIMITS = Limits(stall_s=100, timeout_s=1000, grace_s=10)


class Watch:
    """One running agent that a test checks at chosen moments."""

    def __init__(self) -> None:
        self.world = SprintDriver.start(planned("a"), planned("b", "a"))
        self.now = 10_000.0

    def check(self, *, silent_s: float, running_s: float = 500.0, after_s: float = 0) -> Decision:
        self.now += after_s
        seen = AgentSeen(
            item=self.world.item("a"), task="a", role="implement",
            running_s=running_s, silent_s=silent_s,
        )  # fmt: skip
        results = [check_health(seen, LIMITS)]
        decision, _ = supervise(self.world.state, results, LIMITS, self.now)
        self.world.adopt(decision)
        return decision


def kinds(decision: Decision) -> list[type]:
    return [type(a) for a in decision.actions]


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_an_agent_within_the_limits_is_left_alone(watch: Watch) -> None:
    assert kinds(watch.check(silent_s=100, running_s=1000)) == []


def test_silence_is_probed_then_restarted_then_escalated(watch: Watch) -> None:
    item = watch.world.item("a")
    assert kinds(watch.check(silent_s=101)) == [Probe, PostComment]
    assert kinds(watch.check(silent_s=105, after_s=4)) == []
    restart = watch.check(silent_s=112, after_s=7)
    assert kinds(restart) == [PostComment, StartWork]
    assert watch.world.item("a") == item
    end = watch.check(silent_s=101, running_s=101, after_s=101)
    assert kinds(end) == [CancelWork, CreateIssue, ReportProgress]
    assert watch.world.status("a") is Status.ESCALATED
    assert "silent" in watch.world.task("a").reason
    watch.world.tick()
    assert watch.world.status("b") is Status.BLOCKED


def test_a_busy_agent_over_its_time_limit_climbs_the_same_ladder(watch: Watch) -> None:
    assert kinds(watch.check(silent_s=0, running_s=1001)) == [Probe, PostComment]
    assert kinds(watch.check(silent_s=0, running_s=1012, after_s=11)) == [PostComment, StartWork]


def test_after_output_the_next_silence_is_probed_again(watch: Watch) -> None:
    """Each silence needs keys of its own, because the journal executes a key once."""
    first = watch.check(silent_s=101)
    assert watch.world.task("a").supervision.interventions == 1
    watch.check(silent_s=2, after_s=5)
    assert watch.world.task("a").supervision.interventions == 0
    second = watch.check(silent_s=101, after_s=200)
    assert kinds(second) == [Probe, PostComment]
    keys = [a.key for d in (first, second) for a in d.actions if isinstance(a, Probe | PostComment)]
    assert len(set(keys)) == 4


def test_output_before_the_probe_does_not_clear_the_count(watch: Watch) -> None:
    watch.check(silent_s=101)
    watch.check(silent_s=50, after_s=5)
    assert watch.world.task("a").supervision.interventions == 1


def test_after_a_restart_only_a_finished_attempt_clears_the_count(watch: Watch) -> None:
    watch.check(silent_s=101)
    watch.check(silent_s=112, after_s=11)
    watch.check(silent_s=0, running_s=1, after_s=5)
    assert watch.world.task("a").supervision.interventions == 2
    watch.world.finish("a")
    assert watch.world.task("a").supervision.interventions == 0


def test_an_agent_of_ended_work_is_not_checked(watch: Watch) -> None:
    stale = AgentSeen(item="shop-1/a/99-fix", task="a", role="fix", running_s=9e9, silent_s=9e9)
    results = [check_health(stale, LIMITS)]
    assert supervise(watch.world.state, results, LIMITS, watch.now)[1] == []


def test_a_release_starts_the_same_work_with_a_fresh_count(watch: Watch) -> None:
    item = watch.world.item("a")
    for after in (0, 11, 111):
        watch.check(silent_s=150, after_s=after)
    made = watch.world
    made.settle()
    escalation = escalation_of(made)
    act(made).comment(escalation, "resolved")
    assert made.item("a") == item
    assert made.task("a").supervision.interventions == 0
    assert kinds(watch.check(silent_s=101)) == [Probe, PostComment]


# A state that a person wrote into the state file


def imported(made: SprintDriver, **statuses: str) -> dict[str, str]:
    content = FileEdit(statuses=statuses, interventions={})
    decision, outcome = apply_file_edit(made.state, content, 1.0)
    made.adopt(decision)
    return outcome


def test_a_task_marked_as_done_by_hand_is_completed_and_its_dependents_start() -> None:
    made = SprintDriver.start(planned("a"), planned("b", "a"))
    assert imported(made, a="Done") == {"a": "InProgress → Done"}
    made.settle()
    assert made.statuses() == {"a": "Done", "b": "InProgress"}


def test_a_task_cancelled_by_hand_stays_cancelled_with_an_open_issue(chain: SprintDriver) -> None:
    imported(chain, a="Cancelled")
    chain.settle()
    assert chain.statuses() == {"a": "Cancelled", "b": "Blocked"}
    assert chain.queue == {}


def test_an_escalated_task_is_released_by_hand_only_to_an_active_status(made: SprintDriver) -> None:
    finish_twice(made, "a", exit_code=1, changes=False)
    for nonsense in ("Foo", "Blocked", ""):
        assert "cannot be done by hand" in imported(made, a=nonsense)["a"]
        assert made.status("a") is Status.ESCALATED
    assert imported(made, a="InProgress") == {"a": "Escalated → InProgress"}
    assert made.role("a") == "implement"


@pytest.mark.parametrize("wanted", ["Pending", "InReview", "Blocked", "Nonsense"])
def test_an_invalid_edit_changes_nothing_and_is_reported(wanted: str) -> None:
    made = SprintDriver.start(planned("a"))
    before = made.state
    assert "cannot be done by hand" in imported(made, a=wanted)["a"]
    assert made.state == before
    assert imported(made, x="Done") == {"x": "no such task"}


def test_a_done_task_cannot_be_changed_by_hand(made: SprintDriver) -> None:
    made.run()
    assert "cannot be done by hand" in imported(made, a="Cancelled")["a"]
    assert made.status("a") is Status.DONE


def test_interventions_can_be_set_by_hand(made: SprintDriver) -> None:
    decision, outcome = apply_file_edit(
        made.state, FileEdit(statuses={}, interventions={"a": 2, "x": 1}), 1.0
    )
    assert decision.state.tasks["a"].supervision.interventions == 2
    assert outcome == {"a": "interventions set to 2"}


# The reason of every task that is not done


def test_every_waiting_task_names_its_reason(chain: SprintDriver) -> None:

    def line(task: str) -> str:
        return why(chain.state, chain.task(task))

    assert line("a") == "an agent is writing the change"
    assert line("b") == "waiting for a"
    chain.end(chain.item("a"))
    chain.tick()
    assert line("a") == "pushing its branch"
    chain.perform(0)
    chain.tick()
    assert line("a") == "opening a pull request"
    chain.settle()
    assert line("a") == "its merged result is being verified"
    chain.finish("a")
    assert line("a") == "a reviewer is reading it, round 1"
    chain.finish("a", answer="CHANGES_NEEDED: x")
    assert line("a") == "an agent is fixing it, round 1"
    finish_twice(chain, "a", changes=False)
    assert line("a").endswith(
        f"comment `resolved` on issue #{chain.task('a').escalation.issue} to continue"
    )
    assert line("b") == "held by a"
    chain.run()
