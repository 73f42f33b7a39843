"""The KPIs of a sprint, the findings of the rules, and the inbox items."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloron.domain.model.feedback import Feedback
from caloron.domain.model.merge import Verified
from caloron.domain.model.sprint import Sprint, State
from caloron.domain.model.status import FIRST_STEP, Status
from caloron.domain.model.task import Task
from caloron.domain.model.usage import Spent
from caloron.domain.reporting.inbox import inbox_items
from caloron.domain.reporting.kpis import (
    Kpis,
    RoleKpis,
    Run,
    agent_kpis,
    blockers_of,
    compute_kpis,
    role_kpis,
    tools_of,
    trends,
    work_time_s,
)
from caloron.domain.reporting.retro_rules import RULES, analyze
from caloron.domain.reporting.waiting import verification_of
from caloron.testing import planned
from tests.support.sprints import nested


def task(name: str, status: Status = Status.DONE, *needs: str, **fields: Any) -> Task:
    return nested(Task, plan=planned(name, *needs), step=FIRST_STEP[status], **fields)


def sprint_of(*tasks: Task, **fields: Any) -> State:
    known: dict[str, Any] = {"id": "shop-1", "number": 1, "goal": "a shop", "phase": "ended"}
    return State(sprint=nested(Sprint, **known | fields), tasks={t.id: t for t in tasks})


def run(name: str, role: Any = "implement", **fields: Any) -> Run:
    number = fields.pop("number", 1)
    return Run(item=f"shop-1/{name}/{number}-{role}", task=name, role=role, **fields)


def numbers(state: State, *runs: Run) -> Kpis:
    return compute_kpis(state, runs, now=0.0)


def rules(state: State, *runs: Run) -> set[str]:
    return {finding.rule for finding in analyze(state, numbers(state, *runs)).improvements}


def test_the_example_of_the_ancestor_has_the_same_kpis() -> None:
    kpis = numbers(
        sprint_of(task("a"), task("b"), settings__created_at=36_000.0, ended_at=50_400.0)
    )
    assert (kpis.total_tasks, kpis.completed_tasks, kpis.completion_rate) == (2, 2, 1.0)
    assert (kpis.sprint_days, kpis.tasks_per_day) == (0.2, 12.0)


def test_a_sprint_without_tasks_has_zeros_and_no_means() -> None:
    kpis = numbers(sprint_of(planning__failure="main is red"))
    assert (kpis.completion_rate, kpis.tasks_per_day, kpis.avg_interventions) == (0, 0, 0)
    assert (kpis.avg_clarity, kpis.avg_review_cycles, kpis.avg_tokens_per_task) == (None,) * 3


def test_escalated_and_blocked_tasks_are_counted_as_the_original_counts_them() -> None:
    kpis = numbers(
        sprint_of(
            task("a", Status.ESCALATED),
            task("b", Status.BLOCKED, "a"),
            task("c", Status.CANCELLED),
            task("d"),
        )
    )
    assert (kpis.escalated_count, kpis.blocked_count, kpis.failure_count) == (2, 1, 1)
    assert (kpis.cancelled_count, kpis.completion_rate) == (1, 0.25)


def test_missing_clarity_does_not_lower_the_mean() -> None:
    feedbacks = [Feedback(task_clarity=clarity) for clarity in (8, 5, 0)]
    kpis = numbers(
        sprint_of(*(task(str(n), log__feedback=f) for n, f in enumerate(feedbacks)), task("x"))
    )
    assert (kpis.feedback_count, kpis.clarity_count, kpis.avg_clarity) == (3, 2, 6.5)
    assert kpis.high_clarity_pct == 50.0


def test_interventions_stay_counted_after_the_ladder_resets() -> None:
    kpis = numbers(
        sprint_of(task("a", supervision__total=3, supervision__interventions=0), task("b"))
    )
    assert (kpis.total_interventions, kpis.avg_interventions) == (3, 1.5)
    assert kpis.clean_task_pct == 50.0


def test_rounds_are_counted_by_work_and_not_by_attempts() -> None:
    runs = [
        run("a", "fix", number=2, end="failed"),
        run("a", "fix", number=2),
        run("a", "fix", number=5),
        run("a", "resolve", number=7),
        run("a", "verify", number=3, end="failed"),
        run("a", "verify", number=8),
    ]
    kpis = numbers(sprint_of(task("a", review__reviewed=("1", "2", "3"))), *runs)
    assert (kpis.fix_rounds, kpis.conflict_count, kpis.failed_runs) == (2, 1, 1)
    assert (kpis.verify_runs, kpis.verify_failures) == (2, 1)
    assert (kpis.avg_review_cycles, kpis.review_loop_count) == (3.0, 1)


@pytest.mark.parametrize(
    ("verified", "words"),
    [
        (None, ""),
        (Verified(head="h", base="b", ok=True, log="x"), "green"),
        (Verified(head="h", base="b", ok=True), "not verified"),
        (Verified(head="h", base="b", ok=False, log="x"), "red"),
        (Verified(head="h", base="b", ok=False, log="x", tolerated=True), "red, allowed"),
    ],
)
def test_only_a_verification_that_ran_is_called_green(verified: Verified, words: str) -> None:
    state = sprint_of(task("a", merge__verified=verified))
    assert verification_of(state.tasks["a"]) == words
    assert numbers(state).tests_passing == (words == "green")
    assert numbers(state).red_merges == (words == "red, allowed")


cents = st.integers(0, 5000)


@given(planner=cents, tasks=st.lists(st.tuples(cents, cents), max_size=5))
def test_the_costs_of_the_agents_add_up_to_the_cost_of_the_sprint(
    planner: int, tasks: list[tuple[int, int]]
) -> None:
    made, runs = [], [Run(item="shop-1/po/1-po", role="po", usd=planner / 100)]
    for number, (own, review) in enumerate(tasks):
        spent = Spent(usd=(own + review) / 100, tokens_in=own + review)
        made.append(task(f"t{number}", usage__spent=spent))
        runs.append(run(f"t{number}", usd=own / 100, tokens=own))
        runs.append(run(f"t{number}", "review", number=3, usd=review / 100, tokens=review))
    total = planner + sum(own + review for own, review in tasks)
    state = sprint_of(*made, usage__spent=Spent(usd=total / 100, tokens_in=total))
    agents = agent_kpis(state, runs)
    assert sum(agent.cost_usd for agent in agents) == pytest.approx(total / 100, abs=0.001)
    assert sum(agent.tokens for agent in agents) == total


def test_the_agents_of_a_role_are_counted_together() -> None:
    clear = Feedback(task_clarity=8)
    state = sprint_of(
        task(
            "a",
            log__feedback=clear,
            review__reviewed=("1", "2"),
            usage__spent=Spent(usd=0.5, tokens_in=100),
        ),
        task(
            "b", Status.ESCALATED, supervision__total=2, usage__spent=Spent(usd=1.5, tokens_in=300)
        ),
        usage__spent=Spent(usd=2.75, tokens_in=400),
        usage__retro_spent=Spent(usd=0.25),
    )
    runs = [run("a", seconds=60.0), run("b", seconds=120.0)]
    roles = {role.role: role for role in role_kpis(agent_kpis(state, runs))}
    assert roles["developer"] == RoleKpis(
        role="developer",
        agents=2,
        tasks_completed=1,
        tasks_failed=1,
        avg_clarity=8.0,
        avg_tokens=200.0,
        avg_time_min=1.5,
        avg_review_cycles=2.0,
        avg_cost_usd=1.0,
        interventions=2,
    )
    assert roles["planner"].avg_cost_usd == 0.5
    assert roles["analyst"].avg_cost_usd == 0.25


def test_every_metric_of_the_original_and_of_its_port_exists() -> None:
    known = """total_tasks completed_tasks completion_rate sprint_days tasks_per_day escalated_count
        blocked_count total_interventions avg_interventions failure_count avg_clarity
        high_clarity_pct avg_review_cycles review_loop_count total_tokens avg_tokens_per_task
        total_time_min avg_time_per_task interventions_per_task clean_task_pct"""
    assert set(known.split()) <= set(Kpis.__struct_fields__)
    per_role = """tasks_completed tasks_failed avg_clarity avg_tokens avg_time_min
        avg_review_cycles interventions"""
    assert set(per_role.split()) <= set(RoleKpis.__struct_fields__)


def test_the_agent_of_the_task_pays_an_interrupted_run() -> None:
    state = sprint_of(task("a", usage__spent=Spent(usd=0.75)), usage__spent=Spent(usd=0.75))
    (agent,) = agent_kpis(state, [run("a", usd=0.5), run("a", end="interrupted")])
    assert (agent.agent, agent.cost_usd, agent.runs) == ("a", 0.75, 2)


def test_tools_are_counted_by_the_framework_or_else_named_by_the_agent() -> None:
    feedback = Feedback(tools_used=("make", "bash"))
    state = sprint_of(task("a", log__feedback=feedback), task("b", log__feedback=feedback))
    assert tools_of(state, [run("a", tools={"Edit": 3})]) == {"Edit": 3, "bash": 1, "make": 1}


def test_blockers_are_those_of_agents_and_of_escalations_each_once() -> None:
    feedback = Feedback(blockers=('a "quoted"\nword', "slow"))
    state = sprint_of(
        task("a", log__feedback=feedback),
        task("b", Status.ESCALATED, reason="no disk", log__feedback=feedback),
    )
    assert blockers_of(state) == ('a "quoted" word', "slow", "b: no disk")


@pytest.mark.parametrize(
    ("rule", "state", "runs"),
    [
        ("task-clarity", sprint_of(task("a", log__feedback=Feedback(task_clarity=4))), ()),
        (
            "dependencies",
            sprint_of(task("a", log__feedback=Feedback(blockers=("b not in DAG",)))),
            (),
        ),
        ("tools", sprint_of(task("a", log__feedback=Feedback(blockers=("tool jq missing",)))), ()),
        ("conflicts", sprint_of(task("a")), (run("a", "resolve"),)),
        ("review-loops", sprint_of(task("a", review__reviewed=("1", "2", "3"))), ()),
        ("interventions", sprint_of(task("a", supervision__total=1)), ()),
        ("failures", sprint_of(task("a", Status.ESCALATED), task("b")), ()),
        ("many-failures", sprint_of(task("a", Status.ESCALATED), task("b")), ()),
        ("red-results", sprint_of(task("a")), (run("a", "verify", end="failed"),)),
        ("tokens", sprint_of(task("a", usage__spent=Spent(tokens_in=40_000))), ()),
        ("no-plan", sprint_of(planning__failure="the plan is not valid"), ()),
        ("no-feedback", sprint_of(task("a")), ()),
    ],
)
def test_each_rule_reports_its_own_metric_and_is_silent_without_it(
    rule: str, state: State, runs: tuple[Run, ...]
) -> None:
    assert len(RULES) == 12, "the list above has a case for each rule"
    good = Feedback(task_clarity=8, self_assessment="completed")
    assert rules(sprint_of(task("a", log__feedback=good))) == set()
    assert rule in rules(state, *runs)
    assert rules(state, *runs) <= {rule, "no-feedback", "failures", "many-failures"}


def test_a_planner_that_named_the_files_gets_no_advice_to_name_them() -> None:
    used = Spent(tokens_in=40_000)
    named = task("a", usage__spent=used)
    named.plan = msgspec.structs.replace(named.plan, files=("a.py",))
    assert "tokens" not in rules(sprint_of(named))
    assert "tokens" in rules(sprint_of(named, task("b", usage__spent=used)))


@pytest.mark.parametrize(
    ("fields", "praised"),
    [
        ({}, True),
        ({"log__cycle": 4}, False),
        ({"review__reviewed": ("1", "2", "3")}, False),
        ({"log__feedback": Feedback(task_clarity=3)}, False),
    ],
)
def test_a_retro_page_does_not_praise_a_criticised_sprint(
    fields: dict[str, Any], praised: bool
) -> None:
    state = sprint_of(task("a", **fields))
    (kept,) = analyze(state, numbers(state)).learnings
    assert kept.startswith("All tasks were completed")
    assert ("tasks of this size and kind work" in kept) is praised


def test_an_act_of_a_person_makes_a_task_unclean() -> None:
    kpis = numbers(sprint_of(task("a", conversation__acts=("review:1", "merge:2")), task("b")))
    assert (kpis.human_acts, kpis.clean_task_pct, kpis.total_interventions) == (2, 50.0, 0)


def test_working_time_counts_parallel_runs_once_and_no_waiting() -> None:
    runs = (
        run("a", started_at=0.0, seconds=10.0),
        run("b", started_at=5.0, seconds=10.0),
        run("a", "verify", started_at=100.0, seconds=5.0),
    )
    assert work_time_s(runs) == 20
    assert work_time_s(()) == 0


@pytest.mark.parametrize(
    ("state", "mood"),
    [
        (sprint_of(task("a")), "neutral"),
        (sprint_of(task("a", log__feedback=Feedback(task_clarity=9))), "positive"),
        (sprint_of(task("a", log__feedback=Feedback(task_clarity=2))), "mixed"),
        (
            sprint_of(task("a", Status.ESCALATED, log__feedback=Feedback(task_clarity=9))),
            "negative",
        ),
        (sprint_of(planning__failure="main is red"), "negative"),
    ],
)
def test_the_sentiment_is_that_of_the_agents_corrected_by_failures(state: State, mood: str) -> None:
    assert analyze(state, numbers(state)).sentiment == mood


def test_an_inbox_item_names_its_commands_and_the_blocked_tasks() -> None:
    state = sprint_of(
        task(
            "a",
            Status.ESCALATED,
            reason="no disk",
            escalation__issue=7,
            links__issue=1,
            attempts__work_count=1,
        ),
        task("b", Status.BLOCKED, "a"),
        task("c", Status.BLOCKED, "b"),
        task("d"),
    )
    (item,) = inbox_items(state, running=False, options=" --project shop")
    assert (item.task, item.why, item.holds) == ("a", "no disk", ("b", "c"))
    assert item.commands == (
        "caloron logs a --sprint shop-1 --project shop",
        "caloron issue comment 7 resolved --project shop",
        "caloron resume shop-1 --project shop",
    )
    (running,) = inbox_items(state, running=True)
    assert running.commands[-1] == "caloron issue comment 7 resolved"


@pytest.mark.parametrize(
    ("fields", "kind", "command"),
    [
        ({"phase": "approval"}, "approval", "caloron resume shop-1"),
        ({"phase": "running"}, "resume", "caloron resume shop-1"),
        (
            {
                "phase": "running",
                "availability__pause_reason": "the budget of $5",
                "settings__budget_usd": 5.0,
            },
            "halted",
            "caloron resume shop-1 --budget 10",
        ),
        (
            {"planning__failure": "red", "planning__failure_kind": "red_main"},
            "stopped",
            "caloron resume shop-1",
        ),
        ({"planning__failure": "no plan"}, "no_plan", "caloron resume shop-1"),
    ],
)
def test_a_stopped_sprint_is_an_inbox_item(fields: dict[str, Any], kind: str, command: str) -> None:
    (item,) = inbox_items(sprint_of(task("a", Status.PENDING), **fields), running=False)
    assert (item.kind, item.commands[0]) == (kind, command)


def test_a_running_or_done_sprint_is_no_inbox_item() -> None:
    assert inbox_items(sprint_of(task("a")), running=False) == ()
    assert inbox_items(sprint_of(task("a", Status.PENDING), phase="running"), running=True) == ()


def test_missing_usage_is_no_zero_in_a_mean_and_no_progress() -> None:
    silent = numbers(sprint_of(task("a"), task("b")), run("a"), run("b"))
    assert (silent.avg_tokens_per_task, silent.avg_cost_per_task) == (None, None)
    before = Kpis(total_tasks=1, avg_tokens_per_task=500.0, avg_cost_per_task=0.5)
    assert {t.metric for t in trends(silent, [before])} & {
        "avg_tokens_per_task",
        "avg_cost_per_task",
    } == set()
    state = sprint_of(
        task("a", usage__spent=Spent(usd=0.5, tokens_in=1500)),
        task("b"),
        task("c", usage__spent=Spent()),
    )
    kpis = numbers(state)
    assert (kpis.avg_tokens_per_task, kpis.avg_cost_per_task) == (1500.0, 0.5)
    assert not any("tokens" in theme for theme in analyze(state, kpis).themes)
    (role,) = role_kpis(agent_kpis(state, [run("a"), run("b"), run("c")]))
    assert (role.avg_tokens, role.avg_cost_usd) == (1500.0, 0.5)


@pytest.mark.parametrize(("tasks", "words"), [(1, "1 task waits"), (2, "2 tasks waits")])
def test_a_plan_that_waits_for_approval_names_its_number_of_tasks(tasks: int, words: str) -> None:
    state = sprint_of(*(task(str(n), Status.PENDING) for n in range(tasks)), phase="approval")
    (item,) = inbox_items(state, running=False)
    assert f"the plan of {words} for your approval" == item.why
