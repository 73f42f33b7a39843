"""The form of the JSON in the ledger's rows, and how rows of an older version get today's form.

The form has a number, `data_version` in the table `kv`; a ledger without a number has version 1,
the form of Caloron 0.4.0. A program that writes upgrades all rows once, in the transaction that
migrates the ledger: a crash leaves the old form or the new one, never both. A program that only
reads changes nothing: temporary views upgrade each row when it is read, so SQL with JSON paths
sees today's form as well.

Append a step to `UPGRADES` to rename or remove a stored field, or to change its type. A new field
with a default needs no step. Events are append-only, so their readers must understand every form.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from caloron.errors import InUse, StoreError
from caloron.store.database import Migration
from caloron.store.lock import holder

#: Changes one row, of the table that is named, from one version to the next.
Upgrade = Callable[[str, dict[str, Any]], dict[str, Any]]

#: The fields of 0.4.0 by the group that they belong to since; `old:new` where the name changed.
_TASK = {
    "times": "changed_at started_at completed_at",
    "links": "issue pull generation described:described_pull",
    "change": "branch head pushed own_commit empty:is_empty pushed_again:repushes",
    "escalation": (
        "held:resume_work held_from:resume_as held_effects:retry_effects "
        "incident:number escalation_issue:issue taken_over:taken_over_by "
        "given_back:handback_by"
    ),
    "attempts": "works:work_count failures session",
    "review": (
        "reviewed rejected judged:posted_for verdict_key:last_key void:voided approval "
        "seen_head seen_from:seen_version seen_at"
    ),
    "merge": (
        "verified doubt:suspect merging stale_merges landed:unverified revert "
        "reverts:revert_count waits:waiting alone:batch_conflict"
    ),
    "conversation": (
        "heard:handled listens_from:since_version read:issue_version edits acts "
        "by_label unlabelled cancelled_by closed_by_person "
        "wanted_back:reopen_approved let_go:closing_pulls "
        "withdrawn:pulls_closed_by_us"
    ),
    "supervision": "interventions restarts intervened_at steps:total",
    "usage": "spent accounted",
    "log": "feedback crumbs:work trail:status moved reported cycle",
}
_SPRINT = {
    "settings": (
        "created_at parallel max_fix_rounds frameworks framework author reviewer "
        "main:main_branch ask_before_running plan_on_forge unsandboxed allow_red "
        "budget_usd retro:retro_by"
    ),
    "planning": (
        "given_plan po:work po_failures:failures plan_errors:errors "
        "held_plan:approval stopped:failure stopped_by:failure_kind "
        "stopped_log:failure_log"
    ),
    "main_health": (
        "baseline baseline_work:work baseline_tries:runs verify_line "
        "green_main:last_green red_main:red_commit red_line:red_summary "
        "red_told:escalated_with"
    ),
    "retro": (
        "retro_work:work retros:runs retro_asked:asked retro_error:error "
        "insight:answer insight_problem:problem"
    ),
    "usage": "spent retro_spent accounted",
    "availability": "halted:pause_reason paused:providers",
    "discard": "discarded:by let_go:closing",
}
_WORK = {
    "heads": "batch", "note": "previous_failure", "log": "verify_log",
    "taken_in": "last_token", "asks": "tries", "since": "queued_at",
}  # fmt: skip
_WORK_ENDED = {
    "fault": "internal_error", "over": "limit_hit", "trouble": "provider_error",
    "detail": "provider_message", "how": "verify_command", "by": "main_author",
}  # fmt: skip


def _group_fields(table: str, data: dict[str, Any]) -> dict[str, Any]:
    """Version 2: the fields of sprints and tasks stand in groups, with plain names."""
    match table:
        case "sprints":
            return _group_sprint(_grouped(data, _SPRINT))
        case "tasks":
            return _group_task(_grouped(data, _TASK))
        case "work_items":
            _rename_work(data)
        case "inbox" if data.get("type") == "work_ended":
            _rename(data, _WORK_ENDED)
        case "inbox" if data.get("type") == "effect_done":
            _rename(data, {"again": "reapply_commit"})
    return data


def _group_sprint(sprint: dict[str, Any]) -> dict[str, Any]:
    for group in ("planning", "main_health", "retro"):
        _rename_work(sprint[group])
    if approval := sprint["planning"].get("approval"):
        _rename(approval, {"heard": "handled", "told": "concluded"})
    if kind := sprint["planning"].get("failure_kind"):
        sprint["planning"]["failure_kind"] = kind.replace(" ", "_")
    _rename(sprint, {"train": "merge_train", "strangers": "untrusted"})
    for issue in sprint.get("untrusted", {}).values():
        _rename(issue, {"heard": "handled"})
    return sprint


def _group_task(task: dict[str, Any]) -> dict[str, Any]:
    task.pop("chain", None)
    _rename_work(task)
    _rename_work(task["escalation"], "resume_work")
    if revert := task["merge"].get("revert"):
        _rename(revert, {"again": "reapply_commit"})
    task["step"] = _step(task)
    return task


_STEP_OF_STATUS = {
    "Pending": "waiting", "Ready": "ready", "Blocked": "blocked", "Done": "done",
    "Escalated": "escalated", "Cancelled": "cancelled", "InProgress": "publishing",
}  # fmt: skip
_STEP_OF_ROLE = {
    "implement": "implementing", "fix": "fixing", "resolve": "resolving", "check": "checking",
    "review": "reviewing", "verify": "verifying",
}  # fmt: skip


def _step(task: dict[str, Any]) -> str:
    """Return the best guess from the fields of 0.4.0; the next tick computes the exact step."""
    status, work, merge = task.get("status", "Pending"), task.get("work"), task["merge"]
    if status in ("InProgress", "InReview"):
        if merge.get("unverified"):
            revert = merge.get("revert")
            taken_out = "reverted" if revert and revert.get("merged") else "reverting"
            return taken_out if revert else "merged_unverified"
        if work:
            return _STEP_OF_ROLE[work["role"]]
        if merge.get("merging"):
            return "merging"
    if status != "InReview":
        return _STEP_OF_STATUS[status]
    if merge.get("suspect") or merge.get("waiting"):
        return "main_suspect" if merge.get("suspect") else "waiting_for_ci"
    posted = task["review"].get("posted_for", "")
    return "merge_queued" if posted == task["change"].get("head", "") else "review_queued"


def _grouped(data: dict[str, Any], groups: dict[str, str]) -> dict[str, Any]:
    grouped: dict[str, Any] = {}
    for group, fields in groups.items():
        names = [field.partition(":") for field in fields.split()]
        grouped[group] = {new or old: data.pop(old) for old, _, new in names if old in data}
    return data | grouped


def _rename(data: dict[str, Any], names: dict[str, str]) -> None:
    for old, new in names.items():
        if old in data:
            data[new] = data.pop(old)


def _rename_work(data: dict[str, Any], field: str = "work") -> None:
    if work := data.get(field):
        _rename(work, _WORK)


def _third_form(table: str, data: dict[str, Any]) -> dict[str, Any]:
    """Version 3: the status of a task follows from its step, and is stored as a column only.

    A task has several approvals by command, and a sprint the settings that its rules read.
    """
    _forget(data, "queued_at")
    if table == "sprints" and "max_fix_rounds" in data["settings"]:
        data["settings"]["rules"] = {"max_fix_rounds": data["settings"].pop("max_fix_rounds")}
    if table == "tasks":
        del data["status"]
        escalation = data["escalation"]
        if status := escalation.get("resume_as"):
            escalation["resume_as"] = _STEP_OF_STATUS.get(status, "review_queued")
        approval = data["review"].pop("approval", None)
        data["review"]["approvals"] = [approval] if approval else []
    return data


def _forget(value: object, name: str) -> None:
    """Remove a field wherever it is."""
    if isinstance(value, dict):
        value.pop(name, None)
        for inner in value.values():
            _forget(inner, name)


#: The first makes version 2 of version 1, and so on. They are never changed once released.
UPGRADES: tuple[Upgrade, ...] = (_group_fields, _third_form)
#: Where the table `kv` has the number.
DATA_VERSION = "data_version"
#: Tables with JSON in a row that may be written again, and its column.
_STORED = {
    "sprints": "data",
    "tasks": "data",
    "observations": "data",
    "inbox": "data",
    "actions": "data",
    "cycle_actions": "data",
    "work_items": "payload",
}


def upgrade(table: str, data: dict[str, Any], from_version: int) -> dict[str, Any]:
    """Return a row's data in today's form."""
    for step in UPGRADES[from_version - 1 :]:
        data = step(table, data)
    return data


def data_migrations(steps: Sequence[Upgrade]) -> tuple[Migration, ...]:
    """One migration per step, so that a Caloron without the step refuses the ledger."""
    return tuple(
        Migration(
            f"ledger/data-{version}",
            f"INSERT INTO kv VALUES ('{DATA_VERSION}', '{version}')"
            " ON CONFLICT (key) DO UPDATE SET value = excluded.value;\n",
            partial(_rewrite, step),
        )
        for version, step in enumerate(steps, 2)
    )


def show_in_todays_form(connection: sqlite3.Connection, path: Path, version: int) -> None:
    """Let a connection that only reads see rows of an older version in today's form."""
    newest = 1 + len(UPGRADES)
    if version > newest:
        raise StoreError(
            f"{path} was written by a newer Caloron (data version {version}, this one reads"
            f" {newest})",
            hint="upgrade Caloron; nothing was changed",
        )
    if version == newest:
        return
    _define(connection, lambda table, data: upgrade(table, data, version))
    for table, column in _STORED.items():
        columns = [row[1] for row in connection.execute(f"PRAGMA main.table_info({table})")]
        shown = [f"upgraded('{table}', {c}) AS {c}" if c == column else c for c in columns]
        if columns:
            view = f"SELECT {', '.join(shown)} FROM main.{table}"
            connection.execute(f"CREATE TEMP VIEW {table} AS {view}")


def _rewrite(step: Upgrade, connection: sqlite3.Connection) -> None:
    """Change every row; refused while the engine of an older Caloron would write the old form."""
    path = Path(connection.execute("PRAGMA database_list").fetchone()[2])
    engine = holder(path.with_name("engine.lock"))
    if engine is not None and engine.get("pid") != os.getpid():
        raise InUse(
            f"{path} has to be upgraded, and an older Caloron is at work with it",
            hint="wait until its sprint has ended, or stop it: caloron stop",
        )
    _define(connection, step)
    for table, column in _STORED.items():
        connection.execute(f"UPDATE {table} SET {column} = upgraded('{table}', {column})")


def _define(connection: sqlite3.Connection, change: Upgrade) -> None:
    def upgraded(table: str, stored: bytes | str) -> bytes | str:
        try:
            data = json.loads(stored)
        except ValueError:
            # `state verify` names a damaged row; it must not keep the others from being read.
            return stored
        text = json.dumps(change(table, data), separators=(",", ":"))
        return text.encode() if isinstance(stored, bytes) else text

    connection.create_function("upgraded", 2, upgraded, deterministic=True)
