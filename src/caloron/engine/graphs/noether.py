"""Adds our stages to the store of a real Noether, through its `stage add`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from caloron.errors import PreconditionFailed
from caloron.graph.stage import StageSpec
from caloron.graph.stage_file import stage_of
from caloron.stages.catalogue import catalogue_stages, declaration

_TIMEOUT_S = 60.0

#: The code of every registered stage. Its text is part of their ids, so it must not change.
_WRAPPER = '''\
"""Calls the stage {name} of Caloron, which CALORON_BIN names where it is not on the PATH."""


def execute(given):
    import json
    import os
    import subprocess

    program = os.environ.get("CALORON_BIN") or "caloron"
    words = [program, "stage", "run", "{name}", "--input", "-", "--output", "json"]
    done = subprocess.run(words, input=json.dumps(given), capture_output=True, text=True)
    try:
        told = json.loads(done.stdout)
    except ValueError:
        raise RuntimeError(done.stderr.strip() or "caloron gave no answer") from None
    if not told["ok"]:
        raise RuntimeError(told["error"]["message"])
    return told["data"]["output"]
'''


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """The ids of the registered stages by name, and the reasons of failures."""

    ids: dict[str, str]
    failures: dict[str, str]
    #: Stages whose id in Noether differs from the id that we compute.
    warnings: tuple[str, ...] = ()


def simple_spec(stage: StageSpec) -> dict[str, Any]:
    """Return the simple form of a stage; its signature is the same here and in Noether."""
    # In shorthand: Noether does not read every type in canonical form.
    declared = declaration(stage.name)
    return {
        "name": stage.name,
        "description": stage.description,
        "input": declared["input"],
        "output": declared["output"],
        "effects": [effect.kind for effect in stage.effects],
        "language": "python",
        "implementation": _WRAPPER.format(name=stage.name),
        "examples": [{"input": e.input, "output": e.output} for e in stage.examples],
        "tags": ["caloron", *stage.tags],
    }


def find_binary(named: str | None) -> str:
    """Return the program: `named`, else NOETHER_BIN, else `noether` on the PATH."""
    wanted = named or os.environ.get("NOETHER_BIN") or "noether"
    path = shutil.which(wanted)
    if path is None:
        raise PreconditionFailed(
            f"there is no program {wanted}",
            hint="install Noether, or name its program with --binary or NOETHER_BIN",
        )
    return path


def register_all(binary: str) -> Registration:
    """Add each stage of the catalogue; a failure does not stop the others."""
    ids: dict[str, str] = {}
    failures: dict[str, str] = {}
    warnings: list[str] = []
    with tempfile.TemporaryDirectory(prefix="caloron-noether-") as folder:
        for stage in catalogue_stages():
            spec = simple_spec(stage)
            file = Path(folder, f"{stage.name}.json")
            file.write_text(json.dumps(spec, ensure_ascii=False), "utf-8")
            id, reason = _add(binary, file)
            if not id:
                failures[stage.name] = reason
                continue
            ids[stage.name] = id
            if id != (ours := stage_of(spec, strict=False).id):
                warnings.append(f"{stage.name} is {id} there, and would be {ours} here")
    return Registration(ids=dict(sorted(ids.items())), failures=failures, warnings=tuple(warnings))


def _add(binary: str, file: Path) -> tuple[str, str]:
    """Return the id of a stage that was added, or the reason why it was not."""
    try:
        done = subprocess.run(
            [binary, "stage", "add", str(file)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer after {_TIMEOUT_S:g} s"
    except OSError as error:
        return "", f"it could not be started: {error.strerror}"
    if done.returncode != 0:
        return "", _error_message(done.stderr) or f"exit code {done.returncode}"
    data = _envelope(done.stdout).get("data")
    id = data.get("id") if isinstance(data, dict) else None
    return (id, "") if isinstance(id, str) and id else ("", "its answer names no id")


def _error_message(stderr: str) -> str:
    """Return the message of the envelope on standard error, which may contain other lines."""
    error = _envelope(stderr[stderr.find("{") :]).get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return str(message) if message else stderr.strip()[-500:]


def _envelope(text: str) -> dict[str, Any]:
    try:
        envelope, _ = json.JSONDecoder().raw_decode(text.strip())
    except ValueError:
        return {}
    return envelope if isinstance(envelope, dict) else {}
