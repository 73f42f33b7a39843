"""`caloron logs`: what the agents of a task wrote, attempt by attempt."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO

import click

from caloron.answers import feedback_in
from caloron.cli.options import named_sprint, output_option, project_option
from caloron.cli.output import printable, success
from caloron.cli.screen import fitted
from caloron.cli.status import require_ledger
from caloron.engine.runs import read_spec
from caloron.errors import NotFound
from caloron.ledger.locate import ProjectPaths, find_project, require_id

#: So much of a log is read at once.
_PIECE = 1 << 16
#: So many lines before those that are shown are read, too, to see where a feedback block begins.
_LONGEST_BLOCK = 100


@click.command()
@click.argument("task")
@click.option(
    "--sprint", metavar="SPRINT", callback=named_sprint, help="Another sprint than the last one."
)
@click.option(
    "--tail",
    type=click.IntRange(1, 1_000_000),
    metavar="LINES",
    default=1000,
    show_default=True,
    help="At most this many lines of each log, from its end.",
)
@project_option
@output_option
def logs(task: str, sprint: str | None, tail: int, project: str | None) -> None:
    """Show what the agents of TASK printed (`po` is the planner), oldest attempt first.

    The feedback block at the end of an answer is left out: it is on the task's issue, and in the
    file that the heading names.

    \b
    Examples:
      caloron logs fix-login
      caloron logs po --tail 20
    """
    from caloron.ledger.figures import find_sprint, number_of, runs_below

    found = find_project(project)
    require_id(task, "task")
    with closing(require_ledger(found)) as connection:
        chosen = find_sprint(connection, sprint or "")
        number = number_of(connection, chosen)
        runs = runs_below(connection, f"{chosen}/{task}")
    place = found.runs / chosen / task
    if not place.is_dir():
        _refuse_cleaned(found, chosen, task)
        raise NotFound(
            f"nothing has run for task {task!r} in sprint {chosen}", hint=_where(found, task)
        )
    numbers = {(run.item.rpartition("/")[2], run.token): run.attempt for run in runs}
    attempts = [_attempt(run, numbers, tail) for run in _runs(place)]
    data = {"sprint_id": chosen, "number": number, "task": task, "attempts": attempts}
    success("logs", data, "\n".join(_text(a) for a in attempts), raw=True)


def _where(found: ProjectPaths, task: str) -> str:
    """The newest sprint in which this task ran, by the command that shows it."""
    numbers = [
        int(place.name.removeprefix(f"{found.name}-"))
        for place in found.runs.glob(f"{found.name}-*")
        if place.name.removeprefix(f"{found.name}-").isdigit() and (place / task).is_dir()
    ]
    return f"caloron logs {task} --sprint {max(numbers)}" if numbers else "caloron status"


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


#: `<n>-<role>/<claim>`.
_ATTEMPT = re.compile(r"\d+-[^/]+/\d+")


def _runs(place: Path) -> list[Path]:
    """`<n>-<role>/<claim>` in the order in which they began."""
    # Files that a person or an editor left there are no attempts.
    found = [run for run in place.glob("*/*") if _ATTEMPT.fullmatch(str(run.relative_to(place)))]
    attempts = [run for run in found if run.is_dir()]
    return sorted(attempts, key=lambda run: (int(run.parent.name.split("-")[0]), int(run.name)))


def _attempt(run: Path, numbers: dict[tuple[str, int], int], tail: int) -> dict[str, Any]:
    work = run.parent.name
    output, readable = _last(run / "output.log", tail, _reader(run))
    return {
        "work": work,
        "role": work.split("-", 1)[1],
        # A folder has the number of its claim; null: that claim began no attempt.
        "attempt": numbers.get((work, int(run.name))),
        "path": str(run),
        "output": output,
        "errors": _last(run / "stderr.log", tail, str)[0],
        "readable": readable,
    }


def _reader(run: Path) -> Callable[[str], str]:
    """How to make a line of this attempt readable: frameworks have protocols of their own."""
    framework = read_spec(run).get("framework", "")
    if framework != "claude-code":
        return str
    from caloron.agents.claude_code import ClaudeCodeRunner

    return ClaudeCodeRunner().readable


def _last(path: Path, count: int, readable: Callable[[str], str]) -> tuple[str, str]:
    """The last lines of a log as it is, and the same made readable, without feedback blocks.

    It is read from its end, in pieces, until there are enough readable lines: the size of a log
    does not matter, and a line is never cut.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return "", ""
    raw: list[str] = []
    #: Readable lines, the last one first, each with the number of its line in `raw`.
    shown: list[tuple[str, int]] = []
    with file:
        for line in _backwards(file):
            text = line.decode("utf-8", "replace")
            lines = readable(text).split("\n") if text else [""]
            raw.append(text)
            # Nothing of some lines is for people.
            if lines != [""] or not text:
                shown += [(part, len(raw)) for part in reversed(lines)]
            if len(shown) >= count + _LONGEST_BLOCK and len(_without_feedback(shown)) >= count:
                break
    kept = _without_feedback(shown)[:count]
    first = kept[-1][1] if len(kept) == count else len(raw)
    return "".join(f"{line}\n" for line in reversed(raw[:first])), "\n".join(
        part for part, _ in reversed(kept)
    )


def _without_feedback(shown: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Readable lines, the last one first, without those of feedback blocks."""
    inside = feedback_in([part for part, _ in reversed(shown)])
    return [line for line, of_block in zip(shown, reversed(inside), strict=True) if not of_block]


def _backwards(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, the last one first."""
    position, rest = file.seek(0, os.SEEK_END), b""
    first, piece = True, _PIECE
    while position:
        size = min(piece, position)
        position -= size
        file.seek(position)
        *lines, last = (file.read(size) + rest).split(b"\n")
        rest, lines = (lines[0], [*lines[1:], last]) if lines else (last, [])
        # A long line is put together in few steps.
        piece = _PIECE if lines else 2 * piece
        for line in reversed(lines):
            # The end of the last line is not an empty line.
            if line or not first:
                yield line
            first = False
    if rest or not first:
        yield rest


def _text(attempt: dict[str, Any]) -> str:
    number = attempt["attempt"]
    which = f"attempt {number}" if number else "not begun"
    parts = [fitted(printable(f"── {attempt['work']}, {which}  {attempt['path']}"))]
    parts += [printable(attempt[key]).rstrip() for key in ("readable", "errors") if attempt[key]]
    return "\n".join(parts)
