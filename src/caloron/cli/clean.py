"""`caloron clean`: give back the disk that a project does not need any more."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import click

from caloron.cli import output
from caloron.cli.alone import alone, refuse_held, size_of
from caloron.cli.options import dry_run_option, output_option, project_option
from caloron.cli.output import printable, size, success
from caloron.errors import PreconditionFailed
from caloron.ledger.identity import open_ledger
from caloron.ledger.locate import ProjectPaths, find_project, home

NOT_CONFIRMED = 1
_DAY_S = 86_400.0
#: Only these leave work in a workspace; what others leave in theirs is nobody's.
_CHANGES = ("implement", "fix", "resolve")
#: Sprints that nothing can go on with: what their agents said is needed by no agent any more.
#: One that was stopped waits for a person until it is resumed or thrown away.
_OVER = """
SELECT id, ended_at FROM sprints s WHERE phase = 'ended' AND ended_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM tasks t
                  WHERE t.sprint = s.id AND t.status NOT IN ('Done', 'Cancelled'))
  AND (COALESCE(json_extract(CAST(data AS TEXT), '$.stopped'), '') = ''
       OR COALESCE(json_extract(CAST(data AS TEXT), '$.discarded'), '') <> '')
ORDER BY number
"""


class Thing(NamedTuple):
    """Something that can go: a file, a folder, a branch of the forge, saved work."""

    kind: str
    target: str
    bytes: int

    def told(self) -> dict[str, Any]:
        action = "forget" if self.kind == "salvage" else "delete"
        return {"action": action, **self._asdict()}


class Sweep(NamedTuple):
    """What a look at a project found: what can go, and what must stay."""

    things: list[Thing]
    kept: list[dict[str, Any]]


@click.command()
@click.option(
    "--older-than",
    "days",
    type=click.IntRange(0, 36_500),
    default=30,
    show_default=True,
    metavar="DAYS",
    help="Logs, merged branches, seeds and saved work of this age or older.",
)
@click.option("--salvage", is_flag=True, help="Also work that was saved from attempts cut short.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@dry_run_option
@project_option
@output_option
def clean(days: int, salvage: bool, yes: bool, dry_run: bool, project: str | None) -> int:
    """Remove old logs, merged branches, caches and leftover workspaces, with their sizes.

    Only of sprints whose tasks are all done or cancelled, and that do not wait for you. A workspace
    with work that is saved nowhere else stays, and so do the history and everything on the forge
    that is not merged.

    \b
    Examples:
      caloron clean --dry-run
      caloron clean --older-than 7 --yes
    """
    found = find_project(project)
    if dry_run:
        refuse_held(found)
        return output.dry_run("clean", [t.told() for t in _look(found, days, salvage).things])
    with alone(found):
        sweep = _look(found, days, salvage)
        if sweep.things and not yes and not _confirmed(sweep):
            hint = "answer y, or use --yes"
            output.failure("clean", "NOT_CONFIRMED", "nothing was removed", hint=hint)
            return NOT_CONFIRMED
        _remove(found, sweep.things)
    total = sum(thing.bytes for thing in sweep.things)
    data = {
        "project": found.name,
        "removed": [thing.told() for thing in sweep.things],
        "bytes": total,
        "kept": sweep.kept,
    }
    success("clean", data, _text(sweep, total))
    return 0


def _look(found: ProjectPaths, days: int, salvage: bool) -> Sweep:
    before = time.time() - days * _DAY_S
    over = _sprints_over(found)
    old = [sprint for sprint, ended in over.items() if ended <= before]
    saved = _refs(found, "refs/salvage", "refs/caloron/work")
    things: list[Thing] = []
    kept: list[dict[str, Any]] = []
    for sprint in over:
        unsaved = [w for w in _workspaces(found, sprint) if not _is_saved(found, w, saved)]
        kept += [{"target": str(w), "reason": "its work is saved nowhere else"} for w in unsaved]
        if sprint in old and not unsaved:
            things += _thing("logs", found.runs / sprint)
            continue
        for workspace in set(_workspaces(found, sprint)) - set(unsaved):
            things += [*_thing("workspace", workspace), *_thing("home", workspace.parent / "home")]
    # The pool is for the engine that runs; nobody runs now.
    things += _thing("pool", found.path / "pool")
    things += _thing("trash", found.path / "trash")
    things += [t for seed in _old_in(found.path / "seeds", before) for t in _thing("seed", seed)]
    things += [t for log in _old_in(home() / "logs", before) for t in _thing("defect", log)]
    things += [Thing("branch", name, 0) for name in _merged_branches(found, old)]
    if salvage:
        of_old = tuple(f"refs/salvage/{sprint}/" for sprint in old)
        things += [Thing("salvage", ref, 0) for ref in saved if ref.startswith(of_old)]
    return Sweep(sorted(things), kept)


def _thing(kind: str, place: Path) -> list[Thing]:
    return [Thing(kind, str(place), size_of(place))] if place.exists() else []


def _sprints_over(found: ProjectPaths) -> dict[str, float]:
    if not found.ledger.exists():
        return {}
    with closing(open_ledger(found.ledger)) as connection:
        rows: list[sqlite3.Row] = connection.execute(_OVER).fetchall()
    return {row["id"]: row["ended_at"] for row in rows}


def _workspaces(found: ProjectPaths, sprint: str) -> list[Path]:
    return sorted((found.runs / sprint).glob("*/*/*/workspace"))


def _is_saved(found: ProjectPaths, workspace: Path, refs: list[str]) -> bool:
    """Whether what an agent did there is in our own repository; git never runs in a workspace."""
    run = workspace.parent.relative_to(found.runs)
    role = run.parent.name.rpartition("-")[2]
    return role not in _CHANGES or any(ref.endswith(f"/{run}") for ref in refs)


def _refs(found: ProjectPaths, *prefixes: str) -> list[str]:
    if not found.mirror.exists():
        return []
    from caloron.git.command import git

    return git(found.mirror, "for-each-ref", "--format=%(refname)", *prefixes).splitlines()


def _merged_branches(found: ProjectPaths, sprints: list[str]) -> list[str]:
    """Agents' branches that main holds; one that nobody merged is the only place of its work."""
    if not sprints or not found.forge_git.exists():
        return []
    from caloron.git.command import git

    form = "--format=%(refname:lstrip=2)"
    merged = ("--merged=refs/heads/main", "refs/heads/agent")
    names = git(found.forge_git, "for-each-ref", form, *merged, check=False).splitlines()
    return [name for name in names if name.rpartition("/")[2] in sprints]


def _old_in(folder: Path, before: float) -> Iterator[Path]:
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        # A seed's lock is as old as its seed, and needed as long as that is there.
        if place.lstat().st_mtime <= before and place.suffix != ".lock":
            yield place


def _confirmed(sweep: Sweep) -> bool:
    click.echo("\n".join(_lines(sweep)), err=True)
    total = size(sum(thing.bytes for thing in sweep.things))
    try:
        return click.confirm(f"Remove these {len(sweep.things)} ({total})?", err=True)
    except click.Abort:
        return False


def _remove(found: ProjectPaths, things: list[Thing]) -> None:
    from caloron.agents.workspaces import remove_workspace
    from caloron.git.command import git

    for thing in things:
        if thing.kind == "salvage":
            git(found.mirror, "update-ref", "-d", thing.target)
            continue
        if thing.kind == "branch":
            # It is looked at once more: somebody may have pushed to it meanwhile.
            git(found.forge_git, "branch", "--quiet", "-d", "--", thing.target)
            continue
        try:
            remove_workspace(Path(thing.target))
        except OSError as error:
            raise PreconditionFailed(
                f"{thing.target} cannot be removed: {error}",
                hint="what came before it is removed; put that right and run it again",
            ) from error


def _lines(sweep: Sweep) -> list[str]:
    lines = [f"  {size(t.bytes):>8}  {t.kind:<9}  {t.target}" for t in sweep.things]
    lines += [f"  kept: {k['target']}: {k['reason']}" for k in sweep.kept]
    return [printable(line) for line in lines]


def _text(sweep: Sweep, total: int) -> str:
    end = f"Removed {len(sweep.things)}, {size(total)}." if sweep.things else "Nothing to remove."
    return "\n".join((*_lines(sweep), end))
