"""`caloron discard`: throws away what is left of a sprint that nobody wants any more."""

from __future__ import annotations

from contextlib import closing
from shlex import quote
from typing import Any

import click

from caloron.cli import output
from caloron.cli.alone import refuse_held
from caloron.cli.looking import forge_note
from caloron.cli.options import dry_run_option, named_sprint, output_option, project_option
from caloron.cli.output import printable, success
from caloron.cli.person import person
from caloron.cli.take import merge_commits
from caloron.domain.actions import Moved
from caloron.domain.discarding import can_be_discarded, left_over
from caloron.domain.observations import IssueSeen
from caloron.domain.sprint import State, Task, pull_of
from caloron.domain.status import Status
from caloron.errors import PreconditionFailed
from caloron.git.command import git
from caloron.ledger.figures import find_sprint
from caloron.ledger.ledger import read_state
from caloron.ledger.projects import Project, load_project

NOT_CONFIRMED = 1


@click.command()
@click.argument("sprint", required=False, callback=named_sprint)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@dry_run_option
@project_option
@output_option
def discard(sprint: str | None, yes: bool, dry_run: bool, project: str | None) -> int:
    """Throw away what is left of the last sprint (or of SPRINT): a held plan, unfinished tasks.

    Tasks that are not done are cancelled, their issues and pull requests closed with a word. What
    was merged stays merged, branches and saved work are kept. It shows what goes, and asks.

    \b
    Examples:
      caloron discard --dry-run
      caloron discard 3 --yes
    """
    found = load_project(project)
    state = _read(found, sprint)
    name = state.sprint.id
    if not can_be_discarded(state) and not _interrupted(state):
        _nothing_to_discard(found, state)
        return 0
    if dry_run:
        refuse_held(found)
        return output.dry_run("discard", _what_goes(state))
    if not yes and not _confirmed(state):
        output.failure(
            "discard",
            "NOT_CONFIRMED",
            f"nothing was thrown away: sprint {name} is as it was",
            hint="say y, or use --yes",
        )
        return NOT_CONFIRMED
    state = _discard(found, name)
    data = _data(found, state)
    success("discard", data, _text(data))
    return 0


def _read(found: Project, sprint: str | None) -> State:
    from caloron.cli.status import require_ledger

    with closing(require_ledger(found)) as connection:
        return read_state(connection, find_sprint(connection, sprint or ""))


def _interrupted(state: State) -> bool:
    """Whether an earlier discard did not come to its end."""
    return bool(state.sprint.discarded) and state.sprint.phase != "ended"


def _nothing_to_discard(found: Project, state: State) -> None:
    name = state.sprint.id
    if state.sprint.discarded:
        text = f"Sprint {name} was discarded already, by {state.sprint.discarded}."
        success("discard", _data(found, state), text)
        return
    undo = _undo(found, state)
    raise PreconditionFailed(
        f"sprint {name} has nothing left to throw away: its work is "
        + ("merged" if _merged(state) else "done"),
        hint=f"do not take it; to undo it on the forge: {undo}" if undo else "caloron report",
    )


def _what_goes(state: State) -> list[dict[str, Any]]:
    goes = [_closing(state, task) for task in left_over(state)]
    actions = [{"action": "discard sprint", "target": state.sprint.id}]
    for task, closing_ in zip(left_over(state), goes, strict=True):
        actions.append({"action": "cancel task", "target": f"{task.id} ({task.status})"})
        actions += [{"action": "close", "target": one} for one in closing_]
    return actions


def _closing(state: State, task: Task) -> list[str]:
    pull = pull_of(state, task)
    found = [f"pull request #{pull.number}"] if pull and pull.state == "open" else []
    for number in (task.issue, task.escalation_issue):
        seen = state.objects.get(f"issue:{number}")
        if isinstance(seen, IssueSeen) and seen.state == "open":
            found.append(f"issue #{number}")
    return found


def _confirmed(state: State) -> bool:
    for action in _what_goes(state):
        output.aside(f"  {action['action']} {action['target']}")
    if merged := _merged(state):
        output.aside(f"  what was merged stays: {', '.join(merged)}")
    try:
        return click.confirm("Throw this away?", default=False, err=True)
    except click.Abort:
        return False


def _merged(state: State) -> list[str]:
    """The tasks whose work is on main; one that found nothing to do is done without any."""
    pulls = {t.id: pull_of(state, t) for t in state.tasks.values() if t.status is Status.DONE}
    return [name for name, pull in pulls.items() if pull and pull.state == "merged"]


def _discard(found: Project, name: str) -> State:
    from caloron.engine.discarding import Discarding
    from caloron.engine.session import held

    def told(moves: tuple[Moved, ...]) -> None:
        for move in moves:
            output.aside(f"{move.task}: {move.old} → {move.new}")

    with held(found) as session:
        return Discarding(session, name, told, output.aside).run(person())


def _data(found: Project, state: State) -> dict[str, Any]:
    tasks = state.tasks.values()
    objects = set(state.sprint.let_go)
    return {
        "project": found.name,
        "sprint_id": state.sprint.id,
        "number": state.sprint.number,
        "discarded_by": state.sprint.discarded,
        "cancelled": [t.id for t in tasks if t.status is Status.CANCELLED],
        "merged": _merged(state),
        "closed": sorted(o for o in objects if _is_closed(state, o)),
        "kept": _kept(found, state.sprint.id),
        "undo": _undo(found, state),
    }


def _is_closed(state: State, name: str) -> bool:
    seen = state.objects.get(name)
    return getattr(seen, "state", "") == "closed"


def _kept(found: Project, sprint: str) -> list[str]:
    """The refs that hold what agents of the sprint wrote: saved work, and their branches."""
    kept = []
    for repository, patterns in (
        (found.mirror, (f"refs/salvage/{sprint}", f"refs/caloron/work/{sprint}")),
        (found.git_here, (f"refs/heads/agent/*/{sprint}", f"refs/remotes/forge/agent/*/{sprint}")),
    ):
        if repository.is_dir():
            listed = git(repository, "for-each-ref", "--format=%(refname)", *patterns, check=False)
            kept += [f"{repository} {ref}" for ref in listed.splitlines()]
    return kept


def _undo(found: Project, state: State) -> str:
    """How to take back what was merged, newest first; empty if there is nothing, or no one line."""
    commits = merge_commits(state)
    if not commits:
        return ""
    here, main = found.git_here, state.sprint.main
    listed = git(here, "rev-list", "--no-walk", "--parents", *commits, check=False)
    rows = [line.split() for line in listed.splitlines()]
    if any(len(row) != 3 for row in rows):
        return ""
    order = git(here, "rev-list", "--first-parent", main, check=False).splitlines()
    newest_first = [commit for commit in order if commit in commits]
    # What is shown is made to be pasted: a branch may be named `$(…)`.
    place, forge = quote(f"undo-{state.sprint.id}"), quote(_to_clone(found))
    return (
        f"git clone {forge} {place} && git -C {place} revert --no-edit -m 1 "
        f"{' '.join(c[:12] for c in newest_first)} && git -C {place} push origin {quote(main)}"
    )


def _to_clone(found: Project) -> str:
    if not found.is_remote:
        return str(found.forge_git)
    return found.config.git_url or forge_note(found)["url"]


def _text(data: dict[str, Any]) -> str:
    cancelled, merged = data["cancelled"], data["merged"]
    count = "1 task" if len(cancelled) == 1 else f"{len(cancelled)} tasks"
    lines = [f"Sprint {data['sprint_id']} is discarded: {count} cancelled."]
    if data["closed"]:
        named = [one.replace("pull:", "pull request #").replace("issue:", "issue #")
                 for one in data["closed"]]  # fmt: skip
        lines.append(f"Closed: {', '.join(named)}")
    if data["kept"]:
        lines += ["Kept, until `caloron clean` removes it:", *(f"  {one}" for one in data["kept"])]
    if merged:
        lines.append(f"Merged before, and still on the forge's main: {', '.join(merged)}")
    if data["undo"]:
        lines.append(f"Undo that, if you want: {data['undo']}")
    return printable("\n".join(lines))
