"""Runs one stage as a program: `python -m caloron.stages NAME < input.json > answer.json`."""

from __future__ import annotations

import sys
from typing import NoReturn

from caloron.graph.errors import GraphError
from caloron.graph.json_text import compact, decode
from caloron.graph.subtyping import find_type_error
from caloron.stages.catalogue import catalogue_stages, stage_function

_FAILED, _USAGE = 1, 2


def _fail(message: str, exit_code: int = _FAILED) -> NoReturn:
    sys.stderr.write(f"{message}\n")
    sys.exit(exit_code)


def main(arguments: list[str]) -> None:
    """Exit 0 with the answer, 1 if the stage failed, 2 if the input is no JSON."""
    stages = {stage.name: stage for stage in catalogue_stages()}
    if len(arguments) != 1 or arguments[0] not in stages:
        _fail("usage: python -m caloron.stages NAME < input.json", _USAGE)
    stage = stages[arguments[0]]
    try:
        value = decode(sys.stdin.buffer.read(), what="the input")
    except GraphError as error:
        _fail(str(error), _USAGE)
    if problem := find_type_error(value, stage.input):
        _fail(f"the input is not what the stage declares: {problem}")
    try:
        answer = compact(stage_function(stage.name)(value))
    except KeyError as error:
        _fail(f"{error} is missing")
    except Exception as error:  # noqa: BLE001  # the caller gets any failure as one line
        _fail(str(error) or type(error).__name__)
    sys.stdout.write(f"{answer}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
