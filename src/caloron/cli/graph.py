"""`caloron graph`: typed compositions of stages, checked before they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from caloron.cli import graph_look, output
from caloron.cli.graph_words import (
    chosen,
    graph_home,
    input_option,
    objection,
    objection_data,
    profile_option,
    read_graph,
    read_input,
    refuse,
    say_who_writes,
    shown_json,
    unsandboxed_option,
)
from caloron.cli.options import Finite, dry_run_option, output_option

if TYPE_CHECKING:
    from caloron.engine.graph_home import GraphHome, Wishes
    from caloron.graph.prepare import Permissions, Prepared
    from caloron.graph.run import Outcome

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
    "--noether", is_flag=True, help="Answer as `noether run` does: its envelope, its exit codes."
)
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
      caloron graph run double.json --input '{"n": 21}' --noether
    """
    if wanted["noether"]:
        from caloron.cli.graph_noether import answer_as_noether

        return answer_as_noether(file, wanted)
    from caloron.graph.errors import ExecutionError, GraphError

    wishes = wishes_of(wanted)
    at = graph_home(unsandboxed=is_unsandboxed(wanted))
    try:
        prepared = prepared_of(at, read_graph(file), wanted)
        if wanted["dry_run"]:
            return output.dry_run("graph.run", _steps(at, prepared))
        value = read_input(wanted["given"], prepared.profile)
        say_who_writes(at, prepared)
        outcome = at.run(prepared, value, wishes)
    except ExecutionError as error:
        output.aside(f"caloron graph trace {wishes.run_id} tells what was done before")
        return refuse(error)
    except GraphError as error:
        return refuse(error)
    for warning in prepared.warnings:
        output.aside(f"warning: {warning}")
    data = _outcome_data(prepared, outcome, wishes)
    output.success("graph.run", data, shown_json(outcome.output))
    return 0


def is_unsandboxed(wanted: dict[str, Any]) -> bool:
    """Whether programs may run as the user, however that was spelt."""
    none = wanted["isolate"] == "none" or wanted["unsafe_no_isolation"]
    return bool(wanted["unsandboxed"] or none) and not wanted["require_isolation"]


def permissions_of(wanted: dict[str, Any]) -> Permissions:
    from caloron.graph.prepare import Permissions

    return Permissions(
        effects=wanted["allow_effects"] or (),
        capabilities=wanted["allow_capabilities"] or (),
        budget_cents=wanted["budget_cents"],
    )


def prepared_of(
    at: GraphHome, text: bytes, wanted: dict[str, Any], default: str = "strict"
) -> Prepared:
    from caloron.graph.prepare import prepare

    profile = chosen(wanted["profile"], default)
    return prepare(text, at.catalogue, profile, permissions_of(wanted))


def wishes_of(wanted: dict[str, Any]) -> Wishes:
    from caloron.engine.graph_home import Wishes
    from caloron.engine.run_traces import new_run_id
    from caloron.errors import UsageError
    from caloron.graph.run import Limits
    from caloron.ledger.locate import require_id

    named = wanted["run_id"]
    if named is not None:
        require_id(named, "run")
    elif wanted["durable"] and wanted["retry_failed"]:
        raise UsageError("--retry-failed goes on with a run", hint="name it with --run-id")
    if wanted["retry_failed"] and not wanted["durable"]:
        raise UsageError("--retry-failed is for durable runs", hint="add --durable")
    return Wishes(
        run_id=named or new_run_id(),
        durable=wanted["durable"],
        retry_failed=wanted["retry_failed"],
        cached=not wanted["no_cache"],
        limits=Limits(stage_seconds=wanted["stage_timeout"], run_seconds=wanted["timeout"]),
    )


def _steps(at: GraphHome, prepared: Prepared) -> list[dict[str, Any]]:
    from caloron.graph.plan import plan

    steps = plan(prepared.root, at.catalogue).steps
    return [{"action": "run", "target": _name(at, step.stage_id)} for step in steps]


def _name(at: GraphHome, stage_id: str) -> str:
    stage = at.catalogue.get(stage_id)
    return (stage.name if stage else "") or stage_id


def _outcome_data(prepared: Prepared, outcome: Outcome, wishes: Wishes) -> dict[str, Any]:
    return {
        "run_id": wishes.run_id,
        "composition_id": prepared.composition_id,
        "profile": prepared.profile.name,
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
def check(file: str, given: str | None, profile: str | None) -> int:
    """Say everything that is wrong with a graph: where, what was expected, what was found.

    With --input the value is followed to all that would get it, without running anything.

    \b
    Examples:
      caloron graph check double.json
      caloron graph check double.json --input '{"n": "many"}' --output json
    """
    from caloron.graph.canonical import composition_id
    from caloron.graph.errors import GraphError
    from caloron.graph.parse import parse_graph
    from caloron.graph.prepare import prepare
    from caloron.graph.resolve import unknown
    from caloron.graph.types import show

    at, rules = graph_home(), chosen(profile)
    data: dict[str, Any] = {"valid": False, "profile": rules.name, "errors": []}
    try:
        parsed = parse_graph(read_graph(file), rules)
        data["composition_id"] = composition_id(parsed)
        missing = unknown(parsed, at.catalogue, rules)
        if missing:
            return _objected(data, [objection_data(error) for error in missing], 3)
        prepared = prepare(parsed, at.catalogue, rules)
        if given is not None:
            _follow(prepared, read_input(given, rules))
    except GraphError as error:
        findings = getattr(error, "findings", (error,))
        return _objected(data, [objection_data(one) for one in findings], 2)
    data |= {
        "valid": True,
        "input": show(prepared.checked.input),
        "output": show(prepared.checked.output),
        "effects": [effect.word for effect in prepared.effects],
        "warnings": list(prepared.warnings),
    }
    lines = [f"{data['input']} → {data['output']}", f"effects: {', '.join(data['effects'])}"]
    lines += [f"warning: {warning}" for warning in prepared.warnings]
    output.success("graph.check", data, output.printable("\n".join(lines)))
    return 0


def _follow(prepared: Prepared, value: Any) -> None:
    from caloron.graph.errors import Refused
    from caloron.graph.flow import follow
    from caloron.graph.types import Known

    findings = follow(prepared.root, Known(value), prepared.catalogue)
    if findings:
        raise Refused(findings)


def _objected(data: dict[str, Any], errors: list[dict[str, Any]], exit_code: int) -> int:
    code = {2: "INVALID_ARGS", 3: "NOT_FOUND"}[exit_code]
    said = "\n".join(map(objection, errors))
    output.failure("graph.check", code, said, data=data | {"errors": errors})
    return exit_code


@graph.command()
@click.argument("file")
@profile_option
@output_option
def plan(file: str, profile: str | None) -> int:
    """Show what a graph would run, in which order and for how much.

    \b
    Example:
      caloron graph plan double.json --output table
    """
    from caloron.graph.errors import GraphError
    from caloron.graph.plan import plan as planned
    from caloron.graph.policy import declared_cost
    from caloron.graph.prepare import prepare

    at = graph_home()
    try:
        prepared = prepare(read_graph(file), at.catalogue, chosen(profile))
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
        "cost_cents": declared_cost(prepared.root, at.catalogue, prepared.checked.called),
        "time_ms_p50": found.cost.time_ms_p50,
        "tokens_est": found.cost.tokens_est,
        "memory_mb": found.cost.memory_mb,
        "warnings": list(prepared.warnings),
    }
    lines = [_step_line(step) for step in steps]
    lines.append(f"effects: {', '.join(data['effects'])}; {data['cost_cents']} cents declared")
    output.success("graph.plan", data, output.printable("\n".join(lines)))
    return 0


def _step_line(step: dict[str, Any]) -> str:
    after = ", ".join(map(str, step["after"]))
    return f"{step['step']:4}  {step['stage']}" + (f"  after {after}" if after else "")


@graph.command("id")
@click.argument("file")
@profile_option
@output_option
def identify(file: str, profile: str | None) -> int:
    """Print the id of a graph: the same for every way to write the same composition.

    \b
    Example:
      caloron graph id double.json
    """
    from caloron.graph.canonical import composition_id
    from caloron.graph.errors import GraphError
    from caloron.graph.parse import parse_graph

    try:
        parsed = parse_graph(read_graph(file), chosen(profile))
    except GraphError as error:
        return refuse(error)
    found = composition_id(parsed)
    data = {"composition_id": found, "description": parsed.description}
    output.success("graph.id", data, found)
    return 0


for command in (graph_look.show, graph_look.trace, graph_look.test):
    graph.add_command(command)
