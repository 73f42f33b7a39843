"""`--graph`: the tasks of a sprint come from a composition, before anything of it is begun."""

from __future__ import annotations

from typing import Any

from caloron.cli import output
from caloron.cli.alone import refuse_held
from caloron.cli.begin import Beginning
from caloron.cli.graph_note import noted
from caloron.cli.graph_words import as_error, graph_home, read_graph, read_input, say_who_writes
from caloron.domain.plan_forms import Plan
from caloron.engine.graph_planning import Planning, planning
from caloron.engine.workshop import runner
from caloron.errors import HeldByAnother, UsageError
from caloron.graph.errors import ExecutionError, GraphError, RunInUse
from caloron.graph.profile import STRICT


def planned_by_graph(
    begin: Beginning, given: dict[str, Any], number: int, *, dry_run: bool
) -> Beginning:
    """The same beginning with the tasks that the composition gives for it."""
    refuse_held(begin.project)
    # Who is to work is looked for before anybody is paid for a plan.
    runner(begin.project, begin.project.config.framework).check()
    try:
        found = planning(
            graph_home(unsandboxed=begin.choices.unsandboxed),
            given["graph"],
            read_graph(given["graph"]),
            begin.project,
            begin.goal,
            number=number,
            agents=begin.parallel,
            more=_more(given["graph_input"]),
        )
    except GraphError as error:
        raise as_error(error) from error
    for warning in found.prepared.warnings:
        output.aside(f"{found.name}: warning: {warning}")
    say_who_writes(found.at, found.prepared)
    if dry_run:
        plan = _plan(found, durable=False, new=begin.new is not None)
    else:
        trace = f"caloron graph trace {found.run_id}"
        output.aside(f"planning with {found.name}: {trace} tells about it")
        with noted(begin.project, number, found.value["goal"], found.name):
            plan = _plan(found, durable=True, new=begin.new is not None)
    return begin._replace(tasks=plan.tasks, warnings=plan.warnings, planning=found)


def _plan(found: Planning, *, durable: bool, new: bool) -> Plan:
    try:
        return found.run(durable=durable)
    except ExecutionError as error:
        hint = "nothing was started; the same command goes on with what has not failed"
        if new and "there is no project" in error.reason:
            hint = "this graph looks at the project, which is not there yet: first `caloron init`"
        raise as_error(error, hint) from error
    except RunInUse as error:
        raise HeldByAnother(str(error), hint="wait for it: it makes this very plan") from error
    except GraphError as error:
        raise as_error(error) from error


def _more(text: str | None) -> dict[str, Any]:
    value = read_input(text, STRICT)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError("--graph-input is no object", hint='such as \'{"constraints": "…"}\'')
    return value
