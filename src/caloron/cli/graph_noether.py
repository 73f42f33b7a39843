"""`caloron graph run --noether`: the envelope and the exit codes of `noether run`."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import click
import msgspec

from caloron.cli.graph import is_unsandboxed, prepared_of, wishes_of
from caloron.cli.graph_words import graph_home, read_graph
from caloron.errors import CaloronError, NotFound
from caloron.graph import report
from caloron.graph.errors import GraphError, ParseError
from caloron.graph.jsontext import Json, decode

_READ, _REFUSED = 1, 2


def answer_as_noether(file: str, wanted: dict[str, Any]) -> int:
    """Runs a graph as the real program would, and answers as it does."""
    try:
        data = _data(file, wanted)
    except GraphError as error:
        _print(report.failure(error), err=True)
        return error.exit_code
    except CaloronError as error:
        said = f"{error} ({error.hint})" if error.hint else str(error)
        _print(report.failure(GraphError(said)), err=True)
        return _READ if isinstance(error, NotFound) else _REFUSED
    _print(report.success(data), err=False)
    return 0


def _data(file: str, wanted: dict[str, Any]) -> Json:
    wishes = msgspec.structs.replace(
        wishes_of(wanted),
        memoize=not (wanted["no_cache"] or _is_set("NOETHER_NO_MEMOIZE")),
        optimise=not _is_set("NOETHER_NO_OPTIMIZE"),
        checks_refinements=not os.environ.get("NOETHER_NO_REFINEMENT_CHECK"),
    )
    at = graph_home(unsandboxed=is_unsandboxed(wanted))
    prepared = prepared_of(at, read_graph(file), wanted, default="noether")
    if wanted["dry_run"]:
        return report.dry_run_data(prepared)
    outcome = at.run(prepared, _input(wanted["given"]), wishes)
    return report.run_data(prepared, outcome, memoized=wishes.memoize)


def _is_set(name: str) -> bool:
    return os.environ.get(name, "") in ("1", "true")


def _input(given: str | None) -> Json:
    """As the real program reads it: JSON or else plain text; without the option, what is piped."""
    if given is None or given == "-":
        if sys.stdin is None or (given is None and sys.stdin.isatty()):
            return None
        given = sys.stdin.read()
        if not given.strip():
            return None
    try:
        return decode(given, wide_integers=True)
    except ParseError:
        return given


def _print(envelope: Json, *, err: bool) -> None:
    click.echo(json.dumps(envelope, indent=2, ensure_ascii=False), err=err)
