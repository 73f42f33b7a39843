"""Puts our stages into the store of a real Noether: as specs that its `stage add` takes."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from caloron.errors import PreconditionFailed
from caloron.graph.profile import NOETHER
from caloron.graph.spec import StageSpec
from caloron.graph.specfile import spec_of
from caloron.stages.catalogue import catalogue_stages, declaration

#: What a module may take from us and still be a stage by itself: a name for types, and its start.
_LEFT_OUT = {
    ("caloron.graph.jsontext", "Json"),
    ("caloron.stages.catalogue.alone", "alone"),
    ("caloron.graph.held", "opened"),
}
#: Elsewhere every value is JSON already.
_OPENED = "\n\ndef opened(value):\n    return value\n"
_PATIENCE_S = 60.0

#: For all other stages: the program itself, by its own envelope.
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


class Registered(msgspec.Struct, frozen=True, kw_only=True):
    """What became of all stages: ids by name, and why others have none."""

    ids: dict[str, str]
    failures: dict[str, str]
    #: Stages that Noether knows by another id than ours would be.
    warnings: tuple[str, ...] = ()


def simple_spec(stage: StageSpec) -> dict[str, Any]:
    """A stage as authors write it for Noether; its signature is the one that it has here."""
    # In the short form: of the long one Noether's reader of simple specs does not take all.
    declared = declaration(stage.name)
    return {
        "name": stage.name,
        "description": stage.description,
        "input": declared["input"],
        "output": declared["output"],
        "effects": [effect.kind for effect in stage.effects],
        "language": "python",
        "implementation": implementation_of(stage),
        "examples": [{"input": one.input, "output": one.output} for one in stage.examples],
        "tags": ["caloron", *stage.tags],
    }


def implementation_of(stage: StageSpec) -> str:
    """Code that runs without Caloron where the stage needs nothing of it; else a call of it."""
    pure = all(effect.kind == "Pure" for effect in stage.effects)
    source = files("caloron.stages.catalogue").joinpath(f"{stage.name}.py").read_text("utf-8")
    alone = _by_itself(source) if pure else None
    return alone or _WRAPPER.format(name=stage.name)


def _by_itself(source: str) -> str | None:
    """The module without what it takes from us and without its start; None: it needs more."""
    lines = source.splitlines()
    for node in ast.parse(source).body:
        ours = _is_ours(node)
        if ours and not _may_go(node):
            return None
        if ours or _is_start(node):
            lines[node.lineno - 1 : node.end_lineno] = [""] * _height(node)
    alone = "\n".join(lines).rstrip() + "\n"
    if any(_is_ours(one) for one in ast.walk(ast.parse(alone))):
        return None
    return alone + (_OPENED if "opened(" in alone else "")


def _height(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _is_ours(node: ast.AST) -> bool:
    if isinstance(node, ast.Import):
        return any(name.name.split(".")[0] == "caloron" for name in node.names)
    return isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "caloron"


def _may_go(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and all(
        (node.module, name.name) in _LEFT_OUT and name.asname is None for name in node.names
    )


def _is_start(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def find_binary(named: str | None) -> str:
    """The program: as it is named, as NOETHER_BIN says, or `noether` on the PATH."""
    wanted = named or os.environ.get("NOETHER_BIN") or "noether"
    found = shutil.which(wanted)
    if found is None:
        raise PreconditionFailed(
            f"there is no program {wanted}",
            hint="install Noether, or name its program with --binary or NOETHER_BIN",
        )
    return found


def register_all(binary: str) -> Registered:
    """Add each stage of the catalogue; one that fails does not keep the others out."""
    ids: dict[str, str] = {}
    failures: dict[str, str] = {}
    warnings: list[str] = []
    with tempfile.TemporaryDirectory(prefix="caloron-noether-") as place:
        for stage in catalogue_stages():
            spec = simple_spec(stage)
            file = Path(place, f"{stage.name}.json")
            file.write_text(json.dumps(spec, ensure_ascii=False), "utf-8")
            id, why = _add(binary, file)
            if not id:
                failures[stage.name] = why
                continue
            ids[stage.name] = id
            if id != (ours := spec_of(spec, NOETHER).id):
                warnings.append(f"{stage.name} is {id} there, and would be {ours} here")
    return Registered(ids=dict(sorted(ids.items())), failures=failures, warnings=tuple(warnings))


def _add(binary: str, file: Path) -> tuple[str, str]:
    """The id of a stage that was added, or why it was not."""
    try:
        done = subprocess.run(
            [binary, "stage", "add", str(file)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "", f"no answer after {_PATIENCE_S:g} s"
    except OSError as error:
        return "", f"it could not be started: {error.strerror}"
    if done.returncode != 0:
        return "", _complaint(done.stderr) or f"exit code {done.returncode}"
    told = _envelope(done.stdout)
    id = told.get("data", {}).get("id") if isinstance(told.get("data"), dict) else None
    return (id, "") if isinstance(id, str) and id else ("", "its answer names no id")


def _complaint(stderr: str) -> str:
    """What an envelope on standard error says; other lines may stand around it."""
    told = _envelope(stderr[stderr.find("{") :])
    error = told.get("error")
    message = error.get("message") if isinstance(error, dict) else None
    return str(message) if message else stderr.strip()[-500:]


def _envelope(text: str) -> dict[str, Any]:
    try:
        told, _ = json.JSONDecoder().raw_decode(text.strip())
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
