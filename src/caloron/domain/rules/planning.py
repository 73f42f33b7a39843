"""From a goal to a validated plan: ask the planner, let it correct the plan once, then give up."""

from __future__ import annotations

import msgspec

from caloron.domain.model.effects import CreateIssue
from caloron.domain.model.facts import WorkEnded, classify
from caloron.domain.model.plan import PlannedTask, PlanProblem, find_plan, parse_plan
from caloron.domain.model.roles import WorkId
from caloron.domain.model.sprint import RuleSettings, Sprint, branch_name, enter
from caloron.domain.model.task import Change, Task, Times, Work
from caloron.domain.reporting import forge_texts
from caloron.domain.rules import verification
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.results import provider_refused

_MAX_FAILURES = 2
_MAX_PLANS = 2
_replace = msgspec.structs.replace


def advance(evaluation: Evaluation) -> None:
    """Ask the planner, unless it is at work, has given up, or a plan exists."""
    sprint, planning = evaluation.sprint, evaluation.sprint.planning
    if sprint.phase != "planning" or verification.verify_baseline(evaluation):
        return
    if planning.given_plan:
        accept_plan(evaluation, planning.given_plan)
    elif planning.work is None and not planning.failure:
        number = len(planning.remarks) + 1
        work = Work(item=str(WorkId(sprint.id, "po", number, "po")), role="po")
        planning.work = evaluation.queue(work, "a goal without a plan")


def planner_ended(evaluation: Evaluation, fact: WorkEnded) -> None:
    """Accept the planner's plan, or let it correct what is wrong with it."""
    sprint, planning = evaluation.sprint, evaluation.sprint.planning
    work = planning.work.ended_by(fact.item, fact.token) if planning.work else None
    if work is None or sprint.phase != "planning":
        return
    if provider_refused(evaluation, fact):
        planning.work = evaluation.queue(work, fact.provider_message)
        return
    try:
        plan = parse_plan(find_plan(fact.answer), frameworks=sprint.settings.frameworks)
    except PlanProblem as problem:
        _no_plan(evaluation, work, fact, problem)
        return
    planning.work = None
    accept_plan(evaluation, plan)


def _no_plan(evaluation: Evaluation, work: Work, fact: WorkEnded, problem: PlanProblem) -> None:
    planning, result = evaluation.sprint.planning, classify(fact)
    if result.kind == "failed":
        reason = fact.internal_error or f"the planner {result.reason}"
        planning.failures += 1
        again = _replace(work, previous_failure=reason)
        give_up = planning.failures >= _MAX_FAILURES
    else:
        reason = f"the plan is not valid: {problem}"
        again = _replace(work, tries=work.tries + 1)
        give_up = work.tries >= _MAX_PLANS
        planning.errors = planning.errors if give_up else problem.errors
    if not give_up:
        planning.work = evaluation.queue(again, reason)
        return
    planning.work, planning.failure = None, reason
    enter(evaluation.sprint, "ended")
    evaluation.sprint.ended_at = evaluation.now


def accept_plan(evaluation: Evaluation, plan: tuple[PlannedTask, ...]) -> None:
    """Record the plan before the first issue; the planner is never asked for it again."""
    replace_plan(evaluation, plan)
    if evaluation.sprint.settings.ask_before_running:
        enter(evaluation.sprint, "approval")
    else:
        run_plan(evaluation)


def replace_plan(evaluation: Evaluation, plan: tuple[PlannedTask, ...]) -> None:
    """Replace a plan of which no task has begun."""
    evaluation.state.tasks = tasks_of(evaluation.sprint, plan, evaluation.now)


def send_back(evaluation: Evaluation, remark: str) -> None:
    """Ask the planner for another plan, with this one and the remark of a person."""
    planning = evaluation.sprint.planning
    planning.sent_back = tuple(task.plan for task in evaluation.state.tasks.values())
    planning.remarks = (*planning.remarks, remark)
    planning.given_plan, planning.errors, planning.failures = (), (), 0
    evaluation.state.tasks = {}
    enter(evaluation.sprint, "planning")


def tasks_of(sprint: Sprint, plan: tuple[PlannedTask, ...], now: float) -> dict[str, Task]:
    return {
        p.id: Task(
            plan=p, change=Change(branch=branch_name(p.id, sprint.id)), times=Times(changed_at=now)
        )
        for p in plan
    }


def run_plan(evaluation: Evaluation) -> None:
    """Open one issue per task; a task starts once its issue exists."""
    sprint = evaluation.sprint
    enter(sprint, "running")
    for task in evaluation.state.tasks.values():
        evaluation.do(
            CreateIssue(
                key=forge_texts.issue_key(sprint.id, task.id),
                task=task.id,
                title=task.plan.title,
                body=forge_texts.issue_body(sprint, task),
                labels=("caloron:task",),
            )
        )


def resumed(
    sprint: Sprint,
    *,
    budget_usd: float | None,
    allow_red: bool,
    unsandboxed: bool,
    rules: RuleSettings,
) -> Sprint:
    """Return the sprint as a person resumes it: without its pause, and with today's settings.

    A failed planning or a red main is tried once more; so is a retro without its model.
    """
    before, after = sprint.settings, sprint.copy()
    after.availability.pause_reason = ""
    after.settings = _replace(
        before,
        budget_usd=budget_usd or before.budget_usd,
        allow_red=before.allow_red or allow_red,
        unsandboxed=before.unsandboxed or unsandboxed,
        rules=rules,
    )
    if sprint.planning.failure:
        after.planning.failure = after.planning.failure_kind = ""
        after.planning.failures = 0
        after.planning.work = after.main_health.work = after.ended_at = None
        enter(after, "planning")
    elif sprint.phase == "ended" and sprint.retro.problem:
        after.retro.asked = False
        enter(after, "retro")
    return after
