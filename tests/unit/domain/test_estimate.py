"""What a plan may take is judged by what tasks took before, and by nothing else."""

from __future__ import annotations

from caloron.domain.budget import Spent
from caloron.domain.estimate import Experience, estimate, experience, rounds
from caloron.domain.plan import PlannedTask
from caloron.domain.retro import Run
from caloron.domain.sprint import Sprint, State, Task
from caloron.domain.status import Status


def plan(*tasks: tuple[str, ...]) -> tuple[PlannedTask, ...]:
    """Each task as its name and what it waits for."""
    return tuple(
        PlannedTask(id=name, title=name, agent_prompt="x", depends_on=needs)
        for name, *needs_ in tasks
        for needs in (tuple(needs_),)
    )


def earlier(usd: float, seconds: float, runs: int, status: Status = Status.DONE) -> State:
    task = Task(
        plan=plan(("t",))[0],
        status=status,
        started_at=100.0,
        completed_at=100.0 + seconds,
        spent=Spent(usd=usd),
    )
    return State(sprint=Sprint(id="p-1", number=1, goal="g"), tasks={"t": task})


def ran(times: int) -> tuple[Run, ...]:
    verify = Run(item="p-1/t/9-verify", role="verify", task="t")
    return (*(Run(item=f"p-1/t/{n}-fix", role="fix", task="t") for n in range(times)), verify)


def test_without_experience_only_the_runs_that_must_be_are_known() -> None:
    check = PlannedTask(id="c", title="c", agent_prompt="x", kind="check", depends_on=("b",))
    found = estimate((*plan(("a",), ("b", "a")), check), 4, Experience())
    assert (found.agent_runs, found.steps) == (5, 3)
    assert found.cost_usd is None
    assert found.duration_s is None
    assert (found.sprints, found.tasks) == (0, 0)


def test_done_tasks_of_earlier_sprints_tell_cost_time_and_runs_by_their_median() -> None:
    seen = [
        (earlier(1.0, 60, 0), ran(2)),
        (earlier(3.0, 120, 0), ran(4)),
        (earlier(100.0, 9999, 0), ran(5)),
        (earlier(50.0, 5, 0, Status.ESCALATED), ran(50)),
    ]
    known = experience(seen)
    assert (known.sprints, known.tasks) == (3, 3)
    found = estimate(plan(("a",), ("b", "a")), 4, known)
    assert found.cost_usd == 6.0
    assert found.duration_s == 240
    assert found.agent_runs == 8


def test_agents_that_tell_no_cost_leave_the_cost_unknown() -> None:
    known = experience([(earlier(0.0, 60, 0), ran(2))])
    assert known.usd_per_task is None
    assert estimate(plan(("a",)), 1, known).duration_s == 60


def test_agents_side_by_side_shorten_the_time_but_not_a_chain() -> None:
    wide = plan(("a",), ("b",), ("c",), ("d",))
    assert [rounds(wide, n) for n in (1, 2, 3, 4, 9)] == [4, 2, 2, 1, 1]
    chain = plan(("a",), ("b", "a"), ("c", "b"))
    assert rounds(chain, 9) == 3
    # The longest chain is begun first.
    assert rounds((*plan(("x",), ("y",)), *chain), 2) == 3
