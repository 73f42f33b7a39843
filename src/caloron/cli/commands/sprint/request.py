"""The request for a new sprint: its options, its project, and where its tasks come from."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from caloron.agents.clis.registry import require_framework
from caloron.agents.doctor import at_a_glance
from caloron.cli import output
from caloron.cli.app import (
    FRAMEWORK,
    DryRun,
    Number,
    add_options,
    choice_options,
    exclude_each_other,
    is_text,
    planned,
)
from caloron.cli.format import counted
from caloron.cli.project_view import ensure_unlocked
from caloron.domain.compat.plan_forms import Plan
from caloron.domain.model.plan import MAX_TITLE, RESERVED, PlannedTask
from caloron.domain.model.snapshots import marker_key, without_markers
from caloron.domain.model.sprint import SourceIssues
from caloron.domain.rules.people.labelled_issues import LABEL
from caloron.engine.runs.runtime import runner
from caloron.engine.session import Choices, read_plan
from caloron.errors import CaloronError, InUse, NotFound, PreconditionFailed, UsageError
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

_OFFER = (
    "This repository has an origin on a forge. Use its issues and pull requests? It needs a token."
)
MAX_GOAL = 64_000
#: A character has at most four bytes.
_MAX_GOAL_BYTES = 4 * MAX_GOAL
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

    file: str | None
    from_issue: tuple[int, ...]
    close_issues: bool
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


limit_options = add_options(
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
)
sprint_options = add_options(
    click.option("--file", "file", metavar="FILE", help="Read the goal from this text file."),
    click.option(
        "--from-issue",
        type=Number(1),
        multiple=True,
        metavar="NUMBER",
        help="Take the goal from this issue of the project's forge; may be repeated.",
    ),
    click.option(
        "--close-issues",
        is_flag=True,
        help="Close the issues of --from-issue when every task is done.",
    ),
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
        help="More input for the graph than the goal: an object, or a file that holds one.",
    ),
    click.option(
        "--parallel",
        "-n",
        type=Number(1, 256),
        metavar="NUMBER",
        help="Maximum number of agents at a time.",
    ),
    limit_options,
    click.option(
        "--framework",
        "-f",
        type=FRAMEWORK,
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
    #: The issues that the goal was taken from.
    source: SourceIssues | None = None


def resolve_request(
    words: str | None, project_name: str | None, options: SprintOptions, *, dry_run: bool = False
) -> SprintRequest:
    """Check every option and find the project; nothing is started."""
    goal = read_goal(words, options)
    _check_sources(options)
    plan = read_plan(Path(options.plan)) if options.plan else None
    known, draft = _find_or_draft(project_name, options.framework)
    project = with_limits(known, options.timeout_s, options.planner_timeout_s)
    source = None
    if options.from_issue:
        source = SourceIssues(
            numbers=tuple(dict.fromkeys(options.from_issue)), close=options.close_issues
        )
        goal = _goal_of_issues(goal, project, source.numbers, is_new=draft is not None)
    if options.single:
        plan = Plan(tasks=(_single_task(goal),))
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
        source=source,
    )
    if not options.graph:
        return request
    from caloron.cli.commands.sprint.planning_graph import plan_with_graph

    number = last_sprint_number(project) + 1
    return plan_with_graph(request, options.graph, options.graph_input, number, dry_run=dry_run)


def read_goal(words: str | None, options: SprintOptions) -> str:
    """The goal from the command line, a file or standard input; --from-issue may do without."""
    if words is not None and options.file is not None:
        raise UsageError("GOAL and --file exclude each other", hint="give one of them")
    if options.close_issues and not options.from_issue:
        raise UsageError("--close-issues is for --from-issue", hint="name the issue too")
    if words is None and options.file is None:
        if options.from_issue:
            return ""
        raise UsageError(
            "there is no goal", hint='caloron sprint "<goal>", --file FILE, --from-issue N, or -'
        )
    if options.file is not None or words == "-":
        where = "standard input" if options.file in (None, "-") else str(options.file)
        return _checked_goal(_text_of(None if where == "standard input" else where), where)
    return _checked_goal(str(words), "the goal")


def _text_of(path: str | None) -> str:
    """The text of a file, or of standard input; no more is read than a goal can have."""
    try:
        if path is None:
            data = sys.stdin.buffer.read(_MAX_GOAL_BYTES + 1)
            _return_terminal()
        else:
            with Path(path).open("rb") as file:
                data = file.read(_MAX_GOAL_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"the goal {path!r} cannot be read: {error}") from error
    # The last character may be cut; a text of this length is refused anyway.
    return data.decode("utf-8-sig", "surrogateescape")


def _return_terminal() -> None:
    """Read answers from the terminal, after the goal came from a pipe."""
    if not output.is_terminal() or sys.stdin.isatty():
        return
    # A process without a terminal asks no questions.
    with suppress(OSError):
        terminal = os.open("/dev/tty", os.O_RDONLY)
        os.dup2(terminal, sys.stdin.fileno())
        os.close(terminal)


def _checked_goal(text: str, where: str) -> str:
    wanted = f"a goal is 1 to {MAX_GOAL} characters of text (in UTF-8)"
    if not text.strip():
        raise UsageError(f"{where} is empty: {wanted}")
    if len(text) > MAX_GOAL:
        raise UsageError(f"{where} is too long: {wanted}", hint="name the files to read in it")
    if "\0" in text or not is_text(text):
        raise UsageError(f"{where} is not text: {wanted}")
    return text


def _goal_of_issues(words: str, project: Project, numbers: tuple[int, ...], *, is_new: bool) -> str:
    """The words of the user, then each issue with the comments of people who may command."""
    if is_new:
        raise UsageError(
            "--from-issue needs a project with a forge, and this repository has none yet",
            hint="create it first: caloron init NAME --forge github --repo OWNER/NAME",
        )
    from caloron.engine.forge.connect import open_forge

    parts = [words] if words else []
    with closing(open_forge(project)) as forge:
        for number in numbers:
            issue = forge.issue(number)
            if LABEL in issue.labels and not marker_key(issue.body):
                raise UsageError(
                    f"issue #{number} has the label {LABEL}, so the next sprint runs it as a task",
                    hint="remove the label, or start a sprint with another goal",
                )
            comments = [c for c in forge.comments(number) if not marker_key(c.body)]
            parts.append(f"Issue #{number}: {issue.title}\n\n{without_markers(issue.body)}")
            parts += [f"Comment by {c.author}:\n{c.body}" for c in comments if c.trusted]
            if ignored := sum(not comment.trusted for comment in comments):
                output.note(
                    f"Issue #{number}: {counted(ignored, 'comment')} of accounts that may not"
                    " command left out of the goal."
                )
    return _checked_goal("\n\n".join(parts), f"the text of issue #{numbers[0]}")


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


def ensure_project(request: SprintRequest, *, ask: bool) -> dict[str, Any]:
    """Create the project if there is none; print its defaults and return them as data."""
    created = None
    if request.draft is not None:
        from caloron.cli.commands.project.new_project import create

        remote = request.draft.remote_command()
        if remote and ask and click.confirm(_OFFER, default=False):
            # A token is needed, which must not be typed here.
            click.echo(
                f"Put a token into a variable and name it here, then start again:\n  {remote}"
            )
            click.get_current_context().exit(0)
        if remote:
            output.note(
                f"Its pull requests stay on this disk. To use those of its origin: {remote}"
            )
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


def with_limits(
    project: Project, timeout_s: float | None, planner_timeout_s: float | str | None
) -> Project:
    """The project with the limits of this run."""
    config, planner_s = project.config, planner_timeout_s
    if planner_s == _AUTO:
        planner_s = min(900.0, 300.0 + 60.0 * last_sprint_number(project))
    config = msgspec.structs.replace(
        config,
        timeout_s=timeout_s or config.timeout_s,
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
