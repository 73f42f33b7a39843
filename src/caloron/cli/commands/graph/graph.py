"""`caloron graph`: typed compositions of stages, checked before they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from caloron.cli import output
from caloron.cli.app import Finite, dry_run_option, output_option
from caloron.cli.commands.graph import show as graph_look
from caloron.cli.commands.graph.common import (
    input_option,
    is_strict,
    objection,
    objection_data,
    open_runtime,
    profile_option,
    read_graph,
    read_input,
    refuse,
    report_model,
    shown_json,
    unsandboxed_option,
)
from caloron.cli.format import printable

if TYPE_CHECKING:
    from caloron.engine.graphs.runtime import GraphRuntime, RunOptions
    from caloron.graph.prepare import Permissions, Prepared
    from caloron.graph.runtime.run import RunResult

_SECONDS = Finite(min=0, min_open=True, max=1e6)


@click.group()
def graph() -> None:
    """Check, run and look at composition graphs: JSON that wires typed stages.

    No project is needed. A graph is checked before it runs, pure stages are remembered, and
    each run leaves a trace.

    \b
    Examples:
      caloron graph check double.json
      caloron graph run double.json --input '{"n": 21}'
      caloron graph show double.json --svg double.svg
    """


@graph.command("run")
@click.argument("file")
@input_option
@profile_option
@click.option(
    "--durable", is_flag=True, help="Journal each call: after a crash the same run goes on."
)
@click.option("--run-id", metavar="RUN", help="Name the run; needed to go on with a durable one.")
@click.option("--retry-failed", is_flag=True, help="Of a durable run, make failed calls again.")
@click.option("--allow-effects", metavar="LIST", help="Refuse other effects: pure,network,…")
@click.option("--allow-capabilities", metavar="LIST", help="Refuse other capabilities: network,…")
@click.option("--budget-cents", type=click.IntRange(min=0), help="What the stages may cost.")
@click.option("--timeout", type=_SECONDS, metavar="SECONDS", help="For the whole run.")
@click.option("--stage-timeout", type=_SECONDS, metavar="SECONDS", help="For each call of a stage.")
@click.option("--no-cache", is_flag=True, help="Ask pure stages again, and remember nothing.")
@unsandboxed_option
@click.option(
    "--isolate",
    type=click.Choice(["auto", "bwrap", "none"]),
    default="auto",
    show_default=True,
    help="As Noether spells it: `none` is --unsandboxed.",
)
@click.option("--unsafe-no-isolation", is_flag=True, help="As Noether spells --unsandboxed.")
@click.option("--require-isolation", is_flag=True, help="As Noether spells it; always so here.")
@dry_run_option
@output_option
def run_graph(file: str, **wanted: Any) -> int:
    """Check a graph, then run it; FILE `-` is read from standard input.

    \b
    Examples:
      caloron graph run double.json --input '{"n": 21}'
      caloron graph run plan.json --input goal.json --durable --run-id plan-7
    """
    from caloron.graph.errors import ExecutionError, GraphError
    from caloron.graph.prepare import prepare

    options = run_options(wanted)
    at = open_runtime(unsandboxed=is_unsandboxed(wanted))
    try:
        prepared = prepare(
            read_graph(file),
            at.catalogue,
            _permissions(wanted),
            strict=is_strict(wanted["profile"]),
        )
        if wanted["dry_run"]:
            return output.dry_run("graph.run", _steps(at, prepared))
        value = read_input(wanted["given"], strict=prepared.strict)
        report_model(at, prepared)
        outcome = at.run(prepared, value, options)
    except ExecutionError as error:
        output.note(f"caloron graph trace {options.run_id} tells what was done before")
        return refuse(error)
    except GraphError as error:
        return refuse(error)
    for warning in prepared.warnings:
        output.note(f"warning: {warning}")
    data = _outcome_data(prepared, outcome, options)
    output.success("graph.run", data, shown_json(outcome.output))
    return 0


def is_unsandboxed(wanted: dict[str, Any]) -> bool:
    """Whether programs may run as the user, however that was spelt."""
    none = wanted["isolate"] == "none" or wanted["unsafe_no_isolation"]
    return bool(wanted["unsandboxed"] or none) and not wanted["require_isolation"]


def _permissions(wanted: dict[str, Any]) -> Permissions:
    from caloron.graph.prepare import Permissions

    return Permissions(
        effects=wanted["allow_effects"] or (),
        capabilities=wanted["allow_capabilities"] or (),
        budget_cents=wanted["budget_cents"],
    )


def run_options(wanted: dict[str, Any]) -> RunOptions:
    from caloron.engine.graphs.runtime import RunOptions
    from caloron.engine.graphs.traces import new_run_id
    from caloron.errors import UsageError
    from caloron.graph.runtime.run import RunLimits
    from caloron.ledger.locate import require_id

    named = wanted["run_id"]
    if named is not None:
        require_id(named, "run")
    elif wanted["durable"] and wanted["retry_failed"]:
        raise UsageError("--retry-failed goes on with a run", hint="name it with --run-id")
    if wanted["retry_failed"] and not wanted["durable"]:
        raise UsageError("--retry-failed is for durable runs", hint="add --durable")
    return RunOptions(
        run_id=named or new_run_id(),
        durable=wanted["durable"],
        retry_failed=wanted["retry_failed"],
        cached=not wanted["no_cache"],
        limits=RunLimits(stage_seconds=wanted["stage_timeout"], run_seconds=wanted["timeout"]),
    )


def _steps(at: GraphRuntime, prepared: Prepared) -> list[dict[str, Any]]:
    from caloron.graph.planning import plan

    steps = plan(prepared.root, at.catalogue).steps
    return [{"action": "run", "target": _name(at, step.stage_id)} for step in steps]


def _name(at: GraphRuntime, stage_id: str) -> str:
    stage = at.catalogue.get(stage_id)
    return (stage.name if stage else "") or stage_id


def _outcome_data(prepared: Prepared, outcome: RunResult, options: RunOptions) -> dict[str, Any]:
    return {
        "run_id": options.run_id,
        "composition_id": prepared.composition_id,
        "profile": "strict" if prepared.strict else "noether",
        "output": outcome.output,
        "status": outcome.trace.status,
        "effects": [effect.word for effect in prepared.effects],
        "warnings": list(prepared.warnings),
        "spent_cents": outcome.spent_cents,
        "cache": {"hits": outcome.cache_hits, "misses": outcome.cache_misses},
        "calls": len(outcome.trace.stages),
        "duration_ms": outcome.trace.duration_ms,
    }


@graph.command()
@click.argument("file")
@input_option
@profile_option
@output_option
def check(file: str, given: str | None, profile: str) -> int:
    """Say everything that is wrong with a graph: where, what was expected, what was found.

    With --input the value is followed to all that would get it, without running anything.

    \b
    Examples:
      caloron graph check double.json
      caloron graph check double.json --input '{"n": "many"}' --output json
    """
    from caloron.graph.catalogue import unknown_references
    from caloron.graph.checker.checker import check_value
    from caloron.graph.errors import GraphError, Refused
    from caloron.graph.nodes import composition_id
    from caloron.graph.parser import parse_graph
    from caloron.graph.prepare import prepare
    from caloron.graph.types import show

    at, strict = open_runtime(), is_strict(profile)
    data: dict[str, Any] = {"valid": False, "profile": profile, "errors": []}
    try:
        parsed = parse_graph(read_graph(file), strict=strict)
        data["composition_id"] = composition_id(parsed)
        missing = unknown_references(parsed, at.catalogue, strict=strict)
        if missing:
            return _objected(data, [objection_data(error) for error in missing], 3)
        prepared = prepare(parsed, at.catalogue, strict=strict)
        if given is not None:
            value = read_input(given, strict=strict)
            errors = check_value(prepared.root, value, prepared.catalogue).errors
            if errors:
                raise Refused(errors)
    except GraphError as error:
        reasons = getattr(error, "errors", (error,))
        return _objected(data, [objection_data(reason) for reason in reasons], 2)
    data |= {
        "valid": True,
        "input": show(prepared.checked.input),
        "output": show(prepared.checked.output),
        "effects": [effect.word for effect in prepared.effects],
        "warnings": list(prepared.warnings),
    }
    lines = [f"{data['input']} → {data['output']}", f"effects: {', '.join(data['effects'])}"]
    lines += [f"warning: {warning}" for warning in prepared.warnings]
    output.success("graph.check", data, printable("\n".join(lines)))
    return 0


def _objected(data: dict[str, Any], errors: list[dict[str, Any]], exit_code: int) -> int:
    code = {2: "INVALID_ARGS", 3: "NOT_FOUND"}[exit_code]
    said = "\n".join(map(objection, errors))
    output.failure("graph.check", code, said, data=data | {"errors": errors})
    return exit_code


@graph.command()
@click.argument("file")
@profile_option
@output_option
def plan(file: str, profile: str) -> int:
    """Show what a graph would run, in which order and for how much.

    \b
    Example:
      caloron graph plan double.json --output table
    """
    from caloron.graph.errors import GraphError
    from caloron.graph.planning import plan as planned
    from caloron.graph.prepare import prepare

    at = open_runtime()
    try:
        prepared = prepare(read_graph(file), at.catalogue, strict=is_strict(profile))
    except GraphError as error:
        return refuse(error)
    found = planned(prepared.root, at.catalogue)
    steps = [
        {"step": s.index, "stage": _name(at, s.stage_id), "after": list(s.depends_on)}
        for s in found.steps
    ]
    data: dict[str, Any] = {
        "composition_id": prepared.composition_id,
        "steps": steps,
        "groups": [list(group) for group in found.groups],
        "effects": [effect.word for effect in prepared.effects],
        "cost_cents": prepared.cost_cents,
        "time_ms_p50": found.cost.time_ms_p50,
        "tokens_est": found.cost.tokens_est,
        "memory_mb": found.cost.memory_mb,
        "warnings": list(prepared.warnings),
    }
    lines = [_step_line(step) for step in steps]
    lines.append(f"effects: {', '.join(data['effects'])}; {data['cost_cents']} cents declared")
    output.success("graph.plan", data, printable("\n".join(lines)))
    return 0


def _step_line(step: dict[str, Any]) -> str:
    after = ", ".join(map(str, step["after"]))
    return f"{step['step']:4}  {step['stage']}" + (f"  after {after}" if after else "")


@graph.command("id")
@click.argument("file")
@profile_option
@output_option
def identify(file: str, profile: str) -> int:
    """Print the id of a graph: the same for every way to write the same composition.

    \b
    Example:
      caloron graph id double.json
    """
    from caloron.graph.errors import GraphError
    from caloron.graph.nodes import composition_id
    from caloron.graph.parser import parse_graph

    try:
        parsed = parse_graph(read_graph(file), strict=is_strict(profile))
    except GraphError as error:
        return refuse(error)
    found = composition_id(parsed)
    data = {"composition_id": found, "description": parsed.description}
    output.success("graph.id", data, found)
    return 0


for command in (graph_look.show, graph_look.trace, graph_look.test):
    graph.add_command(command)
