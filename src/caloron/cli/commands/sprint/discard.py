"""`caloron discard`: cancel what is left of a sprint that is not wanted any more."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from caloron.cli import output
from caloron.cli.app import Answer, DryRun, command, confirm, planned, sprint_argument
from caloron.cli.commands.forge import person
from caloron.cli.commands.sprint.revert import merged_tasks
from caloron.cli.format import counted
from caloron.cli.project_view import ensure_unlocked, require_ledger
from caloron.domain.model.snapshots import IssueSnapshot
from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.rules.discard import can_be_discarded, left_over
from caloron.errors import PreconditionFailed
from caloron.git.command import git
from caloron.ledger.ledger import read_state
from caloron.ledger.projects import Project, load_project
from caloron.ledger.run_history import find_sprint


@command(
    project=True, dry_run=True, examples=["caloron discard --dry-run", "caloron discard 3 --yes"]
)
@sprint_argument
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def discard(sprint: str | None, yes: bool, dry_run: bool, project: str | None) -> Answer | DryRun:
    """Cancel what is left of the last sprint (or of SPRINT): its plan, unfinished tasks.

    Unfinished tasks are cancelled, their issues and pull requests closed with a comment. Merged
    work stays merged, branches and saved work are kept. It shows what is cancelled, and asks.
    """
    loaded = load_project(project)
    with closing(require_ledger(loaded)) as connection:
        state = read_state(connection, find_sprint(connection, sprint or ""))
    was_interrupted = state.sprint.discard.by and state.sprint.phase != "ended"
    if not can_be_discarded(state) and not was_interrupted:
        return _nothing_to_discard(loaded, state)
    if dry_run:
        ensure_unlocked(loaded)
        return DryRun(*_actions(state))
    if not yes:
        _confirm(state)
    from caloron.engine.session import exclusive
    from caloron.engine.signals import LineListener

    with exclusive(loaded) as session:
        listener = LineListener(output.note, name_sprint=False)
        state = session.discard(state.sprint.id, person(), listener)
    data = _data(loaded, state)
    return Answer(data, _text(data))


def _nothing_to_discard(project: Project, state: State) -> Answer:
    name = state.sprint.id
    if state.sprint.discard.by:
        text = f"Sprint {name} was discarded already, by {state.sprint.discard.by}."
        return Answer(_data(project, state), text)
    undo = _undo(project, state)
    raise PreconditionFailed(
        f"sprint {name} has nothing left to discard: its work is "
        + ("merged" if _merged(state) else "done"),
        hint=f"revert it: {undo}" if undo else "caloron report",
    )


def _actions(state: State) -> list[dict[str, Any]]:
    actions = [planned("discard sprint", state.sprint.id)]
    for task in left_over(state):
        actions.append(planned("cancel task", f"{task.id} ({task.status})"))
        actions += [planned("close", target) for target in _open_objects(state, task)]
    return actions


def _open_objects(state: State, task: Task) -> list[str]:
    pull = state.pull_of(task)
    names = [f"pull request #{pull.number}"] if pull and pull.state == "open" else []
    for number in (task.links.issue, task.escalation.issue):
        issue = state.objects.get(f"issue:{number}")
        if isinstance(issue, IssueSnapshot) and issue.state == "open":
            names.append(f"issue #{number}")
    return names


def _confirm(state: State) -> None:
    for action in _actions(state):
        output.note(f"  {action['action']} {action['target']}")
    if merged := _merged(state):
        output.note(f"  merged work stays: {', '.join(merged)}")
    confirm("Discard this?", f"nothing was discarded: sprint {state.sprint.id} is unchanged")


def _merged(state: State) -> list[str]:
    """The tasks whose work is on main; a task with nothing to do is done without any."""
    return [task.id for task in merged_tasks(state)]


def _data(project: Project, state: State) -> dict[str, Any]:
    tasks, to_close = state.tasks.values(), set(state.sprint.discard.closing)
    return {
        "project": project.name,
        "sprint_id": state.sprint.id,
        "number": state.sprint.number,
        "discarded_by": state.sprint.discard.by,
        "cancelled": [t.id for t in tasks if t.status is Status.CANCELLED],
        "merged": _merged(state),
        "closed": sorted(
            name for name in to_close if getattr(state.objects.get(name), "state", "") == "closed"
        ),
        "kept": _kept(project, state.sprint.id),
        "undo": _undo(project, state),
    }


def _kept(project: Project, sprint: str) -> list[str]:
    """The refs that hold the agents' work of the sprint: saved work, and branches."""
    kept = []
    for repository, patterns in (
        (project.mirror, (f"refs/salvage/{sprint}", f"refs/caloron/work/{sprint}")),
        (
            project.git_here,
            (f"refs/heads/agent/*/{sprint}", f"refs/remotes/forge/agent/*/{sprint}"),
        ),
    ):
        if repository.is_dir():
            refs = git(repository, "for-each-ref", "--format=%(refname)", *patterns, check=False)
            kept += [f"{repository} {ref}" for ref in refs.splitlines()]
    return kept


def _undo(project: Project, state: State) -> str:
    """The command that reverts what was merged; empty if nothing was."""
    if not merged_tasks(state):
        return ""
    return f"caloron revert {state.sprint.id} --project {project.name}"


def _text(data: dict[str, Any]) -> str:
    count = counted(len(data["cancelled"]), "task")
    lines = [f"Sprint {data['sprint_id']} is discarded: {count} cancelled."]
    if data["closed"]:
        closed = ", ".join(data["closed"])
        closed = closed.replace("pull:", "pull request #").replace("issue:", "issue #")
        lines.append(f"Closed: {closed}")
    if data["kept"]:
        lines += ["Kept, until `caloron clean` removes it:", *(f"  {ref}" for ref in data["kept"])]
    if data["merged"]:
        lines.append(f"Merged before, and still on the forge's main: {', '.join(data['merged'])}")
    if data["undo"]:
        lines.append(f"Revert that: {data['undo']}")
    return "\n".join(lines)
