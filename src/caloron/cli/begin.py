"""How a sprint begins: its goal, where its tasks come from, and what holds for this run alone."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
import msgspec

from caloron.agents.doctor import at_a_glance
from caloron.cli import output
from caloron.cli.options import Finite, choice_options, dry_run_option, is_text
from caloron.cli.setting_up import NewProject, find_or_choose, make
from caloron.domain.plan import MAX_TITLE, RESERVED, PlannedTask
from caloron.domain.plan_forms import Plan
from caloron.engine.session import Choices, read_plan
from caloron.errors import CaloronError, PreconditionFailed, UsageError
from caloron.git.checkout import Checkout
from caloron.ledger.earlier import Earlier, earlier_sprints
from caloron.ledger.identity import open_ledger
from caloron.ledger.locate import home
from caloron.ledger.projects import Project
from caloron.store import log

if TYPE_CHECKING:
    from caloron.engine.graph_planning import Planning

MAX_GOAL = 64_000
_LONGEST_S = 30 * 86_400.0
_AUTO = "auto"

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)


class _PlannerSeconds(click.ParamType[Any]):
    """A number of seconds, or `auto`."""

    name = "seconds"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        if value == _AUTO:
            return _AUTO
        return _SECONDS.convert(value, param, ctx)


_SECONDS = Finite(min=0, min_open=True, max=_LONGEST_S)


def begin_options(command: FC) -> FC:
    """What can be said about a sprint when it begins; passed on as keywords."""
    options = (
        click.option("--plan", metavar="FILE", help="Take the tasks from this JSON file."),
        click.option("--single", is_flag=True, help="The goal is one task; ask no planner."),
        click.option(
            "--graph", "-g", metavar="FILE|NAME", help="Plan with this composition, such as ours."
        ),
        click.option(
            "--graph-input",
            metavar="JSON",
            help="More input for it, besides the goal: an object, or a file that holds one.",
        ),
        click.option(
            "--parallel", "-n", type=click.IntRange(1, 256), metavar="N", help="How many agents."
        ),
        click.option(
            "--timeout",
            "-t",
            "timeout_s",
            type=_SECONDS,
            metavar="S",
            help="An agent that runs longer is probed, restarted, ended; for this run only.",
        ),
        click.option(
            "--po-timeout",
            "po_timeout_s",
            type=_PlannerSeconds(),
            metavar="auto|S",
            help="Longest run of the planner; auto: 300 s and 60 s per sprint so far, up to 900.",
        ),
        click.option(
            "--framework",
            "-f",
            metavar="F",
            help="Agent framework for a new project (default: detected on PATH).",
        ),
        choice_options,
        dry_run_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


class Beginning(NamedTuple):
    """A sprint that can begin."""

    project: Project
    goal: str
    tasks: tuple[PlannedTask, ...] | None
    choices: Choices
    parallel: int
    #: The project has to be made first.
    new: NewProject | None
    #: What of the plan's file has no effect.
    warnings: tuple[str, ...] = ()
    #: The composition that made the plan.
    planning: Planning | None = None


def prepare(
    goal: str, project: str | None, given: dict[str, Any], *, dry_run: bool = False
) -> Beginning:
    """Everything that was said, checked; nothing is begun."""
    if not goal.strip() or len(goal) > MAX_GOAL or "\0" in goal or not is_text(goal):
        raise UsageError(f"a goal is 1 to {MAX_GOAL} characters of text (in UTF-8)")
    _refuse_sources(given)
    plan = read_plan(Path(given["plan"])) if given["plan"] else None
    if given["single"]:
        plan = Plan(tasks=(_one_task(goal),))
    chosen, new = find_or_choose(project, given["framework"])
    found = _with_limits(chosen, given["timeout_s"], given["po_timeout_s"])
    choices = Choices(**{n: given[n] for n in Choices.__struct_fields__ if n in given})
    _refuse_unfit(sandboxed=not choices.unsandboxed)
    begin = Beginning(
        found,
        goal,
        plan.tasks if plan else None,
        choices,
        given["parallel"] or found.config.parallel,
        new,
        plan.warnings if plan else (),
    )
    if not given["graph"]:
        return begin
    from caloron.cli.graph_begin import planned_by_graph

    return planned_by_graph(begin, given, last_sprint_number(found) + 1, dry_run=dry_run)


def _refuse_sources(given: dict[str, Any]) -> None:
    """A plan comes from one place, which has a name."""
    sources = [f"--{name}" for name in ("plan", "single", "graph") if given[name]]
    if len(sources) > 1:
        raise UsageError(f"{' and '.join(sources)} exclude each other", hint="give one of them")
    for name in ("plan", "graph"):
        if given[name] is not None and (not given[name] or "\0" in given[name]):
            raise UsageError(f"--{name} {given[name]!r} names no file", hint="give a JSON file")
    if given["graph_input"] is not None and not given["graph"]:
        raise UsageError("--graph-input is for --graph", hint="name the graph too")


def _refuse_unfit(*, sandboxed: bool) -> None:
    """What a moment is enough to find out is found out before anything is made."""
    for finding in at_a_glance(home(), sandboxed=sandboxed):
        if finding.needed and not finding.ok:
            raise PreconditionFailed(
                f"agents cannot run here: {finding.check}: {finding.detail}",
                hint=f"{finding.remedy}; `caloron doctor` tells everything that is missing",
            )
        if not finding.ok:
            output.aside(f"{finding.check}: {finding.detail}; {finding.remedy}")


def set_up(begin: Beginning) -> dict[str, Any]:
    """Make the project if there is none; what is to be known about it, told and as data."""
    made = None
    if begin.new is not None:
        _, ours = make(begin.new, begin.tasks, begin.choices)
        made = begin.new if ours else None
    if made is not None:
        output.aside(made.text(budget_usd=begin.choices.budget_usd))
    uncommitted, warning = unseen(begin.project)
    if warning:
        output.aside(warning)
    return {"project_setup": made.data() if made else None, "uncommitted": uncommitted}


def unseen(project: Project) -> tuple[dict[str, Any] | None, str]:
    """What agents do not see of the user's repository, because it is in no commit."""
    repo = project.repository
    try:
        found = Checkout(repo).uncommitted() if repo else None
    except CaloronError as error:
        log.debug("cannot look for uncommitted files", error=error, repository=repo)
        # A bare repository has no files; one that is not there is told when it is needed.
        found = None
    if found is None or not found.count:
        return None, ""
    files = "1 file that is" if found.count == 1 else f"{found.count} files that are"
    new = f" ({len(found.untracked)} new)" if found.untracked else ""
    data = {"repo": str(repo), "changed": len(found.changed), "untracked": len(found.untracked)}
    return data, f"NOT SEEN BY AGENTS: {files} not committed{new} in {repo}"


def would_begin(command: str, begin: Beginning, *, hold: bool) -> int:
    """The answer of a dry run: checks what can be checked without writing anything."""
    from caloron.agents.frameworks import FRAMEWORKS
    from caloron.cli.alone import refuse_held
    from caloron.engine.workshop import runner

    refuse_held(begin.project)
    config = begin.project.config
    named = {task.framework for task in begin.tasks or () if task.framework in FRAMEWORKS}
    for name in sorted({config.framework, *named}):
        runner(begin.project, name).check()
    actions: list[dict[str, Any]] = []
    if begin.new is not None:
        told = f"{config.name} for {config.repo}, with framework {config.framework}"
        actions.append({"action": "set up project", "target": told, "setup": begin.new.data()})
        output.aside(begin.new.text("would be", begin.choices.budget_usd))
    if warning := unseen(begin.project)[1]:
        output.aside(warning)
    actions.append(
        {
            "action": "begin sprint",
            "target": f"{begin.project.name}-{last_sprint_number(begin.project) + 1}",
        }
    )
    actions += [{"action": "leave out", "target": warning} for warning in begin.warnings]
    if begin.tasks is None:
        actions.append({"action": "ask the planner for tasks of", "target": begin.goal})
    if hold:
        actions.append({"action": "hold the plan for", "target": "your approval"})
    else:
        actions += [{"action": "run task", "target": task.id} for task in begin.tasks or ()]
    return output.dry_run(command, actions)


def _one_task(goal: str) -> PlannedTask:
    line = " ".join(goal.split())
    words = re.findall(r"[a-z0-9]+", line.lower())
    name = "-".join(words)[:40].strip("-")
    return PlannedTask(
        id=name if name and name not in RESERVED else "task",
        title=line if len(line) <= MAX_TITLE else f"{line[: MAX_TITLE - 1]}…",
        agent_prompt=goal,
    )


def _with_limits(
    project: Project, timeout_s: float | None, po_timeout_s: float | str | None
) -> Project:
    config = project.config
    if po_timeout_s == _AUTO:
        po_timeout_s = min(900.0, 300.0 + 60.0 * last_sprint_number(project))
    config = msgspec.structs.replace(
        config,
        timeout_s=timeout_s or config.timeout_s,
        po_timeout_s=float(po_timeout_s or config.po_timeout_s),
    )
    return dataclasses.replace(project, config=config)


def last_sprint_number(project: Project) -> int:
    """The number of the last sprint, also if an older Caloron ran it."""
    if not project.ledger.exists():
        return _newest(earlier_sprints(project, None, 1))
    with closing(open_ledger(project.ledger)) as connection:
        row = connection.execute("SELECT COALESCE(max(number), 0) FROM sprints").fetchone()
        return max(int(row[0]), _newest(earlier_sprints(project, connection, 1)))


def _newest(earlier: Earlier) -> int:
    return max((sprint.number for sprint in earlier.sprints), default=0)
