"""`caloron revert`: take merged work out of the project's main again."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from caloron.cli import output
from caloron.cli.app import (
    Answer,
    DryRun,
    Failed,
    command,
    confirm,
    named_sprint,
    planned,
    sprint_option,
)
from caloron.cli.commands.forge import person
from caloron.cli.commands.sprint.apply import Selection, built_on, fetch_main, select
from caloron.cli.project_view import apply_command, ensure_unlocked, project_flag, require_ledger
from caloron.domain.model.sprint import State
from caloron.domain.model.task import Task
from caloron.errors import PreconditionFailed
from caloron.git.command import git
from caloron.ledger.projects import Project, load_project


@command(
    project=True,
    dry_run=True,
    examples=[
        "caloron revert fix-login --dry-run",
        "caloron revert fix-login",
        "caloron revert 3 --yes",
    ],
)
@click.argument("what", metavar="SPRINT|TASK", callback=named_sprint)
@sprint_option("The sprint of TASK (default: the last one that has it).")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def revert(
    what: str, sprint: str | None, yes: bool, dry_run: bool, project: str | None
) -> Answer | DryRun:
    """Revert what a sprint or one task brought to the project's main.

    A pull request reverts the commits, is verified, and is merged: main gets all of it or nothing.
    No agent is started for it. `caloron apply` then brings the result into your branch. Tasks that
    build on a reverted one are named before it asks.
    """
    loaded = load_project(project)
    with closing(require_ledger(loaded)) as connection:
        selection = select(connection, what, sprint)
    state, begun = selection.state, under_way(selection.state)
    tasks = [begun] if begun else _to_revert(loaded, selection)
    if dry_run:
        ensure_unlocked(loaded)
        return DryRun(*(planned("revert", _line(state, task)) for task in tasks))
    if not yes and not begun:
        for task in tasks:
            output.note(f"  revert {_line(state, task)}")
        if others := building_on(state, tasks):
            output.note(f"  they build on it, and stay: {', '.join(others)}")
        confirm("Revert this?", "nothing was reverted")
    from caloron.engine.session import exclusive
    from caloron.engine.signals import LineListener

    with exclusive(loaded) as session:
        listener = LineListener(output.note, name_sprint=False)
        names = () if begun else tuple(task.id for task in tasks)
        after = session.revert(state.sprint.id, names, person(), listener)
    return _answer(loaded, selection, after, tasks)


def under_way(state: State) -> Task | None:
    """The task that carries a revert which was interrupted."""
    tasks = (t for t in state.tasks.values() if t.merge.unverified and t.merge.revert)
    return next((t for t in tasks if t.merge.revert and t.merge.revert.by), None)


def merged_tasks(state: State) -> list[Task]:
    """The tasks whose changes are on main, and were not reverted."""
    from caloron.domain.rules.post_merge_check import landed_merge

    return [task for task in state.tasks.values() if landed_merge(state, task)]


def building_on(state: State, tasks: list[Task]) -> list[str]:
    """The merged tasks that build on these and are not among them."""
    names = {task.id for task in tasks}
    return [
        other.id
        for other in merged_tasks(state)
        if other.id not in names and names & {needed.id for needed in built_on(state, other)}
    ]


def _to_revert(project: Project, selection: Selection) -> list[Task]:
    """The tasks to revert, the one that was merged last first."""
    state, task = selection
    sprint = state.sprint.id
    tasks = [t for t in merged_tasks(state) if task is None or t.id == task.id]
    if not tasks and task and task.merge.reverted_in is not None:
        raise PreconditionFailed(
            f"{selection.name} is reverted already, by pull request #{task.merge.reverted_in}",
            hint="get the result: caloron apply",
        )
    if not tasks:
        raise PreconditionFailed(
            f"nothing of {selection.name} is on the project's main",
            hint=f"caloron show {state.sprint.number}",
        )
    if state.sprint.phase != "ended":
        raise PreconditionFailed(
            f"sprint {sprint} has not ended",
            hint=f"finish it: caloron resume {sprint}; cancel the rest: caloron discard {sprint}",
        )
    stuck = [t.id for t in state.tasks.values() if t.merge.unverified]
    if stuck:
        raise PreconditionFailed(
            f"main is not settled after the merge of task {stuck[0]}",
            hint=f"caloron why shows the reason; then: caloron resume {sprint}",
        )
    main = fetch_main(project)
    order = git(project.git_here, "rev-list", "--first-parent", f"refs/heads/{main}").split()
    places = {commit: place for place, commit in enumerate(order)}
    return sorted(tasks, key=lambda t: places.get(_merged_as(state, t), len(places)))


def _merged_as(state: State, task: Task) -> str:
    pull = state.pull_of(task)
    return pull.merge_commit if pull else ""


def _line(state: State, task: Task) -> str:
    return f"task {task.id} of sprint {state.sprint.id} (#{task.links.pull}, {task.plan.title})"


def _answer(project: Project, selection: Selection, state: State, tasks: list[Task]) -> Answer:
    carrier = state.tasks[tasks[0].id]
    progress, names = carrier.merge.revert, [task.id for task in tasks]
    again = f"caloron revert {names[0]} --sprint {state.sprint.number} --yes"
    if progress is None or not progress.by or carrier.merge.unverified:
        reason = state.sprint.availability.pause_reason or "it was stopped"
        raise Failed("STOPPED", f"the revert is not finished: {reason}", hint=again)
    names = list(progress.tasks)
    reverted = [name for name in names if state.tasks[name].merge.reverted_in is not None]
    flags = project_flag(project, project.name)
    data: dict[str, Any] = {
        "project": project.name,
        "sprint_id": state.sprint.id,
        "number": state.sprint.number,
        "reverted": reverted,
        "pull_request": progress.pull,
        "built_on_by": building_on(state, [state.tasks[name] for name in names]),
        # The branch may have the merge and lack its revert.
        "bring": apply_command(project, state, flags) or f"caloron apply{flags}",
    }
    if progress.failure and not reverted:
        raise Failed(
            "PRECONDITION_FAILED",
            f"{selection.name} was not reverted: {progress.failure}",
            hint="main is as it was; fix the cause, or revert it by hand in a pull request",
            data=data,
        )
    if progress.failure:
        raise Failed(
            "PRECONDITION_FAILED",
            f"{', '.join(names)} were reverted by pull request #{progress.pull}, but"
            f" {progress.failure}",
            hint="fix main; the next sprint verifies it first",
            data=data,
        )
    lines = [f"Reverted {', '.join(names)} by pull request #{progress.pull}."]
    if data["built_on_by"]:
        lines.append(f"These build on it, and stay: {', '.join(data['built_on_by'])}")
    return Answer(data, "\n".join([*lines, f"Get the result: {data['bring']}"]))
