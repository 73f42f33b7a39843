"""Each stage alone: what goes in, what comes out."""

from __future__ import annotations

from caloron.domain.actions import CancelWork, CreateIssue, Probe, RetryEffect, StartWork
from caloron.domain.sprint import Work
from caloron.domain.status import Status
from caloron.domain.supervise import AgentSeen, Limits
from caloron.ledger.ledger import Loaded
from caloron.stages.dag import (
    dag_is_complete,
    dag_validate,
    execute_actions,
    unblocked_tasks,
)
from caloron.stages.forge import github_poll_events
from caloron.stages.sprint import ExecuteInput, TickState
from caloron.stages.supervisor import check_agent_health
from caloron.store.queue import InFlight
from tests.unit.domain.world import DIAMOND, planned, world


def test_a_sprint_is_complete_when_no_task_can_move_without_a_person() -> None:
    made = world(*DIAMOND)
    told = dag_is_complete(made.state)
    assert (told.complete, told.total, told.done) == (False, 4, 0)
    for id, status in zip("abcd", ("DONE", "ESCALATED", "CANCELLED", "BLOCKED"), strict=True):
        made.state.tasks[id].status = Status[status]
    told = dag_is_complete(made.state)
    assert (told.complete, told.done, told.blocked, told.cancelled) == (True, 1, 2, 1)
    made.state.tasks.clear()
    assert not dag_is_complete(made.state).complete


def test_a_plan_is_validated_without_any_effect() -> None:
    good = [{"id": "a", "title": "A", "agent_prompt": "do"}]
    assert dag_validate(good).valid
    bad = dag_validate([*good, *good], frameworks=("stub",))
    assert (bad.valid, bad.errors, bad.tasks) == (False, ("task 'a' appears 2 times",), ())


def test_the_tasks_that_could_start_are_those_that_are_ready() -> None:
    made = world(planned("a"), planned("b"), planned("c", "a"), parallel=1)
    (ready,) = unblocked_tasks(made.state)
    assert (ready.task_id, ready.agent_id, ready.issue_number) == ("b", "b", 2)


def test_decisions_become_rows_in_order_and_are_told() -> None:
    issue = CreateIssue(key="issue/x", task="a", title="t", body="b", labels=())
    start = StartWork(task="a", work=Work(item="s/a/1-fix", role="fix"))
    cancel = CancelWork(item="s/a/1-fix", reason="r")
    probe = Probe(key="probe/x", task="a", item="i", reason="r")
    rows, told = execute_actions(
        ExecuteInput(
            dag_actions=(issue, start), supervisor_actions=(cancel, RetryEffect(key="k"), probe)
        )
    )
    assert rows == (issue, start, cancel, RetryEffect(key="k"), probe)
    assert told == ("issue/x", "start:s/a/1-fix", "cancel:s/a/1-fix", "retry:k", "probe/x")


def tick_state(*agents: AgentSeen) -> TickState:
    state = world(planned("a")).state
    loaded = Loaded(state=state, version=1, facts=(), through=0, agents=())
    return TickState(loaded=loaded, state=state, agents=agents, limits=Limits(), now=1.0)


def agent(role: str, silent_s: float) -> AgentSeen:
    return AgentSeen(item="i", task="a", role=role, running_s=1, silent_s=silent_s)


def test_planning_and_verification_have_limits_of_their_own() -> None:
    seen = [agent(role, 10**6) for role in ("po", "verify", "implement")]
    (health,) = check_agent_health(tick_state(*seen))
    assert (health.agent.role, health.status) == ("implement", "stalled")


def test_polling_in_a_tick_is_reading_what_waits() -> None:
    tick = tick_state()
    assert github_poll_events(tick) == tick.loaded.facts


def test_an_agent_is_known_by_its_lease_alone() -> None:
    from caloron.stages.sprint import _agents

    def lease(item: str, started: int | None, result: str | None = None) -> InFlight:
        return InFlight(item, "fix", "{}", 1, "h", 0, 1, started, 4000, result, 9000)

    state = world(planned("a")).state
    leases = (
        lease("shop-1/a/1-fix", 1000),
        lease("shop-1/a/2-fix", None),
        lease("shop-1/a/3-fix", 1000, "{}"),
        lease("shop-10/a/1-fix", 1000),
    )
    loaded = Loaded(state=state, version=1, facts=(), through=0, agents=leases)
    (seen,) = _agents(loaded)
    assert (seen.task, seen.running_s, seen.silent_s) == ("a", 8.0, 5.0)
