"""`caloron trace`: everything that ever happened to a task, in order."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click

from caloron.answers import closing_words
from caloron.cli.options import named_sprint, output_option, project_option, sprint_name
from caloron.cli.output import printable, success
from caloron.cli.status import require_ledger
from caloron.errors import NotFound
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
    attempts = _attempts(raw, found)
    reported = sum(attempt["cost_usd"] for attempt in attempts)
    return {
        "sprint_id": sprint,
        "number": known["number"],
        "task": task,
        "title": row["title"] if row else "",
        "status": row["status"] if row else "",
        "reason": row["reason"] if row else "",
        # What was cut short is in the task's own sum only.
        "cost_usd": round((row["cost"] or 0.0) if row else reported, 4),
        "events": [_entry(event) for event in raw],
        "attempts": attempts,
        "pending": [dict(effect) for effect in connection.execute(_PENDING, (sprint, task))],
    }


def _decoded(row: sqlite3.Row) -> dict[str, Any]:
    return dict(row) | {"payload": json.loads(row["payload"])}


def _attempts(events: list[dict[str, Any]], found: ProjectPaths) -> list[dict[str, Any]]:
    """Each process that was started, with what came of it."""
    attempts: list[dict[str, Any]] = []
    newest: dict[str, dict[str, Any]] = {}
    for event in events:
        item, told = event["item"], event["payload"]
        if event["type"] == "attempt_started":
            newest[item] = {
                "item": item,
                "role": item.rpartition("-")[2],
                "attempt": told["attempt"],
                "started_at": _iso(event["ts"]),
                "ended_at": None,
                "duration_s": None,
                "exit_code": None,
                "cost_usd": 0.0,
                "tokens": 0,
                "model": "",
                # The folder of each claim has its token's number, which is not the attempt's.
                "logs": str(found.runs / item / str(told.get("token") or "")),
                "began": event["ts"],
            }
            attempts.append(newest[item])
        elif item in newest and event["type"] == "attempt_ended":
            newest[item] |= {
                "ended_at": _iso(event["ts"]),
                "duration_s": round((event["ts"] - newest[item]["began"]) / 1000, 1),
                "exit_code": told.get("exit_code"),
            }
        elif item in newest and event["type"] == "agent_reported":
            place = str(found.runs / item / str(told.get("token") or ""))
            of_it = (a for a in attempts if a["item"] == item and a["logs"] == place)
            next(of_it, newest[item]).update(
                {
                    "cost_usd": round(told.get("usd", 0.0), 4),
                    "tokens": told.get("tokens_in", 0) + told.get("tokens_out", 0),
                    "model": told.get("model", ""),
                }
            )
    return [{k: v for k, v in attempt.items() if k != "began"} for attempt in attempts]


def _entry(event: dict[str, Any]) -> dict[str, Any]:
    return {
        "at": _iso(event["ts"]),
        "type": event["type"],
        "work": event["item"].rpartition("/")[2] if event["item"] else "",
        "what": _words(event["type"], event["payload"], event["actor"] or ""),
        "payload": event["payload"],
    }


def _words(kind: str, told: dict[str, Any], actor: str) -> str:
    """One event in a few words."""
    if kind == "work_item_claimed":
        return f"taken by {actor}"
    if kind in _WORDS:
        return _WORDS[kind](told)
    details = ", ".join(f"{k} {v}" for k, v in told.items() if k not in ("sprint", "task"))
    return f"{kind.replace('_', ' ')}: {details}"


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


def _ended(told: dict[str, Any]) -> str:
    end = "it took too long" if told.get("timed_out") else f"exit code {told.get('exit_code')}"
    return f"ended: {told.get('over') or end}{_because(closing_words(told.get('last_line') or ''))}"


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
    "attempt_started": lambda told: f"attempt {told['attempt']} began",
    "attempt_ended": _ended,
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
    durations = {(a["item"].rpartition("/")[2], a["ended_at"]): a for a in data["attempts"]}
    for entry in data["events"]:
        attempt = durations.get((entry["work"], entry["at"]))
        ended = entry["type"] == "attempt_ended" and attempt
        took = f" after {attempt['duration_s']:g} s" if attempt and ended else ""
        what = entry["what"].replace("ended:", f"ended{took}:", 1) if took else entry["what"]
        lines.append(f"  {_clock(entry['at'])}  {entry['work']:<12} {what}".rstrip())
    lines += [f"  not done yet: {_act(p['kind'], done=False)}{_because(p['note'])}"
              for p in data["pending"]]  # fmt: skip
    return printable("\n".join(lines))


def _clock(moment: str) -> str:
    return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M:%S}"
