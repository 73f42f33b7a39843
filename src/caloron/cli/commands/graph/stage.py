"""`caloron stage`: the typed functions that graphs are made of; `caloron noether` exports them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from caloron.cli import output
from caloron.cli.app import Answer, DryRun, Failed, group, planned
from caloron.cli.commands.graph import common
from caloron.cli.format import counted
from caloron.engine.graphs.runtime import GraphRuntime, RunOptions
from caloron.engine.traces import new_run_id
from caloron.errors import AlreadyExists, UsageError
from caloron.graph.json_text import compact
from caloron.graph.nodes import Graph, Stage
from caloron.graph.prepare import prepare
from caloron.graph.runners.subprocess import language_of
from caloron.graph.stage import StageSpec
from caloron.graph.stage_file import parse_stage, stage_json
from caloron.graph.types import show
from caloron.store import log

_SOURCES = ("caloron", "standard", "user")

_source_option = click.option(
    "--source", type=click.Choice(_SOURCES), help="Only stages of this source."
)


@group(
    examples=[
        "caloron stage list",
        "caloron stage run text_upper --input '\"hello\"'",
        "caloron stage add double.json",
    ]
)
def stage() -> None:
    """List, run, add and test stages: small typed functions with declared effects.

    A stage is named by its name, its id or a unique beginning of its id. No project is needed.
    """


def _signature(stage: StageSpec) -> str:
    return f"{show(stage.input)} → {show(stage.output)}"


def _is_active(stage: StageSpec) -> bool:
    return stage.lifecycle.state == "Active"


@stage.command("list", examples=["caloron stage list", "caloron stage list --source user"])
@_source_option
@click.option("--all", "everything", is_flag=True, help="Also stages that are no longer in use.")
def list_stages(source: str | None, everything: bool) -> Answer:
    """List the stages that graphs can name, with their types and effects."""
    runtime = common.open_runtime()
    rows = [
        {
            "name": spec.name,
            "id": spec.id,
            "source": runtime.source_of(spec),
            "signature": _signature(spec),
            "effects": [effect.word for effect in spec.effects],
            "runs_here": runtime.runner.code_version(spec) is not None,
            "lifecycle": spec.lifecycle.state,
        }
        for spec in runtime.catalogue
        if source in (None, runtime.source_of(spec)) and (everything or _is_active(spec))
    ]
    rows.sort(key=lambda row: (_SOURCES.index(str(row["source"])), str(row["name"])))
    lines = [
        f"{row['name']}  {row['signature']}" + ("" if row["runs_here"] else "  (does not run here)")
        for row in rows
    ]
    return Answer({"stages": rows, "count": len(rows)}, "\n".join(lines) or "No stages.")


@stage.command("show", examples=["caloron stage show text_split"])
@click.argument("name")
def show_stage(name: str) -> Answer:
    """Show one stage: its ids, types, effects, examples and code."""
    runtime = common.open_runtime()
    spec = runtime.catalogue.lookup(name).stage
    source, runs_here = runtime.source_of(spec), runtime.runner.code_version(spec) is not None
    lines = [
        f"{spec.name}  {_signature(spec)}",
        spec.description,
        "",
        f"effects:    {', '.join(effect.word for effect in spec.effects)}",
        f"source:     {source}, {spec.lifecycle.state}",
        f"runs here:  {'yes' if runs_here else 'no'}",
        f"id:         {spec.id}",
        f"signature:  {spec.signature_id}",
    ]
    lines += [
        f"example:    {compact(example.input)[:200]} → {compact(example.output)[:200]}"
        for example in spec.examples[:3]
    ]
    if spec.code is not None:
        lines += ["", f"{spec.language or 'python'}:", spec.code.rstrip()]
    data = {"source": source, "runs_here": runs_here, "spec": stage_json(spec)}
    return Answer(data, "\n".join(lines))


@stage.command(
    "run",
    dry_run=True,
    examples=[
        "caloron stage run text_upper --input '\"hello\"'",
        "caloron stage run dag_validate --input - < plan.json",
    ],
)
@click.argument("name")
@common.input_option
@common.profile_option
@common.unsandboxed_option
def run_stage(
    name: str, value: str | None, profile: str, unsandboxed: bool, dry_run: bool
) -> Answer | DryRun:
    """Run one stage on an input."""
    runtime, strict = common.open_runtime(unsandboxed=unsandboxed), common.is_strict(profile)
    options = RunOptions(run_id=new_run_id())
    spec = runtime.catalogue.lookup(name).stage
    if dry_run:
        return DryRun(planned("run", spec.name))
    graph = Graph(f"the stage {spec.name}", "0.1.0", Stage(spec.id, "both"))
    prepared = prepare(graph, runtime.catalogue, strict=strict)
    result = runtime.run(prepared, common.read_input(value, strict=strict), options)
    data = {
        "name": spec.name,
        "stage_id": spec.id,
        "run_id": options.run_id,
        "output": result.output,
        "duration_ms": result.trace.duration_ms,
    }
    return Answer(data, lambda: common.shown_json(result.output))


@stage.command(
    dry_run=True,
    examples=["caloron stage add double.json", "caloron stage add double.json --dry-run"],
)
@click.argument("file")
@click.option("--no-test", is_flag=True, help="Do not run its examples first.")
@common.profile_option
@common.unsandboxed_option
def add(
    file: str, no_test: bool, profile: str, unsandboxed: bool, dry_run: bool
) -> Answer | DryRun:
    """Add a stage from its JSON file, in the simple or the full form of Noether.

    Its examples are run first. A stage of the same name that you added before stays for graphs
    that name its id; the name means the new one.
    """
    runtime = common.open_runtime(unsandboxed=unsandboxed)
    spec = parse_stage(common.read_text(file, "a stage"), strict=common.is_strict(profile))
    _refuse_unfit(runtime, spec)
    replaced = [s.id for s in runtime.catalogue.by_name(spec.name) if _is_active(s)]
    if dry_run:
        return DryRun(planned("add", spec.name))
    runtime.catalogue.add(spec)
    tried = None if no_test else _run_examples(runtime, spec)
    if tried is not None and tried["state"] == "failed":
        lines = [f"{spec.name} does not do what its examples say", *tried["reasons"]]
        raise Failed("GRAPH_FAILED", "\n".join(lines), hint="nothing was added")
    data = {
        "name": spec.name,
        "id": spec.id,
        "signature_id": spec.signature_id,
        "replaces": [id for id in replaced if id != spec.id],
        "examples": 0 if tried is None else tried["examples"],
        "path": str(runtime.files.add(spec)),
    }
    if tried is not None and tried["state"] == "skipped":
        output.note(f"its examples were skipped: {'; '.join(tried['reasons'])}")
    return Answer(data, f"Added {spec.name} as {spec.id}.")


def _refuse_unfit(runtime: GraphRuntime, spec: StageSpec) -> None:
    if not spec.name or runtime.is_shipped(spec.name):
        shipped = f"a stage called {spec.name!r} comes with the program"
        raise AlreadyExists(
            shipped if spec.name else "the stage has no name", hint="give it another name"
        )
    if spec.code is not None and language_of(spec.language) is None:
        raise UsageError(
            f"stages in {spec.language!r} cannot run here", hint="python, bash or javascript"
        )


def _run_examples(runtime: GraphRuntime, spec: StageSpec) -> dict[str, Any]:
    if spec.examples:
        runtime.check_sandbox([spec])
    return common.test_stage(runtime, spec)


@stage.command("test", examples=["caloron stage test", "caloron stage test text_split"])
@click.argument("name", required=False)
@_source_option
@common.unsandboxed_option
def test_stages(name: str | None, source: str | None, unsandboxed: bool) -> Answer:
    """Run the examples of one stage or of all.

    Stages with effects on the outside world are skipped, and reported as skipped.
    """
    runtime = common.open_runtime(unsandboxed=unsandboxed)
    if name is not None:
        specs = [runtime.catalogue.lookup(name).stage]
    else:
        specs = [
            spec
            for spec in runtime.catalogue
            if _is_active(spec) and source in (None, runtime.source_of(spec))
        ]
    return common.answer_tests([_run_examples(runtime, spec) for spec in specs])


@group(examples=["caloron noether register"])
def noether() -> None:
    """Register the stages of Caloron with Noether."""


@noether.command(
    dry_run=True,
    examples=[
        "caloron noether register",
        "caloron noether register --binary ~/bin/noether --ids compositions/stage_ids.json",
    ],
)
@click.option("--binary", metavar="PROGRAM", help="Noether's program (NOETHER_BIN, noether).")
@click.option(
    "--ids",
    "file",
    default="stage_ids.json",
    show_default=True,
    metavar="FILE",
    help="File for the ids of the stages.",
)
def register(binary: str | None, file: str, dry_run: bool) -> Answer | DryRun:
    """Add every stage of the catalogue to Noether's store, and write their ids to a file.

    The store is the one that Noether itself uses (NOETHER_HOME). Each stage calls `caloron stage
    run`, so that Caloron must be installed there.
    """
    from caloron.engine.graphs.noether import find_binary, register_all
    from caloron.stages.catalogue import catalogue_stages
    from caloron.store.files import write_atomic

    if dry_run:
        actions = [planned("add", spec.name) for spec in catalogue_stages()]
        return DryRun(*actions, planned("write", file))
    done = register_all(find_binary(binary))
    if done.ids:
        known = _known_ids(Path(file)) if done.failures else {}
        ids = dict(sorted((known | done.ids).items()))
        write_atomic(Path(file), (json.dumps(ids, indent=2) + "\n").encode())
    for warning in done.warnings:
        output.note(f"warning: {warning}")
    data = {"file": file, "ids": done.ids, "failures": done.failures}
    if done.failures:
        reasons = "\n".join(f"{name}: {why}" for name, why in done.failures.items())
        message = f"{counted(len(done.failures), 'stage')} not added:\n{reasons}"
        raise Failed("UPSTREAM_ERROR", message, data=data)
    return Answer(data, f"{counted(len(done.ids), 'stage')} registered; their ids are in {file}.")


def _known_ids(file: Path) -> dict[str, str]:
    """The ids of an earlier registration: a stage that failed now may still be registered."""
    try:
        ids = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        log.warning("cannot read the ids of an earlier registration", error=error, path=file)
        return {}
    return ids if isinstance(ids, dict) else {}
