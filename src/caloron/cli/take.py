"""`caloron take`: brings what was merged into the branch that is checked out."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import Any

import click

from caloron.cli import output
from caloron.cli.options import dry_run_option, named_sprint, output_option, project_option
from caloron.cli.output import printable, success
from caloron.cli.screen import on_screen
from caloron.domain.sprint import State, pull_of
from caloron.domain.status import Status
from caloron.errors import NotFound, PreconditionFailed
from caloron.git.checkout import Checkout, Coming
from caloron.git.command import git
from caloron.ledger.figures import find_sprint, number_of
from caloron.ledger.ledger import read_state
from caloron.ledger.locate import projects_for, repository_here
from caloron.ledger.projects import Project, load_project

_SHOWN = 10


@click.command()
@click.argument("sprint", required=False, callback=named_sprint)
@dry_run_option
@project_option
@output_option
def take(sprint: str | None, dry_run: bool, project: str | None) -> int:
    """Bring everything that was merged (or what was up to the end of SPRINT) into your branch.

    Fast-forwards the branch that is checked out in your repository, or merges into it, as you.
    Refused, with nothing changed: when files that would change are not committed, when both sides
    changed the same lines, in the middle of a rebase or a merge, and when no branch is checked out.

    \b
    Examples:
      caloron take --dry-run
      caloron take
      caloron take 3
    """
    # The merged work is in the forge's repository: it can be had without the ledger, too.
    found = load_project(project, need_ledger=sprint is not None)
    checkout = Checkout(_repository(found))
    main = _up_to_date(found)
    name, commit = _wanted(found, sprint, main)
    coming = checkout.coming(found.git_here, commit, main)
    if dry_run:
        return output.dry_run("take", _planned(checkout, coming))
    new = coming.old
    if coming.how != "nothing":
        what = f"sprint {name}" if name else f"what was merged in project {found.name}"
        new = checkout.take(found.git_here, coming, f"Merge {what} by Caloron", main)
    success("take", _data(found, sprint, checkout, coming, new), _text(checkout, coming))
    return 0


def _repository(found: Project) -> Path:
    """The user's own repository: the one of the project, or the clone that one stands in."""
    if found.repository is not None:
        return found.repository
    here = repository_here()
    if found.is_remote and here is not None and found.name in projects_for(here):
        return here
    if found.is_remote:
        raise PreconditionFailed(
            f"project {found.name} knows no clone of {found.config.repo} on this disk",
            hint="run this, or `git pull`, inside your clone, or name it once: caloron config set"
            " checkout PATH",
        )
    raise PreconditionFailed(
        f"project {found.name} was not made from a repository of yours",
        hint=f"git clone {quote(str(found.forge_git))}",
    )


def _up_to_date(found: Project) -> str:
    """The name of the forge's main; our copy of a forge on the network is fetched first."""
    if not found.is_remote:
        return "main"
    from caloron.engine.forges import open_forge
    from caloron.git.mirror import Mirror

    with closing(open_forge(found)) as forge:
        mirror = Mirror(found.mirror, forge.remote(), forge.main)
        mirror.ensure()
        mirror.fetch_main()
        return forge.main


def _wanted(found: Project, sprint: str | None, main: str) -> tuple[str, str]:
    """The sprint that was named, and the commit of the forge's main to bring."""
    if sprint is None:
        return "", git(found.git_here, "rev-parse", "--verify", f"refs/heads/{main}^{{commit}}")
    from caloron.cli.status import require_ledger

    with closing(require_ledger(found)) as connection:
        state = read_state(connection, find_sprint(connection, sprint))
    commits = merge_commits(state)
    if not commits:
        raise PreconditionFailed(
            f"sprint {state.sprint.id} has merged nothing", hint=f"caloron report {sprint}"
        )
    # Main is one line of merges: the last of them holds the others.
    newest = git(found.git_here, "merge-base", "--independent", *commits).splitlines()[0]
    return state.sprint.id, newest


def merge_commits(state: State) -> list[str]:
    """The commits by which a sprint's work came to main."""
    pulls = [pull_of(state, t) for t in state.tasks.values() if t.status is Status.DONE]
    return [pull.merge_commit for pull in pulls if pull and pull.merge_commit]


def _planned(checkout: Checkout, coming: Coming) -> list[dict[str, Any]]:
    if coming.how == "nothing":
        return []
    action = "merge into" if coming.how == "merge" else "fast-forward"
    return [{"action": action, "target": _said(checkout, coming)}]


def _said(checkout: Checkout, coming: Coming) -> str:
    size = coming.size
    return (
        f"branch {coming.branch} of {checkout.top}: {_count(coming.commits, 'commit')}, "
        f"{_count(size.files, 'file')}, +{size.added} -{size.removed}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _last_sprint(found: Project, sprint: str | None) -> tuple[str | None, int | None]:
    """The last sprint whose work was brought; a project without sprints has none."""
    if not found.ledger.exists() or not found.ledger.stat().st_size:
        return None, None
    from caloron.cli.status import require_ledger

    with closing(require_ledger(found)) as connection:
        try:
            name = find_sprint(connection, sprint or "")
        except NotFound:
            return None, None
        return name, number_of(connection, name)


def _data(
    found: Project, sprint: str | None, checkout: Checkout, coming: Coming, new: str
) -> dict[str, Any]:
    name, number = _last_sprint(found, sprint)
    return {
        "project": found.name,
        "sprint_id": name,
        "number": number,
        "repo": str(checkout.top),
        "branch": coming.branch,
        "how": coming.how,
        "from": coming.old,
        "to": new,
        "commits": coming.commits,
        "files": coming.size.files,
        "added": coming.size.added,
        "removed": coming.size.removed,
    }


def _text(checkout: Checkout, coming: Coming) -> str:
    if coming.how == "nothing":
        return f"Branch {coming.branch} of {checkout.top} has all of it already."
    how = "Fast-forwarded" if coming.how == "fast-forward" else "Merged into"
    lines = [f"{how} {_said(checkout, coming)}"]
    lines += [f"  {on_screen(subject, 4)}" for subject in coming.changes[:_SHOWN]]
    if len(coming.changes) > _SHOWN:
        lines.append(f"  and {len(coming.changes) - _SHOWN} more")
    undo = f"git -C {quote(str(checkout.top))} reset --keep {coming.old[:12]}"
    return printable("\n".join([*lines, f"Back to before: {undo}"]))
