"""`caloron stage`: the typed functions that graphs are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from caloron.cli import output
from caloron.cli.app import dry_run_option, output_option
from caloron.cli.commands.graph.common import (
    GRAPH_FAILED,
    input_option,
    is_strict,
    open_runtime,
    profile_option,
    read_input,
    read_text,
    refuse,
    shown_json,
    unsandboxed_option,
)
from caloron.cli.commands.graph.show import answer_tests, row_of
from caloron.cli.format import printable
from caloron.errors import AlreadyExists, UsageError

if TYPE_CHECKING:
    from caloron.engine.graphs.runtime import GraphRuntime
    from caloron.graph.stage import StageSpec

_SOURCES = ("caloron", "standard", "user")


@click.group()
def stage() -> None:
    """List, run, add and test stages: small typed functions with declared effects.

    A stage is named by its name, its id or a unique beginning of its id. No project is needed.

    \b
    Examples:
      caloron stage list
      caloron stage run text_upper --input '"hello"'
      caloron stage add double.json
    """


def _found(at: GraphRuntime, reference: str) -> StageSpec:
    """The one stage that a reference means."""
    return at.catalogue.lookup(reference).stage


def _signature(stage: StageSpec) -> str:
    from caloron.graph.types import show

    return f"{show(stage.input)} → {show(stage.output)}"


@stage.command("list")
@click.option("--source", type=click.Choice(_SOURCES), help="Only those that come from there.")
@click.option("--all", "everything", is_flag=True, help="Also those that are no longer in use.")
@output_option
def list_stages(source: str | None, everything: bool) -> None:
    """List the stages that graphs can name, with their types and effects.

    \b
    Examples:
      caloron stage list --output table
      caloron stage list --source user
    """
    at = open_runtime()
    rows = [
        {
            "name": one.name,
            "id": one.id,
            "source": at.source_of(one),
            "signature": _signature(one),
            "effects": [effect.word for effect in one.effects],
            "runs_here": at.runner.code_version(one) is not None,
            "lifecycle": one.lifecycle.state,
        }
        for one in sorted(at.catalogue, key=lambda s: (_SOURCES.index(at.source_of(s)), s.name))
        if (source is None or at.source_of(one) == source)
        and (everything or one.lifecycle.state == "Active")
    ]
    lines = [
        f"{row['name']}  {row['signature']}" + ("" if row["runs_here"] else "  (does not run here)")
        for row in rows
    ]
    data = {"stages": rows, "count": len(rows)}
    output.success("stage.list", data, printable("\n".join(lines)) or "No stages.")


@stage.command("show")
@click.argument("name")
@output_option
def show_stage(name: str) -> int:
    """Show one stage: its ids, types, effects, examples and code.

    \b
    Example:
      caloron stage show text_split
    """
    from caloron.graph.errors import GraphError
    from caloron.graph.stage_file import stage_json

    at = open_runtime()
    try:
        found = _found(at, name)
    except GraphError as error:
        return refuse(error)
    runs = at.runner.code_version(found) is not None
    data = {"source": at.source_of(found), "runs_here": runs, "spec": stage_json(found)}
    output.success("stage.show", data, printable(_page(at, found, runs=runs)))
    return 0


def _page(at: GraphRuntime, found: StageSpec, *, runs: bool) -> str:
    from caloron.graph.json_text import compact

    lines = [
        f"{found.name}  {_signature(found)}",
        found.description,
        "",
        f"effects:    {', '.join(effect.word for effect in found.effects)}",
        f"source:     {at.source_of(found)}, {found.lifecycle.state}",
        f"runs here:  {'yes' if runs else 'no'}",
        f"id:         {found.id}",
        f"signature:  {found.signature_id}",
    ]
    for example in found.examples[:3]:
        given, answer = compact(example.input), compact(example.output)
        lines.append(f"example:    {given[:200]} → {answer[:200]}")
    if found.code is not None:
        lines += ["", f"{found.language or 'python'}:", found.code.rstrip()]
    return "\n".join(lines)


@stage.command("run")
@click.argument("name")
@input_option
@profile_option
@unsandboxed_option
@dry_run_option
@output_option
def run_stage(name: str, given: str | None, profile: str, unsandboxed: bool, dry_run: bool) -> int:
    """Run one stage on an input.

    \b
    Examples:
      caloron stage run text_upper --input '"hello"'
      caloron stage run dag_validate --input - < plan.json
    """
    from caloron.engine.graphs.runtime import RunOptions
    from caloron.engine.graphs.traces import new_run_id
    from caloron.graph.errors import GraphError
    from caloron.graph.nodes import Graph, Stage
    from caloron.graph.prepare import prepare

    at, strict = open_runtime(unsandboxed=unsandboxed), is_strict(profile)
    options = RunOptions(run_id=new_run_id())
    try:
        found = _found(at, name)
        if dry_run:
            return output.dry_run("stage.run", [{"action": "run", "target": found.name}])
        alone = Graph(f"the stage {found.name}", "0.1.0", Stage(found.id, "both"))
        prepared = prepare(alone, at.catalogue, strict=strict)
        outcome = at.run(prepared, read_input(given, strict=strict), options)
    except GraphError as error:
        return refuse(error)
    data = {
        "name": found.name,
        "stage_id": found.id,
        "run_id": options.run_id,
        "output": outcome.output,
        "duration_ms": outcome.trace.duration_ms,
    }
    output.success("stage.run", data, shown_json(outcome.output))
    return 0


@stage.command()
@click.argument("file")
@click.option("--no-test", is_flag=True, help="Do not run its examples first.")
@profile_option
@unsandboxed_option
@dry_run_option
@output_option
def add(file: str, no_test: bool, profile: str, unsandboxed: bool, dry_run: bool) -> int:
    """Add a stage from its JSON file, in the simple or the full form of Noether.

    Its examples are run first. A stage of the same name that you added before stays for graphs
    that name its id; the name means the new one.

    \b
    Examples:
      caloron stage add double.json
      caloron stage add double.json --dry-run
    """
    from caloron.graph.errors import GraphError
    from caloron.graph.runners.subprocess import language_of
    from caloron.graph.stage_file import parse_stage

    at = open_runtime(unsandboxed=unsandboxed)
    try:
        spec = parse_stage(read_text(file, "a stage"), strict=is_strict(profile))
    except GraphError as error:
        return refuse(error)
    if not spec.name or at.is_shipped(spec.name):
        raise AlreadyExists(
            f"a stage called {spec.name!r} comes with the program"
            if spec.name
            else "the stage has no name",
            hint="give it another name",
        )
    if spec.code is not None and language_of(spec.language) is None:
        raise UsageError(
            f"nobody here runs stages in {spec.language!r}", hint="python, bash or javascript"
        )
    replaced = [s.id for s in at.catalogue.by_name(spec.name) if s.lifecycle.state == "Active"]
    if dry_run:
        return output.dry_run("stage.add", [{"action": "add", "target": spec.name}])
    at.catalogue.add(spec)
    tried = None if no_test else _tried(at, spec)
    if tried is not None and tried["state"] == "failed":
        said = "\n".join([f"{spec.name} does not do what its examples say", *tried["reasons"]])
        output.failure("stage.add", "GRAPH_FAILED", said, hint="nothing was added")
        return GRAPH_FAILED
    path = at.files.add(spec)
    data = {
        "name": spec.name,
        "id": spec.id,
        "signature_id": spec.signature_id,
        "replaces": [id for id in replaced if id != spec.id],
        "examples": 0 if tried is None else tried["examples"],
        "path": str(path),
    }
    if tried is not None and tried["state"] == "skipped":
        output.note(f"its examples were not tried: {'; '.join(tried['reasons'])}")
    output.success("stage.add", data, printable(f"Added {spec.name} as {spec.id}."))
    return 0


def _tried(at: GraphRuntime, spec: StageSpec) -> dict[str, Any]:
    from caloron.graph.runners.examples import run_examples

    if spec.examples:
        at.check_sandbox([spec])
    tried = run_examples(spec, at.catalogue, at.runner)
    return row_of(spec.name or spec.id, tried.state, tried.examples, tried.reasons)


@stage.command("test")
@click.argument("name", required=False)
@click.option("--source", type=click.Choice(_SOURCES), help="Only those that come from there.")
@unsandboxed_option
@output_option
def test_stages(name: str | None, source: str | None, unsandboxed: bool) -> int:
    """Run the examples of one stage or of all.

    Stages that would reach out into the world are not tried, and that is said.

    \b
    Examples:
      caloron stage test
      caloron stage test text_split
    """
    from caloron.graph.errors import GraphError

    at = open_runtime(unsandboxed=unsandboxed)
    try:
        chosen_ones = (
            [_found(at, name)]
            if name is not None
            else [
                one
                for one in at.catalogue
                if one.lifecycle.state == "Active" and source in (None, at.source_of(one))
            ]
        )
        rows = [_tried(at, one) for one in chosen_ones]
    except GraphError as error:
        return refuse(error)
    return answer_tests("stage.test", rows)
