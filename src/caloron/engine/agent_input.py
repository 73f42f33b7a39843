"""The input of people for one agent: persona, context files and errands, for its next prompt.

An errand that goes into a prompt is claimed for the agent, and its notes name the work item. It is
resolved when that item ends as done, and waits again when the item ends in any other way.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from caloron.agentstate.instance import AgentInstance, edited_files
from caloron.agentstate.records import WorkItem, base_of
from caloron.errors import CaloronError

#: The longest text of one file or errand, and of all together.
_MAX_PART, _MAX_TEXT = 4_000, 12_000
_HANDED_TO = "handed_to"
#: The outcome of the work item decides, so the claim itself need not expire before.
_LEASE_MS = 30 * 86_400_000
_KNOWN = "SELECT status FROM work_items WHERE id = ?"
_CLAIMED = """
SELECT id, kind, payload, status, owner_agent, created_at, updated_at, notes
FROM work_items WHERE status = 'in_flight' ORDER BY created_at, id
"""


def text_for(agent_dir: Path, ledger: sqlite3.Connection, item: str) -> str:
    """The text for the prompt of a work item; its errands are claimed for the agent."""
    parts = [_cut(f"## {name}\n{text.strip()}") for name, text in edited_files(agent_dir).items()]
    size = sum(map(len, parts))
    with AgentInstance(agent_dir) as instance:
        errands = instance.work_items
        again = [e for e in _claimed(instance) if base_of(e.notes)[_HANDED_TO] == item]
        waiting = [errand.item for errand in errands.replay() if errand.why == "pending"]
        for errand in (*again, *(e for e in waiting if _status(ledger, e.id) is None)):
            part = _cut(f"## WorkItem {errand.id} ({errand.kind})\n{_payload(errand)}")
            size += len(part)
            if size > _MAX_TEXT:
                # The next prompt has room for it.
                break
            if errand.status == "pending":
                errands.annotate(errand.id, {_HANDED_TO: item})
                errands.claim(errand.id, agent_dir.name, lease_ms=_LEASE_MS)
            parts.append(part)
    return "\n\n".join(parts)[:_MAX_TEXT]


def settle_errands(instance: AgentInstance, ledger: sqlite3.Connection) -> None:
    """Resolve the errands whose work item is done; let those wait again whose item is not."""
    for errand in _claimed(instance):
        item = base_of(errand.notes)[_HANDED_TO]
        status = _status(ledger, str(item))
        try:
            if status == "done":
                instance.work_items.resolve(errand.id, "done", notes=f"{item} ended as done")
            elif status not in ("pending", "in_flight"):
                instance.work_items.release(
                    errand.id, reason=f"{item} ended as {status or 'unknown'}"
                )
        except CaloronError:
            # Another program moved it meanwhile.
            continue


def _claimed(instance: AgentInstance) -> list[WorkItem]:
    """The errands that went into a prompt and are not resolved."""
    errands = [WorkItem(*row) for row in instance.db.rows(_CLAIMED)]
    return [errand for errand in errands if _HANDED_TO in base_of(errand.notes)]


def _status(ledger: sqlite3.Connection, item: str) -> str | None:
    """The status of a work item in the ledger; None: the ledger does not know it."""
    row = ledger.execute(_KNOWN, (item,)).fetchone()
    return None if row is None else str(row["status"])


def _payload(errand: WorkItem) -> str:
    notes = {name: text for name, text in base_of(errand.notes).items() if name != _HANDED_TO}
    lines = [str(errand.payload), *(f"{name}: {text}" for name, text in notes.items())]
    return "\n".join(lines)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_PART else f"{text[: _MAX_PART - 1]}…"
