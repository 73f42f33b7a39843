"""`caloron logs` and `caloron trace`: the output of a task's agents, and its history."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from caloron.agents.clis.registry import line_formatter
from caloron.answers import closing_words, feedback_in
from caloron.cli import output
from caloron.cli.app import TASK, Answer, Number, attributes, command, sprint_name, sprint_option
from caloron.cli.format import counted, one_line, printable
from caloron.cli.project_view import require_ledger
from caloron.cli.render import aligned, fitted
from caloron.domain.model.roles import shown_role
from caloron.domain.reporting.kpis import Run
from caloron.durations import span, utc
from caloron.engine.runs.run_dirs import read_record
from caloron.errors import NotFound, UsageError
from caloron.ids import sprint_number
from caloron.ledger import reading
from caloron.ledger.locate import ProjectPaths, find_project, require_id
from caloron.ledger.run_history import find_sprint, runs_below, sprint_numbers

#: Lines that are read before the shown ones, to find the start of a feedback block.
_LONGEST_BLOCK = 100


@command(project=True, examples=["caloron logs fix-login", "caloron logs planner --tail 20"])
@click.argument("task", type=TASK)
@sprint_option("The sprint (default: the last one).")
@click.option(
    "--tail",
    type=Number(1, 1_000_000),
    metavar="LINES",
    default=1000,
    show_default=True,
    help="At most this many lines of each log, from its end.",
)
@click.option("--follow", "-f", is_flag=True, help="Print new lines until the attempt ends.")
def logs(
    task: str, sprint: str | None, tail: int, follow: bool, project: str | None
) -> Answer | None:
    """Show the output of the agents of TASK (or of the `planner`), oldest attempt first.

    The feedback block at the end is left out: it is on the task's issue, and in the file that the
    heading names.
    """
    paths = find_project(project)
    require_id(task, "task")
    with closing(require_ledger(paths)) as connection:
        chosen = find_sprint(connection, sprint or "")
        number = sprint_numbers(connection)[chosen]
        runs = runs_below(connection, f"{chosen}/{task}")
        has_run = reading.row(connection, "has_run", item=f"{chosen}/{task}")
    folder = paths.runs / chosen / task
    if not folder.is_dir() and has_run:
        raise NotFound(
            f"the logs of task {task!r} in sprint {chosen} were removed by `caloron clean`",
            hint=f"its events are kept: caloron trace {task} --sprint {chosen}",
        )
    if not folder.is_dir():
        raise NotFound(
            f"nothing has run for task {task!r} in sprint {chosen}", hint=_newest_logs(paths, task)
        )
    if follow:
        _follow(paths, f"{chosen}/{task}", tail)
        return None
    numbers = {(run.item.rpartition("/")[2], run.token): run.attempt for run in runs}
    attempts = [_attempt(run, numbers, tail) for run in _runs(folder)]
    data = {"sprint_id": chosen, "number": number, "task": task, "attempts": attempts}
    return Answer(data, lambda: "\n".join(map(_text, attempts)))


#: Seconds between two looks of `--follow`.
_FOLLOW_S = 0.3


def _follow(paths: ProjectPaths, task: str, tail: int) -> None:
    """Print the output of the attempt at work, or of the last one, until it ends or Ctrl-C."""
    if output.wants_json():
        raise UsageError("--follow prints text", hint="for programs: caloron logs TASK -o json")
    run = _runs(paths.runs / task)[-1]
    printed = _Printed(run / "output.log", line_formatter(read_record(run).framework), tail)
    click.echo(fitted(f"── {run.parent.name}  {run}"))
    with suppress(KeyboardInterrupt):
        # Read once more after the end: the last lines may have been written meanwhile.
        while _is_at_work(paths, run):
            printed.print_new()
            time.sleep(_FOLLOW_S)
    printed.print_new(last=True)


def _is_at_work(paths: ProjectPaths, run: Path) -> bool:
    with reading.ledger_if_any(paths) as connection:
        rows = reading.rows(connection, "in_flight") if connection else []
    return any(paths.runs / row["id"] / str(row["token"]) == run for row in rows)


class _Printed:
    """A log that grows: prints its readable lines, without feedback blocks, each once."""

    def __init__(self, log: Path, readable: Callable[[str], str], tail: int) -> None:
        self._log, self._readable, self._tail = log, readable, tail
        self._offset = 0
        self._lines: list[str] = []
        self._shown = 0

    def print_new(self, *, last: bool = False) -> None:
        try:
            with self._log.open("rb") as file:
                file.seek(self._offset)
                chunk = file.read()
        except FileNotFoundError:
            return
        # A line that is being written is read with the next ones.
        whole = chunk if last else chunk[: chunk.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode("utf-8", "replace").splitlines():
            text = self._readable(line) if line else ""
            self._lines += text.split("\n") if text or not line else []
        inside = feedback_in(self._lines)
        kept = [line for line, of_block in zip(self._lines, inside, strict=True) if not of_block]
        new = kept[self._shown :] if self._shown else kept[-self._tail :]
        self._shown = len(kept)
        if new:
            click.echo(printable("\n".join(new)))


def _newest_logs(paths: ProjectPaths, task: str) -> str:
    """The command that shows the newest sprint in which this task ran."""
    numbers = [sprint_number(folder.name) for folder in paths.runs.glob(f"{paths.name}-*")]
    known = [n for n in numbers if n and (paths.runs / f"{paths.name}-{n}" / task).is_dir()]
    return f"caloron logs {task} --sprint {max(known)}" if known else "caloron status"


#: `<n>-<role>/<claim>`.
_RUN = re.compile(r"\d+-[^/]+/\d+")


def _runs(folder: Path) -> list[Path]:
    """The folders of the runs of a task, oldest first."""
    # Skip files that a person or an editor left there.
    runs = [r for r in folder.glob("*/*") if _RUN.fullmatch(str(r.relative_to(folder)))]
    runs = [run for run in runs if run.is_dir()]
    return sorted(runs, key=lambda run: (int(run.parent.name.split("-")[0]), int(run.name)))


def _attempt(run: Path, numbers: dict[tuple[str, int], int], tail: int) -> dict[str, Any]:
    work = run.parent.name
    # The output of each framework has a format of its own.
    readable_line = line_formatter(read_record(run).framework)
    output, readable = _last(run / "output.log", tail, readable_line)
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


def _shown_work(work: str) -> str:
    """`1-fix`, with the name of the role for people."""
    number, _, role = work.partition("-")
    return f"{number}-{shown_role(role)}" if role else work


def _last(path: Path, count: int, readable: Callable[[str], str]) -> tuple[str, str]:
    """The last lines of a log as it is, and the same made readable, without feedback blocks.

    Only as many lines are made readable as are needed: that takes longer than reading the log,
    which the setting `output_cap_mb` limits.
    """
    try:
        log = path.read_bytes().decode("utf-8", "replace")
    except FileNotFoundError:
        return "", ""
    raw = log.removesuffix("\n").split("\n") if log else []
    #: Readable lines, the last one first, each with the number of its line from the end of `raw`.
    shown: list[tuple[str, int]] = []
    for number, line in enumerate(reversed(raw), 1):
        lines = readable(line).split("\n") if line else [""]
        # Nothing of some lines is for people.
        if lines != [""] or not line:
            shown += [(part, number) for part in reversed(lines)]
        if len(shown) >= count + _LONGEST_BLOCK and len(_without_feedback(shown)) >= count:
            break
    kept = _without_feedback(shown)[:count]
    first = kept[-1][1] if len(kept) == count else len(raw)
    output = "".join(f"{line}\n" for line in raw[len(raw) - first :])
    return output, "\n".join(part for part, _ in reversed(kept))


def _without_feedback(shown: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Readable lines, the last one first, without those of feedback blocks."""
    inside = feedback_in([part for part, _ in reversed(shown)])
    return [line for line, of_block in zip(shown, reversed(inside), strict=True) if not of_block]


def _text(attempt: dict[str, Any]) -> str:
    number = attempt["attempt"]
    which = f"attempt {number}" if number else "not begun"
    parts = [fitted(f"── {_shown_work(attempt['work'])}, {which}  {attempt['path']}")]
    parts += [attempt[key].rstrip() for key in ("readable", "errors") if attempt[key]]
    return "\n".join(parts)


#: Work of a sprint that belongs to no task of its plan.
_BESIDE = {
    "po": "the planner",
    "baseline": "the verification of main before the sprint",
    "retro": "the model that writes the retro",
}

#: Each act on the forge once it is done, and while it is still to do.
_EFFECTS = {
    "create_issue": ("its issue was opened", "open its issue"),
    "edit_issue": ("its issue was edited", "edit its issue"),
    "reopen_issue": ("its issue was opened again", "open its issue again"),
    "close_issue": ("its issue was closed", "close its issue"),
    "comment": ("commented on its issue", "comment on its issue"),
    "label": ("its issue was labelled", "label its issue"),
    "progress": (
        "the progress comment on its issue was updated", "update the progress comment on its issue"
    ),
    "describe": (
        "the progress section of its pull request was updated",
        "update the progress section of its pull request",
    ),
    "see_branch": ("its branch was looked up on the forge", "look its branch up on the forge"),
    "push": ("its branch was pushed", "push its branch"),
    "open_pull": ("its pull request was opened", "open its pull request"),
    "close_pull": ("its pull request was closed", "close its pull request"),
    "review": ("the review was written on the forge", "write the review on the forge"),
    "merge": ("its pull request was merged", "merge its pull request"),
    "revert": ("its merge was reverted on a branch", "revert its merge on a branch"),
}  # fmt: skip
_LONGEST = 200


@command(
    project=True,
    examples=["caloron trace fix-login", "caloron trace planner --sprint 3 --output json"],
)
@click.argument("task", type=TASK)
@sprint_option("The sprint (default: the newest with that task).")
def trace(task: str, sprint: str | None, project: str | None) -> Answer:
    """Show every event of TASK (or of the `planner`) in order.

    Moves, attempts with their time, reports and cost of agents, acts on the forge.
    """
    paths = find_project(project)
    require_id(task, "task")
    with closing(require_ledger(paths)) as connection:
        chosen = sprint_name(paths, sprint) if sprint else _newest(connection, task)
        data = _story(connection, paths, chosen, task)
    return Answer(data, lambda: _trace_text(data))


def _newest(connection: sqlite3.Connection, task: str) -> str:
    query = "newest_sprint_with_run" if task in _BESIDE else "newest_sprint_with_task"
    name = reading.value(connection, "newest_sprint_with_task", task=task)
    name = name or reading.value(connection, query, task=task)
    if name is None and task in _BESIDE:
        raise NotFound(f"{_BESIDE[task]} has not run in any sprint", hint="caloron history")
    if name is None:
        raise NotFound(f"no sprint has a task {task!r}", hint="caloron status")
    return str(name)


def _story(
    connection: sqlite3.Connection, paths: ProjectPaths, sprint: str, task: str
) -> dict[str, Any]:
    number = reading.value(connection, "number", sprint=sprint)
    if number is None:
        raise NotFound(f"there is no sprint {sprint}", hint="caloron history")
    of_task = {"sprint": sprint, "task": task}
    row = reading.row(connection, "task", **of_task)
    if row is None and task not in _BESIDE:
        raise NotFound(f"sprint {sprint} has no task {task!r}", hint="caloron status")
    item = f"{sprint}/{task}"
    events = [
        dict(event) | {"payload": json.loads(event["payload"])}
        for event in reading.rows(connection, "task_events", item=item, **of_task)
    ]
    if not events and row is None:
        ran = reading.value(connection, "newest_sprint_with_run", task=task)
        hint = f"caloron trace {shown_role(task)} --sprint {ran}" if ran else "caloron history"
        raise NotFound(f"{_BESIDE[task]} did not run in sprint {sprint}", hint=hint)
    runs = runs_below(connection, item)
    of_item: dict[str, list[Run]] = {}
    for run in runs:
        of_item.setdefault(run.item, []).append(run)
    # The cost of interrupted runs is only in the task's own sum.
    cost = (row["cost"] or 0.0) if row else sum(run.usd for run in runs)
    return {
        "sprint_id": sprint,
        "number": number,
        "task": task,
        "title": row["title"] if row else "",
        "status": row["status"] if row else "",
        "reason": row["reason"] if row else "",
        "cost_usd": round(cost, 4),
        "events": [_entry(event, of_item.get(event["item"], [])) for event in events],
        "attempts": [_trace_attempt(run, paths) for run in runs],
        "pending": [dict(row) for row in reading.rows(connection, "pending_effects", **of_task)],
    }


def _trace_attempt(run: Run, paths: ProjectPaths) -> dict[str, Any]:
    """One attempt with its outcome."""
    ended, finished = run.end != "running", run.end in ("done", "failed")
    return {
        **attributes(run, "item", "role", "attempt"),
        "started_at": _iso(_ms(run.started_at)),
        "ended_at": _iso(_ms(run.started_at + run.seconds)) if ended else None,
        "duration_s": round(run.seconds, 1) if ended else None,
        "exit_code": run.exit_code if finished else None,
        "cost_usd": round(run.usd, 4),
        **attributes(run, "tokens", "model"),
        # The folder of each claim has its token's number, which is not the attempt's.
        "logs": str(paths.runs / run.item / str(run.token or "")),
    }


def _entry(event: dict[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "at": _iso(event["ts"]),
        "type": event["type"],
        "work": event["item"].rpartition("/")[2] if event["item"] else "",
        "what": _words(event, runs),
        "payload": event["payload"],
    }


def _words(event: dict[str, Any], runs: Sequence[Run]) -> str:
    """One event in a few words; `runs` are those of its work item."""
    kind, payload, at = event["type"], event["payload"], event["ts"]
    if kind == "work_item_claimed":
        return f"started by {event['actor'] or 'an engine'}"
    if kind == "attempt_started":
        begun = (run.attempt for run in runs if _ms(run.started_at) == at)
        return f"attempt {next(begun, payload['attempt'])} began"
    if kind == "attempt_ended":
        took = (run.seconds for run in runs if _ms(run.started_at + run.seconds) == at)
        return _ended(payload, next(took, None))
    if kind in _WORDS:
        return _WORDS[kind](payload)
    details = ", ".join(f"{k} {v}" for k, v in payload.items() if k not in ("sprint", "task"))
    return f"{kind.replace('_', ' ')}: {details}"


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _effect(payload: dict[str, Any]) -> str:
    kind, parts = str(payload["kind"]), payload["key"].split("/")
    if parts[0] == "escalation" and kind == "create_issue":
        return "an issue that needs you was opened" + _because(payload["note"])
    if kind == "label":
        return f"label {parts[-1]} was put on its issue"
    if kind == "comment":
        return f"commented on its issue ({parts[3] if len(parts) > 3 else parts[-1]})"
    return _act(kind, done=True) + _because(payload["note"])


def _act(kind: str, *, done: bool) -> str:
    known = _EFFECTS.get(kind)
    return known[0 if done else 1] if known else kind.replace("_", " ")


def _ended(payload: dict[str, Any], seconds: float | None) -> str:
    took = "" if seconds is None else f" after {_took(seconds)}"
    end = "timed out" if payload.get("timed_out") else f"exit code {payload.get('exit_code')}"
    last_line = _because(closing_words(payload.get("last_line") or ""))
    return f"ended{took}: {payload.get('over') or end}{last_line}"


def _took(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else span(seconds)


def _reported(payload: dict[str, Any]) -> str:
    tokens = payload.get("tokens_in", 0) + payload.get("tokens_out", 0)
    parts = [payload.get("framework", ""), payload.get("model", "")]
    parts += [f"${payload['usd']:.4f}"] if payload.get("usd") else []
    parts += [counted(tokens, "token")] if tokens else []
    parts += (
        [f"{payload['trouble']}: {payload.get('detail', '')}"] if payload.get("trouble") else []
    )
    return f"the agent reported ({', '.join(filter(None, parts))})"


def _because(reason: str | None) -> str:
    line = " ".join((reason or "").split())
    return f" ({one_line(line, _LONGEST)})" if line else ""


def _moved(payload: dict[str, Any]) -> str:
    """A move; one without a change of status is shown by its reason alone."""
    if payload["old"] == payload["new"]:
        return str(payload.get("reason"))
    return f"{payload['old']} → {payload['new']}{_because(payload.get('reason'))}".strip()


_CLOSED = {"done": "finished", "cancelled": "not needed any more"}

_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "task_moved": _moved,
    "effect_done": _effect,
    "effect_failed": lambda payload: (
        f"the forge refused to {_act(payload['kind'], done=False)}{_because(payload['note'])}"
    ),
    "work_item_created": lambda payload: f"{shown_role(payload['kind'])} is queued",
    "agent_reported": _reported,
    "work_item_resolved": lambda payload: (
        _CLOSED.get(payload["status"], payload["status"])
        + _because(closing_words(payload.get("notes") or ""))
    ),
    "work_item_reopened": lambda payload: f"queued again{_because(payload.get('reason'))}",
}


def _iso(ms: int) -> str:
    return utc(ms / 1000, "milliseconds")


def _trace_text(data: dict[str, Any]) -> list[str]:
    cost = f", ${data['cost_usd']:.2f}" if data["cost_usd"] else ""
    status = f": {data['status']}{_because(data['reason'])}" if data["status"] else ""
    rows: list[tuple[str, ...]] = []
    day = ""
    for entry in data["events"]:
        at = datetime.fromisoformat(entry["at"]).astimezone()
        if f"{at:%Y-%m-%d}" != day:
            day = f"{at:%Y-%m-%d}"
            rows.append((day,))
        rows.append((f"{at:%H:%M:%S}", _shown_work(entry["work"]), one_line(entry["what"])))
    pending = [f"  not done yet: {_act(p['kind'], done=False)}{_because(p['note'])}"
               for p in data["pending"]]  # fmt: skip
    title = f"{shown_role(data['task'])} of {data['sprint_id']}{status}{cost}"
    return [title, *aligned(rows, head=False, indent=2), *pending]
