"""`caloron agents`: the agents of a project with attempts, time and cost."""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from caloron.cli.app import Answer, attributes, group
from caloron.cli.format import counted
from caloron.cli.render import aligned
from caloron.domain.model.roles import REVIEWER, ROLES, SPRINT_ROLES
from caloron.domain.reporting.kpis import Run
from caloron.durations import span
from caloron.engine import agent_view
from caloron.engine.agent_dirs import differences, export
from caloron.errors import CaloronError, NotFound, StoreError
from caloron.ledger import reading
from caloron.ledger.legacy import legacy_agents
from caloron.ledger.locate import ProjectPaths, find_project, require_id
from caloron.ledger.projects import load_project
from caloron.ledger.run_history import all_runs, sprint_numbers
from caloron.slicing import cut_smaller, to_slice
from caloron.store import log

#: Lines of an agent's diary that are shown.
_DIARY = 20
#: Cycles of an agent that are listed.
_CYCLES = 20


@group(
    invoke_without_command=True,
    project=True,
    examples=["caloron agents", "caloron agents show reviewer-1"],
)
@click.pass_context
def agents(context: click.Context, project: str | None) -> Answer | None:
    """List the agents of the project, or show one (bare `agents` lists)."""
    return _list(project) if context.invoked_subcommand is None else None


@agents.command("list", project=True, examples=["caloron agents list"])
def list_agents(project: str | None) -> Answer:
    """List the agents: their tasks, attempts, review rounds, time and cost."""
    return _list(project)


@agents.command(project=True, examples=["caloron agents show fix-login"])
@click.argument("name")
def show(name: str, project: str | None) -> Answer:
    """Show one agent: each piece of work it did, its last cycles, its queue, diary and retros.

    The last part opens the agent's next prompt. The ledger is right where the agent's folder
    differs from it: that is reported, and `caloron state verify --repair` exports it again.
    """
    paths = find_project(project)
    versions = _imported(paths).get(name, [])
    if not versions:
        require_id(name, "agent")
    works = [work for work in _works(paths) if work["agent_id"] == name]
    if not works and not versions:
        raise NotFound(f"no agent {name!r} has worked here", hint="caloron agents list")
    data = _agent(name, works) if works else _imported_agent(name, versions)
    data |= {
        "by_sprint": [
            {key: own[0][key] for key in ("sprint_id", "number")}
            | {key: value for key, value in _agent(name, own).items() if key in _SUMS}
            for own in _grouped(works, "sprint_id").values()
        ],
        "work": [{k: v for k, v in work.items() if k != "agent_id"} for work in works],
        "imported_versions": versions,
    }
    data |= _folder_of(paths, name)
    return Answer(data, lambda: _page(data, works))


def _page(data: dict[str, Any], works: list[dict[str, Any]]) -> list[str]:
    lines = aligned(_table([data]))
    lines += ["", *aligned(_work_table(works, data["by_sprint"]))] if works else []
    lines += [f"{s}  {t}  {n} cycles, {cut_smaller(n)}" for (s, t), n in _to_slice(works)]
    for version in data["imported_versions"]:
        parts = (version.get(key) for key in ("version", "sprint_id", "framework", "model"))
        lines.append("  imported: version " + ", ".join(str(part) for part in parts if part))
    lines += ["", data["about"]] if data["about"] else []
    return lines + [
        f"Folder and ledger differ: {d['target']}: {d['found']} here, and {d['expected']} by the"
        " ledger (caloron state verify --repair)"
        for d in data["differences"]
    ]


def _grouped(works: list[dict[str, Any]], key: str) -> dict[str, list[dict[str, Any]]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for work in works:
        groups.setdefault(work[key], []).append(work)
    return groups


_SUMS = (
    "tasks", "done", "rounds", "attempts", "failed_attempts", "duration_s", "cost_usd", "tokens",
)  # fmt: skip


def _work_table(
    works: list[dict[str, Any]], by_sprint: list[dict[str, Any]]
) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [("task", "work", "attempts", "failed", "time", "cost")]
    for sums, own in zip(by_sprint, _grouped(works, "sprint_id").values(), strict=True):
        tried = f"{counted(sums['attempts'], 'attempt')}, {counted(sums['rounds'], 'round')}"
        took = f"{span(sums['duration_s'])}, ${sums['cost_usd']:.2f}"
        rows.append((f"Sprint {sums['sprint_id']}: {tried}, {took}",))
        rows += [
            (
                f"  {work['task']}", work["work"], str(work["attempts"]),
                str(work["failed_attempts"]), span(work["duration_s"]), f"${work['cost_usd']:.2f}",
            )
            for work in own
        ]  # fmt: skip
    return rows


def _to_slice(works: list[dict[str, Any]]) -> list[tuple[tuple[str, str], int]]:
    """The tasks that took too many cycles, and how many."""
    woken: Counter[tuple[str, str]] = Counter()
    for work in works:
        if work["agent_id"] == work["task"]:
            woken[work["sprint_id"], work["task"]] += work["attempts"]
    return [(task, cycles) for task, cycles in woken.items() if to_slice(cycles)]


def _folder_of(paths: ProjectPaths, name: str) -> dict[str, Any]:
    """The content of the agent's own folder."""
    agent_dir = paths.agents / name
    differences = _exported(paths, agent_dir)
    state = agent_view.cycles_in(agent_dir).load().state
    own = {
        "agent_dir": str(agent_dir),
        "about": "",
        "cycle": {"number": state.cycle_number}
        | attributes(state, "status", "last_action", "last_action_result", "result")
        | attributes(state, "work_in_progress", "next_target"),
        "cycles": [past._asdict() for past in agent_view.last_cycles(agent_dir, _CYCLES)],
        "differences": differences,
        "queue": [],
        "diary": [],
        "retros": [str(page) for page in agent_view.retros_of(agent_dir)],
    }
    # A file that cannot be read is among the differences, and hides nothing else.
    with suppress(StoreError):
        own |= {
            "about": agent_view.describe(paths.agents, name),
            "queue": agent_view.queue_of(agent_dir),
            "diary": agent_view.events_of(agent_dir, _DIARY),
        }
    return own


def _exported(paths: ProjectPaths, agent_dir: Path) -> list[dict[str, str]]:
    """Bring the folder up to the ledger; return the differences that were there before."""
    with reading.ledger_if_any(paths) as connection:
        if connection is None:
            return []
        before = [difference._asdict() for difference in differences(agent_dir, connection)]
        try:
            export(agent_dir, connection)
        except (CaloronError, OSError, sqlite3.Error) as error:
            log.warning("the folder of an agent is not updated", error=error, agent=agent_dir.name)
    return before


def _list(project: str | None) -> Answer:
    paths = find_project(project)
    by_agent = _grouped(_works(paths), "agent_id")
    rows = [_agent(name, works) for name, works in by_agent.items()]
    rows += [_imported_agent(n, v) for n, v in _imported(paths).items() if n not in by_agent]
    rows.sort(key=lambda row: str(row["agent_id"]))
    text = "\n".join(aligned(_table(rows))) if rows else "No agent has worked yet."
    return Answer({"agents": rows}, text, command="agents.list")


def _imported(paths: ProjectPaths) -> dict[str, list[dict[str, Any]]]:
    """The agents imported from an older version."""
    with reading.ledger_if_any(paths) as connection:
        workspace = load_project(paths.name).workspace if connection is None else None
        return legacy_agents(connection, workspace)


def _imported_agent(name: str, versions: list[dict[str, Any]]) -> dict[str, Any]:
    """An imported agent: only its versions were recorded; unknown numbers are null, not 0."""
    return {
        "agent_id": name,
        "sprints": len(_words(versions, "sprint_id")),
        **dict.fromkeys(_SUMS),
        "roles": [],
        "frameworks": _words(versions, "framework"),
        "models": _words(versions, "model"),
        "imported": True,
    }


def _words(rows: list[dict[str, Any]], key: str) -> list[str]:
    """The different texts of one field; a row of an older version may have anything there."""
    return sorted({text for row in rows if isinstance(text := row.get(key), str) and text})


def _works(paths: ProjectPaths) -> list[dict[str, Any]]:
    """Each work item of an agent with all its attempts."""
    with reading.ledger_if_any(paths) as connection:
        if connection is None:
            return []
        tasks = {(row["sprint"], row["id"]): row for row in reading.rows(connection, "task_rounds")}
        numbers = sprint_numbers(connection)
        runs: dict[str, list[Run]] = {}
        for run in all_runs(connection):
            if ROLES[run.role].needs_agent:
                runs.setdefault(run.item, []).append(run)
    return [_work(own, tasks, numbers) for own in runs.values()]


def _work(
    runs: list[Run], tasks: dict[tuple[str, str], sqlite3.Row], numbers: dict[str, int]
) -> dict[str, Any]:
    sprint, task, work = runs[0].item.split("/")
    row = tasks.get((sprint, task))
    return {
        "agent_id": ROLES[runs[0].role].shared_agent or task,
        "sprint_id": sprint,
        "task": task,
        "work": work,
        "role": runs[0].role,
        "status": row["status"] if row else "",
        "rounds": row["rounds"] if row else 0,
        "attempts": len(runs),
        "failed_attempts": sum(run.end == "failed" for run in runs),
        "duration_s": sum(run.seconds for run in runs),
        "cost_usd": sum(run.usd for run in runs),
        "tokens": sum(run.tokens for run in runs),
        "framework": next((run.framework for run in reversed(runs) if run.framework), ""),
        "model": next((run.model for run in reversed(runs) if run.model), ""),
        "number": numbers[sprint],
    }


def _agent(name: str, works: list[dict[str, Any]]) -> dict[str, Any]:
    tasks = {(work["sprint_id"], work["task"]): work for work in works}
    rounds = sum(work["rounds"] for work in tasks.values())
    return {
        "agent_id": name,
        "sprints": len({work["sprint_id"] for work in works}),
        "tasks": len(tasks),
        "done": sum(work["status"] == "Done" for work in tasks.values()),
        "rounds": len(works) if name == REVIEWER else rounds,
        "attempts": sum(work["attempts"] for work in works),
        "failed_attempts": sum(work["failed_attempts"] for work in works),
        "duration_s": round(sum(work["duration_s"] for work in works), 1),
        "cost_usd": round(sum(work["cost_usd"] for work in works), 4),
        "tokens": sum(work["tokens"] for work in works),
        "roles": _words(works, "role"),
        "frameworks": _words(works, "framework"),
        "models": _words(works, "model"),
        "imported": False,
    }


def _table(rows: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    head = ("agent", "tasks", "attempts", "failed", "rounds", "time", "cost")
    return [head, *map(_cells, rows)]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if row["imported"]:
        used = ", ".join((*row["frameworks"], *row["models"]))
        about = f"imported from an older version{f' ({used})' if used else ''}"
        return (f"{row['agent_id']}  {about}",)
    # The planner and the retro work on whole sprints.
    tasks = (
        counted(row["sprints"], "sprint")
        if set(row["roles"]) <= set(SPRINT_ROLES)
        else f"{row['done']}/{row['tasks']}"
    )
    return (
        row["agent_id"], tasks, str(row["attempts"]), str(row["failed_attempts"]),
        str(row["rounds"]), span(row["duration_s"]), f"${row['cost_usd']:.2f}",
    )  # fmt: skip
