"""`caloron status`, `why` and `history`: where the project stands, and its sprints so far.

People and scripts call them all day, so they read the tables of the ledger and import little: no
YAML, no rules, no terminal library.
"""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from caloron.cli import output, project_view
from caloron.cli.app import Answer, Number, command
from caloron.cli.format import local_time, one_line, utc
from caloron.cli.render import aligned, cropped, screen_width
from caloron.durations import span
from caloron.errors import NotFound
from caloron.ids import sprint_number
from caloron.ledger import locate, reading
from caloron.ledger.legacy import legacy_sprints
from caloron.slicing import cut_smaller, to_slice
from caloron.store.lock import holder

if TYPE_CHECKING:
    from caloron.domain.model.task import Task

_SHOWN = ("repo", "backend", "framework")
_BASELINES = {
    "red": "MAIN IS RED, as you allowed",
    "unverified": "NOTHING IS VERIFIED: no tests were found",
    "off": "VERIFICATION IS SWITCHED OFF (verify = none)",
}


@command(project=True, examples=["caloron status", "caloron status --output json"])
def status(project: str | None) -> Answer:
    """Show the project, its last sprint and each task of it."""
    if project is None and not locate.has_current_project():
        return _no_project()
    paths = locate.find_project(project)
    data = _project(paths)
    return Answer(data, lambda: _text(data, _settings(paths)))


def _no_project() -> Answer:
    """This folder has no project: say what to do next."""
    known, repository = locate.project_names(), locate.repository_here()
    text = 'No project is active. In a git repository, create one: caloron sprint "<goal>"'
    if repository is not None:
        text = f'{repository} has no project yet. Create one: caloron sprint "<goal>"'
    if known:
        switch = "" if repository else "caloron project switch NAME, or "
        text += f"\nOr choose one: {switch}--project NAME (known: {', '.join(known)})"
    data = {"active": None, "projects": len(known), "repository": str(repository or "")}
    return Answer(data, text)


def _project(paths: locate.ProjectPaths) -> dict[str, Any]:
    settings = _settings(paths)
    data: dict[str, Any] = {"project": paths.name, "path": str(paths.path)}
    data |= {key: settings.get(key, "") for key in _SHOWN}
    data["forge"] = _forge(paths, settings)
    data |= {"total_sprints": 0, "last_sprint": None, "held_by": None}
    who = holder(paths.engine_lock)
    with reading.ledger_if_any(paths) as connection:
        if connection is not None:
            data["total_sprints"] = reading.value(connection, "sprint_count")
            data["last_sprint"] = _sprint(paths, connection, who.get("sprint", "") if who else "")
        earlier = legacy_sprints(paths, connection, 1)
    data["total_sprints"] += earlier.total
    if data["last_sprint"] is None and earlier.sprints:
        data["last_sprint"] = _DEFAULTS | project_view.imported_sprint(
            earlier.sprints[0], *_IMPORTED
        )
    if who is not None:
        data["held_by"] = {key: who.get(key) for key in ("pid", "host", "started_at")}
        name = str(who.get("sprint") or "")
        data["held_by"] |= {"sprint_id": name, "number": sprint_number(name)}
    return data


def _settings(paths: locate.ProjectPaths) -> dict[str, str]:
    settings = locate.plain_settings(paths.config_file)
    if settings is not None:
        return settings
    # Only a file that was edited by hand needs the slow YAML parser.
    from caloron.ledger.projects import load_project

    config = load_project(paths.name).config
    keys = (*_SHOWN, "forge", "verify", "host", "reviewer_token_env", "reviewer_token_file")
    return {key: str(getattr(config, key)) for key in keys}


def _forge(paths: locate.ProjectPaths, settings: dict[str, str]) -> dict[str, str]:
    """The forge and how verdicts are written there, without asking it."""
    kind, known = settings.get("forge") or "local", project_view.known_forge(paths)
    second_account = settings.get("reviewer_token_env") or settings.get("reviewer_token_file")
    reviews = "review" if kind == "local" or second_account else "comment"
    remembered = known if known["kind"] == kind else project_view.UNKNOWN_FORGE
    return {
        "kind": kind,
        "url": remembered["url"] or settings.get("host", ""),
        "account": remembered["author"] if remembered["url"] else "",
        "reviewer": remembered["reviewer"] if remembered["url"] else "",
        "reviews": reviews,
    }


#: The fields of a sprint in the order of the output, each with its value if nothing is recorded.
_DEFAULTS: dict[str, Any] = {
    "sprint_id": "",
    "number": 0,
    "goal": "",
    "phase": "ended",
    "baseline": "",
    "verify": "",
    "halted": "",
    "budget_usd": 0.0,
    "cost_usd": 0.0,
    "sandboxed": None,
    "paused": [],
    "outage": "",
    "declined": "",
    "failure": "",
    "completed_tasks": 0,
    "total_tasks": 0,
    "tasks": [],
    "running": [],
    "adopted": False,
}
_IMPORTED = ("sprint_id", "number", "goal", "completed_tasks", "total_tasks", "adopted")


def _sprint(
    paths: locate.ProjectPaths, connection: sqlite3.Connection, running: str
) -> dict[str, Any] | None:
    """The running sprint, else the last one."""
    row = reading.row(connection, "status_sprint", running=running)
    if row is None:
        return None
    recorded = dict(row)
    name, unsandboxed = recorded["sprint_id"], recorded.pop("unsandboxed")
    tasks = [
        dict(task) | {"slice_it": to_slice(task["cycle"])}
        for task in reading.rows(connection, "status_tasks", sprint=name)
    ]
    return (
        _DEFAULTS
        | {key: value for key, value in recorded.items() if value is not None}
        | {
            "cost_usd": round(recorded["cost_usd"] or 0.0, 4),
            "sandboxed": not unsandboxed,
            "paused": _pauses(recorded["paused"]),
            "outage": str(reading.read_outage(connection, name) or ""),
            "completed_tasks": sum(task["status"] == "Done" for task in tasks),
            "total_tasks": len(tasks),
            "tasks": tasks,
            "running": project_view.orphaned_agents(paths, connection, name),
        }
    )


def _pauses(recorded: str | None) -> list[dict[str, str]]:
    """The unavailable providers, and until when, in UTC."""
    pauses = json.loads(recorded or "{}").items()
    return [
        {"framework": name, "what": pause["what"], "until": utc(pause["until"])}
        for name, pause in pauses
        if pause["until"] > time.time()
    ]


def _text(data: dict[str, Any], settings: dict[str, str]) -> list[str]:
    lines = [f"{data['project']}  ({data['path']})"]
    lines += [f"  {key.capitalize():10} {data[key]}" for key in _SHOWN if data[key]]
    lines += _forge_lines(data["forge"])
    lines.append(f"  {'Sprints':10} {data['total_sprints']}")
    sprint = data["last_sprint"]
    if sprint is None:
        return [*lines, 'No sprint yet. Start one: caloron sprint "<goal>"']
    lines.append(
        f"Sprint {sprint['sprint_id']}: {_phase(data)},"
        f" {sprint['completed_tasks']}/{sprint['total_tasks']} tasks done"
    )
    lines.append(f"  {one_line(sprint['goal'], 100)}")
    if sprint["verify"]:
        lines.append(f"  Verified by: {one_line(sprint['verify'], 100)}")
    off = sprint["baseline"] == "unverified" and settings.get("verify") == "none"
    if warning := _BASELINES.get("off" if off else sprint["baseline"]):
        lines.append(f"  {warning}")
    if sprint["cost_usd"]:
        lines.append(f"  Spent ${sprint['cost_usd']:.2f} of ${sprint['budget_usd']:.2f}")
    if sprint["adopted"]:
        lines.append("  Imported from an older version; only its summary is available.")
    elif not sprint["sandboxed"]:
        lines.append("  WARNING: no sandbox; agents can read and change all your files")
    for pause in sprint["paused"]:
        what = f"{pause['framework']}: {pause['what']}"
        lines.append(f"  Unavailable: {what} until {local_time(pause['until'])}")
    lines += [f"  {project_view.orphan_line(agent)}" for agent in sprint["running"]]
    waits = (sprint["outage"], sprint["halted"], sprint["failure"])
    lines += [f"  Waits: {one_line(why, 100)}" for why in waits if why]
    rows = []
    for task in sprint["tasks"]:
        rows.append((task["id"], task["status"], one_line(task["reason"], 100)))
        if flag := cut_smaller(task["cycle"]):
            rows.append(("", "", f"{task['cycle']} cycles, {flag}"))
    return [*lines, *aligned(rows, head=False, indent=2)]


def _forge_lines(forge: dict[str, str]) -> list[str]:
    if forge["kind"] == "local":
        return []
    account = f" as {forge['account']}" if forge["account"] else ""
    how = "verdict comments and the commit status caloron/review"
    if forge["reviews"] == "review":
        how = f"reviews by {forge['reviewer'] or 'the second account'}"
    return [
        f"  {'Forge':10} {forge['kind']}: {forge['url']}{account}",
        f"  {'Reviews':10} {how}",
    ]


def _phase(data: dict[str, Any]) -> str:
    """The phase for people: a sprint runs only while an engine holds the project."""
    sprint, engine = data["last_sprint"], data["held_by"]
    phase, resume = sprint["phase"], f"caloron resume {sprint['sprint_id']}"
    if phase == "ended":
        return "ended"
    if engine and engine["sprint_id"] == sprint["sprint_id"]:
        return f"{phase} (process {engine['pid']})"
    if phase == "approval" and sprint["declined"]:
        return f"its plan was declined by {sprint['declined']} ({resume})"
    if phase == "approval":
        return f"its plan waits for your approval ({resume})"
    return f"{project_view.WITHOUT_ENGINE if sprint['running'] else 'stopped'} (continue: {resume})"


@command(project=True, examples=["caloron why", "caloron why fix-login"])
@click.argument("task", required=False)
def why(task: str | None, project: str | None) -> Answer:
    """Show what each unfinished task of the last sprint (or TASK alone) waits for."""
    # `status` does not need these, and has to start fast.
    from caloron.answers import log_lines
    from caloron.domain.reporting.explain import why as reason_of
    from caloron.domain.reporting.explain import why_sprint
    from caloron.ledger.reading import light_state, read_outage

    paths = locate.find_project(project)
    with closing(project_view.require_ledger(paths)) as connection:
        engine = holder(paths.engine_lock)
        state, begun = light_state(connection, (engine or {}).get("sprint", ""))
        outage = str(read_outage(connection, state.sprint.id) or "")
        running = project_view.orphaned_agents(paths, connection, state.sprint.id)
    if task is not None and task not in state.tasks:
        known = ", ".join(state.tasks) or "none yet"
        raise NotFound(f"sprint {state.sprint.id} has no task {task!r}", hint=f"tasks: {known}")
    stopped = state.sprint.phase != "ended" and engine is None
    if stopped and not state.sprint.availability.pause_reason:
        # An interrupted attempt is queued again, but that is not what the agent was doing.
        state.queued -= begun
    now = time.time()

    def line(unfinished: Task) -> str:
        reason = reason_of(state, unfinished, now)
        if any(agent["task"] == unfinished.id for agent in running):
            return reason
        return f"stopped while {reason}" if stopped and unfinished.work else reason

    tasks = [
        {"id": t.id, "status": str(t.status), "why": line(t)}
        for t in state.tasks.values()
        if t.id == task or (task is None and t.status != "Done")
    ]
    data = {
        "sprint_id": state.sprint.id,
        "number": state.sprint.number,
        "stopped": stopped,
        "why": why_sprint(state.sprint, now),
        "outage": outage,
        "tasks": tasks,
        "running": running,
    }
    reason = (
        state.sprint.availability.pause_reason if state.tasks else why_sprint(state.sprint, now)
    )
    lines = [f"The sprint waits: {reason}" for reason in (reason, outage) if reason]
    if log := state.sprint.planning.failure_log:
        lines += [f"  | {line}" for line in log_lines(log)]
        lines += [f"  {log}", f"Fix main and run: caloron resume {state.sprint.id}",
                  f"Or continue anyway: caloron resume {state.sprint.id} --allow-red"]  # fmt: skip
    lines += [f"{t['id']}: {t['status']}: {t['why'] or 'it is done'}" for t in tasks]
    lines += [project_view.orphan_line(agent) for agent in running]
    if stopped and not running:
        lines.append(f"The sprint is stopped; continue it: caloron resume {state.sprint.id}")
    return Answer(data, lines or "Every task is done.")


@command(project=True, examples=["caloron history --limit 5"])
@click.option(
    "--limit",
    "-n",
    type=Number(1, 10**9),
    metavar="N",
    default=20,
    show_default=True,
    help="Maximum number of sprints.",
)
def history(limit: int, project: str | None) -> Answer:
    """List the sprints of the project, newest first."""
    paths = locate.find_project(project)
    rows: list[dict[str, Any]] = []
    total, running = 0, (holder(paths.engine_lock) or {}).get("sprint", "")
    with reading.ledger_if_any(paths) as connection:
        if connection is not None:
            total = reading.value(connection, "sprint_count")
            orphaned = {
                agent["sprint_id"] for agent in project_view.orphaned_agents(paths, connection)
            }
            for row in reading.rows(connection, "history", limit=limit):
                is_running, has_orphans = row["id"] == running, row["id"] in orphaned
                phase = project_view.display_phase(
                    row["phase"], running=is_running, orphans=has_orphans
                )
                rows.append(_history_row(row, phase))
        earlier = legacy_sprints(paths, connection, limit)
    if earlier.problem:
        output.note(f"warning: {earlier.problem}")
    if earlier.sprints:
        rows += [project_view.imported_sprint(sprint, *_ROW) for sprint in earlier.sprints]
        rows = sorted(rows, key=lambda row: -row["number"])[:limit]
        total += earlier.total
    data = {"project": paths.name, "total": total, "sprints": rows}
    return Answer(
        data, lambda: [line for row in rows for line in _history_lines(row)] or "No sprint yet."
    )


_ROW = (
    *("sprint_id", "number", "goal", "phase", "completed_tasks", "total_tasks", "started_at"),
    *("duration_s", "adopted", "outcome", "exit_code", "reason"),
)


def _history_row(row: sqlite3.Row, phase: str) -> dict[str, Any]:
    """A row of the output; a sprint has an exit code only once it has ended."""
    from caloron.domain.model.status import exit_code_for

    ended, outcome, code, reason = row["ended_at"], phase, None, ""
    if row["phase"] == "ended":
        reason = row["stopped"] or ""
        code = exit_code_for(stopped=reason, done=row["done"], total=row["total"])
        outcome = "discarded" if row["discarded"] else "failed" if code else "ended"
    return {
        "sprint_id": row["id"],
        "number": row["number"],
        "goal": row["goal"],
        "phase": row["phase"],
        "completed_tasks": row["done"],
        "total_tasks": row["total"],
        "started_at": utc(row["created_at"]),
        "duration_s": round(ended - row["created_at"], 1) if ended else None,
        "adopted": False,
        "outcome": outcome,
        "exit_code": code,
        "reason": reason,
    }


def _history_lines(row: dict[str, Any]) -> list[str]:
    took = "" if row["duration_s"] is None else f", {span(row['duration_s'])}"
    goal = _cut(row["goal"])
    done = f"#{row['number']} {row['completed_tasks']}/{row['total_tasks']} tasks"
    lines = [
        f"{done}, {_outcome_text(row)}{took}{' (imported)' if row['adopted'] else ''}",
        f"   {goal}",
    ]
    if row["reason"]:
        lines.append(f"   {_cut(row['reason'])}")
    return lines


def _cut(text: str) -> str:
    """One line; on a terminal no longer than the screen, with an ellipsis where it was cut."""
    line = one_line(text)
    return cropped(line, screen_width() - 3).rstrip() if output.is_terminal() else line


def _outcome_text(row: dict[str, Any]) -> str:
    if row["outcome"] == "failed":
        return f"failed (exit code {row['exit_code']})"
    if row["outcome"] in ("stopped", project_view.WITHOUT_ENGINE):
        return f"{row['outcome']} (continue: caloron resume {row['sprint_id']})"
    return str(row["outcome"])
