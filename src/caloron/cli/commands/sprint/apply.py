"""`caloron apply`: merge finished work into the branch that is checked out."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import Any

from caloron.cli.app import Answer, DryRun, attributes, command, planned, sprint_argument
from caloron.cli.format import counted
from caloron.cli.project_view import require_ledger
from caloron.cli.render import on_screen
from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.errors import NotFound, PreconditionFailed
from caloron.git.checkout import Checkout, MergePreview
from caloron.git.command import git
from caloron.ledger.ledger import read_state
from caloron.ledger.locate import projects_for, repository_here
from caloron.ledger.projects import Project, load_project
from caloron.ledger.run_history import find_sprint, sprint_numbers

_SHOWN = 10


@command(
    project=True,
    dry_run=True,
    examples=["caloron apply --dry-run", "caloron apply", "caloron apply 3"],
)
@sprint_argument
def apply(sprint: str | None, dry_run: bool, project: str | None) -> Answer | DryRun:
    """Merge everything finished (or finished up to the end of SPRINT) into your branch.

    Fast-forwards the branch that is checked out in your repository, or merges into it, as you.
    Refused, with nothing changed: when files that would change are not committed, when both sides
    changed the same lines, in the middle of a rebase or a merge, and when no branch is checked out.
    """
    # The merged work is in the forge's repository, so it can be taken without the ledger, too.
    loaded = load_project(project, need_ledger=sprint is not None)
    checkout = Checkout(_repository(loaded))
    main = _up_to_date(loaded)
    name, commit = _wanted(loaded, sprint, main)
    preview = checkout.preview_merge(loaded.git_here, commit, main)
    if dry_run and preview.how == "nothing":
        return DryRun()
    if dry_run:
        action = "merge into" if preview.how == "merge" else "fast-forward"
        return DryRun(planned(action, _summary(checkout, preview)))
    head = preview.old
    if preview.how != "nothing":
        what = f"sprint {name}" if name else f"the merged work of project {loaded.name}"
        head = checkout.apply(loaded.git_here, preview, f"Merge {what} by Caloron", main)
    return Answer(_data(loaded, sprint, checkout, preview, head), _text(checkout, preview))


def _repository(project: Project) -> Path:
    """The user's own repository: the one of the project, or the clone around this folder."""
    if project.repository is not None:
        return project.repository
    here = repository_here()
    if project.is_remote and here is not None and project.name in projects_for(here):
        return here
    if project.is_remote:
        raise PreconditionFailed(
            f"project {project.name} knows no clone of {project.config.repo} on this disk",
            hint="run this, or `git pull`, inside your clone, or name it once: caloron config set"
            " checkout PATH",
        )
    raise PreconditionFailed(
        f"project {project.name} was not created from a repository of yours",
        hint=f"git clone {quote(str(project.forge_git))}",
    )


def _up_to_date(project: Project) -> str:
    """Fetch the mirror of a remote forge; returns the name of the main branch."""
    if not project.is_remote:
        return "main"
    from caloron.engine.forge.connect import open_forge
    from caloron.git.mirror import Mirror

    with closing(open_forge(project)) as forge:
        mirror = Mirror(project.mirror, forge.remote(), forge.main)
        mirror.ensure()
        mirror.fetch_main()
        return forge.main


def _wanted(project: Project, sprint: str | None, main: str) -> tuple[str, str]:
    """The id of the named sprint, and the commit of the forge's main to take."""
    if sprint is None:
        return "", git(project.git_here, "rev-parse", "--verify", f"refs/heads/{main}^{{commit}}")
    with closing(require_ledger(project)) as connection:
        state = read_state(connection, find_sprint(connection, sprint))
    commits = merge_commits(state)
    if not commits:
        raise PreconditionFailed(
            f"sprint {state.sprint.id} has merged nothing", hint=f"caloron report {sprint}"
        )
    # Main is one line of merges: the last of them contains the others.
    newest = git(project.git_here, "merge-base", "--independent", *commits).splitlines()[0]
    return state.sprint.id, newest


def merge_commits(state: State) -> list[str]:
    """The commits that merged a sprint's work into main."""
    pulls = [state.pull_of(t) for t in state.tasks.values() if t.status is Status.DONE]
    return [pull.merge_commit for pull in pulls if pull and pull.merge_commit]


def _summary(checkout: Checkout, preview: MergePreview) -> str:
    size = preview.size
    return (
        f"branch {preview.branch} of {checkout.top}: {counted(preview.commits, 'commit')}, "
        f"{counted(size.files, 'file')}, +{size.added} -{size.removed}"
    )


def _last_sprint(project: Project, sprint: str | None) -> tuple[str | None, int | None]:
    """The last sprint that the taken work includes; a project without sprints has none."""
    if not project.ledger.exists() or not project.ledger.stat().st_size:
        return None, None
    with closing(require_ledger(project)) as connection:
        try:
            name = find_sprint(connection, sprint or "")
        except NotFound:
            return None, None
        return name, sprint_numbers(connection)[name]


def _data(
    project: Project, sprint: str | None, checkout: Checkout, preview: MergePreview, head: str
) -> dict[str, Any]:
    name, number = _last_sprint(project, sprint)
    return {
        "project": project.name,
        "sprint_id": name,
        "number": number,
        "repo": str(checkout.top),
        "branch": preview.branch,
        "how": preview.how,
        "from": preview.old,
        "to": head,
        "commits": preview.commits,
        **attributes(preview.size, "files", "added", "removed"),
    }


def _text(checkout: Checkout, preview: MergePreview) -> str:
    if preview.how == "nothing":
        return f"Branch {preview.branch} of {checkout.top} is up to date."
    how = "Fast-forwarded" if preview.how == "fast-forward" else "Merged into"
    lines = [f"{how} {_summary(checkout, preview)}"]
    lines += [f"  {on_screen(subject, 4)}" for subject in preview.changes[:_SHOWN]]
    if len(preview.changes) > _SHOWN:
        lines.append(f"  and {len(preview.changes) - _SHOWN} more")
    undo = f"git -C {quote(str(checkout.top))} reset --keep {preview.old[:12]}"
    return "\n".join([*lines, f"Undo: {undo}"])
