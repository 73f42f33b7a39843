"""Runs one stage as a program: JSON on the standard input, JSON on the standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from caloron.graph.errors import GraphError
from caloron.graph.jsontext import Json, compact, decode
from caloron.graph.values import Misfit, misfit

_FAILED, _USAGE = 1, 2


def alone(execute: Callable[[Json], Json]) -> NoReturn:
    """Exit 0 with the answer, 1 if the stage failed, 2 if the input is no JSON."""
    try:
        given = decode(sys.stdin.buffer.read(), what="the input")
    except GraphError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(_USAGE)
    if wrong := _misfit(given):
        sys.stderr.write(f"the input is not what the stage declares: {wrong}\n")
        sys.exit(_FAILED)
    try:
        answer = compact(execute(given))
    except KeyError as error:
        sys.stderr.write(f"{error} is missing\n")
        sys.exit(_FAILED)
    except Exception as error:  # noqa: BLE001  # whatever it is, the caller gets it in one line
        sys.stderr.write(f"{str(error) or type(error).__name__}\n")
        sys.exit(_FAILED)
    sys.stdout.write(f"{answer}\n")
    sys.exit(0)


def _misfit(given: Json) -> Misfit | None:
    """Where the input is not of the type that the stage of this program declares."""
    from caloron.stages.catalogue import catalogue_stages

    name = Path(sys.argv[0]).stem
    stage = next((one for one in catalogue_stages() if one.name == name), None)
    return misfit(given, stage.input) if stage else None
