"""The exported files about agents: their manifests, their versions, and their skills at first."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.roles import WorkId, is_work_id
from caloron.domain.model.sprint import State
from caloron.domain.reporting.kpis import AgentKpis, Run, agent_kpis

_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})", re.ASCII)
_PERSONALITIES = {"reviewer": "reviewer", "planner": "product-owner"}
_SYSTEM_OVERRIDE = 500


def agent_of_item(item: str) -> str:
    """Return the agent that does a piece of work; empty: no agent does it."""
    return WorkId.parse(item).agent if is_work_id(item) else ""


def manifest_of(task: PlannedTask, *, framework: str, model: str = "") -> dict[str, Any]:
    """Return the agent of a task in the form of an `.agent` file, without guesses."""
    manifest: dict[str, Any] = {
        "name": f"caloron-agent-{task.id}",
        "version": "1.0.0",
        "description": task.title,
        "tags": [task.kind, task.framework or framework, *task.required_skills[:5]],
    }
    if model:
        manifest["model"] = {"preferred": [model]}
    if task.required_skills:
        manifest["skills"] = list(task.required_skills)
    return manifest | {
        "behavior": {
            "persona": f"developer-{task.id}",
            "on_error": "retry",
            "system_override": task.agent_prompt[:_SYSTEM_OVERRIDE],
        },
        "trust": {"filesystem": "scoped", "exec": "sandboxed", "scope": ["."]},
    }


def versions_of(state: State, runs: Sequence[Run], stall_m: float) -> dict[str, dict[str, Any]]:
    """Return each agent that worked in the sprint as an entry of `agent_versions.json`."""
    return {
        kpis.agent: _version(state, kpis, runs, stall_m)
        for kpis in agent_kpis(state, runs)
        if kpis.runs
    }


def _version(state: State, kpis: AgentKpis, runs: Sequence[Run], stall_m: float) -> dict[str, Any]:
    sprint, task = state.sprint, state.tasks.get(kpis.agent)
    runs = [run for run in runs if agent_of_item(run.item) == kpis.agent]
    began = min((run.started_at for run in runs), default=sprint.settings.created_at)
    feedback = task.log.feedback if task else None
    tools = {name for run in runs for name in run.tools}
    tools |= set(feedback.tools_used if feedback else ())
    used = [run for run in runs if run.framework] or list(runs)
    return {
        "version": "1.0",
        "created_at": datetime.fromtimestamp(began, UTC).isoformat(),
        "sprint_id": sprint.id,
        "personality": _PERSONALITIES.get(kpis.role, "developer"),
        "model": used[-1].model if used else "",
        "framework": (used[-1].framework if used else "") or sprint.settings.framework,
        "capabilities": list(task.plan.required_skills) if task else [],
        "extra_instructions": "",
        "stall_threshold": round(stall_m) if stall_m == round(stall_m) else stall_m,
        "changes": [{"field": "initial", "reason": f"worked in sprint {sprint.id}"}],
        "performance": ({} if kpis.clarity is None else {"clarity": kpis.clarity})
        | {
            "completion_rate": _rate(kpis, task is not None),
            "review_cycles": kpis.review_cycles,
            "time_s": kpis.time_s,
            "tools": sorted(tools),
            "notes": feedback.notes if feedback else "",
        },
    }


def _rate(kpis: AgentKpis, has_task: bool) -> float:
    """Return the share of completed runs; an agent of a task has completed it or not."""
    if has_task:
        return float(kpis.tasks_completed)
    return round(1 - kpis.failed_runs / kpis.runs, 3)


def next_version(entries: Sequence[Any]) -> str:
    """Return the version after those in the file, which may be of others."""
    texts = [str(entry.get("version")) for entry in entries if isinstance(entry, dict)]
    matches = [match for text in texts if (match := _VERSION.fullmatch(text))]
    major, minor = max(((int(m[1]), int(m[2])) for m in matches), default=(1, -1))
    return f"{major}.{minor + 1}"


#: Name, description and tags of the skills that a project starts with, until a person edits
#: `skill_store.json`. An agent can use them in its workspace, without an account or a server.
_SKILLS = (
    ("git-operations", "Commit work in small steps with messages that say why", "git"),
    ("python-development", "Write typed Python and manage its packages", "python code"),
    ("pytest-testing", "Write and run tests with pytest", "python testing"),
    (
        "typescript-development",
        "Write TypeScript or JavaScript and manage its packages",
        "javascript code",
    ),
    ("rust-development", "Write Rust and build it with cargo", "rust code"),
    ("go-development", "Write Go and build it with its own tools", "go code"),
    ("shell-scripting", "Write scripts that fail loudly and quote well", "shell code"),
    ("rest-api-development", "Design and build HTTP interfaces", "api code"),
    ("sql-database", "Design tables, write queries and migrations", "sql data"),
    ("documentation", "Write and correct documents for users and developers", "docs"),
    ("code-review", "Read a change and say what is wrong with it", "review"),
)


def default_skills(frameworks: tuple[str, ...]) -> dict[str, Any]:
    """Return the store in the form of the seeds."""
    return {
        name: {
            "type": "skill",
            "description": description,
            "frameworks": list(frameworks),
            "mcp_url": "",
            "credentials": [],
            "tags": tags.split(),
            "dependencies": {},
            "nix_packages": [],
        }
        for name, description, tags in _SKILLS
    }
