"""From a goal to a validated plan: ask once, let the planner repair once, then tell a person."""

from __future__ import annotations

import msgspec

from caloron.domain.model.effects import CreateIssue, StartWork
from caloron.domain.model.facts import WorkEnded, classify
from caloron.domain.model.plan import PlannedTask, PlanProblem, find_plan, parse_plan
from caloron.domain.model.roles import ROLES, WorkId
from caloron.domain.model.sprint import Sprint, branch_name, enter
from caloron.domain.model.task import Change, Task, Times, Work
from caloron.domain.reporting import forge_texts
from caloron.domain.rules import verification
from caloron.domain.rules.availability import said_no
from caloron.domain.rules.evaluation import Evaluation

_MAX_FAILURES = 2
_MAX_PLANS = 2


def advance(evaluation: Evaluation) -> None:
    """Ask the planner, unless it is at work, has given up, or a plan is there."""
    sprint = evaluation.sprint
    if sprint.phase == "planning" and verification.verify_baseline(evaluation):
        return
    if sprint.phase == "planning" and sprint.planning.given_plan:
        accept_plan(evaluation, sprint.planning.given_plan)
    elif (
        sprint.phase == "planning" and sprint.planning.work is None and not sprint.planning.failure
    ):
        work = Work(item=str(WorkId(sprint.id, "po", 1, "po")), role="po", queued_at=evaluation.now)
        _ask(evaluation, work, "a goal without a plan")


def _ask(evaluation: Evaluation, work: Work, reason: str) -> None:
    evaluation.sprint.planning.work = work
    paused = evaluation.sprint.availability.providers.get(evaluation.sprint.settings.framework)
    evaluation.do(
        StartWork(
            task="",
            work=work,
            priority=ROLES["po"].priority,
            reason=reason,
            not_before=paused.until if paused else 0.0,
        )
    )


def po_ended(evaluation: Evaluation, fact: WorkEnded) -> None:
    """Take the planner's answer, or say what was wrong with it."""
    sprint = evaluation.sprint
    work = sprint.planning.work
    if work is None or fact.token <= work.last_token or sprint.phase != "planning":
        return
    work = msgspec.structs.replace(work, last_token=fact.token)
    if said_no(evaluation, fact):
        _ask(evaluation, work, fact.provider_message)
        return
    try:
        plan = parse_plan(find_plan(fact.answer), frameworks=sprint.settings.frameworks)
    except PlanProblem as problem:
        _no_plan(evaluation, work, fact, problem)
        return
    sprint.planning.work = None
    accept_plan(evaluation, plan)


def _no_plan(evaluation: Evaluation, work: Work, fact: WorkEnded, problem: PlanProblem) -> None:
    sprint = evaluation.sprint
    sprint.planning.work = work
    result = classify(fact)
    if result.kind == "failed":
        what = fact.internal_error or f"the planner {result.reason}"
        sprint.planning.failures += 1
        if sprint.planning.failures < _MAX_FAILURES:
            _ask(evaluation, msgspec.structs.replace(work, previous_failure=what), what)
            return
        _give_up(evaluation, what)
    elif work.tries < _MAX_PLANS:
        sprint.planning.errors = problem.errors
        again = msgspec.structs.replace(work, tries=work.tries + 1)
        _ask(evaluation, again, f"the plan is not valid: {problem}")
    else:
        _give_up(evaluation, f"the plan is not valid: {problem}")


def _give_up(evaluation: Evaluation, reason: str) -> None:
    sprint = evaluation.sprint
    sprint.planning.work, sprint.planning.failure = None, reason
    enter(sprint, "ended")
    sprint.ended_at = evaluation.now


def accept_plan(evaluation: Evaluation, plan: tuple[PlannedTask, ...]) -> None:
    """The plan is recorded before the first issue, and never asked for again."""
    evaluation.state.tasks = tasks_of(evaluation.sprint, plan, evaluation.now)
    if evaluation.sprint.settings.ask_before_running:
        enter(evaluation.sprint, "approval")
    else:
        run_plan(evaluation)


def replace_plan(evaluation: Evaluation, plan: tuple[PlannedTask, ...]) -> None:
    """A person's plan in the place of the one that waits: nothing of that one was begun."""
    evaluation.state.tasks = tasks_of(evaluation.sprint, plan, evaluation.now)


def tasks_of(sprint: Sprint, plan: tuple[PlannedTask, ...], now: float) -> dict[str, Task]:
    return {
        p.id: Task(
            plan=p, change=Change(branch=branch_name(p.id, sprint.id)), times=Times(changed_at=now)
        )
        for p in plan
    }


def run_plan(evaluation: Evaluation) -> None:
    """One issue per task on the forge; a task starts once its issue is there."""
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
    sprint: Sprint, *, budget_usd: float | None, allow_red: bool, unsandboxed: bool
) -> Sprint:
    """Return the sprint as a person resumes it: without its pause, and with new limits.

    A failed planning or a red main is tried once more; so is a retro without its model.
    """
    before, after = sprint.settings, sprint.copy()
    after.availability.pause_reason = ""
    after.settings = msgspec.structs.replace(
        before,
        budget_usd=budget_usd or before.budget_usd,
        allow_red=before.allow_red or allow_red,
        unsandboxed=before.unsandboxed or unsandboxed,
    )
    if sprint.planning.failure:
        after.planning.failure = after.planning.failure_kind = ""
        after.planning.work, after.planning.failures = None, 0
        after.main_health.work = None
        after.ended_at = None
        enter(after, "planning")
    elif sprint.phase == "ended" and sprint.retro.problem:
        after.retro.asked = False
        enter(after, "retro")
    return after
