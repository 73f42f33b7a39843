"""`caloron logs`: what the agents of a task wrote, attempt by attempt."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from caloron.cli.options import named_sprint, output_option, project_option, sprint_name
from caloron.cli.output import printable, success
from caloron.cli.status import require_ledger
from caloron.engine.runs import read_spec
from caloron.errors import NotFound
from caloron.ledger.locate import ProjectPaths, find_project, require_id


@click.command()
@click.argument("task")
@click.option(
    "--sprint", metavar="SPRINT", callback=named_sprint, help="Another sprint than the last one."
)
@click.option(
    "--tail",
    type=click.IntRange(1, 1 << 30),
    metavar="BYTES",
    default=65_536,
    show_default=True,
    help="At most this many bytes of each log, from its end.",
)
@project_option
@output_option
def logs(task: str, sprint: str | None, tail: int, project: str | None) -> None:
    """Show what the agents of TASK printed (`po` is the planner), oldest attempt first.

    \b
    Examples:
      caloron logs fix-login
      caloron logs po --tail 2000
    """
    found = find_project(project)
    require_id(task, "task")
    chosen = sprint_name(found, sprint) if sprint else _last_sprint(require_ledger(found))
    place = found.runs / chosen / task
    if not place.is_dir():
        _refuse_cleaned(found, chosen, task)
        raise NotFound(
            f"nothing has run for task {task!r} in sprint {chosen}", hint="caloron status"
        )
    attempts = [_attempt(run, place, tail) for run in _runs(place)]
    data = {"sprint_id": chosen, "task": task, "attempts": attempts}
    success("logs", data, "\n".join(_text(a) for a in attempts))


def _refuse_cleaned(found: ProjectPaths, sprint: str, task: str) -> None:
    """Something has run, and what it wrote was removed since."""
    if not found.ledger.exists():
        return
    # "0" is the character that follows "/".
    ends = (f"{sprint}/{task}/", f"{sprint}/{task}0")
    query = """SELECT 1 FROM events WHERE work_item_id >= ? AND work_item_id < ?
               AND +type = 'attempt_started' LIMIT 1"""
    with closing(require_ledger(found)) as connection:
        ran = connection.execute(query, ends).fetchone()
    if ran:
        raise NotFound(
            f"the logs of task {task!r} in sprint {sprint} are gone: they were cleaned away",
            hint=f"what happened is still known: caloron trace {task} --sprint {sprint}",
        )


def _last_sprint(connection: Any) -> str:
    try:
        row = connection.execute("SELECT id FROM sprints ORDER BY number DESC LIMIT 1").fetchone()
    finally:
        connection.close()
    if row is None:
        raise NotFound("this project has no sprint yet", hint='caloron sprint "<goal>"')
    return str(row["id"])


def _runs(place: Path) -> list[Path]:
    """`<n>-<role>/<claim>` in the order in which they began."""
    found = [run for work in place.iterdir() for run in work.iterdir() if run.name.isdigit()]
    return sorted(found, key=lambda run: (int(run.parent.name.split("-")[0]), int(run.name)))


def _attempt(run: Path, place: Path, tail: int) -> dict[str, Any]:
    readable = _reader(run)
    return {
        "name": str(run.relative_to(place)),
        "role": run.parent.name.split("-", 1)[1],
        "path": str(run),
        "output": _read(run / "output.log", tail),
        "errors": _read(run / "stderr.log", tail),
        "readable": readable(_read(run / "output.log", tail)),
    }


def _reader(run: Path) -> Callable[[str], str]:
    """How to make the output of this attempt readable: frameworks have protocols of their own."""
    framework = read_spec(run).get("framework", "")
    if framework != "claude-code":
        return str
    from caloron.agents.claude_code import ClaudeCodeRunner

    readable = ClaudeCodeRunner().readable

    def text(output: str) -> str:
        return "\n".join(line for raw in output.splitlines() if (line := readable(raw)))

    return text


def _read(path: Path, tail: int) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - tail))
            return file.read(tail).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _text(attempt: dict[str, Any]) -> str:
    parts = [f"── {attempt['name']}  {attempt['path']}"]
    parts += [printable(attempt[key]).rstrip() for key in ("readable", "errors") if attempt[key]]
    return "\n".join(parts)
