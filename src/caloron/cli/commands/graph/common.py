"""Shared by the commands about graphs and stages: options, input, and errors of the library."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from caloron.cli import output
from caloron.cli.app import Answer, Failed
from caloron.cli.format import counted
from caloron.engine.graphs.runtime import GraphRuntime
from caloron.errors import CaloronError, NotFound, UsageError, store_errors
from caloron.graph.errors import ExecutionError, GraphError, ParseError, Refused
from caloron.graph.json_text import decode
from caloron.graph.prepare import Prepared
from caloron.graph.runners.examples import ExampleReport, run_examples
from caloron.graph.stage import StageSpec
from caloron.ledger.locate import home
from caloron.stages.compositions import composition_names, graph_text

#: The error codes of envelopes by the kind of an error of the graph library.
_CODES = {
    "budget": "INVALID_ARGS",
    "parse": "INVALID_ARGS",
    "type": "INVALID_ARGS",
    "capabilities": "INVALID_ARGS",
    "effects": "INVALID_ARGS",
    "reference": "NOT_FOUND",
    "run": "CONFLICT",
    "in use": "CONFLICT",
    "journal": "PRECONDITION_FAILED",
}
_HINTS = {
    "reference": "caloron stage list shows the stages",
    "effects": "name it in --allow-effects, or leave the option out",
    "capabilities": "name it in --allow-capabilities, or leave the option out",
    "run": "choose another --run-id",
    "in use": "wait for it, or choose another --run-id",
    "journal": "free space or make that folder writable, then run the same command again;"
    " what was recorded is safe",
}
_LARGEST = 256 * 1024 * 1024

profile_option = click.option(
    "--profile",
    type=click.Choice(["strict", "noether"]),
    default="strict",
    show_default=True,
    help="Read and check with all rules, or only with those of Noether.",
)
unsandboxed_option = click.option(
    "--unsandboxed",
    is_flag=True,
    help="Let stages that are programs run as you: only for code that you trust.",
)
input_option = click.option(
    "--input",
    "-i",
    "value",
    metavar="JSON",
    help="The input: JSON, the name of a file that holds it, or `-` for standard input.",
)


def is_strict(profile: str) -> bool:
    return profile == "strict"


def open_runtime(*, unsandboxed: bool = False) -> GraphRuntime:
    """Open the stages and the cache of this home; stages that are damaged are noted."""
    with store_errors(f"cannot make {home()}", hint="choose another place with CALORON_HOME"):
        home().mkdir(parents=True, exist_ok=True)
    runtime = GraphRuntime(home(), unsandboxed=unsandboxed)
    # Reading the stages finds the damaged ones.
    _ = runtime.catalogue
    for problem in runtime.files.problems:
        output.note(f"warning: a stage is left out: {problem}")
    return runtime


def report_model(runtime: GraphRuntime, prepared: Prepared) -> None:
    """Print which model our stages will ask, or why rules answer; refused if there is none."""
    ours = (s for s in runtime.stages_of(prepared) if runtime.source_of(s) == "caloron")
    asking = [stage.name for stage in ours if stage.declares("Llm")]
    if not asking:
        return
    from caloron.models.choose import chosen_model

    model, reason = chosen_model()
    answered = f"asked of {model.name}" if model else f"answered by rules: {reason}"
    output.note(f"{', '.join(asking)}: {answered}")


def read_graph(name: str) -> bytes:
    """The text of a graph: a file, the standard input, or a built-in graph."""
    text = graph_text(name)
    if text is not None:
        return text
    try:
        return read_text(name, "a graph")
    except NotFound as error:
        error.hint = f"name a graph, `-`, or a built-in one: {', '.join(composition_names())}"
        raise


def read_text(name: str, what: str) -> bytes:
    """The content of a file, or of the standard input for `-`."""
    if name == "-":
        # The standard input may be closed.
        return b"" if sys.stdin is None else sys.stdin.buffer.read(_LARGEST)
    try:
        path = Path(name)
        if path.is_dir():
            raise UsageError(f"{name} is a folder, not {what}", hint="name a file")
        with path.open("rb") as file:
            # The size of a file says nothing about a pipe or a device.
            content = file.read(_LARGEST + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"there is no file {name!r}", hint=f"name {what}, or `-`") from error
    except PermissionError:
        raise
    except (ValueError, OSError) as error:
        raise UsageError(f"{name!r} cannot be read: {error}", hint=f"name {what}") from error
    if len(content) > _LARGEST:
        raise UsageError(f"{name} is too large", hint="the most is 256 MB")
    return content


def read_input(value: str | None, *, strict: bool = True) -> Any:
    """The input of a graph or a stage; null without the option."""
    if value is None:
        return None
    text: str | bytes = read_text("-", "the input") if value == "-" else value
    try:
        return decode(text, allow_bigint=not strict, what="the input")
    except ParseError as error:
        if value == "-":
            raise
        # `Path.is_file` raises for a name that no file can have.
        if os.path.isfile(value):  # noqa: PTH113
            text = read_text(value, "the input")
            return decode(text, allow_bigint=not strict, what="the input")
        if value.endswith(".json") or "/" in value.split("{")[0]:
            raise UsageError(
                f"--input: there is no file {value[:200]!r}, and it is no JSON either",
                hint="name a file, or give JSON, or `-` for standard input",
            ) from error
        raise


def as_failure(error: GraphError, hint: str = "") -> CaloronError:
    """An error of the graph library as an error of a command."""
    code = "GRAPH_FAILED" if isinstance(error, ExecutionError) else _CODES[error.kind]
    message = str(error)
    if isinstance(error, Refused):
        message = objections_text(map(objection_data, error.errors))
    return Failed(code, message, hint=hint or _HINTS.get(error.kind, ""))


def objection_data(error: GraphError) -> dict[str, Any]:
    """One objection as data."""
    data = {"path": error.path, "kind": error.kind, "message": error.reason}
    details = {name: getattr(error, name, None) for name in ("expected", "found")}
    return data | {name: value for name, value in details.items() if value is not None}


def objections_text(objections: Iterable[dict[str, Any]]) -> str:
    """Objections as text: where, what, and what was expected and found."""
    lines = []
    for data in objections:
        lines.append(f"{data['path'] or '$'}: {data['message']}")
        lines += [f"  {name}: {data[name]}" for name in ("expected", "found") if name in data]
    return "\n".join(lines)


def shown_json(value: Any) -> str:
    """A value for people and pipes: JSON without characters that control a terminal."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)


def test_stage(runtime: GraphRuntime, stage: StageSpec) -> dict[str, Any]:
    """Run the examples of a stage; returns a row of `answer_tests`."""
    return test_row(stage.name or stage.id, run_examples(stage, runtime.catalogue, runtime.runner))


def test_row(name: str, tried: ExampleReport) -> dict[str, Any]:
    """The result of the examples of a stage or a graph."""
    reasons = list(tried.reasons)
    return {"name": name, "state": tried.state, "examples": tried.examples, "reasons": reasons}


def answer_tests(rows: list[dict[str, Any]]) -> Answer:
    """Answer with the results of examples; one that failed fails the command."""
    count = {s: sum(row["state"] == s for row in rows) for s in ("passed", "failed", "skipped")}
    data = {"total": len(rows), **count, "tests": rows}
    if count["failed"]:
        failed = [_test_text(row) for row in rows if row["state"] == "failed"]
        raise Failed("GRAPH_FAILED", "\n".join(failed), data=data)
    summary = ", ".join(f"{number} {state}" for state, number in count.items())
    return Answer(data, "\n".join([*map(_test_text, rows), summary]))


def _test_text(row: dict[str, Any]) -> str:
    head = f"{row['state']:8} {row['name']}"
    if row["state"] == "passed":
        return f"{head}  {counted(row['examples'], 'example')}"
    return "\n".join([head, *(f"         {reason}" for reason in row["reasons"])])
