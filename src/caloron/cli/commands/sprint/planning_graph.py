"""`caloron sprint --graph`: plan with a graph. Only this option needs the graph library."""

from __future__ import annotations

from typing import Any

from caloron.cli import output
from caloron.cli.commands.graph import common
from caloron.cli.commands.sprint.request import SprintRequest, mark_planning
from caloron.cli.project_view import ensure_unlocked
from caloron.domain.compat.plan_forms import Plan
from caloron.engine.graphs.planning import Planning, planning
from caloron.engine.runs.runtime import runner
from caloron.errors import InUse, UsageError
from caloron.graph.errors import ExecutionError, GraphError, RunInUse


def plan_with_graph(
    request: SprintRequest, graph: str, graph_input: str | None, number: int, *, dry_run: bool
) -> SprintRequest:
    """The same request with the tasks that the graph planned."""
    ensure_unlocked(request.project)
    # Check the agent before paying for a plan.
    runner(request.project, request.project.config.framework).check()
    try:
        run = planning(
            common.open_runtime(unsandboxed=request.choices.unsandboxed),
            graph,
            common.read_graph(graph),
            request.project,
            request.goal,
            number=number,
            agents=request.parallel,
            more=_read_input(graph_input),
        )
    except GraphError as error:
        raise common.as_failure(error) from error
    for warning in run.prepared.warnings:
        output.note(f"{run.name}: warning: {warning}")
    common.report_model(run.at, run.prepared)
    is_new = request.draft is not None
    if dry_run:
        plan = _plan(run, durable=False, is_new=is_new)
    else:
        output.note(f"planning with {run.name}; details: caloron graph trace {run.run_id}")
        with mark_planning(request.project, number, run.value["goal"], run.name):
            plan = _plan(run, durable=True, is_new=is_new)
    return request._replace(tasks=plan.tasks, warnings=plan.warnings, planning=run)


def _plan(run: Planning, *, durable: bool, is_new: bool) -> Plan:
    try:
        return run.run(durable=durable)
    except ExecutionError as error:
        hint = "nothing was started; the same command repeats only what failed"
        if is_new and "there is no project" in error.reason:
            hint = "this graph reads the project, which does not exist yet: first `caloron init`"
        raise common.as_failure(error, hint) from error
    except RunInUse as error:
        raise InUse(str(error), hint="wait for it: it makes this very plan") from error
    except GraphError as error:
        raise common.as_failure(error) from error


def _read_input(text: str | None) -> dict[str, Any]:
    value = common.read_input(text)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError("--graph-input is not an object", hint='such as \'{"constraints": "…"}\'')
    return value
