"""The inputs and outputs of single stages of the tick."""

from __future__ import annotations

from caloron.domain.model.effects import CancelWork, CreateIssue, Probe, RetryEffect, StartWork
from caloron.domain.model.task import Work
from caloron.domain.rules.supervisor import AgentSeen, Limits
from caloron.forge.remote import poll as remote_poll
from caloron.ledger.ledger import Loaded
from caloron.ledger.tick_context import agents_of
from caloron.stages.dag import execute_actions, unblocked_tasks
from caloron.stages.supervisor import check_agent_health
from caloron.stages.values import decode_state, in_process, in_process_state, state_json, to_json
from caloron.store.queue import InFlight
from caloron.testing import SprintDriver, planned


def test_unblocked_tasks_are_the_ready_tasks() -> None:
    made = SprintDriver.start(planned("a"), planned("b"), planned("c", "a"), parallel=1)
    (ready,) = unblocked_tasks({"state": in_process_state(made.state)})["ready_tasks"]
    assert (ready["task_id"], ready["agent_id"], ready["issue_number"]) == ("b", "b", 2)


def test_decisions_become_rows_in_order_with_a_description() -> None:
    issue = CreateIssue(key="issue/x", task="a", title="t", body="b", labels=())
    start = StartWork(task="a", work=Work(item="s/a/1-fix", role="fix"))
    cancel = CancelWork(item="s/a/1-fix", reason="r")
    probe = Probe(key="probe/x", task="a", item="i", reason="r")
    decided = {
        "dag_actions": in_process((issue, start)),
        "supervisor_actions": to_json((cancel, RetryEffect(key="k", task="a"), probe)),
    }
    answer = execute_actions(decided)
    assert answer["rows"].value == (issue, start, cancel, RetryEffect(key="k", task="a"), probe)
    assert answer["actions_taken"] == [
        "issue/x", "start:s/a/1-fix", "cancel:s/a/1-fix", "retry:k", "probe/x"]  # fmt: skip


def agent(role: str, silent_s: float) -> AgentSeen:
    return AgentSeen(item="i", task="a", role=role, running_s=1, silent_s=silent_s)


def test_planning_and_verification_have_limits_of_their_own() -> None:
    seen = tuple(agent(role, 10**6) for role in ("po", "retro", "verify", "implement"))
    inputs = {"agents": in_process(seen), "limits": to_json(Limits())}
    (health,) = check_agent_health(inputs)["results"]
    assert (health["agent"]["role"], health["status"]) == ("implement", "stalled")


def test_the_order_of_the_plan_survives_sorted_members() -> None:
    state = SprintDriver.start(planned("z"), planned("a"), planned("m")).state
    answer = state_json(state)
    answer["tasks"] = dict(sorted(answer["tasks"].items()))
    assert list(decode_state(answer).tasks) == ["z", "a", "m"]
    assert decode_state(answer) == state
    answer["order"] = ["m", "gone"]
    assert list(decode_state(answer).tasks) == ["m", "a", "z"]


def test_an_agent_is_identified_by_its_lease() -> None:
    def lease(item: str, started: int | None, result: str | None = None) -> InFlight:
        return InFlight(item, "fix", "{}", 1, "h", 0, 1, started, 4000, result, 9000)

    state = SprintDriver.start(planned("a")).state
    leases = (
        lease("shop-1/a/1-fix", 1000),
        lease("shop-1/a/2-fix", None),
        lease("shop-1/a/3-fix", 1000, "{}"),
        lease("shop-10/a/1-fix", 1000),
    )
    loaded = Loaded(state=state, version=1, facts=(), through=0, agents=leases)
    (seen,) = agents_of(loaded)
    assert (seen.task, seen.running_s, seen.silent_s) == ("a", 8.0, 5.0)


def test_a_remote_forge_is_polled_from_a_given_time() -> None:
    for answer in ("2026-04-15T10:00:00Z", "2026-04-15T12:00:00+02:00", "2026-04-15T10:00:00"):
        assert str(remote_poll._parsed(answer)) == "1776247200/1776247200/0"
