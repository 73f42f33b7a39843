"""`caloron apply`: bring finished work into a branch of the user's repository."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import click

from caloron.cli.app import (
    Answer,
    DryRun,
    attributes,
    command,
    named_sprint,
    planned,
    sprint_option,
)
from caloron.cli.format import counted
from caloron.cli.project_view import require_ledger
from caloron.cli.render import on_screen
from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.errors import NotFound, PreconditionFailed
from caloron.git.checkout import CO_AUTHOR, PICKED, SQUASHED, Checkout, How, Preview, Wanted
from caloron.git.command import git
from caloron.git.repository import Repository
from caloron.ids import is_valid_id
from caloron.ledger import reading
from caloron.ledger.ledger import read_state
from caloron.ledger.locate import projects_for, repository_here
from caloron.ledger.projects import Project, load_project
from caloron.ledger.run_history import find_sprint, sprint_numbers

_SHOWN = 10
#: Outside of the project's forge, its numbers of pull requests mean something else.
_MERGED_AS = re.compile(r"^Merge (?:pull request #\d+(?:: | from \S+\s*)|(?=\[))")

_TRAILER = re.compile(r"[\w-]+: ")
#: What is done to the branch, and what a dry run says of it.
_DONE: dict[How, str] = {
    "create": "Created",
    "fast-forward": "Fast-forwarded",
    "merge": "Merged into",
    "squash": "Squashed into one commit on",
    "pick": "Applied the task to",
}
_PLANNED: dict[How, str] = {
    "create": "create",
    "fast-forward": "fast-forward",
    "merge": "merge into",
    "squash": "squash into one commit on",
    "pick": "apply the task to",
}


class Selection(NamedTuple):
    """A sprint that the user named, or one of its tasks."""

    state: State
    task: Task | None = None

    @property
    def name(self) -> str:
        sprint = f"sprint {self.state.sprint.id}"
        return f"task {self.task.id} of {sprint}" if self.task else sprint


@command(
    project=True,
    dry_run=True,
    examples=[
        "caloron apply --dry-run",
        "caloron apply",
        "caloron apply 3 --squash",
        "caloron apply --branch review/discounts",
        "caloron apply fix-login",
    ],
)
@click.argument("what", metavar="[SPRINT|TASK]", required=False, callback=named_sprint)
@click.option("--branch", metavar="NAME", help="Create or fast-forward this branch instead.")
@click.option("--squash", is_flag=True, help="Make one commit of everything.")
@sprint_option("The sprint of TASK (default: the last one that has it).")
def apply(
    what: str | None,
    branch: str | None,
    squash: bool,
    sprint: str | None,
    dry_run: bool,
    project: str | None,
) -> Answer | DryRun:
    """Merge everything finished (or up to the end of SPRINT, or one TASK) into your branch.

    Fast-forwards the branch that is checked out in your repository, or merges into it, as you.
    With --branch your checkout stays as it is: push that branch for a review. With --squash the
    work becomes one commit of yours; agents stay its co-authors. A TASK becomes one commit, too.

    Refused, with nothing changed: when files that would change are not committed, when both sides
    changed the same lines, when the task builds on others that your branch does not have, in the
    middle of a rebase or a merge, and when no branch is checked out.
    """
    # The merged work is in the forge's repository, so it can be taken without the ledger, too.
    loaded = load_project(project, need_ledger=what is not None or sprint is not None)
    checkout = Checkout(users_repository(loaded))
    main = fetch_main(loaded)
    selection = None
    if what is not None or sprint is not None:
        with closing(require_ledger(loaded)) as connection:
            selection = select(connection, what, sprint)
    wanted = _wanted(loaded, selection, main, branch=branch or "", squash=squash)
    if selection and selection.task:
        _refuse_missing(checkout, wanted, selection)
    preview = checkout.preview(wanted)
    if dry_run and preview.how == "nothing":
        return DryRun()
    if dry_run:
        return DryRun(planned(_PLANNED[preview.how], _summary(checkout, preview)))
    head = preview.old
    if preview.how != "nothing":
        head = checkout.apply(preview, _message(loaded, selection, preview))
    return Answer(_data(loaded, selection, checkout, preview, head), _text(checkout, preview))


def users_repository(project: Project) -> Path:
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


def fetch_main(project: Project) -> str:
    """Fetch the mirror of a remote forge; returns the name of the main branch."""
    if not project.is_remote:
        return "main"
    from caloron.engine.forge.connect import open_forge, open_mirror

    with closing(open_forge(project)) as forge:
        open_mirror(project, forge).fetch_main()
        return forge.main


def select(connection: sqlite3.Connection, what: str | None, sprint: str | None) -> Selection:
    """The sprint or the task that the user named; with a named sprint, always a task of it."""
    if sprint is None:
        try:
            return Selection(read_state(connection, find_sprint(connection, what or "")))
        except NotFound:
            named = what if what and is_valid_id(what) else ""
            newest = reading.value(connection, "newest_sprint_with_task", task=named)
            if newest is None:
                raise NotFound(
                    f"there is no sprint and no task {what!r}",
                    hint="caloron history lists the sprints, caloron show the tasks of one",
                ) from None
            sprint = str(newest)
    state = read_state(connection, find_sprint(connection, sprint))
    if what is None:
        return Selection(state)
    if what not in state.tasks:
        raise NotFound(
            f"sprint {state.sprint.id} has no task {what!r}",
            hint=f"its tasks: caloron show {sprint}",
        )
    return Selection(state, state.tasks[what])


def _wanted(
    project: Project, selection: Selection | None, main: str, *, branch: str, squash: bool
) -> Wanted:
    """The commit of the forge's main to take, and its form."""
    source, ref = project.git_here, f"refs/heads/{main}"
    if selection is None:
        newest = git(source, "rev-parse", "--verify", f"{ref}^{{commit}}")
        return Wanted(source, newest, ref, branch, squash)
    state, task = selection
    if task:
        commit, before = change_of(source, state, task)
        return Wanted(source, commit, ref, branch, since=before)
    commits = merge_commits(state)
    if not commits:
        raise PreconditionFailed(
            f"sprint {state.sprint.id} has merged nothing",
            hint=f"caloron report {state.sprint.number}",
        )
    # Main is one line of merges: the last of them contains the others.
    newest = git(source, "merge-base", "--independent", *commits).splitlines()[0]
    return Wanted(source, newest, ref, branch, squash)


def change_of(source: Path, state: State, task: Task) -> tuple[str, str]:
    """The commit that merged a task, and main before it."""
    from caloron.domain.rules.post_merge_check import landed_merge
    from caloron.engine.forge.merging import before_merge

    merge = landed_merge(state, task)
    if merge is None:
        raise PreconditionFailed(
            f"task {task.id} of sprint {state.sprint.id} is {task.status}: nothing of it is merged",
            hint=f"caloron show {state.sprint.number}",
        )
    with closing(Repository(source)) as repository:
        return merge.commit, before_merge(repository, merge)


def _refuse_missing(checkout: Checkout, wanted: Wanted, selection: Selection) -> None:
    """Refuse a task that builds on merged tasks whose changes the branch does not have."""
    state, task = selection
    branch, tip, _ = checkout.target(wanted.branch)
    if task is None or checkout.contains(wanted.source, wanted.commit, tip=tip or "HEAD"):
        return
    missing = [
        other.id
        for other in built_on(state, task)
        if not checkout.contains(
            wanted.source, change_of(wanted.source, state, other)[0], tip=tip or "HEAD"
        )
    ]
    if missing:
        first = f"caloron apply {missing[0]} --sprint {state.sprint.number}"
        raise PreconditionFailed(
            f"task {task.id} builds on {', '.join(missing)}, which branch {branch} does not have",
            hint=f"nothing was changed; take that first ({first}), or everything: caloron apply",
        )


def built_on(state: State, task: Task) -> list[Task]:
    """The merged tasks that a task builds on, the first one first."""
    needed: dict[str, Task] = {}

    def visit(name: str) -> None:
        other = state.tasks.get(name)
        if other is None or name in needed:
            return
        for dependency in other.plan.depends_on:
            visit(dependency)
        needed[name] = other

    for dependency in task.plan.depends_on:
        visit(dependency)
    return [other for other in needed.values() if _merge_commit(state, other)]


def merge_commits(state: State) -> list[str]:
    """The commits that merged a sprint's work into main."""
    return [commit for task in state.tasks.values() if (commit := _merge_commit(state, task))]


def _merge_commit(state: State, task: Task) -> str:
    pull = state.pull_of(task) if task.status is Status.DONE else None
    return pull.merge_commit if pull else ""


def _message(project: Project, selection: Selection | None, preview: Preview) -> str:
    """The message of the commit that is made: a merge, a squash or a task."""
    what = selection.name if selection else f"the merged work of project {project.name}"
    if preview.how == "merge":
        return f"Merge {what} by Caloron"
    messages = [_MERGED_AS.sub("", message) for message in reversed(preview.messages)]
    trailers = [f"{CO_AUTHOR}: {author}" for author in preview.co_authors if author]
    if selection and selection.task:
        title = f"[{selection.task.id}] {selection.task.plan.title}"
        parts = [title, *(_prose(message.partition("\n")[2]) for message in messages)]
        trailers.append(f"{PICKED}{preview.wanted.commit})")
    else:
        parts = [_goal(project, selection, preview) or what, *(f"* {_prose(m)}" for m in messages)]
        trailers.append(f"{SQUASHED}{preview.wanted.commit}")
    return "\n\n".join(filter(None, [*parts, "\n".join(trailers)]))


def _prose(message: str) -> str:
    """A message without the trailers at its end."""
    *parts, last = message.strip().split("\n\n")
    lines = [] if all(map(_TRAILER.match, last.splitlines())) else [last]
    return "\n\n".join([*parts, *lines])


def _goal(project: Project, selection: Selection | None, preview: Preview) -> str:
    """The first line of the goal, or of each goal whose sprint merged some of this."""
    if selection:
        return selection.state.sprint.goal.strip().partition("\n")[0]
    if not _has_ledger(project):
        return ""
    range_ = (preview.wanted.commit, "--not", preview.base)
    merged = set(git(preview.wanted.source, "rev-list", *range_, check=False).split())
    with closing(require_ledger(project)) as connection:
        states = [read_state(connection, name) for name in sprint_numbers(connection)]
    goals = [s.sprint.goal for s in states if merged.intersection(merge_commits(s))]
    return "; ".join(goal.strip().partition("\n")[0] for goal in goals)


def _has_ledger(project: Project) -> bool:
    """False before the first sprint, and for a ledger that was lost: removed or emptied."""
    return project.ledger.exists() and project.ledger.stat().st_size > 0


def _summary(checkout: Checkout, preview: Preview) -> str:
    size = preview.size
    return (
        f"branch {preview.branch} of {checkout.top}: {counted(preview.commits, 'commit')}, "
        f"{counted(size.files, 'file')}, +{size.added} -{size.removed}"
    )


def _last_sprint(project: Project, selection: Selection | None) -> tuple[str | None, int | None]:
    """The last sprint that the taken work includes; a project without sprints has none."""
    if selection:
        return selection.state.sprint.id, selection.state.sprint.number
    if not _has_ledger(project):
        return None, None
    with closing(require_ledger(project)) as connection:
        try:
            name = find_sprint(connection)
        except NotFound:
            return None, None
        return name, sprint_numbers(connection)[name]


def _data(
    project: Project,
    selection: Selection | None,
    checkout: Checkout,
    preview: Preview,
    head: str,
) -> dict[str, Any]:
    name, number = _last_sprint(project, selection)
    return {
        "project": project.name,
        "sprint_id": name,
        "number": number,
        "task": selection.task.id if selection and selection.task else None,
        "repo": str(checkout.top),
        "branch": preview.branch,
        "how": preview.how,
        "from": preview.old,
        "to": head,
        "commits": preview.commits,
        **attributes(preview.size, "files", "added", "removed"),
    }


def _text(checkout: Checkout, preview: Preview) -> str:
    if preview.how == "nothing":
        return f"Branch {preview.branch} of {checkout.top} is up to date."
    lines = [f"{_DONE[preview.how]} {_summary(checkout, preview)}"]
    subjects = [message.partition("\n")[0] for message in preview.messages]
    lines += [f"  {on_screen(subject, 4)}" for subject in subjects[:_SHOWN]]
    if len(subjects) > _SHOWN:
        lines.append(f"  and {len(subjects) - _SHOWN} more")
    if not preview.here:
        lines.append(f"Push it: git -C {quote(str(checkout.top))} push REMOTE {preview.branch}")
    return "\n".join([*lines, f"Undo: {checkout.undo(preview)}"])
