"""The answer of the command that drove a sprint: its plan, its tasks, and what to do next."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from caloron.cli import output
from caloron.cli.app import Answer, Failed
from caloron.cli.format import counted
from caloron.cli.project_view import apply_command, known_forge, project_flag
from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.reporting.explain import why, why_sprint
from caloron.domain.reporting.kpis import compute_kpis
from caloron.durations import span
from caloron.engine.session import Session
from caloron.errors import PreconditionFailed
from caloron.ledger import views
from caloron.ledger.run_history import figures_of
from caloron.ledger.state_file import kv_path

STOPPED = 11


def answer_held(session: Session, state: State, extra: dict[str, Any]) -> Answer:
    """Show the plan: it is all that was asked for, so this is a success."""
    from caloron.cli.commands.sprint.plan import plan_estimate, plan_page

    name, project = state.sprint.id, session.project.name
    run = f"caloron resume {name} --project {project}"
    issue = state.sprint.plan_issue
    url = (session.forge.url(issue) or f"issue #{issue}") if issue else ""
    lines = (
        plan_page(session, state),
        "",
        "Nothing was started: the plan waits for you.",
        *([f"On the forge:  {url}, comment `caloron:approve` there"] if url else []),
        f"Run it:        {run} --yes",
        f"Change it:     {run} --edit",
        f"Discard it:    caloron discard {name} --project {project}",
    )
    data = report(session, state) | extra | {"next": f"{run} --yes"}
    data["estimate"] = msgspec.to_builtins(plan_estimate(session, state))
    return Answer(data, "\n".join(lines))


def answer_begun(session: Session, state: State, extra: dict[str, Any]) -> Answer:
    tick = f"caloron tick --sprint {state.sprint.id}"
    text = f"Sprint {state.sprint.id} is recorded. Drive it by repeating: {tick}"
    return Answer(report(session, state) | extra | {"next": tick}, text)


def sprint_answer(
    session: Session, state: State, extra: dict[str, Any] | None = None
) -> Answer | int:
    """How the sprint ended, or why it stopped, and what to do next."""
    data = report(session, state) | (extra or {})
    if state.sprint.phase != "ended":
        return _stopped_answer(session, state, data)
    if state.sprint.planning.failure:
        raise _without_plan(state)
    done, total = data["completed_tasks"], data["total_tasks"]
    if done < total:
        resume = f"caloron resume {state.sprint.id} --project {session.project.name}"
        hint = (
            "caloron why; after you acted on the forge (comment `resolved`, reopen an issue),"
            f" continue with: {resume}"
        )
        if data["bring"]:
            hint += f"; get the merged work with: {data['bring']}"
        message = f"sprint {state.sprint.id} ended with {total - done} of {total} tasks not done"
        raise Failed("TASKS_NOT_DONE", message, hint=hint, data=data)
    all_done = "its one task is done" if total == 1 else f"all {total} tasks are done"
    took = f"{span(data['duration_s'])} (working time {span(data['work_time_s'])})"
    text = f"Sprint {state.sprint.id}: {all_done}, in {took}."
    text += "".join(f"\n  {t['id']}: {t['pr_url']}" for t in data["tasks"] if t["pr_url"])
    if data["bring"]:
        text += f"\nGet the result: {data['bring']}"
    return Answer(data, text)


def _stopped_answer(session: Session, state: State, data: dict[str, Any]) -> int:
    sprint = state.sprint
    hint = f"caloron resume {sprint.id} --project {session.project.name}"
    if sprint.availability.pause_reason.startswith("the budget"):
        hint += " --budget MORE"
    if sprint.phase == "approval":
        hint += " --yes"
    line = _stopped_line(state)
    if sprint.availability.pause_reason or output.wants_json():
        raise Failed("STOPPED", line, hint=hint, data=data)
    # A person stopped the sprint or did not approve it, so for people that is no error.
    output.success(output.current_command(), {}, f"{line}.\nContinue with: {hint}")
    return STOPPED


def _stopped_line(state: State) -> str:
    sprint, tasks = state.sprint, state.tasks
    if sprint.availability.pause_reason:
        return f"sprint {sprint.id} waits: {sprint.availability.pause_reason}"
    if sprint.phase == "approval":
        return (
            f"The plan of sprint {sprint.id} ({counted(len(tasks), 'task')}) waits for approval;"
            " nothing was started (change it: caloron resume --edit; discard it: caloron discard)"
        )
    if not tasks:
        return f"Sprint {sprint.id} was stopped: {why_sprint(sprint, time.time())}"
    done = sum(task.status is Status.DONE for task in tasks.values())
    return f"Sprint {sprint.id} was stopped with {done} of {len(tasks)} tasks done"


def _without_plan(state: State) -> PreconditionFailed:
    """The sprint ended before its tasks: main is red, or there is no plan."""
    sprint = state.sprint
    if sprint.planning.failure_kind == "red_main":
        from caloron.answers import log_lines

        printed = [f"  | {line}" for line in log_lines(sprint.planning.failure_log)]
        return PreconditionFailed(
            "\n".join([sprint.planning.failure, *printed]),
            hint=f"fix main and run `caloron resume {sprint.id}`, or continue anyway with"
            f" --allow-red; the whole output is in {sprint.planning.failure_log}",
        )
    hint = "fix that, then `caloron resume`; `caloron logs planner` shows the output of the planner"
    if sprint.planning.failure.startswith("the plan is not valid"):
        hint = "rephrase the goal, give a plan with --plan FILE, or `caloron resume`"
    return PreconditionFailed(
        f"sprint {sprint.id} has no plan: {sprint.planning.failure}", hint=hint
    )


def report(session: Session, state: State) -> dict[str, Any]:
    """The sprint as data, for every format of the output."""
    project = session.project
    with session.ledger.db.snapshot() as connection:
        figures = figures_of(connection, state.sprint.id)
    work_time_s = compute_kpis(figures.state, figures.runs, time.time()).work_time_s
    return {
        **views.sprint_state(state, time.time()),
        "project": project.name,
        "work_time_s": work_time_s,
        "tasks": [_task(session, state, task) for task in state.tasks.values()],
        "bring": apply_command(project, state, project_flag(project, project.name)),
        "forge": known_forge(project)["url"] if project.is_remote else str(project.forge_git),
        "state_file": str(kv_path(state.sprint.id)),
    }


def _task(session: Session, state: State, task: Task) -> dict[str, Any]:
    issue, pull = task.links.issue, task.links.pull
    return {
        **views.task_view(task),
        "why": why(state, task, time.time()),
        "issue_url": session.forge.url(issue) if issue else "",
        "pr_url": session.forge.url(pull, pull=True) if pull else "",
    }
