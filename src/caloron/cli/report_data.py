"""A sprint as the morning page shows it, as data; every number is worked out from the ledger."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from caloron.cli.left_running import with_running
from caloron.cli.looking import (
    Links,
    as_data,
    bring_command,
    is_taken,
    needs_data,
    standing,
)
from caloron.domain.needs import needs_of
from caloron.domain.observations import PullSeen, ReviewSeen
from caloron.domain.retro import (
    NOT_NEEDED,
    STOPPED,
    Run,
    agent_kpis,
    compute_kpis,
    verification_of,
)
from caloron.domain.sprint import State, Task, pull_of
from caloron.domain.status import Status
from caloron.domain.verdicts import reason_of
from caloron.domain.why import why
from caloron.errors import CaloronError
from caloron.git.commits import Size
from caloron.git.mirror import Mirror
from caloron.ledger.locate import ProjectPaths
from caloron.ledger.projections import iso
from caloron.ports import Remote
from caloron.store import log

#: Whose run it is that belongs to no task.
_WHOSE = {"po": "planner", "retro": "retro"}


def collect(
    found: ProjectPaths,
    state: State,
    runs: tuple[Run, ...],
    *,
    lost_engines: int,
    left: list[dict[str, Any]],
    running: bool,
    options: str,
) -> dict[str, Any]:
    """The sprint as data; every number in it is worked out from the ledger.

    `left` are its agents that run without an engine.
    """
    sprint = state.sprint
    now = time.time()
    kpis = compute_kpis(state, runs, now)
    mirror = Mirror(found.mirror, Remote(str(found.forge_git)), sprint.main)
    needs = [
        with_running(need, left, options)
        for need in needs_of(state, running=running, options=options)
    ]
    at_work = {agent["task"] for agent in left}
    links = Links(found)
    return {
        "sprint_id": sprint.id,
        "number": sprint.number,
        "project": found.name,
        "goal": sprint.goal,
        "phase": sprint.phase,
        "running": running,
        "standing": standing(sprint.phase, running=running, left=bool(left)),
        "stopped": sprint.stopped,
        "started_at": iso(sprint.created_at),
        "ended_at": iso(sprint.ended_at) or "",
        "baseline": sprint.baseline,
        "main_before": _main_before(state, runs),
        "verify": sprint.verify_line,
        "sandboxed": not sprint.unsandboxed,
        "budget_usd": sprint.budget_usd,
        "agent_s": round(sum(run.seconds for run in runs if run.role != "verify"), 1),
        "tasks": [
            _task(state, task, runs, mirror, links, options, now if goes_on else None)
            for task in state.tasks.values()
            for goes_on in [running or task.id in at_work]
        ],
        "needs": needs_data(needs, {sprint.id: sprint.number}),
        "rejections": _rejections(state),
        "problems": _problems(found, state, runs, lost_engines),
        "agents": as_data(agent_kpis(state, runs)),
        "kpis": as_data(kpis),
        "bring": _bring(found, state, options),
    }


def _main_before(state: State, runs: tuple[Run, ...]) -> str:
    """How main was before anybody began, also where that stopped the sprint."""
    sprint = state.sprint
    looks = [run for run in runs if run.role == "verify" and not run.task]
    if sprint.stopped_by == "red main":
        red = sum(run.end == "failed" for run in looks)
        return f"red ({red} of {len(looks)} runs)"
    if not sprint.baseline and looks and sprint.stopped:
        return "could not be verified"
    return sprint.baseline or "not looked at yet"


def _task(
    state: State,
    task: Task,
    runs: tuple[Run, ...],
    mirror: Mirror,
    links: Links,
    options: str,
    now: float | None,
) -> dict[str, Any]:
    """One task; `now` only while an engine works on the sprint."""
    pull = pull_of(state, task)
    mine = [run for run in runs if run.task == task.id]
    size = _size(state, task, mirror)
    return {
        "id": task.id,
        "title": task.plan.title,
        "status": str(task.status),
        "why": _why(state, task, mine, running=now is not None) or task.reason,
        "issue_number": task.issue,
        "pr_number": task.pull,
        "issue_url": links.issue(task.issue),
        "pr_url": links.pull(task.pull),
        "pr_state": pull.state if pull else None,
        "pr_command": f"caloron pr show {task.pull}{options}" if task.pull else None,
        "merge_commit": pull.merge_commit if pull else "",
        "diff": asdict(size) if size else None,
        "verification": verification_of(task),
        "verify_log": task.verified.log if task.verified else "",
        "reviews": _reviews(state, task),
        "review_rounds": len(task.reviewed),
        "runs": sum(run.role != "verify" for run in mine),
        "agent_s": round(sum(r.seconds for r in mine if r.role != "verify"), 1),
        "elapsed_s": _elapsed(task, mine, now),
        "cost_usd": round(task.spent.usd, 4),
        "tokens": task.spent.tokens_in + task.spent.tokens_out,
        "interventions": task.steps,
    }


def _why(state: State, task: Task, runs: list[Run], *, running: bool) -> str:
    """Why the task is not done; in a sprint that was stopped nothing is at work any more."""
    if running or state.sprint.phase == "ended" or not task.work:
        return why(state, task, time.time())
    if task.work.item in (run.item for run in runs) and not state.sprint.halted:
        # What was cut off waits again, which is not what it was doing.
        state = msgspec.structs.replace(state, queued=())
    return f"stopped while {why(state, task, time.time())}"


def _elapsed(task: Task, runs: list[Run], now: float | None) -> float | None:
    """From its start to its end; one that goes on ends now, one that was cut off with its runs."""
    if task.started_at is None:
        return None
    if now is not None and task.status in (Status.IN_PROGRESS, Status.IN_REVIEW):
        return round(now - task.started_at, 1)
    ran = max((run.started_at + run.seconds for run in runs), default=0.0)
    return round((task.completed_at or max(task.changed_at, ran)) - task.started_at, 1)


def _reviews(state: State, task: Task) -> list[dict[str, str]]:
    seen = [r for r in state.objects.values() if isinstance(r, ReviewSeen)]
    return [
        {"verdict": review.verdict, "author": review.author}
        for review in sorted(seen, key=lambda r: r.id)
        if task.pull is not None and review.pull == task.pull
    ]


def _size(state: State, task: Task, mirror: Mirror) -> Size | None:
    """How much the task changes; None where our own repository cannot tell."""
    pull = pull_of(state, task)
    base = task.verified.base if task.verified else ""
    ends = (base, task.head)
    if not base and pull and pull.merge_commit:
        ends = (f"{pull.merge_commit}^1", pull.merge_commit)
    if not all(ends):
        return None
    try:
        return mirror.size(*ends)
    except (CaloronError, OSError) as error:
        log.debug("cannot count the lines of a change", error=error, task=task.id)
        # A commit that only the forge has, or a mirror that was removed: no number is better.
        return None


def _rejections(state: State) -> list[dict[str, str]]:
    """Every review that asked for changes, with its reason."""
    pulls = {o.number: o.branch for o in state.objects.values() if isinstance(o, PullSeen)}
    seen = [r for r in state.objects.values() if isinstance(r, ReviewSeen)]
    asked = sorted((r for r in seen if r.verdict == "changes_requested"), key=lambda r: r.id)
    return [
        {"task": task.id, "author": review.author, "reason": reason_of(review)}
        for task in state.tasks.values()
        for review in asked
        if review.pull == task.pull or (task.branch and pulls.get(review.pull) == task.branch)
    ]


def _problems(
    found: ProjectPaths, state: State, runs: tuple[Run, ...], lost_engines: int
) -> list[dict[str, Any]]:
    """Everything that did not go as it should, once each, with its log."""
    problems: dict[tuple[str, str, str], dict[str, Any]] = {}
    for run in runs:
        if run.end not in ("failed", "interrupted") or run.problem in (STOPPED, NOT_NEEDED):
            continue
        whose = run.task or _WHOSE.get(run.role, "main")
        what = run.problem or run.end
        new = {"task": whose, "role": run.role, "what": what, "times": 0}
        known = problems.setdefault((whose, run.role, what), new)
        known |= {"times": known["times"] + 1, "log": _log(found, run)}
    told = list(problems.values())
    if lost_engines:
        what = "the engine was killed or crashed, and the sprint was resumed"
        told.append({"task": "", "role": "", "what": what, "times": lost_engines, "log": ""})
    if state.sprint.stopped:
        what, log = state.sprint.stopped, state.sprint.stopped_log
        told.append({"task": "", "role": "", "what": what, "times": 1, "log": log})
    for task in state.tasks.values():
        if task.status is Status.DONE and verification_of(task) == "red, allowed" and task.verified:
            what = "merged although red, as main was"
            log = task.verified.log
            told.append({"task": task.id, "role": "verify", "what": what, "times": 1, "log": log})
    return told


def _log(found: ProjectPaths, run: Run) -> str:
    """The log of a run; where the diary does not name its folder, the place of them all."""
    place = found.runs / run.item
    folders = [place / str(run.token)] if run.token else _numbered(place)
    log = folders[0] / "output.log" if len(folders) == 1 else place
    return next((str(path) for path in (log, place) if path.exists()), "")


def _numbered(place: Path) -> list[Path]:
    if not place.is_dir():
        return []
    return [folder for folder in place.iterdir() if folder.name.isdigit()]


def _bring(found: ProjectPaths, state: State, options: str) -> str:
    """The command that brings what was merged to the user; empty if nothing was, or it is there."""
    if not any(task.status is Status.DONE and task.pull for task in state.tasks.values()):
        return ""
    from caloron.ledger.projects import load_project

    project = load_project(found.name)
    return "" if is_taken(project, state) else bring_command(project, options)
