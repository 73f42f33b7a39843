"""From a goal to a validated plan: ask once, let the planner repair once, then tell a person."""

from __future__ import annotations

import msgspec

from caloron.domain import baseline, texts
from caloron.domain.actions import CreateIssue, StartWork
from caloron.domain.facts import WorkEnded
from caloron.domain.plan import PlannedTask, PlanProblem, chain_lengths, find_plan, parse_plan
from caloron.domain.providers import said_no
from caloron.domain.sprint import Sprint, Task, Work, branch_name, enter
from caloron.domain.turn import Turn

_MAX_FAILURES = 2
_MAX_PLANS = 2


def advance(turn: Turn) -> None:
    """Ask the planner, unless it is at work, has given up, or a plan is there."""
    sprint = turn.sprint
    if sprint.phase == "planning" and baseline.advance(turn):
        return
    if sprint.phase == "planning" and sprint.given_plan:
        accept_plan(turn, sprint.given_plan)
    elif sprint.phase == "planning" and sprint.po is None and not sprint.stopped:
        work = Work(item=f"{sprint.id}/po/1-po", role="po", since=turn.now)
        _ask(turn, work, "a goal without a plan")


def _ask(turn: Turn, work: Work, reason: str) -> None:
    turn.sprint.po = work
    paused = turn.sprint.paused.get(turn.sprint.framework)
    turn.do(
        StartWork(
            task="",
            work=work,
            priority=1000,
            reason=reason,
            not_before=paused.until if paused else 0.0,
        )
    )


def po_ended(turn: Turn, fact: WorkEnded) -> None:
    """Take the planner's answer, or say what was wrong with it."""
    sprint = turn.sprint
    work = sprint.po
    if work is None or fact.token <= work.taken_in or sprint.phase != "planning":
        return
    work = msgspec.structs.replace(work, taken_in=fact.token)
    if said_no(turn, fact):
        _ask(turn, work, fact.detail)
        return
    try:
        plan = parse_plan(find_plan(fact.answer), frameworks=sprint.frameworks)
    except PlanProblem as problem:
        _no_plan(turn, work, fact, problem)
        return
    sprint.po = None
    accept_plan(turn, plan)


def _no_plan(turn: Turn, work: Work, fact: WorkEnded, problem: PlanProblem) -> None:
    sprint = turn.sprint
    sprint.po = work
    if fact.fault or fact.trouble or fact.exit_code or fact.timed_out:
        what = (
            fact.fault
            or (fact.trouble and f"the planner failed ({fact.trouble}): {fact.detail}")
            or f"the planner ended with exit code {fact.exit_code}: {fact.last_line}"
        )
        sprint.po_failures += 1
        if sprint.po_failures < _MAX_FAILURES:
            _ask(turn, msgspec.structs.replace(work, note=what), what)
            return
        _give_up(turn, what)
    elif work.asks < _MAX_PLANS:
        sprint.plan_errors = problem.errors
        again = msgspec.structs.replace(work, asks=work.asks + 1)
        _ask(turn, again, f"the plan is not valid: {problem}")
    else:
        _give_up(turn, f"the plan is not valid: {problem}")


def _give_up(turn: Turn, reason: str) -> None:
    sprint = turn.sprint
    sprint.po, sprint.stopped = None, reason
    enter(sprint, "ended")
    sprint.ended_at = turn.now


def accept_plan(turn: Turn, plan: tuple[PlannedTask, ...]) -> None:
    """The plan is recorded before the first issue, and never asked for again."""
    turn.state.tasks = tasks_of(turn.sprint, plan, turn.now)
    if turn.sprint.ask_before_running:
        enter(turn.sprint, "approval")
    else:
        run_plan(turn)


def replace_plan(turn: Turn, plan: tuple[PlannedTask, ...]) -> None:
    """A person's plan in the place of the one that waits: nothing of that one was begun."""
    turn.state.tasks = tasks_of(turn.sprint, plan, turn.now)


def tasks_of(sprint: Sprint, plan: tuple[PlannedTask, ...], now: float) -> dict[str, Task]:
    chains = chain_lengths(plan)
    return {
        p.id: Task(plan=p, chain=chains[p.id], branch=branch_name(p.id, sprint.id), changed_at=now)
        for p in plan
    }


def run_plan(turn: Turn) -> None:
    """One issue per task on the forge; a task starts once its issue is there."""
    sprint = turn.sprint
    enter(sprint, "running")
    for task in turn.state.tasks.values():
        turn.do(
            CreateIssue(
                key=texts.issue_key(sprint.id, task.id),
                task=task.id,
                title=task.plan.title,
                body=texts.issue_body(sprint, task),
                labels=("caloron:task",),
            )
        )
