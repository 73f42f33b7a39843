"""The request for a new sprint: its options, its project, and where its tasks come from."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from caloron.agents.clis.registry import require_framework
from caloron.agents.doctor import at_a_glance
from caloron.cli import output
from caloron.cli.app import (
    DryRun,
    Number,
    add_options,
    choice_options,
    exclude_each_other,
    is_text,
    planned,
)
from caloron.cli.project_view import ensure_unlocked
from caloron.domain.compat.plan_forms import Plan
from caloron.domain.model.plan import MAX_TITLE, RESERVED, PlannedTask
from caloron.engine.runs.runtime import runner
from caloron.engine.session import Choices, read_plan
from caloron.errors import CaloronError, InUse, PreconditionFailed, UsageError
from caloron.ledger import reading
from caloron.ledger.legacy import legacy_sprints
from caloron.ledger.locate import ProjectPaths, home, project_here
from caloron.ledger.projects import Project, load_project
from caloron.store import log
from caloron.store.files import write_atomic
from caloron.store.lock import single_instance

if TYPE_CHECKING:
    from caloron.cli.commands.project.new_project import NewProject
    from caloron.engine.graphs.planning import Planning

MAX_GOAL = 64_000
_AUTO = "auto"
_SECONDS = Number(0, 30 * 86_400.0, above=True)


class _PlannerSeconds(click.ParamType[Any]):
    """A number of seconds, or `auto`."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        return _AUTO if value == _AUTO else _SECONDS.convert(value, param, ctx)


class SprintOptions(NamedTuple):
    """The options of a new sprint, as `sprint_options` passes them on."""

    plan: str | None
    single: bool
    graph: str | None
    graph_input: str | None
    parallel: int | None
    timeout_s: float | None
    planner_timeout_s: float | str | None
    framework: str | None
    budget_usd: float | None
    allow_red: bool
    unsandboxed: bool
    debug: bool

    def choices(self) -> Choices:
        return Choices(**{name: getattr(self, name) for name in Choices.__struct_fields__})


sprint_options = add_options(
    click.option("--plan", metavar="FILE", help="Take the tasks from this JSON file."),
    click.option("--single", is_flag=True, help="Run the goal as one task, without a planner."),
    click.option(
        "--graph",
        "-g",
        metavar="FILE or NAME",
        help="Plan with this graph: a file, or a built-in name such as `full_cycle`.",
    ),
    click.option(
        "--graph-input",
        metavar="JSON",
        help="More input for the graph, besides the goal: an object, or a file that holds one.",
    ),
    click.option(
        "--parallel",
        "-n",
        type=Number(1, 256),
        metavar="NUMBER",
        help="Maximum number of agents at a time.",
    ),
    click.option(
        "--timeout",
        "-t",
        "timeout_s",
        type=_SECONDS,
        metavar="SECONDS",
        help="Probe, restart, then end an agent that runs longer; for this run only.",
    ),
    click.option(
        "--planner-timeout",
        "planner_timeout_s",
        type=_PlannerSeconds(),
        metavar="auto|SECONDS",
        help="Longest run of the planner; auto: 300 s and 60 s per sprint so far, up to 900.",
    ),
    click.option(
        "--framework",
        "-f",
        metavar="NAME",
        help="Agent framework for a new project (default: detected on PATH).",
    ),
    choice_options,
)


class SprintRequest(NamedTuple):
    """A checked request: the sprint can start."""

    project: Project
    goal: str
    tasks: tuple[PlannedTask, ...] | None
    choices: Choices
    parallel: int
    #: The draft of the project, where it has to be created first.
    draft: NewProject | None
    #: The parts of the plan's file that have no effect.
    warnings: tuple[str, ...] = ()
    #: The graph run that made the plan.
    planning: Planning | None = None


def resolve_request(
    goal: str, project_name: str | None, options: SprintOptions, *, dry_run: bool = False
) -> SprintRequest:
    """Check every option and find the project; nothing is started."""
    if not goal.strip() or len(goal) > MAX_GOAL or "\0" in goal or not is_text(goal):
        raise UsageError(f"a goal is 1 to {MAX_GOAL} characters of text (in UTF-8)")
    _check_sources(options)
    plan = read_plan(Path(options.plan)) if options.plan else None
    if options.single:
        plan = Plan(tasks=(_single_task(goal),))
    known, draft = _find_or_draft(project_name, options.framework)
    project = _with_limits(known, options)
    choices = options.choices()
    _check_machine(sandboxed=not choices.unsandboxed)
    request = SprintRequest(
        project,
        goal,
        plan.tasks if plan else None,
        choices,
        options.parallel or project.config.parallel,
        draft,
        plan.warnings if plan else (),
    )
    if not options.graph:
        return request
    from caloron.cli.commands.sprint.planning_graph import plan_with_graph

    number = last_sprint_number(project) + 1
    return plan_with_graph(request, options.graph, options.graph_input, number, dry_run=dry_run)


def _find_or_draft(name: str | None, framework: str | None) -> tuple[Project, NewProject | None]:
    """The project to act on; for a repository without one, the draft of a new project."""
    if framework is not None:
        require_framework(framework)
    known = name if name is not None else project_here()
    if known is None:
        from caloron.cli.commands.project.new_project import draft_here

        draft = draft_here(framework)
        return draft.project, draft
    project = load_project(known)
    if framework in (None, project.config.framework):
        return project, None
    raise UsageError(
        f"project {project.name} uses framework {project.config.framework}, not {framework}",
        hint=f"caloron config set framework {framework} --project {project.name}",
    )


def _check_sources(options: SprintOptions) -> None:
    """Refuse more than one source of the plan, and one without a name."""
    exclude_each_other(plan=options.plan, single=options.single, graph=options.graph)
    for flag, name in (("--plan", options.plan), ("--graph", options.graph)):
        if name is not None and (not name or "\0" in name):
            raise UsageError(f"{flag} {name!r} names no file", hint="give a JSON file")
    if options.graph_input is not None and not options.graph:
        raise UsageError("--graph-input is for --graph", hint="name the graph too")


def _check_machine(*, sandboxed: bool) -> None:
    """Run the quick checks before creating anything."""
    for finding in at_a_glance(home(), sandboxed=sandboxed):
        if finding.needed and not finding.ok:
            raise PreconditionFailed(
                f"agents cannot run here: {finding.check}: {finding.detail}",
                hint=f"{finding.remedy}; `caloron doctor` checks everything",
            )
        if not finding.ok:
            output.note(f"{finding.check}: {finding.detail}; {finding.remedy}")


def ensure_project(request: SprintRequest) -> dict[str, Any]:
    """Create the project if there is none; print its defaults and return them as data."""
    created = None
    if request.draft is not None:
        from caloron.cli.commands.project.new_project import create

        if create(request.draft, request.tasks, request.choices):
            created = request.draft
            output.note(created.text(budget_usd=request.choices.budget_usd))
    uncommitted, warning = uncommitted_changes(request.project)
    if warning:
        output.note(warning)
    return {"project_setup": created.data() if created else None, "uncommitted": uncommitted}


def uncommitted_changes(project: Project) -> tuple[dict[str, Any] | None, str]:
    """The files of the user's repository that agents do not see, as data and as a warning."""
    repo = project.repository
    if repo is None:
        return None, ""
    from caloron.git.checkout import Checkout

    try:
        files = Checkout(repo).uncommitted()
    except CaloronError as error:
        log.debug("cannot look for uncommitted files", error=error, repository=repo)
        # A bare repository has no files; a missing one is reported when it is needed.
        files = None
    if files is None or not files.count:
        return None, ""
    count = "1 file that is" if files.count == 1 else f"{files.count} files that are"
    new = f" ({len(files.untracked)} new)" if files.untracked else ""
    data = {"repo": str(repo), "changed": len(files.changed), "untracked": len(files.untracked)}
    return data, f"NOT SEEN BY AGENTS: {count} not committed{new} in {repo}"


def plan_dry_run(request: SprintRequest, *, hold: bool) -> DryRun:
    """Check everything that can be checked without writing, and list the actions."""
    from caloron.agents.clis.registry import FRAMEWORKS

    ensure_unlocked(request.project)
    config, draft = request.project.config, request.draft
    named = {task.framework for task in request.tasks or () if task.framework in FRAMEWORKS}
    for name in sorted({config.framework, *named}):
        runner(request.project, name).check()
    actions: list[dict[str, Any]] = []
    if draft is not None:
        target = f"{config.name} for {config.repo}, with framework {config.framework}"
        actions.append(planned("set up project", target, setup=draft.data()))
        output.note(draft.text("would be", request.choices.budget_usd))
    if warning := uncommitted_changes(request.project)[1]:
        output.note(warning)
    number = last_sprint_number(request.project) + 1
    actions.append(planned("begin sprint", f"{request.project.name}-{number}"))
    actions += [planned("leave out", warning) for warning in request.warnings]
    if request.tasks is None:
        actions.append(planned("ask the planner for tasks of", request.goal))
    if hold:
        actions.append(planned("hold the plan for", "your approval"))
    else:
        actions += [planned("run task", task.id) for task in request.tasks or ()]
    return DryRun(*actions)


def _single_task(goal: str) -> PlannedTask:
    line = " ".join(goal.split())
    words = re.findall(r"[a-z0-9]+", line.lower())
    name = "-".join(words)[:40].strip("-")
    return PlannedTask(
        id=name if name and name not in RESERVED else "task",
        title=line if len(line) <= MAX_TITLE else f"{line[: MAX_TITLE - 1]}…",
        agent_prompt=goal,
    )


def _with_limits(project: Project, options: SprintOptions) -> Project:
    config, planner_s = project.config, options.planner_timeout_s
    if planner_s == _AUTO:
        planner_s = min(900.0, 300.0 + 60.0 * last_sprint_number(project))
    config = msgspec.structs.replace(
        config,
        timeout_s=options.timeout_s or config.timeout_s,
        planner_timeout_s=float(planner_s or config.planner_timeout_s),
    )
    return dataclasses.replace(project, config=config)


def last_sprint_number(project: Project) -> int:
    """The number of the last sprint, also of one imported from an older version."""
    with reading.ledger_if_any(project) as connection:
        number = reading.value(connection, "newest_number") if connection else 0
        imported = legacy_sprints(project, connection, 1).sprints
    return max([int(number), *(sprint.number for sprint in imported)])


@contextmanager
def mark_planning(project: Project, number: int, goal: str, graph: str) -> Iterator[None]:
    """Keep a marker file while a graph plans; it stays if this process is killed.

    The marker also stays until the plan is recorded. A second process is refused meanwhile, so
    that the same plan is not paid for twice.
    """
    if not project.path.is_dir():
        yield
        return
    marker = _marker(project)
    command = shlex.join(["caloron", "sprint", goal, "--graph", graph])
    with single_instance(marker.with_suffix(".lock"), f"planning a sprint of {project.name}"):
        write_atomic(marker, json.dumps({"number": number, "command": command}).encode())
        try:
            yield
        except InUse:
            # The other process still needs this marker, so leave it.
            raise
        except Exception:
            marker.unlink(missing_ok=True)
            raise


def plan_is_recorded(project: Project, planning: Planning) -> None:
    """Remove the marker and the graph run: the ledger has the plan."""
    from caloron.graph.errors import GraphError

    _marker(project).unlink(missing_ok=True)
    with log.ignored(GraphError, message="cannot remove a graph run", run=planning.run_id):
        # A leftover run is never read again: the next sprint has another number.
        planning.at.forget(planning.run_id)


def interrupted_planning_hint(project: Project) -> str:
    """The command that continues an interrupted planning; empty if there is none."""
    try:
        note = json.loads(_marker(project).read_bytes())
        number, command = int(note["number"]), str(note["command"])
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("cannot read the marker of an unfinished plan", error=error)
        number, command = 0, "caloron sprint …"
    if 0 < number <= last_sprint_number(project):
        # The plan was recorded, and the process was killed before it removed the marker.
        return ""
    return f"planning was interrupted; continue it with the same command: {command}"


def _marker(project: ProjectPaths) -> Path:
    return project.path / "planning.json"
