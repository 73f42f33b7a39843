"""What the commands about graphs and stages share: how they read, and how they say no."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from caloron.cli import output
from caloron.errors import CaloronError, NotFound, StoreError, UsageError

if TYPE_CHECKING:
    from caloron.engine.graphs.runtime import GraphRuntime
    from caloron.graph.errors import GraphError
    from caloron.graph.prepare import Prepared

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)

#: A graph or a stage failed while it ran, or did not keep what its examples promise.
GRAPH_FAILED = 12
_INVALID = ("INVALID_ARGS", 2)
_CODES = {
    "parse": _INVALID,
    "type": _INVALID,
    "capabilities": _INVALID,
    "effects": _INVALID,
    "reference": ("NOT_FOUND", 3),
    "run": ("CONFLICT", 5),
    "in use": ("CONFLICT", 5),
    "journal": ("PRECONDITION_FAILED", 8),
}
_HINTS = {
    "reference": "caloron stage list shows which stages there are",
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
    "given",
    metavar="JSON",
    help="The input: JSON, the name of a file that holds it, or `-` for standard input.",
)


def is_strict(profile: str) -> bool:
    return profile == "strict"


def open_runtime(*, unsandboxed: bool = False) -> GraphRuntime:
    """The stages and the memory of this home; what of it is damaged is told beside the answer."""
    from caloron.engine.graphs.runtime import GraphRuntime
    from caloron.ledger.locate import home

    try:
        home().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot make {home()}: {error.strerror}", hint="choose another place with CALORON_HOME"
        ) from error
    found = GraphRuntime(home(), unsandboxed=unsandboxed)
    _ = found.catalogue
    for problem in found.files.problems:
        output.note(f"warning: a stage is left out: {problem}")
    return found


def report_model(at: GraphRuntime, prepared: Prepared) -> None:
    """Which model the stages of ours will ask, or why rules answer; refused if it cannot be."""
    ours = (one for one in at.stages_of(prepared) if at.source_of(one) == "caloron")
    asking = [one.name for one in ours if one.declares("Llm")]
    if not asking:
        return
    from caloron.models.choose import chosen_model

    model, reason = chosen_model()
    who = f"asked of {model.name}" if model else f"answered by rules: {reason}"
    output.note(f"{', '.join(asking)}: {who}")


def read_graph(name: str) -> bytes:
    """The text of a graph: of a file, of the standard input, or of one that comes with us."""
    from caloron.stages.compositions import composition_names, graph_text

    text = graph_text(name)
    if text is not None:
        return text
    try:
        return read_text(name, "a graph")
    except NotFound as error:
        error.hint = f"name a graph, `-`, or one of ours: {', '.join(composition_names())}"
        raise


def read_text(name: str, what: str) -> bytes:
    """The content of a file, or of the standard input for `-`."""
    if name == "-":
        # Who starts us may have closed it.
        return b"" if sys.stdin is None else sys.stdin.buffer.read(_LARGEST)
    try:
        path = Path(name)
        if path.is_dir():
            raise UsageError(f"{name} is a folder, not {what}", hint="name a file")
        with path.open("rb") as file:
            # Not by its size: what has none may have no end.
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise UsageError(f"{name} is too large", hint="the most is 256 MB")
        return content
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {name!r}", hint=f"name {what}, or `-`") from error
    except NotADirectoryError as error:
        raise NotFound(f"there is no file {name!r}", hint=f"name {what}, or `-`") from error
    except (ValueError, OSError) as error:
        if isinstance(error, PermissionError):
            raise
        raise UsageError(f"{name!r} cannot be read: {error}", hint=f"name {what}") from error


def read_input(given: str | None, *, strict: bool = True) -> Any:
    """The value that a graph or a stage is given; nothing said is null."""
    from caloron.graph.errors import ParseError
    from caloron.graph.json_text import decode

    if given is None:
        return None
    if given == "-":
        return decode(read_text("-", "the input"), allow_bigint=not strict, what="the input")
    try:
        return decode(given, allow_bigint=not strict, what="the input")
    except ParseError as error:
        if not _is_file(given):
            if given.endswith(".json") or "/" in given.split("{")[0]:
                raise UsageError(
                    f"--input: there is no file {given[:200]!r}, and it is no JSON either",
                    hint="name a file, or give JSON, or `-` for standard input",
                ) from error
            raise
    return decode(read_text(given, "the input"), allow_bigint=not strict, what="the input")


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except (ValueError, OSError):
        # No file can have this name.
        return False


def refuse(error: GraphError, data: dict[str, Any] | None = None) -> int:
    """Answer what the graph library objects to; the result is the exit code."""
    code, exit_code = code_of(error)
    output.failure(
        output.current_command(), code, _said(error), hint=_HINTS.get(error.kind, ""), data=data
    )
    return exit_code


def as_error(error: GraphError, hint: str = "") -> CaloronError:
    """What the graph library objects to, for commands that are about something else."""
    told = CaloronError(_said(error), hint=hint or _HINTS.get(error.kind, ""))
    told.code, told.exit_code = code_of(error)
    return told


def code_of(error: GraphError) -> tuple[str, int]:
    from caloron.graph.errors import ExecutionError, Refused

    if error.kind == "budget" and isinstance(error, Refused):
        return _INVALID
    if isinstance(error, ExecutionError):
        return ("GRAPH_FAILED", GRAPH_FAILED)
    return _CODES[error.kind]


def _said(error: GraphError) -> str:
    from caloron.graph.errors import Refused

    if not isinstance(error, Refused):
        return str(error)
    return "\n".join(objection(told) for told in map(objection_data, error.errors))


def objection_data(error: GraphError) -> dict[str, Any]:
    """One objection for machines."""
    told = {"path": error.path, "kind": error.kind, "message": error.reason}
    for name in ("expected", "found"):
        value = getattr(error, name, None)
        if value is not None:
            told[name] = value
    return told


def objection(told: dict[str, Any]) -> str:
    """One objection for people: where, what, and what was expected and found."""
    lines = [f"{told['path'] or '$'}: {told['message']}"]
    lines += [f"  {name}: {told[name]}" for name in ("expected", "found") if name in told]
    return "\n".join(lines)


def shown_json(value: Any) -> str:
    """A value for people and pipes: JSON in which nothing can steer a terminal."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)
