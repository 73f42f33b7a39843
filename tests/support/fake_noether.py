"""A stand-in for Noether's program where the real one is not: its `stage add` and its `run`.

Written from what is known of 0.8.2: the checks of specs and graphs are those of our own library
under the profile `noether`, which the answers of the real program bind.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import GraphError
from caloron.graph.prepare import Permissions, prepare
from caloron.graph.runners.functions import RunnerChain
from caloron.graph.runners.subprocess import SubprocessRunner
from caloron.graph.runtime.run import run as run_graph
from caloron.graph.stage_file import parse_stage, stage_json, stage_of
from caloron.graph.stdlib import StandardLibrary, standard_stages
from tests.support.unsandboxed import Unsandboxed

_META = {"duration_ms": 0, "version": "0.8.2"}


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


def add(file: str) -> NoReturn:
    store = Path(os.environ["NOETHER_HOME"], "store.json")
    kept = json.loads(store.read_text("utf-8"))["stages"] if store.exists() else []
    try:
        stage = parse_stage(Path(file).read_bytes(), strict=False)
    except OSError as error:
        fail(f"Failed to read {file}: {error.strerror}")
    except GraphError as error:
        fail(f"Invalid stage: {error}")
    if any(entry["id"] == stage.id for entry in kept):
        succeed({"id": stage.id, "note": "stage already exists"})
    answer: dict[str, Any] = {"id": stage.id, "lifecycle": "active"}
    for entry in kept:
        if entry["signature_id"] == stage.signature_id and entry["lifecycle"] == "Active":
            entry["lifecycle"] = {"Deprecated": {"successor_id": stage.id}}
            answer["supersedes"] = entry["id"]
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_text(json.dumps({"stages": [*kept, stage_json(stage)]}), "utf-8")
    succeed(answer)


def run(file: str, words: list[str]) -> NoReturn:
    """Run a graph over the stages in the store: the standard library and added stages."""
    parser = argparse.ArgumentParser(add_help=False)
    for name in ("--input", "--allow-effects", "--allow-capabilities", "--isolate"):
        parser.add_argument(name)
    parser.add_argument("--budget-cents", type=int)
    for name in ("--unsafe-no-isolation", "--require-isolation", "--no-cache"):
        parser.add_argument(name, action="store_true")
    asked = parser.parse_args(words)
    home = Path(os.environ["NOETHER_HOME"])
    store = home / "store.json"
    added = json.loads(store.read_text("utf-8"))["stages"] if store.exists() else []
    catalogue = Catalogue([*standard_stages(), *(stage_of(entry, strict=False) for entry in added)])
    programs = SubprocessRunner(
        home / "scripts", Unsandboxed(), interpreters={"python": [sys.executable, "-P"]}
    )
    permissions = Permissions(
        effects=asked.allow_effects or (),
        capabilities=asked.allow_capabilities or (),
        budget_cents=asked.budget_cents,
    )
    try:
        prepared = prepare(Path(file).read_bytes(), catalogue, permissions, strict=False)
        value = json.loads(asked.input) if asked.input else None
        result = run_graph(prepared, value, RunnerChain(StandardLibrary(home), programs))
    except GraphError as error:
        fail(str(error), error.exit_code)
    succeed(
        {
            "composition_id": prepared.composition_id,
            "effects": [effect.word for effect in prepared.effects],
            "output": result.output,
        }
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["stage", "add", file]:
            add(file)
        case ["run", file, *words]:
            run(file, words)
        case _:
            fail("usage", 2)
