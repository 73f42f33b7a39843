"""`caloron trace`: everything that ever happened to a task, in order."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import click

from caloron.answers import closing_words
from caloron.cli.options import named_sprint, output_option, project_option, sprint_name
from caloron.cli.output import printable, success
from caloron.cli.screen import aligned, fitted
from caloron.cli.status import require_ledger
from caloron.domain.retro import Run
from caloron.errors import NotFound
from caloron.ledger.figures import runs_below
from caloron.ledger.locate import ProjectPaths, find_project, require_id

#: What is no task of a plan and has a story all the same: the planner, main before the sprint,
#: and the model that looks back.
_BESIDE = {
    "po": "the planner",
    "baseline": "the verification of main before the sprint",
    "retro": "the model that looks back",
}

_NEWEST_SPRINT = """
SELECT s.id FROM sprints s JOIN tasks t ON t.sprint = s.id
WHERE t.id = ? ORDER BY s.number DESC LIMIT 1
"""
_NEWEST_RUN = """
SELECT id FROM sprints s
WHERE EXISTS (SELECT 1 FROM events WHERE work_item_id >= s.id || '/' || :task || '/'
              AND work_item_id < s.id || '/' || :task || '0')
ORDER BY number DESC LIMIT 1
"""
_TASK = """
SELECT status, reason, json_extract(CAST(data AS TEXT), '$.plan.title') AS title,
       json_extract(CAST(data AS TEXT), '$.spent.usd') AS cost
FROM tasks WHERE sprint = ? AND id = ?
"""
_EVENTS = """
SELECT id, ts, type, actor, work_item_id AS item, payload FROM events
WHERE work_item_id >= :item || '/' AND work_item_id < :item || '0'
UNION ALL
SELECT id, ts, type, actor, work_item_id, payload FROM events
WHERE type IN ('task_moved', 'effect_done', 'effect_failed', 'state_imported')
  AND json_extract(payload, '$.sprint') = :sprint
  AND (json_extract(payload, '$.task') = :task OR json_type(payload, '$.changes."' || :task || '"') IS NOT NULL)
ORDER BY id
"""  # noqa: E501 - a condition of SQL reads best on one line
_PENDING = """
SELECT kind, key, tries, note FROM actions
WHERE sprint = ? AND task = ? AND state IN ('planned', 'intended') ORDER BY id
"""
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


@click.command()
@click.argument("task")
@click.option(
    "--sprint",
    metavar="SPRINT",
    callback=named_sprint,
    help="Another sprint than the newest with that task.",
)
@project_option
@output_option
def trace(task: str, sprint: str | None, project: str | None) -> None:
    """Show everything that ever happened to TASK, in order (`po` is the planner).

    Moves, work and attempts with their time, what agents reported and cost, acts on the forge.

    \b
    Examples:
      caloron trace fix-login
      caloron trace po --sprint 3 --output json
    """
    found = find_project(project)
    require_id(task, "task")
    connection = require_ledger(found)
    try:
        chosen = sprint_name(found, sprint) if sprint else _newest(connection, task)
        data = _story(connection, found, chosen, task)
    finally:
        connection.close()
    success("trace", data, _text(data))


def _newest(connection: sqlite3.Connection, task: str) -> str:
    row = connection.execute(_NEWEST_SPRINT, (task,)).fetchone()
    if row is None and task in _BESIDE:
        row = connection.execute(_NEWEST_RUN, {"task": task}).fetchone()
        if row is None:
            raise NotFound(f"{_BESIDE[task]} has not run in any sprint", hint="caloron history")
    if row is None:
        raise NotFound(f"no sprint has a task {task!r}", hint="caloron status")
    return str(row["id"])


def _story(
    connection: sqlite3.Connection, found: ProjectPaths, sprint: str, task: str
) -> dict[str, Any]:
    known = connection.execute("SELECT number FROM sprints WHERE id = ?", (sprint,)).fetchone()
    if known is None:
        raise NotFound(f"there is no sprint {sprint}", hint="caloron history")
    row = connection.execute(_TASK, (sprint, task)).fetchone()
    if row is None and task not in _BESIDE:
        raise NotFound(f"sprint {sprint} has no task {task!r}", hint="caloron status")
    values = {"item": f"{sprint}/{task}", "sprint": sprint, "task": task}
    raw = [_decoded(event) for event in connection.execute(_EVENTS, values)]
    if not raw and row is None:
        ran = connection.execute(_NEWEST_RUN, {"task": task}).fetchone()
        hint = f"caloron trace {task} --sprint {ran['id']}" if ran else "caloron history"
        raise NotFound(f"{_BESIDE[task]} did not run in sprint {sprint}", hint=hint)
    runs = runs_below(connection, f"{sprint}/{task}")
    reported = sum(run.usd for run in runs)
    of_item: dict[str, list[Run]] = {}
    for run in runs:
        of_item.setdefault(run.item, []).append(run)
    return {
        "sprint_id": sprint,
        "number": known["number"],
        "task": task,
        "title": row["title"] if row else "",
        "status": row["status"] if row else "",
        "reason": row["reason"] if row else "",
        # What was cut short is in the task's own sum only.
        "cost_usd": round((row["cost"] or 0.0) if row else reported, 4),
        "events": [_entry(event, of_item.get(event["item"], [])) for event in raw],
        "attempts": [_attempt(run, found) for run in runs],
        "pending": [dict(effect) for effect in connection.execute(_PENDING, (sprint, task))],
    }


def _decoded(row: sqlite3.Row) -> dict[str, Any]:
    return dict(row) | {"payload": json.loads(row["payload"])}


def _attempt(run: Run, found: ProjectPaths) -> dict[str, Any]:
    """One process that was started, with what came of it."""
    ended, finished = run.end != "running", run.end in ("done", "failed")
    return {
        "item": run.item,
        "role": run.role,
        "attempt": run.attempt,
        "started_at": _iso(_ms(run.started_at)),
        "ended_at": _iso(_ms(run.started_at + run.seconds)) if ended else None,
        "duration_s": round(run.seconds, 1) if ended else None,
        "exit_code": run.exit_code if finished else None,
        "cost_usd": round(run.usd, 4),
        "tokens": run.tokens,
        "model": run.model,
        # The folder of each claim has its token's number, which is not the attempt's.
        "logs": str(found.runs / run.item / str(run.token or "")),
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
    """One event in a few words; `runs` are those of its item."""
    kind, told, at = event["type"], event["payload"], event["ts"]
    if kind == "work_item_claimed":
        return f"taken by {event['actor'] or ''}"
    if kind == "attempt_started":
        begun = (run.attempt for run in runs if _ms(run.started_at) == at)
        return f"attempt {next(begun, told['attempt'])} began"
    if kind == "attempt_ended":
        took = (run.seconds for run in runs if _ms(run.started_at + run.seconds) == at)
        return _ended(told, next(took, None))
    if kind in _WORDS:
        return _WORDS[kind](told)
    details = ", ".join(f"{k} {v}" for k, v in told.items() if k not in ("sprint", "task"))
    return f"{kind.replace('_', ' ')}: {details}"


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _effect(told: dict[str, Any]) -> str:
    kind, parts = str(told["kind"]), told["key"].split("/")
    if parts[0] == "escalation" and kind == "create_issue":
        return "an issue that asks for a person was opened" + _because(told["note"])
    if kind == "label":
        return f"label {parts[-1]} was put on its issue"
    if kind == "comment":
        return f"commented on its issue ({parts[3] if len(parts) > 3 else parts[-1]})"
    return _act(kind, done=True) + _because(told["note"])


def _act(kind: str, *, done: bool) -> str:
    known = _EFFECTS.get(kind)
    return known[0 if done else 1] if known else kind.replace("_", " ")


def _ended(told: dict[str, Any], seconds: float | None) -> str:
    took = "" if seconds is None else f" after {seconds:.1f} s"
    end = "it took too long" if told.get("timed_out") else f"exit code {told.get('exit_code')}"
    said = _because(closing_words(told.get("last_line") or ""))
    return f"ended{took}: {told.get('over') or end}{said}"


def _reported(told: dict[str, Any]) -> str:
    tokens = told.get("tokens_in", 0) + told.get("tokens_out", 0)
    parts = [told.get("framework", ""), told.get("model", "")]
    parts += [f"${told['usd']:.4f}"] if told.get("usd") else []
    parts += [f"{tokens} tokens"] if tokens else []
    parts += [f"{told['trouble']}: {told.get('detail', '')}"] if told.get("trouble") else []
    return f"the agent reported ({', '.join(filter(None, parts))})"


def _because(reason: str | None) -> str:
    line = " ".join((reason or "").split())
    return f" ({line[:_LONGEST]})" if line else ""


def _moved(told: dict[str, Any]) -> str:
    """A move; what changed no status is told by its reason alone."""
    if told["old"] == told["new"]:
        return str(told.get("reason"))
    return f"{told['old']} → {told['new']}{_because(told.get('reason'))}".strip()


_WORDS: dict[str, Callable[[dict[str, Any]], str]] = {
    "task_moved": _moved,
    "effect_done": _effect,
    "effect_failed": lambda told: (
        f"the forge refused to {_act(told['kind'], done=False)}{_because(told['note'])}"
    ),
    "work_item_created": lambda told: f"{told['kind']} waits for a free place",
    "agent_reported": _reported,
    "work_item_resolved": lambda told: (
        f"closed as {told['status']}{_because(closing_words(told.get('notes') or ''))}"
    ),
    "work_item_reopened": lambda told: f"to be done again{_because(told.get('reason'))}",
}


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def _text(data: dict[str, Any]) -> str:
    cost = f", ${data['cost_usd']:.2f}" if data["cost_usd"] else ""
    status = f": {data['status']}{_because(data['reason'])}" if data["status"] else ""
    lines = [f"{data['task']} of {data['sprint_id']}{status}{cost}"]
    rows: list[tuple[str, ...]] = []
    day = ""
    for entry in data["events"]:
        at = datetime.fromisoformat(entry["at"]).astimezone()
        if f"{at:%Y-%m-%d}" != day:
            day = f"{at:%Y-%m-%d}"
            rows.append((day,))
        rows.append((f"{at:%H:%M:%S}", entry["work"], " ".join(entry["what"].split())))
    lines += aligned(rows, head=False, indent=2)
    lines += [f"  not done yet: {_act(p['kind'], done=False)}{_because(p['note'])}"
              for p in data["pending"]]  # fmt: skip
    return fitted(printable("\n".join(lines)))
