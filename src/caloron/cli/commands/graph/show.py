"""`caloron graph show|trace|test`: what a graph is, what it did, whether it keeps its word."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from caloron.cli import output
from caloron.cli.app import dry_run_option, output_option
from caloron.cli.commands.graph.common import (
    GRAPH_FAILED,
    is_strict,
    open_runtime,
    profile_option,
    read_graph,
    refuse,
    unsandboxed_option,
)
from caloron.cli.format import counted, printable
from caloron.errors import AlreadyExists, StoreError

if TYPE_CHECKING:
    from caloron.engine.graphs.runtime import GraphRuntime
    from caloron.graph.prepare import Prepared

_SVG = b"<svg "


@click.command()
@click.argument("file")
@click.option("--svg", metavar="OUT", help="Also draw it as a picture, into this file.")
@click.option("--force", is_flag=True, help="Also write over a file that is no picture.")
@profile_option
@dry_run_option
@output_option
def show(file: str, svg: str | None, force: bool, profile: str, dry_run: bool) -> int:
    """Draw a graph: as a tree of text, and with --svg as a picture.

    Stages that are not there are drawn too, and said to be missing.

    \b
    Examples:
      caloron graph show double.json
      caloron graph show double.json --svg double.svg
    """
    from caloron.graph.drawing import text_of
    from caloron.graph.errors import GraphError
    from caloron.graph.nodes import composition_id
    from caloron.graph.parser import parse_graph

    at = open_runtime()
    try:
        parsed = parse_graph(read_graph(file), strict=is_strict(profile))
    except GraphError as error:
        return refuse(error)
    drawn = text_of(parsed, at.catalogue)
    if svg is not None:
        from caloron.graph.drawing import svg_of

        picture = Path(svg).absolute()
        _refuse_other(picture, force=force)
        if not dry_run:
            _write_picture(picture, svg_of(parsed, at.catalogue))
    if dry_run:
        planned = [] if svg is None else [{"action": "write", "target": str(picture)}]
        return output.dry_run("graph.show", planned)
    data = {
        "composition_id": composition_id(parsed),
        "description": parsed.description,
        "drawing": drawn,
        "svg": None if svg is None else str(Path(svg).absolute()),
    }
    output.success("graph.show", data, printable(drawn))
    return 0


def _refuse_other(path: Path, *, force: bool) -> None:
    """A file that is no picture must be meant."""
    try:
        with path.open("rb") as file:
            ours = file.read(len(_SVG)) == _SVG
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot write {path}: {error}", hint="choose another file") from error
    if not ours and not force:
        raise AlreadyExists(
            f"{path} is there already, and is no picture",
            hint="choose another file, or write over it with --force",
        )


def _write_picture(path: Path, content: str) -> None:
    from caloron.store.files import write_atomic

    try:
        write_atomic(path, content.encode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot write {path}: {error}", hint="choose another file") from error


@click.command()
@click.argument("run", required=False)
@output_option
def trace(run: str | None) -> int:
    """Show what a run did; RUN is its id or that of its graph. Without it, list the runs.

    \b
    Examples:
      caloron graph trace
      caloron graph trace plan-7
    """
    at = open_runtime()
    if run is None:
        found = at.traces.latest()
        kept = ("run_id", "started_at", "status", "duration_ms", "composition_id", "description")
        runs = [{name: one[name] for name in kept} for one in found]
        lines = [
            f"{r['run_id']}  {r['status']}  {r['started_at']}  {r['description']}" for r in runs
        ]
        output.success("graph.trace", {"runs": runs}, printable("\n".join(lines)) or "No runs yet.")
        return 0
    told = at.traces.find(run)
    output.success("graph.trace", told, printable(_page(told)))
    return 0


def _page(told: dict[str, Any]) -> str:
    lines = [f"{told['run_id']}  {told['status']}  {told['duration_ms']} ms  {told['description']}"]
    for call in told["stages"]:
        source = "" if call["source"] == "run" else f"  from the {call['source']}"
        lines.append(
            f"  {call['status']:6}  {call['duration_ms']:6} ms  {call['stage']}{source}"
            f"  {call['path']}"
        )
        if call["failure"]:
            lines.append(f"          {call['failure']}")
    if told["error"]:
        lines.append(f"failed at {told['error']['path'] or '$'}: {told['error']['message']}")
    return "\n".join(lines)


@click.command()
@click.argument("file")
@profile_option
@unsandboxed_option
@output_option
def test(file: str, profile: str, unsandboxed: bool) -> int:
    """Run the examples of a graph (`_examples` in its file) and of each of its stages.

    An example has `input` and `output`. What would reach out into the world is not tried, and
    that is said.

    \b
    Example:
      caloron graph test double.json
    """
    from caloron.graph.errors import GraphError
    from caloron.graph.prepare import prepare
    from caloron.graph.runners.examples import run_examples

    at = open_runtime(unsandboxed=unsandboxed)
    try:
        text = read_graph(file)
        prepared = prepare(text, at.catalogue, strict=is_strict(profile))
        stages = at.stages_of(prepared)
        at.check_sandbox(stages)
        rows = [_tried_graph(at, prepared, text)]
        for stage in stages:
            tried = run_examples(stage, at.catalogue, at.runner)
            rows.append(row_of(stage.name or stage.id, tried.state, tried.examples, tried.reasons))
    except GraphError as error:
        return refuse(error)
    return answer_tests("graph.test", rows)


def _tried_graph(at: GraphRuntime, prepared: Prepared, text: bytes) -> dict[str, Any]:
    """The graph itself on what its file promises."""
    from caloron.graph.json_text import decode
    from caloron.graph.runners.examples import run_graph_examples
    from caloron.graph.stage import Example

    examples = decode(text, allow_bigint=not prepared.strict).get("_examples", [])
    name = f"graph {prepared.composition_id[:12]}"
    if not isinstance(examples, list) or not all(_is_example(one) for one in examples):
        return row_of(
            name, "failed", 0, ("`_examples` is a list of objects with input and output",)
        )
    if not examples:
        return row_of(name, "skipped", 0, ("it has no examples",))
    given = [Example(one["input"], one["output"]) for one in examples]
    tried = run_graph_examples(prepared, given, at.runner)
    return row_of(name, tried.state, tried.examples, tried.reasons)


def _is_example(one: Any) -> bool:
    return isinstance(one, dict) and "input" in one and "output" in one


def row_of(name: str, state: str, examples: int, reasons: tuple[str, ...]) -> dict[str, Any]:
    """How one thing did that has examples."""
    return {"name": name, "state": state, "examples": examples, "reasons": list(reasons)}


def answer_tests(command: str, rows: list[dict[str, Any]]) -> int:
    """Answer how all of them did; one that failed fails the command."""
    count = {s: sum(row["state"] == s for row in rows) for s in ("passed", "failed", "skipped")}
    data = {"total": len(rows), **count, "tests": rows}
    lines = [_test_line(row) for row in rows]
    lines.append(", ".join(f"{number} {state}" for state, number in count.items()))
    if not count["failed"]:
        output.success(command, data, printable("\n".join(lines)))
        return 0
    said = [_test_line(row) for row in rows if row["state"] == "failed"]
    output.failure(command, "GRAPH_FAILED", "\n".join(said), data=data)
    return GRAPH_FAILED


def _test_line(row: dict[str, Any]) -> str:
    said = f"{row['state']:8} {row['name']}"
    if row["state"] == "passed":
        return f"{said}  {counted(row['examples'], 'example')}"
    return "\n".join([said, *(f"         {reason}" for reason in row["reasons"])])
