"""`caloron status`, `why` and `history`: where the project stands, and its sprints so far.

People and scripts call them all day, so they read the tables of the ledger and import little: no
YAML, no rules, no terminal library.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from caloron.cli import output, project_view
from caloron.cli.app import Answer, Number, command
from caloron.cli.format import counted, local_time, one_line
from caloron.cli.render import aligned, cropped, screen_width
from caloron.domain.reporting.waiting import WITHOUT_ENGINE
from caloron.durations import span
from caloron.errors import NotFound, UsageError
from caloron.ids import sprint_number
from caloron.ledger import locate, reading, views
from caloron.ledger.legacy import legacy_sprints
from caloron.slicing import cut_smaller
from caloron.store.lock import holder

if TYPE_CHECKING:
    from caloron.domain.model.task import Task

_SHOWN = ("repo", "framework")
_SETTINGS = ("repo", "backend", "framework")
_BASELINES = {
    "red": "Main fails its own verification, as you allowed (--allow-red)",
    "unverified": "Nothing is verified: no tests were found"
    " (name a command: caloron config set verify LINE)",
    "off": "Verification is switched off (verify = none)",
}
#: Seconds between two looks of `--watch`.
_WATCH_S = 1.0


@command(
    project=True,
    examples=["caloron status", "caloron status --watch", "caloron status --output json"],
)
@click.option("--watch", "-w", is_flag=True, help="Print each change while the sprint runs.")
def status(watch: bool, project: str | None) -> Answer | None:
    """Show the project, its last sprint and each task of it."""
    if project is None and not locate.has_current_project():
        return _no_project()
    paths = locate.find_project(project)

    def answer() -> Answer:
        data = _project(paths)
        return Answer(data, lambda: _text(data, _settings(paths)))

    if not watch:
        return answer()
    _watch(answer)
    return None


def _watch(look: Callable[[], Answer]) -> None:
    """Print an answer again whenever it has changed, until the sprint stops or ends, or Ctrl-C."""
    if output.wants_json():
        raise UsageError("--watch prints text", hint="for programs, repeat: caloron status -o json")
    shown = ""
    try:
        while True:
            answer = look()
            if (text := output.text_of(answer.text)) != shown:
                click.echo(f"{_CLEAR if output.is_terminal() else ''}{output.colored(text)}")
                shown = text
            if answer.data["engine"] is None:
                return
            time.sleep(_WATCH_S)
    except KeyboardInterrupt:
        # Ctrl-C is how watching ends.
        click.echo(err=True)


#: Clears the screen, with the cursor at its top.
_CLEAR = "\x1b[H\x1b[J"


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
    engine = holder(paths.engine_lock)
    data: dict[str, Any] = {"project": paths.name, "path": str(paths.path)}
    data |= {key: settings.get(key, "") for key in _SETTINGS}
    data["forge"] = _forge(paths, settings)
    data |= {"total_sprints": 0, "last_sprint": None, "engine": None}
    with reading.ledger_if_any(paths) as connection:
        if connection is not None:
            data["total_sprints"] = reading.value(connection, "sprint_count")
            state = reading.light_state(connection, (engine or {}).get("sprint", ""))
            if state is not None:
                standing = project_view.standing_of(paths, connection, state.sprint.id)
                data["last_sprint"] = views.sprint_view(state, time.time(), standing)
        earlier = legacy_sprints(paths, connection, 1)
    data["total_sprints"] += earlier.total
    if data["last_sprint"] is None and earlier.sprints:
        data["last_sprint"] = views.imported_view(earlier.sprints[0])
    if engine is not None:
        data["engine"] = {key: engine.get(key) for key in ("pid", "host", "started_at")}
        name = str(engine.get("sprint") or "")
        data["engine"] |= {"sprint_id": name, "number": sprint_number(name)}
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


def _text(data: dict[str, Any], settings: dict[str, str]) -> list[str]:
    lines = [f"{data['project']}  ({data['path']})"]
    lines += [f"  {key.capitalize():10} {data[key]}" for key in _SHOWN if data[key]]
    lines += _forge_lines(data["forge"])
    lines.append(f"  {'Sprints':10} {data['total_sprints']}")
    sprint: views.SprintView | None = data["last_sprint"]
    if sprint is None:
        return [*lines, 'No sprint yet. Start one: caloron sprint "<goal>"']
    done = f"{sprint['completed_tasks']} of {counted(sprint['total_tasks'], 'task')} done"
    lines.append(f"Sprint {sprint['sprint_id']}: {_phase(sprint, data['engine'])}, {done}")
    lines += [f"  {line}" for line in _sprint_lines(sprint, settings)]
    rows = []
    for task in sprint["tasks"]:
        rows.append((task["id"], task["status"], one_line(task["reason"], 100)))
        if flag := cut_smaller(task["cycle"]):
            rows.append(("", "", f"{task['cycle']} cycles, {flag}"))
    return [*lines, *aligned(rows, head=False, indent=2)]


def _sprint_lines(sprint: views.SprintView, settings: dict[str, str]) -> list[str]:
    lines = [one_line(sprint["goal"], 100)]
    if sprint["verify"]:
        lines.append(f"Verified with: {one_line(sprint['verify'], 100)}")
    off = sprint["baseline"] == "unverified" and settings.get("verify") == "none"
    if warning := _BASELINES.get("off" if off else sprint["baseline"]):
        lines.append(warning)
    if sprint["cost_usd"]:
        lines.append(f"Spent ${sprint['cost_usd']:.2f} of ${sprint['budget_usd']:.2f}")
    if sprint["imported"]:
        lines.append("Imported from an older version; only its summary is available.")
    elif not sprint["sandboxed"]:
        lines.append("WARNING: no sandbox; agents can read and change all your files")
    for provider in sprint["unavailable"]:
        what = f"{provider['framework']}: {provider['what']}"
        lines.append(f"Unavailable: {what} until {local_time(provider['until'])}")
    lines += [project_view.orphan_line(agent) for agent in sprint["orphaned_agents"]]
    waits = (sprint["outage"], sprint["pause_reason"], sprint["failure"])
    return lines + [f"Waits: {one_line(why, 100)}" for why in waits if why]


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


def _phase(sprint: views.SprintView, engine: dict[str, Any] | None) -> str:
    """The phase for people: a sprint runs only while an engine holds the project."""
    phase, resume = sprint["phase"], f"caloron resume {sprint['sprint_id']}"
    if phase == "ended":
        return sprint["outcome"]
    if engine and engine["sprint_id"] == sprint["sprint_id"]:
        return f"{phase} (process {engine['pid']})"
    if phase == "approval" and sprint["declined"]:
        return f"its plan was declined by {sprint['declined']} ({resume})"
    if phase == "approval":
        return f"its plan waits for your approval ({resume})"
    return f"{sprint['outcome']} (continue: {resume})"


@command(project=True, examples=["caloron why", "caloron why fix-login"])
@click.argument("task", required=False)
def why(task: str | None, project: str | None) -> Answer:
    """Show what each unfinished task of the last sprint (or TASK alone) waits for."""
    # `status` does not need these, and has to start fast.
    from caloron.answers import log_lines
    from caloron.domain.reporting.explain import why as reason_of
    from caloron.domain.reporting.explain import why_sprint

    paths = locate.find_project(project)
    with closing(project_view.require_ledger(paths)) as connection:
        engine = holder(paths.engine_lock)
        state = reading.light_state(connection, (engine or {}).get("sprint", ""))
        if state is None:
            raise NotFound("this project has no sprint yet", hint='caloron sprint "<goal>"')
        begun = reading.add_queue(connection, state)
        standing = project_view.standing_of(paths, connection, state.sprint.id)
    if task is not None and task not in state.tasks:
        known = ", ".join(state.tasks) or "none yet"
        raise NotFound(f"sprint {state.sprint.id} has no task {task!r}", hint=f"tasks: {known}")
    stopped = state.sprint.phase != "ended" and engine is None
    if stopped and not state.sprint.availability.pause_reason:
        # An interrupted attempt is queued again, but that is not what the agent was doing.
        state.queued -= begun
    now = time.time()
    orphans = standing["orphaned_agents"]

    def line(unfinished: Task) -> str:
        reason = reason_of(state, unfinished, now)
        if any(agent["task"] == unfinished.id for agent in orphans):
            return reason
        return f"stopped while {reason}" if stopped and unfinished.work else reason

    tasks: list[views.TaskWithReason] = [
        {**views.task_view(t), "why": line(t)}
        for t in state.tasks.values()
        if t.id == task or (task is None and t.status != "Done")
    ]
    reason = why_sprint(state.sprint, now)
    data = {**views.sprint_state(state, now, standing), "why": reason, "tasks": tasks}
    waits = (state.sprint.availability.pause_reason if state.tasks else reason, standing["outage"])
    lines = [f"The sprint waits: {each}" for each in waits if each]
    if log := state.sprint.planning.failure_log:
        lines += [f"  | {line}" for line in log_lines(log)]
        lines += [f"  {log}", f"Fix main and run: caloron resume {state.sprint.id}",
                  f"Or continue anyway: caloron resume {state.sprint.id} --allow-red"]  # fmt: skip
    lines += [f"{t['id']}: {t['status']}: {t['why'] or 'it is done'}" for t in tasks]
    lines += [project_view.orphan_line(agent) for agent in orphans]
    if stopped and not orphans:
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
    rows: list[views.SprintSummary] = []
    total = 0
    with reading.ledger_if_any(paths) as connection:
        if connection is not None:
            total = reading.value(connection, "sprint_count")
            rows = _recorded(paths, connection, limit)
        earlier = legacy_sprints(paths, connection, limit)
    if earlier.problem:
        output.note(f"warning: {earlier.problem}")
    if earlier.sprints:
        rows += [views.imported_summary(sprint) for sprint in earlier.sprints]
        rows = sorted(rows, key=lambda row: -row["number"])[:limit]
        total += earlier.total
    data = {"project": paths.name, "total": total, "sprints": rows}
    return Answer(
        data, lambda: [line for row in rows for line in _history_lines(row)] or "No sprint yet."
    )


def _recorded(
    paths: locate.ProjectPaths, connection: sqlite3.Connection, limit: int
) -> list[views.SprintSummary]:
    running, now = (holder(paths.engine_lock) or {}).get("sprint", ""), time.time()
    orphaned = {agent["sprint_id"] for agent in project_view.orphaned_agents(paths, connection)}
    return [
        views.sprint_summary(
            sprint, done, total, now, running=sprint.id == running, orphans=sprint.id in orphaned
        )
        for sprint, done, total in reading.last_sprints(connection, limit)
    ]


def _history_lines(row: views.SprintSummary) -> list[str]:
    took = f", {span(row['duration_s'])}" if row["phase"] == "ended" else ""
    done = f"{row['completed_tasks']} of {counted(row['total_tasks'], 'task')} done"
    imported = " (imported)" if row["imported"] else ""
    lines = [
        f"#{row['number']} {_outcome_text(row)}, {done}{took}{imported}",
        f"   {_cut(row['goal'])}",
    ]
    if row["failure"] and not row["imported"]:
        lines.append(f"   {_cut(row['failure'])}")
    return lines


def _cut(text: str) -> str:
    """One line; on a terminal no longer than the screen, with an ellipsis where it was cut."""
    line = one_line(text)
    return cropped(line, screen_width() - 3).rstrip() if output.is_terminal() else line


def _outcome_text(row: views.SprintSummary) -> str:
    if row["outcome"] == "failed":
        return f"failed (exit code {row['exit_code']})"
    if row["outcome"] in ("stopped", WITHOUT_ENGINE):
        return f"{row['outcome']} (continue: caloron resume {row['sprint_id']})"
    return row["outcome"]
