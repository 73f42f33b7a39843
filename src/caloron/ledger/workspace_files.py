"""Texts of the files that scripts read: the history, the plan, the agents and the skills.

`sprints.json` lists ended sprints, `dag.json` and `agents/*.agent` describe the plan of the last
sprint, `agent_versions.json` all agents that worked here, `skill_store.json` the known skills.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import yaml

from caloron.domain.model.plan import PlannedTask
from caloron.domain.reporting.identities import manifest_of, next_version, versions_of
from caloron.domain.reporting.learnings import Kept, SprintRecord, as_of, improvements
from caloron.domain.reporting.retro_page import (
    Retro,
    retro_material,
    review_sprint,
    write_retro_report,
)
from caloron.ledger.ledger import SQL, Ledger
from caloron.ledger.legacy import HISTORY, VERSIONS
from caloron.ledger.run_history import (
    REMEMBERED,
    Figures,
    ended_records,
    figures_of,
    history_of,
    read_kept,
    sprint_numbers,
)

#: Agents are named after tasks, so their number grows with every sprint.
_MAX_AGENTS = 1000
#: The reviewer and the planner work in every sprint.
_MAX_VERSIONS = 100


def history_text(ledger: Ledger) -> bytes:
    """Return the imported sprints and ours, in the order of their numbers."""
    with ledger.db.snapshot() as connection:
        values = {"file": HISTORY, "whose": "theirs", "limit": -1}
        imported = connection.execute(SQL["newest_entries"], values).fetchall()
        entries = [(row["position"], row["text"]) for row in imported] + history_of(connection)
    records = ",\n    ".join(text for _, text in sorted(entries))
    text = f'{{\n  "sprints": [\n    {records}\n  ]\n}}\n' if records else '{"sprints": []}\n'
    return text.encode("utf-8", "replace")


def dag_text(plans: list[PlannedTask], framework: str) -> bytes:
    """Return a plan as the list that it was planned as."""
    return json_text([_planned(plan, framework) for plan in plans])


def _planned(plan: PlannedTask, framework: str) -> dict[str, Any]:
    task: dict[str, Any] = {
        "id": plan.id,
        "title": plan.title,
        "depends_on": list(plan.depends_on),
        "agent_prompt": plan.agent_prompt,
        "framework": plan.framework or framework,
    }
    for field in msgspec.structs.fields(plan):
        value = getattr(plan, field.name)
        if field.name not in task and value != field.default:
            task[field.name] = value
    return task


def agent_text(plan: PlannedTask, framework: str, model: str) -> bytes:
    manifest = manifest_of(plan, framework=framework, model=model)
    # The dumper in C is ten times as fast, and there is one file per task.
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(
        manifest, Dumper=dumper, sort_keys=False, allow_unicode=True, width=10_000
    )
    return text.encode("utf-8", "replace")


def record_versions(ledger: Ledger, sprint: str, stall_m: float) -> None:
    """Store the versions of the agents that worked in an ended sprint."""
    with ledger.db.snapshot() as connection:
        figures = figures_of(connection, sprint)
    imported, own = _entries(ledger, "theirs", -1), _own_versions(ledger)
    with ledger.db.transaction("versions") as connection:
        for agent, entry in versions_of(figures.state, figures.runs, stall_m).items():
            before = imported.get(agent)
            others = [e for e in own.get(agent, []) if e["sprint_id"] != sprint]
            entry["version"] = next_version(
                [*(before if isinstance(before, list) else ()), *others]
            )
            # A sprint that is resumed after its end keeps its place in the order of sprints.
            entries = sorted((*others, entry), key=lambda e: str(e["created_at"]))
            row = {"file": VERSIONS, "key": agent, "whose": "ours", "version": 0}
            row |= {"position": figures.state.sprint.number}
            row |= {"text": json.dumps(entries[-_MAX_VERSIONS:])}
            connection.execute(SQL["put_entry"], row)


def versions_text(ledger: Ledger) -> bytes:
    """Return each agent with its versions: the imported ones, then ours."""
    versions = _entries(ledger, "theirs", -1)
    for agent, entries in _own_versions(ledger).items():
        before = versions.get(agent, [])
        if isinstance(before, list):
            versions[agent] = [*before, *entries]
    return json_text(versions)


def _own_versions(ledger: Ledger) -> dict[str, list[Any]]:
    """Return the versions of each agent, one per sprint; 0.4 stored only the last one."""
    entries = _entries(ledger, "ours", _MAX_AGENTS)
    return {a: entry if isinstance(entry, list) else [entry] for a, entry in entries.items()}


def _entries(ledger: Ledger, whose: str, limit: int) -> dict[str, Any]:
    values = {"file": VERSIONS, "whose": whose, "limit": limit}
    rows = ledger.db.rows(SQL["newest_entries"], values)
    return {row["key"]: json.loads(row["text"]) for row in reversed(rows)}


def page_text(ledger: Ledger, sprint: str) -> bytes:
    """Return the page of an ended sprint, without anything that later sprints taught."""
    with ledger.db.snapshot() as connection:
        figures = figures_of(connection, sprint)
        # As many sprints before this one as there were when it ended.
        later = max(sprint_numbers(connection).values()) - figures.state.sprint.number
        records, kept = ended_records(connection, REMEMBERED + later), read_kept(connection)
    records, kept = as_of(sprint, records, kept)
    return write_retro_report(_review(figures, records, kept)).encode("utf-8", "replace")


def material_for_retro(ledger: Ledger, sprint: str) -> dict[str, str]:
    """Return the input of the model that writes the retro of a sprint."""
    with ledger.db.snapshot() as connection:
        figures = figures_of(connection, sprint)
        records, kept = ended_records(connection), read_kept(connection)
    earlier = [record for record in records if record.id != sprint]
    return retro_material(_review(figures, earlier, kept))


def _review(figures: Figures, records: list[SprintRecord], kept: Kept) -> Retro:
    known, ended_at = improvements(records, kept), figures.state.sprint.ended_at or 0.0
    return review_sprint(figures.state, figures.runs, records, known, ended_at)


def json_text(content: Any) -> bytes:
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "replace")
