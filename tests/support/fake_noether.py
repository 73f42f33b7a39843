"""A stand-in for Noether's program: `stage add FILE`, and `run FILE --input JSON`.

Written from what is known of 0.8.2: the checks of specs and graphs are those of our own library
under the profile `noether`, which the answers of the real program bind.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any, NoReturn

from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import GraphError
from caloron.graph.prepare import prepare
from caloron.graph.runners.functions import RunnerChain
from caloron.graph.runners.subprocess import SubprocessRunner
from caloron.graph.runtime.run import run as run_graph
from caloron.graph.stage_file import parse_stage, stage_json, stage_of
from caloron.graph.stdlib import StandardLibrary, standard_stages
from tests.support.unsandboxed import Unsandboxed

_META = {"duration_ms": 0, "version": "0.8.2"}


def stand_in(folder: Path) -> str:
    """A program `noether` that runs this module."""
    program = folder / "noether"
    here = Path(__file__).parents[2]
    words = shlex.join([sys.executable, __file__])
    path = f"{here / 'src'}:{here}"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {words} "$@"\n', "utf-8")
    program.chmod(0o755)
    return str(program)


def succeed(data: Any) -> NoReturn:
    envelope = {"ok": True, "command": "noether", "data": data, "meta": _META}
    sys.stdout.write(json.dumps(envelope, indent=2) + "\n")
    sys.exit(0)


def fail(message: str, code: int = 1) -> NoReturn:
    error = {"code": "GENERAL_ERROR", "message": message}
    envelope = {"ok": False, "command": "noether", "error": error, "meta": _META}
    sys.stderr.write(
        "Warning: a line beside the envelope\n" + json.dumps(envelope, indent=2) + "\n"
    )
    sys.exit(code)


def _store() -> Path:
    return Path(os.environ["NOETHER_HOME"], "store.json")


def _stored() -> list[Any]:
    return json.loads(_store().read_text("utf-8"))["stages"] if _store().exists() else []


def add(file: str) -> NoReturn:
    try:
        stage = parse_stage(Path(file).read_bytes(), strict=False)
    except GraphError as error:
        fail(f"Invalid stage: {error}")
    _store().parent.mkdir(parents=True, exist_ok=True)
    _store().write_text(json.dumps({"stages": [*_stored(), stage_json(stage)]}), "utf-8")
    succeed({"id": stage.id, "lifecycle": "active"})


def run(file: str, text: str) -> NoReturn:
    """Run a graph over the stages in the store: the standard library and added stages."""
    home = _store().parent
    added = (stage_of(entry, strict=False) for entry in _stored())
    programs = SubprocessRunner(
        home / "scripts", Unsandboxed(), interpreters={"python": [sys.executable, "-P"]}
    )
    try:
        catalogue = Catalogue([*standard_stages(), *added])
        prepared = prepare(Path(file).read_bytes(), catalogue, strict=False)
        runner = RunnerChain(StandardLibrary(home), programs)
        result = run_graph(prepared, json.loads(text), runner)
    except GraphError as error:
        fail(str(error), error.exit_code)
    succeed({"composition_id": prepared.composition_id, "output": result.output})


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["stage", "add", file]:
            add(file)
        case ["run", file, "--input", text]:
            run(file, text)
        case _:
            fail("usage", 2)
