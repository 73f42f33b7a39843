"""`caloron graph`: typed compositions of stages, checked before they run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from caloron.cli import output
from caloron.cli.app import Answer, DryRun, Failed, Number, attributes, group, planned
from caloron.cli.commands.graph import common
from caloron.cli.files import is_own_file, write_file
from caloron.engine.graphs.runtime import GraphRuntime, RunOptions
from caloron.engine.traces import new_run_id
from caloron.errors import UsageError
from caloron.graph.catalogue import unknown_references
from caloron.graph.checker import check_value
from caloron.graph.drawing import svg_of, text_of
from caloron.graph.errors import ExecutionError, GraphError
from caloron.graph.json_text import decode
from caloron.graph.nodes import composition_id
from caloron.graph.parser import parse_graph
from caloron.graph.planning import plan as make_plan
from caloron.graph.prepare import Permissions, Prepared, prepare
from caloron.graph.runners.examples import ExampleReport, run_graph_examples
from caloron.graph.runtime.run import RunLimits
from caloron.graph.stage import Example
from caloron.graph.types import show as show_type
from caloron.ledger.locate import require_id

_SECONDS = Number(0, 1e6, above=True)


@group(
    examples=[
        "caloron graph check double.json",
        "caloron graph run double.json --input '{\"n\": 21}'",
        "caloron graph show double.json --svg double.svg",
    ]
)
def graph() -> None:
    """Check, run and inspect composition graphs: JSON that wires typed stages.

    No project is needed. A graph is checked before it runs, pure stages are remembered, and
    each run leaves a trace.
    """


@graph.command(
    "run",
    dry_run=True,
    examples=[
        "caloron graph run double.json --input '{\"n\": 21}'",
        "caloron graph run plan.json --input goal.json --durable --run-id plan-7",
    ],
)
@click.argument("file")
@common.input_option
@common.profile_option
@click.option(
    "--durable", is_flag=True, help="Journal each call: after a crash the same run continues."
)
@click.option("--run-id", metavar="RUN", help="Name the run; needed to continue a durable one.")
@click.option("--retry-failed", is_flag=True, help="Repeat the failed calls of a durable run.")
@click.option("--allow-effects", metavar="LIST", help="Refuse other effects: pure,network,…")
@click.option("--allow-capabilities", metavar="LIST", help="Refuse other capabilities: network,…")
@click.option("--budget-cents", type=Number(0), help="Maximum cost of the stages.")
@click.option("--timeout", type=_SECONDS, metavar="SECONDS", help="Time limit of the whole run.")
@click.option("--stage-timeout", type=_SECONDS, metavar="SECONDS", help="Time limit of each call.")
@click.option("--no-cache", is_flag=True, help="Run pure stages again, and cache nothing.")
@common.unsandboxed_option
@click.option(
    "--isolate",
    type=click.Choice(["auto", "bwrap", "none"]),
    default="auto",
    show_default=True,
    help="As Noether spells it: `none` is --unsandboxed.",
)
@click.option("--unsafe-no-isolation", is_flag=True, help="As Noether spells --unsandboxed.")
@click.option("--require-isolation", is_flag=True, help="As Noether spells it; always so here.")
def run_graph(file: str, dry_run: bool, **chosen: Any) -> Answer | DryRun:
    """Check a graph, then run it; FILE `-` is read from standard input."""
    options = run_options(chosen)
    runtime = common.open_runtime(unsandboxed=is_unsandboxed(chosen))
    permissions = Permissions(
        effects=chosen["allow_effects"] or (),
        capabilities=chosen["allow_capabilities"] or (),
        budget_cents=chosen["budget_cents"],
    )
    try:
        strict = common.is_strict(chosen["profile"])
        prepared = prepare(common.read_graph(file), runtime.catalogue, permissions, strict=strict)
        if dry_run:
            steps = make_plan(prepared.root, runtime.catalogue).steps
            return DryRun(*(planned("run", _stage_name(runtime, s.stage_id)) for s in steps))
        value = common.read_input(chosen["value"], strict=strict)
        common.report_model(runtime, prepared)
        result = runtime.run(prepared, value, options)
    except ExecutionError:
        output.note(f"caloron graph trace {options.run_id} shows the calls before the failure")
        raise
    for warning in prepared.warnings:
        output.note(f"warning: {warning}")
    data = {
        "run_id": options.run_id,
        "composition_id": prepared.composition_id,
        "profile": chosen["profile"],
        "output": result.output,
        "status": result.trace.status,
        "effects": [effect.word for effect in prepared.effects],
        "warnings": list(prepared.warnings),
        "spent_cents": result.spent_cents,
        "cache": {"hits": result.cache_hits, "misses": result.cache_misses},
        "calls": len(result.trace.stages),
        "duration_ms": result.trace.duration_ms,
    }
    return Answer(data, lambda: common.shown_json(result.output))


def is_unsandboxed(chosen: dict[str, Any]) -> bool:
    """True if programs may run as the user, however that was spelt."""
    none = chosen["isolate"] == "none" or chosen["unsafe_no_isolation"]
    return bool(chosen["unsandboxed"] or none) and not chosen["require_isolation"]


def run_options(chosen: dict[str, Any]) -> RunOptions:
    run_id = chosen["run_id"]
    if run_id is not None:
        require_id(run_id, "run")
    elif chosen["durable"] and chosen["retry_failed"]:
        raise UsageError("--retry-failed continues a run", hint="name it with --run-id")
    if chosen["retry_failed"] and not chosen["durable"]:
        raise UsageError("--retry-failed is for durable runs", hint="add --durable")
    return RunOptions(
        run_id=run_id or new_run_id(),
        durable=chosen["durable"],
        retry_failed=chosen["retry_failed"],
        cached=not chosen["no_cache"],
        limits=RunLimits(stage_seconds=chosen["stage_timeout"], run_seconds=chosen["timeout"]),
    )


def _stage_name(runtime: GraphRuntime, stage_id: str) -> str:
    stage = runtime.catalogue.get(stage_id)
    return (stage.name if stage else "") or stage_id


@graph.command(
    examples=[
        "caloron graph check double.json",
        'caloron graph check double.json --input \'{"n": "many"}\' --output json',
    ]
)
@click.argument("file")
@common.input_option
@common.profile_option
def check(file: str, value: str | None, profile: str) -> Answer:
    """Report every error of a graph: its place, what was expected and what was found.

    With --input the types of the value are checked at every stage, without running anything.
    """
    runtime, strict = common.open_runtime(), common.is_strict(profile)
    data: dict[str, Any] = {"valid": False, "profile": profile, "errors": []}
    try:
        parsed = parse_graph(common.read_graph(file), strict=strict)
        data["composition_id"] = composition_id(parsed)
        if missing := unknown_references(parsed, runtime.catalogue, strict=strict):
            raise _objected("NOT_FOUND", data, missing)
        prepared = prepare(parsed, runtime.catalogue, strict=strict)
        if value is not None:
            input_value = common.read_input(value, strict=strict)
            errors = check_value(prepared.root, input_value, prepared.catalogue).errors
            if errors:
                raise _objected("INVALID_ARGS", data, errors)
    except GraphError as error:
        raise _objected("INVALID_ARGS", data, getattr(error, "errors", (error,))) from error
    data |= {
        "valid": True,
        "input": show_type(prepared.checked.input),
        "output": show_type(prepared.checked.output),
        "effects": [effect.word for effect in prepared.effects],
        "warnings": list(prepared.warnings),
    }
    lines = [f"{data['input']} → {data['output']}", f"effects: {', '.join(data['effects'])}"]
    lines += [f"warning: {warning}" for warning in prepared.warnings]
    return Answer(data, "\n".join(lines))


def _objected(code: str, data: dict[str, Any], errors: Iterable[GraphError]) -> Failed:
    objections = [common.objection_data(error) for error in errors]
    return Failed(code, common.objections_text(objections), data=data | {"errors": objections})


@graph.command(examples=["caloron graph plan double.json"])
@click.argument("file")
@common.profile_option
def plan(file: str, profile: str) -> Answer:
    """Show what a graph would run, in which order and for how much."""
    runtime = common.open_runtime()
    catalogue = runtime.catalogue
    prepared = prepare(common.read_graph(file), catalogue, strict=common.is_strict(profile))
    made = make_plan(prepared.root, catalogue)
    steps: list[dict[str, Any]] = [
        {"step": s.index, "stage": _stage_name(runtime, s.stage_id), "after": list(s.depends_on)}
        for s in made.steps
    ]
    data: dict[str, Any] = {
        "composition_id": prepared.composition_id,
        "steps": steps,
        "groups": [list(group) for group in made.groups],
        "effects": [effect.word for effect in prepared.effects],
        "cost_cents": prepared.cost_cents,
        **attributes(made.cost, "time_ms_p50", "tokens_est", "memory_mb"),
        "warnings": list(prepared.warnings),
    }
    lines = []
    for step in steps:
        after = f"  after {', '.join(map(str, step['after']))}" if step["after"] else ""
        lines.append(f"{step['step']:4}  {step['stage']}{after}")
    lines.append(f"effects: {', '.join(data['effects'])}; {data['cost_cents']} cents declared")
    return Answer(data, "\n".join(lines))


@graph.command("id", examples=["caloron graph id double.json"])
@click.argument("file")
@common.profile_option
def identify(file: str, profile: str) -> Answer:
    """Print the id of a graph: the same for every way to write the same composition."""
    parsed = parse_graph(common.read_graph(file), strict=common.is_strict(profile))
    id = composition_id(parsed)
    return Answer({"composition_id": id, "description": parsed.description}, id)


@graph.command(
    dry_run=True,
    examples=["caloron graph show double.json", "caloron graph show double.json --svg double.svg"],
)
@click.argument("file")
@click.option("--svg", metavar="OUT", help="Also write it as a picture to this file.")
@click.option("--force", is_flag=True, help="Also overwrite a file that is no picture.")
@common.profile_option
def show(file: str, svg: str | None, force: bool, profile: str, dry_run: bool) -> Answer | DryRun:
    """Draw a graph: as a tree of text, and with --svg as a picture.

    Missing stages are drawn too, and marked as missing.
    """
    runtime = common.open_runtime()
    parsed = parse_graph(common.read_graph(file), strict=common.is_strict(profile))
    drawing = text_of(parsed, runtime.catalogue)
    picture = None if svg is None else Path(svg).absolute()
    if picture is not None:
        is_own_file(picture, b"<svg ", "picture", force=force)
        if not dry_run:
            write_file(picture, svg_of(parsed, runtime.catalogue))
    if dry_run:
        return DryRun(*(() if picture is None else (planned("write", str(picture)),)))
    data = {
        "composition_id": composition_id(parsed),
        "description": parsed.description,
        "drawing": drawing,
        "svg": None if picture is None else str(picture),
    }
    return Answer(data, drawing)


_RUN_FIELDS = ("run_id", "started_at", "status", "duration_ms", "composition_id", "description")


@graph.command(examples=["caloron graph trace", "caloron graph trace plan-7"])
@click.argument("run", required=False)
def trace(run: str | None) -> Answer:
    """Show what a run did; RUN is its id or that of its graph. Without it, list the runs."""
    traces = common.open_runtime().traces
    if run is not None:
        data = traces.find(run)
        return Answer(data, _trace_text(data))
    runs = [{name: latest[name] for name in _RUN_FIELDS} for latest in traces.latest()]
    lines = [f"{r['run_id']}  {r['status']}  {r['started_at']}  {r['description']}" for r in runs]
    return Answer({"runs": runs}, "\n".join(lines) or "No runs yet.")


def _trace_text(run: dict[str, Any]) -> str:
    lines = [f"{run['run_id']}  {run['status']}  {run['duration_ms']} ms  {run['description']}"]
    for call in run["stages"]:
        source = "" if call["source"] == "run" else f"  from the {call['source']}"
        lines.append(
            f"  {call['status']:6}  {call['duration_ms']:6} ms  {call['stage']}{source}"
            f"  {call['path']}"
        )
        lines += [f"          {call['failure']}"] if call["failure"] else []
    if run["error"]:
        lines.append(f"failed at {run['error']['path'] or '$'}: {run['error']['message']}")
    return "\n".join(lines)


@graph.command(examples=["caloron graph test double.json"])
@click.argument("file")
@common.profile_option
@common.unsandboxed_option
def test(file: str, profile: str, unsandboxed: bool) -> Answer:
    """Run the examples of a graph (`_examples` in its file) and of each of its stages.

    An example has `input` and `output`. Examples with effects on the outside world are skipped,
    and reported as skipped.
    """
    runtime = common.open_runtime(unsandboxed=unsandboxed)
    text = common.read_graph(file)
    prepared = prepare(text, runtime.catalogue, strict=common.is_strict(profile))
    stages = runtime.stages_of(prepared)
    runtime.check_sandbox(stages)
    tried = _run_examples(runtime, prepared, text)
    rows = [common.test_stage(runtime, stage) for stage in stages]
    return common.answer_tests(
        [common.test_row(f"graph {prepared.composition_id[:12]}", tried), *rows]
    )


def _run_examples(runtime: GraphRuntime, prepared: Prepared, text: bytes) -> ExampleReport:
    """Run the examples in the file of a graph."""
    examples = decode(text, allow_bigint=not prepared.strict).get("_examples", [])
    if not isinstance(examples, list) or not all(
        isinstance(example, dict) and "input" in example and "output" in example
        for example in examples
    ):
        reason = "`_examples` is a list of objects with input and output"
        return ExampleReport("failed", reasons=(reason,))
    if not examples:
        return ExampleReport("skipped", reasons=("it has no examples",))
    pairs = [Example(example["input"], example["output"]) for example in examples]
    return run_graph_examples(prepared, pairs, runtime.runner)
