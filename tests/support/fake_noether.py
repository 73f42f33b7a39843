"""A stand-in for Noether's program where the real one is not: its `stage add` and its `run`.

Written from what is known of 0.8.2: the checks of specs and graphs are those of our own library
under the profile `noether`, which the answers of the real program bind.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from caloron.graph.errors import GraphError
from caloron.graph.profile import NOETHER
from caloron.graph.specfile import parse_spec, spec_json

_META = {"duration_ms": 0, "version": "0.8.2"}


def say(data: Any) -> NoReturn:
    told = {"ok": True, "command": "noether", "data": data, "meta": _META}
    sys.stdout.write(json.dumps(told, indent=2) + "\n")
    sys.exit(0)


def refuse(message: str, code: int = 1) -> NoReturn:
    error = {"code": "GENERAL_ERROR", "message": message}
    told = {"ok": False, "command": "noether", "error": error, "meta": _META}
    sys.stderr.write("Warning: a line beside the envelope\n" + json.dumps(told, indent=2) + "\n")
    sys.exit(code)


def add(file: str) -> NoReturn:
    store = Path(os.environ["NOETHER_HOME"], "store.json")
    kept = json.loads(store.read_text("utf-8"))["stages"] if store.exists() else []
    try:
        stage = parse_spec(Path(file).read_bytes(), NOETHER)
    except OSError as error:
        refuse(f"Failed to read {file}: {error.strerror}")
    except GraphError as error:
        refuse(f"Invalid stage: {error}")
    if any(one["id"] == stage.id for one in kept):
        say({"id": stage.id, "note": "stage already exists"})
    answer: dict[str, Any] = {"id": stage.id, "lifecycle": "active"}
    for one in kept:
        if one["signature_id"] == stage.signature_id and one["lifecycle"] == "Active":
            one["lifecycle"] = {"Deprecated": {"successor_id": stage.id}}
            answer["supersedes"] = one["id"]
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_text(json.dumps({"stages": [*kept, spec_json(stage)]}), "utf-8")
    say(answer)


def run(words: list[str]) -> NoReturn:
    from caloron.cli.main import main
    from caloron.engine.stage_files import StageFiles
    from caloron.graph.specfile import spec_of

    home = Path(os.environ["NOETHER_HOME"])
    os.environ["CALORON_HOME"] = str(home)
    files = StageFiles(home / "stages")
    if not (home / "stages").exists() and (home / "store.json").exists():
        for one in json.loads((home / "store.json").read_text("utf-8"))["stages"]:
            files.add(spec_of(one, NOETHER))
    sys.exit(main(["graph", "run", *words, "--noether", "--unsandboxed"]))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["stage", "add", file]:
            add(file)
        case ["run", *words]:
            run(words)
        case _:
            refuse("usage", 2)
