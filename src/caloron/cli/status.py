"""`caloron status`: where the project stands, from nothing but the ledger's tables.

People and scripts call it all day, so it imports little: no YAML, no rules, no terminal library.
"""

from __future__ import annotations

import json
import sqlite3
import time
from typing import Any

import click

from caloron.cli.left_running import WITHOUT_ENGINE, left_running, told
from caloron.cli.options import output_option, project_option
from caloron.cli.output import printable, success
from caloron.cli.screen import aligned, fitted
from caloron.errors import NotFound
from caloron.ids import sprint_number
from caloron.ledger.earlier import EarlierSprint, earlier_sprints
from caloron.ledger.identity import open_ledger
from caloron.ledger.locate import (
    ProjectPaths,
    find_project,
    has_current_project,
    plain_settings,
    project_names,
    repository_here,
)
from caloron.slicing import cut_smaller, to_slice
from caloron.store.lock import holder

_SHOWN = ("repo", "backend", "framework")
#: What is known of a forge before the first sprint on it.
_UNKNOWN = {"kind": "local", "url": "", "main": "main", "author": "caloron", "reviewer": "caloron",
            "reviews": "review", "pages": ""}  # fmt: skip
#: What the sprint's own record says, by the names that people see.
_RECORDED = {
    "baseline": "$.baseline",
    "halted": "$.halted",
    "verify": "$.verify_line",
    "budget_usd": "$.budget_usd",
    "cost_usd": "$.spent.usd",
    "unsandboxed": "$.unsandboxed",
    "paused": "$.paused",
    "declined": "$.held_plan.declined",
    "failure": "$.stopped",
}
_BASELINES = {
    "red": "MAIN IS RED, as you allowed",
    "unverified": "NOTHING IS VERIFIED: no tests were found",
    "off": "VERIFICATION IS SWITCHED OFF (verify = none)",
}
_FACTS = ", ".join(
    f"json_extract(CAST(data AS TEXT), '{path}') AS {name}" for name, path in _RECORDED.items()
)


@click.command()
@project_option
@output_option
def status(project: str | None) -> None:
    """Show the project, its last sprint and each task of it.

    \b
    Examples:
      caloron status
      caloron status --output json
    """
    if project is None and not has_current_project():
        _no_project()
        return
    found = find_project(project)
    data = _project(found)
    success("status", data, _text(data, switched_off=_settings(found).get("verify") == "none"))


def _no_project() -> None:
    """Say that this folder has no project, and what to do next."""
    known, repository = project_names(), repository_here()
    text = 'No project is active. In a git repository, make one: caloron sprint "<goal>"'
    if repository is not None:
        text = f'{repository} has no project yet. Make one: caloron sprint "<goal>"'
    if known:
        switch = "" if repository else "caloron projects switch NAME, or "
        text += f"\nOr choose one: {switch}--project NAME (known: {', '.join(known)})"
    data = {"active": None, "projects": len(known), "repository": str(repository or "")}
    success("status", data, printable(text))


def _project(found: ProjectPaths) -> dict[str, Any]:
    settings = _settings(found)
    data: dict[str, Any] = {"project": found.name, "path": str(found.path)}
    data |= {key: settings.get(key, "") for key in _SHOWN}
    data["forge"] = _forge(found, settings)
    data |= {"total_sprints": 0, "last_sprint": None, "held_by": None}
    who = holder(found.engine_lock)
    connection = open_ledger(found.ledger) if found.ledger.exists() else None
    try:
        if connection is not None:
            data["total_sprints"] = connection.execute("SELECT count(*) FROM sprints").fetchone()[0]
            data["last_sprint"] = _sprint(connection, who.get("sprint", "") if who else "")
            if data["last_sprint"]:
                name = data["last_sprint"]["sprint_id"]
                data["last_sprint"]["running"] = left_running(found, connection, name)
        earlier = earlier_sprints(found, connection, 1)
    finally:
        if connection is not None:
            connection.close()
    data["total_sprints"] += earlier.total
    if data["last_sprint"] is None and earlier.sprints:
        data["last_sprint"] = _adopted(earlier.sprints[0])
    if who is not None:
        data["held_by"] = {key: who.get(key) for key in ("pid", "host", "started_at")}
        name = str(who.get("sprint") or "")
        data["held_by"] |= {"sprint_id": name, "number": sprint_number(name)}
    return data


def _settings(found: ProjectPaths) -> dict[str, str]:
    settings = plain_settings(found.config_file)
    if settings is not None:
        return settings
    # A file that only a YAML parser can read; worth its time then.
    from caloron.ledger.projects import load_project

    config = load_project(found.name).config
    keys = (*_SHOWN, "forge", "verify", "host", "reviewer_token_env", "reviewer_token_file")
    return {key: str(getattr(config, key)) for key in keys}


def forge_note(found: ProjectPaths) -> dict[str, str]:
    """What the ledger remembers of the forge since the last sprint began."""
    if not found.ledger.exists():
        return dict(_UNKNOWN)
    connection = open_ledger(found.ledger)
    try:
        row = connection.execute("SELECT value FROM kv WHERE key = 'forge'").fetchone()
    finally:
        connection.close()
    return _UNKNOWN | (json.loads(row["value"]) if row else {})


def _forge(found: ProjectPaths, settings: dict[str, str]) -> dict[str, str]:
    """The forge and how verdicts are told there, without asking it."""
    kind, note = settings.get("forge") or "local", forge_note(found)
    seconded = settings.get("reviewer_token_env") or settings.get("reviewer_token_file")
    reviews = "review" if kind == "local" or seconded else "comment"
    remembered = note if note["kind"] == kind else _UNKNOWN
    return {
        "kind": kind,
        "url": remembered["url"] or settings.get("host", ""),
        "account": remembered["author"] if remembered["url"] else "",
        "reviewer": remembered["reviewer"] if remembered["url"] else "",
        "reviews": reviews,
    }


def _sprint(connection: sqlite3.Connection, running: str) -> dict[str, Any] | None:
    """The sprint that runs, else the last one."""
    row = connection.execute(
        f"SELECT id, number, goal, phase, {_FACTS} FROM sprints"
        " ORDER BY id = ? DESC, number DESC LIMIT 1",
        (running,),
    ).fetchone()
    if row is None:
        return None
    tasks = connection.execute(
        "SELECT id, status, reason, json_extract(CAST(data AS TEXT), '$.cycle') AS cycle"
        " FROM tasks WHERE sprint = ? ORDER BY position",
        (row["id"],),
    ).fetchall()
    return {
        "sprint_id": row["id"],
        "number": row["number"],
        "goal": row["goal"],
        "phase": row["phase"],
        "baseline": row["baseline"] or "",
        "verify": row["verify"] or "",
        "halted": row["halted"] or "",
        "budget_usd": row["budget_usd"] or 0.0,
        "cost_usd": round(row["cost_usd"] or 0.0, 4),
        "sandboxed": not row["unsandboxed"],
        "paused": _pauses(row["paused"]),
        "outage": _outage(connection, row["id"]),
        "declined": row["declined"] or "",
        "failure": row["failure"] or "",
        "completed_tasks": sum(task["status"] == "Done" for task in tasks),
        "total_tasks": len(tasks),
        "tasks": [_task(task) for task in tasks],
        "running": [],
        "adopted": False,
    }


def _task(row: sqlite3.Row) -> dict[str, Any]:
    cycle = row["cycle"] or 0
    return dict(row) | {"cycle": cycle, "slice_it": to_slice(cycle)}


def _pauses(recorded: str | None) -> list[dict[str, str]]:
    """The providers that let nobody work now, and until when, in UTC."""
    pauses = json.loads(recorded or "{}").items()
    return [
        {"framework": name, "what": pause["what"], "until": _utc(pause["until"])}
        for name, pause in pauses
        if pause["until"] > time.time()
    ]


def _utc(at: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


def _local(iso: str) -> str:
    from datetime import datetime

    from caloron.domain.pauses import clock_time

    return clock_time(datetime.fromisoformat(iso).timestamp())


def _outage(connection: sqlite3.Connection, sprint: str) -> str:
    """Why nothing can be asked of the forge, as far as the last engine knew."""
    known = "SELECT 1 FROM kv WHERE key = ? AND value <> ''"
    if connection.execute(known, (f"forge_outage/{sprint}",)).fetchone() is None:
        return ""
    from caloron.ledger.outages import read_outage

    return str(read_outage(connection, sprint) or "")


def _adopted(sprint: EarlierSprint) -> dict[str, Any]:
    """The last sprint of an older Caloron, until there is one of ours."""
    from caloron.domain.adopted import facts_of

    facts = facts_of(sprint.record)
    return {
        "sprint_id": sprint.id,
        "number": sprint.number,
        "goal": facts.goal,
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
        "completed_tasks": facts.completed,
        "total_tasks": facts.total,
        "tasks": [],
        "running": [],
        "adopted": True,
    }


def _text(data: dict[str, Any], *, switched_off: bool = False) -> str:
    lines = [f"{data['project']}  ({data['path']})"]
    lines += [f"  {key.capitalize():10} {data[key]}" for key in _SHOWN if data[key]]
    lines += _forge_lines(data["forge"])
    lines.append(f"  {'Sprints':10} {data['total_sprints']}")
    sprint = data["last_sprint"]
    if sprint is None:
        return fitted("\n".join([*lines, 'No sprint yet. Start one: caloron sprint "<goal>"']))
    lines.append(
        f"Sprint {sprint['sprint_id']}: {_phase(data)},"
        f" {sprint['completed_tasks']}/{sprint['total_tasks']} tasks done"
    )
    lines.append(f"  {_line(sprint['goal'])}")
    if sprint["verify"]:
        lines.append(f"  Verified by: {_line(sprint['verify'])}")
    off = sprint["baseline"] == "unverified" and switched_off
    if warning := _BASELINES.get("off" if off else sprint["baseline"]):
        lines.append(f"  {warning}")
    if sprint["cost_usd"]:
        lines.append(f"  Spent ${sprint['cost_usd']:.2f} of ${sprint['budget_usd']:.2f}")
    if sprint["adopted"]:
        lines.append("  Adopted: an older Caloron ran it")
    elif not sprint["sandboxed"]:
        lines.append("  UNSANDBOXED: its agents run with all your files")
    for pause in sprint["paused"]:
        what = f"{pause['framework']}: {pause['what']}"
        lines.append(f"  Paused: {what} until {_local(pause['until'])}")
    lines += [f"  {told(agent)}" for agent in sprint["running"]]
    waits = (sprint["outage"], sprint["halted"], sprint["failure"])
    lines += [f"  Waits: {_line(why)}" for why in waits if why]
    rows = []
    for task in sprint["tasks"]:
        rows.append((task["id"], task["status"], _line(task["reason"])))
        if flag := cut_smaller(task["cycle"]):
            rows.append(("", "", f"{task['cycle']} cycles, {flag}"))
    return fitted("\n".join([*lines, *aligned(rows, head=False, indent=2)]))


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
    """Running means that a live process holds the project."""
    phase = data["last_sprint"]["phase"]
    if phase == "ended":
        return "ended"
    who = data["held_by"]
    if who and who["sprint_id"] == data["last_sprint"]["sprint_id"]:
        return f"{phase} (process {who['pid']})"
    resume = f"caloron resume {data['last_sprint']['sprint_id']}"
    if phase == "approval" and data["last_sprint"]["declined"]:
        return f"its plan was declined by {data['last_sprint']['declined']} ({resume})"
    if phase == "approval":
        return f"its plan waits for your yes ({resume})"
    if data["last_sprint"]["running"]:
        return f"{WITHOUT_ENGINE} ({resume} goes on)"
    return f"stopped ({resume} goes on)"


def _line(text: str, width: int = 100) -> str:
    line = " ".join(printable(text).split())
    return line if len(line) <= width else line[: width - 1] + "…"


def require_ledger(found: ProjectPaths) -> sqlite3.Connection:
    """The ledger to look into; a project without a sprint has none."""
    if not found.ledger.exists():
        raise NotFound(
            f"project {found.name} has no sprint yet", hint='start one: caloron sprint "<goal>"'
        )
    return open_ledger(found.ledger)
