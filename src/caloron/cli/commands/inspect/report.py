"""`caloron report` and `caloron inbox`: what a sprint produced, and what needs a person."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import click
import msgspec

from caloron.answers import log_lines
from caloron.cli import project_view
from caloron.cli.app import Answer, attributes, command, sprint_argument
from caloron.cli.format import counted, dollars, local_times
from caloron.cli.render import FORMATS, Item, Linked, Page, Section, as_text, render
from caloron.domain.model.snapshots import PullSnapshot, ReviewSnapshot
from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.reporting.explain import why
from caloron.domain.reporting.forge_texts import criteria_of
from caloron.domain.reporting.inbox import InboxItem, inbox_items
from caloron.domain.reporting.kpis import (
    NOT_NEEDED,
    STOPPED,
    AgentKpis,
    Kpis,
    Run,
    agent_kpis,
    agent_runs,
    compute_kpis,
)
from caloron.domain.reporting.waiting import verification_of
from caloron.domain.rules.verdicts import reason_of
from caloron.durations import span
from caloron.errors import CaloronError
from caloron.git.checkout import Checkout
from caloron.git.command import git
from caloron.git.mirror import Mirror
from caloron.git.repository import Size
from caloron.ledger import run_history, views
from caloron.ledger.ledger import read_state
from caloron.ledger.locate import ProjectPaths, find_project
from caloron.ledger.projects import load_project
from caloron.ports import Remote
from caloron.store import log
from caloron.store.lock import holder

#: The owner of a run that belongs to no task.
_OWNERS = {"po": "planner", "retro": "retro"}


class _Sprint(NamedTuple):
    """Everything the report of one sprint is made from."""

    paths: ProjectPaths
    state: State
    runs: tuple[Run, ...]
    lost_engines: int
    standing: views.Standing
    #: The `--project` that printed commands need.
    flags: str
    now: float


@command(
    project=True,
    examples=[
        "caloron report",
        "caloron report 3 --format html > report.html",
        "caloron report --output json",
    ],
)
@sprint_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="The page as text, Markdown or one HTML file; with --output json it is in `page`.",
)
def report(sprint: str | None, form: str, project: str | None) -> Answer:
    """Show the report of the last sprint (or of SPRINT: its id or number).

    What was merged, what waits for you and the commands for it, its cost, and its problems.
    """
    with project_view.read_ledger(project, sprint) as (paths, connection):
        name = run_history.find_sprint(connection, sprint or "")
        reported = _Sprint(
            paths,
            read_state(connection, name),
            run_history.figures_of(connection, name).runs,
            run_history.lost_engines(connection, name),
            project_view.standing_of(paths, connection, name),
            project_view.project_flag(paths, project),
            time.time(),
        )
    data = _report_data(reported)
    if form != "text":
        data["page"] = render(_page(reported, data), form)
        return Answer(data, data["page"].rstrip("\n"))
    return Answer(data, lambda: as_text(_page(reported, data)))


def _inbox(reported: _Sprint) -> list[InboxItem]:
    standing, flags = reported.standing, reported.flags
    items = inbox_items(reported.state, running=standing["running"], options=flags)
    return [project_view.with_orphans(item, standing["orphaned_agents"], flags) for item in items]


def _report_data(reported: _Sprint) -> dict[str, Any]:
    paths, state, runs = reported.paths, reported.state, reported.runs
    sprint = state.sprint
    mirror = Mirror(paths.mirror, Remote(str(paths.forge_git)), sprint.settings.main_branch)
    forge = project_view.known_forge(paths)
    return {
        **views.sprint_state(state, reported.now, reported.standing),
        "project": paths.name,
        "main_before": _main_before(state, runs),
        "agent_s": round(sum(run.seconds for run in agent_runs(runs)), 1),
        "tasks": [_task(reported, task, mirror, forge) for task in state.tasks.values()],
        "inbox": project_view.inbox_data(_inbox(reported), {sprint.id: sprint.number}),
        "rejections": _rejections(state),
        "problems": _problems(reported),
        "agents": project_view.as_data(agent_kpis(state, runs)),
        "kpis": project_view.as_data(compute_kpis(state, runs, reported.now)),
        "bring": project_view.apply_command(load_project(paths.name), state, reported.flags),
    }


def _main_before(state: State, runs: tuple[Run, ...]) -> str:
    """The result of verifying main before the sprint, also where that stopped the sprint."""
    sprint = state.sprint
    checks = [run for run in runs if run.role == "verify" and not run.task]
    if sprint.planning.failure_kind == "red_main":
        red = sum(run.end == "failed" for run in checks)
        return f"red ({red} of {len(checks)} runs)"
    if not sprint.main_health.baseline and checks and sprint.planning.failure:
        return "could not be verified"
    return sprint.main_health.baseline or "not verified yet"


def _web_page(pages: str, number: int | None) -> str:
    """The web page of an issue or a pull request, without asking the forge."""
    return f"{pages}{number}" if pages and number else ""


def _task(
    reported: _Sprint, task: Task, mirror: Mirror, forge: Mapping[str, str]
) -> dict[str, Any]:
    state, number = reported.state, task.links.pull
    pull = state.pull_of(task)
    runs = [run for run in reported.runs if run.task == task.id]
    size = _size(state, task, mirror)
    standing = reported.standing
    is_active = standing["running"] or task.id in {a["task"] for a in standing["orphaned_agents"]}
    return {
        **views.task_view(task),
        "why": _why(state, task, runs, running=is_active) or task.reason,
        "issue_url": _web_page(forge["pages"], task.links.issue),
        "pr_url": _web_page(forge.get("pull_pages", forge["pages"]), number),
        "pr_state": pull.state if pull else None,
        "pr_command": f"caloron pr show {number}{reported.flags}" if number else None,
        "merge_commit": pull.merge_commit if pull else "",
        "verify_summary": task.merge.verified.summary if task.merge.verified else "",
        "summaries": list(task.change.summaries),
        "criteria": [
            {
                "text": text,
                "met": bool(answer and answer.met),
                "reason": answer.reason if answer else "",
            }
            for text, answer in criteria_of(task)
        ],
        "diff": asdict(size) if size else None,
        "reviews": [
            attributes(review, "verdict", "author")
            for review in _sorted_reviews(state)
            if review.pull == number
        ],
        "runs": len(agent_runs(runs)),
        "agent_s": round(sum(run.seconds for run in agent_runs(runs)), 1),
        "elapsed_s": _elapsed(task, runs, reported.now if is_active else None),
    }


def _why(state: State, task: Task, runs: list[Run], *, running: bool) -> str:
    """Why the task is not done; in a stopped sprint no agent runs any more."""
    if running or state.sprint.phase == "ended" or not task.work:
        return why(state, task, time.time())
    if task.work.item in (run.item for run in runs) and not state.sprint.availability.pause_reason:
        # An interrupted attempt is queued again, but that is not what the agent was doing.
        state = msgspec.structs.replace(state, queued=())
    return f"stopped while {why(state, task, time.time())}"


def _elapsed(task: Task, runs: list[Run], now: float | None) -> float | None:
    """The seconds from its start to its end; `now` is the end of an active task."""
    if task.times.started_at is None:
        return None
    if now is not None and task.status in (Status.IN_PROGRESS, Status.IN_REVIEW):
        return round(now - task.times.started_at, 1)
    last_run = max((run.started_at + run.seconds for run in runs), default=0.0)
    return round(
        (task.times.completed_at or max(task.times.changed_at, last_run)) - task.times.started_at, 1
    )


def _sorted_reviews(state: State) -> list[ReviewSnapshot]:
    reviews = [item for item in state.objects.values() if isinstance(item, ReviewSnapshot)]
    return sorted(reviews, key=lambda review: review.id)


def _size(state: State, task: Task, mirror: Mirror) -> Size | None:
    """The changed lines of the task; None where our own repository does not know."""
    pull = state.pull_of(task)
    base = task.merge.verified.base if task.merge.verified else ""
    ends = (base, task.change.head)
    if not base and pull and pull.merge_commit:
        ends = (f"{pull.merge_commit}^1", pull.merge_commit)
    if not all(ends):
        return None
    try:
        return mirror.size(*ends)
    except (CaloronError, OSError) as error:
        log.debug("cannot count the lines of a change", error=error, task=task.id)
        # Only the forge has the commit, or the mirror was removed.
        return None


def _rejections(state: State) -> list[dict[str, str]]:
    """Every review that requested changes, with its reason."""
    pulls = {o.number: o.branch for o in state.objects.values() if isinstance(o, PullSnapshot)}
    reviews = [r for r in _sorted_reviews(state) if r.verdict == "changes_requested"]
    return [
        {"task": task.id, "author": review.author, "reason": reason_of(review)}
        for task in state.tasks.values()
        for review in reviews
        if review.pull == task.links.pull
        or (task.change.branch and pulls.get(review.pull) == task.change.branch)
    ]


def _problems(reported: _Sprint) -> list[dict[str, Any]]:
    """Everything that failed, once each, with its log."""
    grouped: dict[tuple[str, str, str], dict[str, Any]] = {}
    for run in reported.runs:
        if run.end not in ("failed", "interrupted") or run.problem in (STOPPED, NOT_NEEDED):
            continue
        owner = run.task or _OWNERS.get(run.role, "main")
        what = run.problem or run.end
        problem = grouped.setdefault((owner, run.role, what), _problem(what, owner, run.role, 0))
        problem |= {"times": problem["times"] + 1, "log": _log(reported.paths, run)}
    problems, sprint = list(grouped.values()), reported.state.sprint
    if reported.lost_engines:
        what = "the engine was killed or crashed, and the sprint was resumed"
        problems.append(_problem(what, times=reported.lost_engines))
    if sprint.planning.failure:
        problems.append(_problem(sprint.planning.failure, log=sprint.planning.failure_log))
    for task in reported.state.tasks.values():
        verified = task.merge.verified
        if task.status is Status.DONE and verified and verification_of(task) == "red, allowed":
            what = "merged although red, as main was"
            problems.append(_problem(what, task.id, "verify", log=verified.log))
    return problems


def _problem(
    what: str, task: str = "", role: str = "", times: int = 1, log: str = ""
) -> dict[str, Any]:
    return {"task": task, "role": role, "what": what, "times": times, "log": log}


def _log(paths: ProjectPaths, run: Run) -> str:
    """The log of a run; where the events do not name its folder, the folder of all its runs."""
    parent = paths.runs / run.item
    folders = [parent / str(run.token)] if run.token else []
    if not run.token and parent.is_dir():
        folders = [folder for folder in parent.iterdir() if folder.name.isdigit()]
    file = folders[0] / "output.log" if len(folders) == 1 else parent
    return next((str(path) for path in (file, parent) if path.exists()), "")


def _page(reported: _Sprint, data: dict[str, Any]) -> Page:
    kpis = compute_kpis(reported.state, reported.runs, reported.now)
    agents = agent_kpis(reported.state, reported.runs)
    merged = [t for t in data["tasks"] if t["status"] == "Done"]
    others = [t for t in data["tasks"] if t["status"] != "Done"]
    done = f"{kpis.completed_tasks} of {kpis.total_tasks} tasks done"
    commands = [Item("Get the merged work:", [data["bring"]])] if data["bring"] else []
    shows = [task["pr_command"] for task in merged if task["pr_command"]]
    pages = [task["pr_url"] for task in merged if task["pr_url"]]
    commands += [Item("Show the merged work:", shows, pages)] if shows else []
    return Page(
        title=f"Sprint {data['sprint_id']}: {done}",
        lead=data["goal"],
        sections=[
            Section("Summary", items=[Item(line) for line in _summary(data, kpis)]),
            Section("Done", rows=[_HEAD, *(_done_row(t) for t in merged)], items=commands),
            Section("Changes", items=[_change(t) for t in merged if t["summaries"]]),
            Section("Waits for you", items=[_item(item) for item in _inbox(reported)]),
            Section("Not done", rows=[_LEFT, *(_left_row(t) for t in others)]),
            Section(
                "Changes requested",
                items=[
                    Item(f"{rejection['task']}: {rejection['reason']} ({rejection['author']})")
                    for rejection in data["rejections"]
                ],
            ),
            Section("Problems", items=[_problem_item(p) for p in data["problems"]]),
            Section("Agents", rows=[_AGENTS, *map(_agent_row, agents)]),
        ],
    )


def _summary(data: dict[str, Any], kpis: Kpis) -> list[str]:
    when = local_times(data["started_at"], data["completed_at"])
    took = f"{span(kpis.sprint_time_s)} ({when}), working time {span(kpis.work_time_s)}"
    guess = f" (${kpis.estimated_cost_usd:.2f} of it estimated)" if kpis.estimated_cost_usd else ""
    cost = f"${kpis.cost_usd:.2f} of ${data['budget_usd']:.2f}{guess}"
    used = f"{counted(kpis.total_tokens, 'token')}; agents worked {span(data['agent_s'])}"
    how = f" ({data['verify']})" if data["verify"] else ""
    red = f" {kpis.verify_failures} of {counted(kpis.verify_runs, 'run')} red;"
    green = f"{kpis.tests_passing} of {counted(kpis.completed_tasks, 'done task')} green;"
    green += red if kpis.verify_runs else ""
    reviews = counted(sum(task["review_rounds"] for task in data["tasks"]), "review")
    rejections = counted(len(data["rejections"]), "rejection")
    fixes = counted(kpis.fix_rounds, "fix round")
    conflicts = counted(kpis.conflict_count, "merge conflict")
    supervisor = f"supervisor: {counted(kpis.total_interventions, 'step')}"
    lines = [
        f"{data['outcome']}: {took}",
        f"cost: {cost}, {used}",
        f"verification{how}: {green} main before: {data['main_before']}",
        f"review: {reviews}, {rejections}, {fixes}, {conflicts}",
        f"people: {counted(kpis.human_acts, 'act')} (reviews, commands, edits); {supervisor}",
    ]
    if not data["sandboxed"]:
        lines.append("WARNING: no sandbox; its agents could read and change all your files")
    return lines


_HEAD = ("task", "title", "pull request", "change", "verified", "reviews", "cost", "elapsed")
_LEFT = ("task", "title", "status", "why", "reviews", "cost", "elapsed")
_AGENTS = ("agent", "role", "runs", "failed", "time", "cost", "tokens", "clarity")


def _done_row(task: dict[str, Any]) -> tuple[str, ...]:
    diff = task["diff"]
    change = (
        f"{counted(diff['files'], 'file')} +{diff['added']} -{diff['removed']}" if diff else "-"
    )
    pull = f"#{task['pr_number']} {task['pr_state']}"
    return (
        task["id"],
        task["title"],
        Linked(pull, task["pr_url"]) if task["pr_number"] else task["why"],
        change,
        Linked(task["verification"] or "-", task["verify_log"]),
        *_last_cells(task),
    )


def _change(task: dict[str, Any]) -> Item:
    """The description of a change by its agent, and the criteria as its reviewer ticked them."""
    ticked = [
        f"[{'x' if c['met'] else ' '}] {c['text']}{' (' + c['reason'] + ')' if c['reason'] else ''}"
        for c in task["criteria"]
    ]
    lines = [line for text in task["summaries"] for line in text.splitlines() if line.strip()]
    return Item(task["id"], printed=[*lines, *ticked])


def _left_row(task: dict[str, Any]) -> tuple[str, ...]:
    return task["id"], task["title"], task["status"], task["why"], *_last_cells(task)


def _last_cells(task: dict[str, Any]) -> tuple[str, str, str]:
    elapsed = "-" if task["elapsed_s"] is None else span(task["elapsed_s"])
    return str(task["review_rounds"]), dollars(task["cost_usd"]), elapsed


def _agent_row(agent: AgentKpis) -> tuple[str, ...]:
    clarity = "-" if agent.clarity is None else f"{agent.clarity:.0f}/10"
    return (
        agent.agent, agent.role, str(agent.runs), str(agent.failed_runs), span(agent.time_s),
        dollars(agent.cost_usd), str(agent.tokens), clarity,
    )  # fmt: skip


def _item(item: InboxItem) -> Item:
    holds = f" (holds {', '.join(item.holds)})" if item.holds else ""
    printed = [line for file in item.files for line in log_lines(file)]
    text = f"{item.task or item.sprint}: {item.why}{holds}"
    return Item(text, item.commands, item.files, printed)


def _problem_item(problem: dict[str, Any]) -> Item:
    times = f" ({problem['times']} times)" if problem["times"] > 1 else ""
    owner = " ".join(part for part in (problem["task"], problem["role"]) if part)
    text = f"{owner}: {problem['what']}{times}" if owner else problem["what"]
    return Item(text, files=[problem["log"]] if problem["log"] else ())


@command(project=True, examples=["caloron inbox", "caloron inbox --output json"])
def inbox(project: str | None) -> Answer:
    """List what waits for you in every sprint of the project, newest first."""
    paths, states, agents, numbers = find_project(project), [], [], {}
    if paths.ledger.exists():
        with project_view.read_ledger(project) as (_, connection):
            states = run_history.waiting_states(connection)
            agents = project_view.orphaned_agents(paths, connection)
            numbers = run_history.sprint_numbers(connection)
    flags = project_view.project_flag(paths, project)
    items = [
        project_view.with_orphans(item, [a for a in agents if a["sprint_id"] == item.sprint], flags)
        for state in reversed(states)
        for item in inbox_items(
            state, running=project_view.is_running(paths, state.sprint.id), options=flags
        )
    ]
    items += _to_take(paths, flags)
    data = {"project": paths.name, "items": project_view.inbox_data(items, numbers)}
    return Answer(data, lambda: _inbox_text(items))


def _to_take(paths: ProjectPaths, flags: str) -> list[InboxItem]:
    """Merged work that is not in the user's branch, once no engine runs.

    The newest merge is the last commit that the branch can lack, so it names the sprint.
    """
    project = load_project(paths.name)
    repository = project.repository
    if not repository or not paths.ledger.exists() or holder(paths.engine_lock) is not None:
        return []
    checkout = Checkout(repository)
    branch = f"refs/heads/{project_view.known_forge(paths)['main']}"
    main = git(project.git_here, "rev-parse", "--verify", branch, check=False)
    if not main or not checkout.top.is_dir() or checkout.contains(project.git_here, main):
        return []
    with project_view.read_ledger(paths.name) as (_, connection):
        merged = run_history.merging_sprints(connection, 1)
        sprint = merged[0] if merged else run_history.find_sprint(connection)
    why = f"merged work is not in the branch that is checked out in {repository}"
    return [InboxItem(kind="apply", sprint=sprint, why=why, commands=(f"caloron apply{flags}",))]


def _inbox_text(items: list[InboxItem]) -> str:
    if not items:
        return "Nothing needs your attention."
    needs = "item needs" if len(items) == 1 else "items need"
    count = f"{len(items)} {needs} your attention"
    sections = [
        Section(f"Sprint {name}", items=[_item(item) for item in items if item.sprint == name])
        for name in dict.fromkeys(item.sprint for item in items)
    ]
    return as_text(Page(title=count, sections=sections))
