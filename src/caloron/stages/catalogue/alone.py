"""Runs one stage as a program: JSON on the standard input, JSON on the standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from caloron.graph.errors import GraphError
from caloron.graph.jsontext import Json, compact, decode

_FAILED, _USAGE = 1, 2


def alone(execute: Callable[[Json], Json]) -> NoReturn:
    """Exit 0 with the answer, 1 if the stage failed, 2 if the input is no JSON."""
    try:
        given = decode(sys.stdin.buffer.read(), what="the input")
    except GraphError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(_USAGE)
    try:
        answer = compact(execute(given))
    except Exception as error:  # noqa: BLE001  # whatever it is, the caller gets it in one line
        sys.stderr.write(f"{str(error) or type(error).__name__}\n")
        sys.exit(_FAILED)
    sys.stdout.write(f"{answer}\n")
    sys.exit(0)
