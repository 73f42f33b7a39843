"""`caloron state`: what is kept of a project, whether it agrees, and copies of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from caloron.cli import output
from caloron.cli.alone import alone, refuse_held
from caloron.cli.options import dry_run_option, is_text, named_sprint, output_option, project_option
from caloron.cli.output import counted, printable, size, success
from caloron.errors import CaloronError, PreconditionFailed, UsageError
from caloron.ledger.locate import ProjectPaths, require_id
from caloron.store.lock import holder

if TYPE_CHECKING:
    from caloron.engine.state.finding import Finding, Looked, Mend
    from caloron.engine.state.verify import Verification

#: A repair can bring to light what it hid: an entry first, then the file that is made of it.
_ROUNDS = 3


@click.group()
def state() -> None:
    """Show, verify, back up and restore what is kept of a project.

    \b
    Examples:
      caloron state verify
      caloron state backup /mnt/backups
    """


@state.command()
@click.option("--sprint", callback=named_sprint, metavar="SPRINT", help="Only of this sprint.")
@project_option
@output_option
def show(sprint: str | None, project: str | None) -> None:
    """Show what is kept where, with sizes, and whose text stands in each file.

    \b
    Examples:
      caloron state show
      caloron state show --sprint 2 --output table
    """
    from caloron.cli.state_view import look_around
    from caloron.ledger.projects import load_project

    data, text = look_around(load_project(project), sprint or "")
    success("state.show", data, text)


@state.command()
@click.option(
    "--repair", is_flag=True, help="Write files anew that are not as the ledger has them."
)
@dry_run_option
@project_option
@output_option
def verify(repair: bool, dry_run: bool, project: str | None) -> int:
    """Compare every file with the ledger, and the ledger and the forge with themselves.

    Exits with 8 if anything is wrong. A repair rewrites files and records that are made from facts;
    somebody else's text is kept beside its place first, and what the next sprint or `resume` takes
    over stays. Facts are never changed: a damaged ledger or forge is put right by a backup.

    \b
    Examples:
      caloron state verify
      caloron state verify --repair
    """
    from caloron.engine.state.verify import verification
    from caloron.ledger.projects import load_project

    found = load_project(project)
    if not repair:
        busy = holder(found.engine_lock) is not None
        with verification(found, busy=busy) as (look, damaged):
            looked = _all_of(look.look(), damaged)
        if dry_run:
            return output.dry_run("state.verify", [])
        return _answer(found, looked, [])
    if dry_run:
        refuse_held(found)
        with verification(found, busy=False) as (look, damaged):
            return output.dry_run("state.verify", _planned(_all_of(look.look(), damaged)))
    with alone(found), verification(found, busy=False) as (look, damaged):
        looked, lines = _repaired(look)
        return _answer(found, _all_of(looked, damaged), lines)


def _repaired(look: Verification) -> tuple[Looked, list[str]]:
    """Put right what can be, each thing once; what resists is told, and stops nothing else."""
    done: dict[Finding, str] = {}
    looked = look.look()
    for _ in range(_ROUNDS):
        acts = [(one, act) for one, act in looked.wrong if act is not None and one not in done]
        if not acts:
            break
        for finding, act in acts:
            try:
                done[finding] = act()
            except (CaloronError, OSError) as error:
                done[finding] = ""
                output.aside(printable(f"not repaired: {finding.target}: {error}"))
        looked = look.look()
    left = {finding for finding, _ in looked.wrong}
    return looked, [line for finding, line in done.items() if line and finding not in left]


def _all_of(looked: Looked, damaged: list[Finding]) -> Looked:
    for finding in damaged:
        looked.add(finding)
    return looked


def _planned(looked: Looked) -> list[dict[str, Any]]:
    return [
        {"action": finding.repair, "target": finding.target}
        for finding, mend in looked.wrong
        if mend is not None
    ]


def _answer(found: ProjectPaths, looked: Looked, repaired: list[str]) -> int:
    rows = [_told(finding, mend) for finding, mend in looked.wrong]
    data: dict[str, Any] = {
        "project": found.name,
        "checked": looked.checked,
        "deviations": rows,
        "notes": [_told(finding, None) for finding in looked.told],
        "repaired": repaired,
    }
    lines = [f"repaired: {line}" for line in repaired]
    lines += [f"note: {n['target']}: {n['found']}" for n in data["notes"]]
    lines += [_line(row) for row in rows]
    text = "\n".join(map(printable, lines))
    if not rows:
        whole = f"{text}\n" if text else ""
        success(
            "state.verify", data, f"{whole}{counted(looked.checked, 'thing')} checked: all agree."
        )
        return 0
    if not output.wants_json():
        output.aside(text)
    mendable = any(row["repair"] for row in rows)
    hint = (
        "caloron state verify --repair writes anew what can be"
        if mendable
        else "facts are not written anew: restore a backup (caloron state restore FILE)"
    )
    message = f"project {found.name} has {counted(len(rows), 'deviation')}"
    output.failure("state.verify", PreconditionFailed.code, message, hint=hint, data=data)
    return PreconditionFailed.exit_code


def _told(finding: Finding, mend: Mend | None) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "target": finding.target,
        "expected": finding.expected,
        "found": finding.found,
        "repair": finding.repair if mend is not None else "",
    }


def _line(row: dict[str, Any]) -> str:
    end = f"; repair: {row['repair']}" if row["repair"] else ""
    return f"{row['target']}: {row['found']} (expected: {row['expected']}){end}"


@state.command()
@click.argument("place", required=False, metavar="[FILE|DIR]")
@dry_run_option
@project_option
@output_option
def backup(place: str | None, dry_run: bool, project: str | None) -> int:
    """Write one file with everything that a project needs to go on; a sprint may run meanwhile.

    It holds settings, ledger, the local forge, all commits, the files of the workspace and the
    homes of agents; no secret, no logs of agents. Without FILE or DIR it is written into the
    current folder. A forge on the network is not part of it.

    \b
    Examples:
      caloron state backup
      caloron state backup /mnt/backups
    """
    from caloron.engine.state.backup import back_up, place_for
    from caloron.ledger.projects import load_project

    found = load_project(project)
    target = place_for(found, _path(place) if place is not None else None)
    if dry_run:
        return output.dry_run("state.backup", [{"action": "write a backup", "target": str(target)}])
    made = back_up(found, target, output.aside)
    manifest = made.manifest
    data = {
        "project": found.name,
        "path": str(made.path),
        "bytes": made.bytes,
        "created_at": manifest.created_at,
        "sprints": manifest.sprints,
        "parts": [{"name": p.name, "bytes": p.bytes, "sha256": p.sha256} for p in manifest.parts],
        "left_out": manifest.left_out,
    }
    lines = [f"Backup of {found.name}: {made.path} ({size(made.bytes)})."]
    lines += [f"Not in it: {what}." for what in manifest.left_out]
    success("state.backup", data, printable("\n".join(lines)))
    return 0


@state.command()
@click.argument("file")
@click.option("--as", "name", metavar="NAME", help="The name that the project gets here.")
@click.option("--force", "-f", is_flag=True, help="Replace a project; it is kept beside.")
@dry_run_option
@output_option
def restore(file: str, name: str | None, force: bool, dry_run: bool) -> int:
    """Put a project back from FILE, a backup; `caloron resume` goes on with its sprint.

    Every byte is checked first, and nothing is changed if any is wrong. What an agent was at work
    on begins anew.

    \b
    Examples:
      caloron state restore caloron-shop-20260101T120000Z.tar --dry-run
      caloron state restore caloron-shop-20260101T120000Z.tar --force
    """
    from caloron.engine.state.archive import open_archive
    from caloron.engine.state.restore import Restore

    if name is not None:
        require_id(name, "project name")
    archive, opened = open_archive(_path(file))
    with opened:
        act = Restore(archive, require_id(name or archive.manifest.project, "project name"))
        act.refuse_taken(force=force)
        if dry_run:
            return _try_restore(act)
        with _nobody_there(act.place):
            return _restore(act, archive.manifest.project)


def _try_restore(act: Any) -> int:
    from tempfile import TemporaryDirectory

    if act.place.exists():
        refuse_held(ProjectPaths(act.name, act.place))
    with TemporaryDirectory(prefix="caloron-restore-") as folder:
        found = act.prepare(Path(folder))
    actions = [{"action": "keep beside", "target": str(act.place)}] if act.place.exists() else []
    actions += [{"action": "put back project", "target": str(act.place)}]
    actions += [{"action": "begin anew", "target": item} for item in found.reopened]
    return output.dry_run("state.restore", actions)


def _nobody_there(place: Path) -> Any:
    """The project that is replaced is nobody's at that moment."""
    from contextlib import nullcontext

    return alone(ProjectPaths(place.name, place)) if place.exists() else nullcontext()


def _restore(act: Any, was: str) -> int:
    from caloron.engine.state.restore import stage_for

    with stage_for(act.name) as stage:
        done = act.prepare(stage)
        act.publish(stage, done)
    data = {
        "project": done.name,
        "path": str(done.path),
        "was": was,
        "sprints": done.sprints,
        "reopened": done.reopened,
        "kept": done.kept,
        "aside": done.aside,
    }
    lines = [f"Project {done.name} is back, with {counted(len(done.sprints), 'sprint')}."]
    lines += [f"What stood there is kept as {done.kept}."] if done.kept else []
    lines += [f"{item} begins anew." for item in done.reopened]
    lines += [f"Go on with it: caloron resume --project {done.name}"]
    success("state.restore", data, printable("\n".join(lines)))
    return 0


def _path(given: str) -> Path:
    if not given.strip() or not is_text(given) or "\0" in given:
        raise UsageError(
            f"{given[:80]!r} is no name of a file", hint="name a file of yours, or a folder"
        )
    return Path(given).expanduser() if given.startswith("~/") else Path(given)
