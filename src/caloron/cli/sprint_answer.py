"""What a sprint came to, said when the command that drove it ends."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from caloron.cli import output
from caloron.cli.begin import unseen
from caloron.cli.looking import bring_command, forge_note, is_taken, options_for
from caloron.cli.plan_view import estimate_text, plan_tree
from caloron.cli.screen import folded, screen_width
from caloron.domain.estimate import Estimate, estimate, experience
from caloron.domain.retro import compute_kpis, sprint_time_s
from caloron.domain.sprint import State
from caloron.domain.status import Status
from caloron.domain.why import why, why_sprint
from caloron.durations import span
from caloron.engine.session import Session
from caloron.errors import PreconditionFailed
from caloron.failures import log_lines
from caloron.ledger.figures import figures_of, last_figures
from caloron.ledger.projections import iso, kv_path

TASKS_NOT_DONE = 10
STOPPED = 11
#: Older sprints say little about the next one.
_REMEMBERED = 20


def plan_page(session: Session, state: State) -> str:
    """The plan as a tree, what it may take, and what agents do not see."""
    sprint, plan = state.sprint, tuple(task.plan for task in state.tasks.values())
    width = screen_width()
    about = [
        *estimate_text(sprint, plan, _estimate(session, state)).splitlines(),
        unseen(session.project)[1],
    ]
    parts = [f"\nThe plan of sprint {sprint.id}:\n", plan_tree(plan, width), ""]
    return "\n".join([*parts, *(folded(line, width) for line in about if line)])


def _estimate(session: Session, state: State) -> Estimate:
    plan = tuple(task.plan for task in state.tasks.values())
    with session.ledger.db.snapshot() as connection:
        earlier = last_figures(connection, _REMEMBERED)
    known = experience(
        (found.state, found.runs) for found in earlier if found.state.sprint.id != state.sprint.id
    )
    return estimate(plan, state.sprint.parallel, known)


def answer_held(session: Session, state: State, command: str, about: dict[str, Any]) -> int:
    """The plan is all that was asked for, so this is a success."""
    name = state.sprint.id
    run = f"caloron resume {name} --project {session.project.name}"
    discard = f"caloron discard {name} --project {session.project.name}"
    place = state.sprint.plan_issue
    there = (session.forge.url(place) or f"issue #{place}") if place else ""
    lines = (
        plan_page(session, state),
        "",
        "Nothing was begun: the plan waits for you.",
        *([f"On the forge:   {there}, comment `caloron:approve` there"] if there else []),
        f"Run it:         {run} --yes",
        f"Change it:      {run} --edit",
        f"Throw it away:  {discard}",
    )
    data = report(session, state) | about | {"next": f"{run} --yes"}
    data["estimate"] = msgspec.to_builtins(_estimate(session, state))
    output.success(command, data, "\n".join(lines))
    return 0


def answer_begun(session: Session, state: State, command: str, about: dict[str, Any]) -> int:
    """Nothing but the record was asked for; somebody else drives the sprint."""
    tick = f"caloron tick --sprint {state.sprint.id}"
    text = f"Sprint {state.sprint.id} is recorded. Drive it, again and again: {tick}"
    output.success(command, report(session, state) | about | {"next": tick}, text)
    return 0


def answer(session: Session, state: State, command: str, about: dict[str, Any]) -> int:
    """Say how the sprint ended, or why it stopped, and what to do next."""
    data = report(session, state) | about
    done, total = data["completed_tasks"], data["total_tasks"]
    if state.sprint.phase != "ended":
        hint = f"caloron resume {state.sprint.id} --project {session.project.name}"
        if state.sprint.halted.startswith("the budget"):
            hint += " --budget MORE"
        if state.sprint.phase == "approval":
            hint += " --yes"
        if state.sprint.halted or state.sprint.phase == "approval":
            output.failure(command, "STOPPED", _stopped_line(state), hint=hint, data=data)
        else:
            output.stopped(command, _stopped_line(state), resume=hint, data=data)
        return STOPPED
    if state.sprint.stopped:
        if state.sprint.stopped_by == "red main":
            printed = [f"  | {line}" for line in log_lines(state.sprint.stopped_log)]
            raise PreconditionFailed(
                "\n".join([state.sprint.stopped, *printed]),
                hint=f"fix main and run `caloron resume {state.sprint.id}`, or continue anyway with"
                f" --allow-red; the whole output is in {state.sprint.stopped_log}",
            )
        raise PreconditionFailed(
            f"sprint {state.sprint.id} has no plan: {state.sprint.stopped}",
            hint=_how_to_plan(state.sprint.stopped),
        )
    if done < total:
        message = f"sprint {state.sprint.id} ended with {total - done} of {total} tasks not done"
        resume = f"caloron resume {state.sprint.id} --project {session.project.name}"
        hint = (
            "caloron why; what is said or done on the forge from now on (`resolved`, an issue that"
            f" is opened again) is carried out by: {resume}"
        )
        if data["bring"]:
            hint += f"; what was merged comes to you with: {data['bring']}"
        output.failure(command, "TASKS_NOT_DONE", message, hint=hint, data=data)
        return TASKS_NOT_DONE
    all_done = "its one task is done" if total == 1 else f"all {total} tasks are done"
    took = f"{span(data['duration_s'])} (working time {span(data['work_time_s'])})"
    text = f"Sprint {state.sprint.id}: {all_done}, in {took}."
    text += "".join(f"\n  {t['id']}: {t['pr_url']}" for t in data["tasks"] if t["pr_url"])
    if data["bring"]:
        text += f"\nGet the result: {data['bring']}"
    output.success(command, data, text)
    return 0


def _how_to_plan(why: str) -> str:
    if why.startswith("the plan is not valid"):
        return "say it in other words, give a plan with --plan FILE, or `caloron resume`"
    return "put that right, then `caloron resume`; `caloron logs po` shows what the planner wrote"


def _stopped_line(state: State) -> str:
    done = sum(1 for t in state.tasks.values() if t.status is Status.DONE)
    if state.sprint.halted:
        return f"sprint {state.sprint.id} waits: {state.sprint.halted}"
    if state.sprint.phase == "approval":
        tasks = output.counted(len(state.tasks), "task")
        return (
            f"the plan of sprint {state.sprint.id} ({tasks}) stays held; nothing "
            f"was begun (change it: caloron resume --edit; throw it away: caloron discard)"
        )
    if not state.tasks:
        return f"Sprint {state.sprint.id} was stopped: {why_sprint(state.sprint, time.time())}"
    return f"Sprint {state.sprint.id} was stopped with {done} of {len(state.tasks)} tasks done"


def _work_time_s(session: Session, state: State) -> float:
    with session.ledger.db.snapshot() as connection:
        figures = figures_of(connection, state.sprint.id)
    return compute_kpis(figures.state, figures.runs, time.time()).work_time_s


def report(session: Session, state: State) -> dict[str, Any]:
    """The sprint as data: what every output of it is made from."""
    tasks = [
        {
            "id": task.id,
            "title": task.plan.title,
            "kind": task.plan.kind,
            "depends_on": list(task.plan.depends_on),
            "status": str(task.status),
            "why": why(state, task, time.time()),
            "reason": task.reason,
            "issue_number": task.issue,
            "pr_number": task.pull,
            "issue_url": session.forge.url(task.issue) if task.issue else "",
            "pr_url": session.forge.url(task.pull, pull=True) if task.pull else "",
            "review_rounds": len(task.reviewed),
            "cost_usd": round(task.spent.usd, 4),
            "tokens": task.spent.tokens_in + task.spent.tokens_out,
            "started_at": iso(task.started_at),
            "completed_at": iso(task.completed_at),
        }
        for task in state.tasks.values()
    ]
    done = sum(1 for t in state.tasks.values() if t.status is Status.DONE)
    return {
        "sprint_id": state.sprint.id,
        "number": state.sprint.number,
        "project": session.project.name,
        "goal": state.sprint.goal,
        "phase": state.sprint.phase,
        "duration_s": sprint_time_s(state.sprint, time.time()),
        "work_time_s": _work_time_s(session, state),
        "baseline": state.sprint.baseline,
        "verify": state.sprint.verify_line,
        "sandboxed": not state.sprint.unsandboxed,
        "budget_usd": state.sprint.budget_usd,
        "cost_usd": round(state.sprint.spent.usd, 4),
        "estimated_cost_usd": round(state.sprint.spent.estimated_usd, 4),
        "total_tasks": len(tasks),
        "completed_tasks": done,
        "tasks": tasks,
        "bring": _bring(session, state),
        "forge": _place_of_forge(session),
        "state_file": str(kv_path(state.sprint.id)),
    }


def _place_of_forge(session: Session) -> str:
    project = session.project
    return forge_note(project)["url"] if project.is_remote else str(project.forge_git)


def _bring(session: Session, state: State) -> str:
    """The command that brings what was merged to the user; empty if nothing was."""
    if not any(task.status is Status.DONE and task.pull for task in state.tasks.values()):
        return ""
    project = session.project
    if is_taken(project, state):
        return ""
    return bring_command(project, options_for(project, project.name))
