"""The estimate of a plan depends only on the measured tasks of earlier sprints."""

from __future__ import annotations

from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.sprint import Sprint, State
from caloron.domain.model.status import Step
from caloron.domain.model.task import Task, TaskUsage, Times
from caloron.domain.model.usage import Spent
from caloron.domain.reporting.estimate import Experience, estimate, experience, rounds
from caloron.domain.reporting.kpis import Run


def plan(*tasks: tuple[str, ...]) -> tuple[PlannedTask, ...]:
    """Return a plan; each task is its name and its dependencies."""
    return tuple(
        PlannedTask(id=name, title=name, agent_prompt="x", depends_on=needs)
        for name, *needs_ in tasks
        for needs in (tuple(needs_),)
    )


def earlier(usd: float, seconds: float, runs: int, step: Step = Step.DONE) -> State:
    task = Task(
        plan=plan(("t",))[0],
        step=step,
        times=Times(started_at=100.0, completed_at=100.0 + seconds),
        usage=TaskUsage(spent=Spent(usd=usd)),
    )
    return State(sprint=Sprint(id="p-1", number=1, goal="g"), tasks={"t": task})


def ran(times: int, seconds: float = 0.0) -> tuple[Run, ...]:
    """Return `times` successive runs that take `seconds` together."""
    each = seconds / times
    verify = Run(item="p-1/t/9-verify", role="verify", task="t", started_at=100.0 + seconds)
    fixes = (
        Run(item=f"p-1/t/{n}-fix", role="fix", task="t", started_at=100.0 + n * each, seconds=each)
        for n in range(times)
    )
    return (*fixes, verify)


def test_without_experience_only_the_required_runs_are_known() -> None:
    check = PlannedTask(id="c", title="c", agent_prompt="x", kind="check", depends_on=("b",))
    estimated = estimate((*plan(("a",), ("b", "a")), check), 4, Experience())
    assert (estimated.agent_runs, estimated.steps) == (5, 3)
    assert estimated.cost_usd is None
    assert estimated.duration_s is None
    assert (estimated.sprints, estimated.tasks) == (0, 0)


def test_the_median_of_earlier_done_tasks_gives_cost_time_and_runs() -> None:
    seen = [
        (earlier(1.0, 60, 0), ran(2, 60)),
        (earlier(3.0, 120, 0), ran(4, 120)),
        (earlier(100.0, 9999, 0), ran(5, 9999)),
        (earlier(50.0, 5, 0, Step.ESCALATED), ran(50, 5)),
    ]
    known = experience(seen)
    assert (known.sprints, known.tasks) == (3, 3)
    estimated = estimate(plan(("a",), ("b", "a")), 4, known)
    assert estimated.cost_usd == 6.0
    assert estimated.duration_s == 240
    assert estimated.agent_runs == 8


def test_a_night_in_which_the_sprint_was_stopped_and_interrupted_runs_do_not_count() -> None:
    night = 12 * 3600.0
    cut = Run(item="p-1/t/1-implement", role="implement", task="t", started_at=100.0, seconds=9,
              end="interrupted")  # fmt: skip
    again = Run(item="p-1/t/1-implement", role="implement", task="t", started_at=100 + night,
                seconds=20)  # fmt: skip
    review = Run(item="p-1/t/2-review", role="review", task="t", started_at=115 + night, seconds=15)
    known = experience([(earlier(0.0, night + 30, 0), (cut, again, review))])
    assert known.runs_per_task == 2
    # The review overlaps the end of the implementation.
    assert known.seconds_per_task == 30


def test_agents_without_a_reported_cost_leave_the_cost_unknown() -> None:
    known = experience([(earlier(0.0, 60, 0), ran(2, 60))])
    assert known.usd_per_task is None
    assert estimate(plan(("a",)), 1, known).duration_s == 60


def test_parallel_agents_shorten_the_time_but_not_a_chain() -> None:
    wide = plan(("a",), ("b",), ("c",), ("d",))
    assert [rounds(wide, n) for n in (1, 2, 3, 4, 9)] == [4, 2, 2, 1, 1]
    chain = plan(("a",), ("b", "a"), ("c", "b"))
    assert rounds(chain, 9) == 3
    # The longest chain starts first.
    assert rounds((*plan(("x",), ("y",)), *chain), 2) == 3
