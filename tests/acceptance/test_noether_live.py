"""A real Noether, where one is installed, against what was recorded of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from caloron.graph.stdlib import standard_stages
from tests.support.noether import VECTORS

BINARY = shutil.which(os.environ.get("NOETHER_BIN") or "noether")
_STANDARD = {name for stage in standard_stages() for name in (stage.name, stage.id)}


@pytest.mark.skipif(BINARY is None, reason="no `noether` on the PATH, and NOETHER_BIN names none")
def test_the_real_program_answers_as_it_was_recorded(tmp_path: Path) -> None:
    assert BINARY is not None
    # Without Nix it answers with the first example of a stage that carries code.
    executes = shutil.which("nix") is not None
    assert differences(BINARY, tmp_path / "noether", executes=executes) == []


def differences(binary: str, home: Path, *, executes: bool) -> list[str]:
    """List the deviations of a program from the record; without Nix code stages do not run."""
    env = os.environ | {"NOETHER_HOME": str(home), "HOME": str(home)}
    file = home / "asked.json"
    home.mkdir(parents=True, exist_ok=True)

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([binary, *words], env=env, stdin=subprocess.DEVNULL, text=True,
                              capture_output=True, check=False, timeout=120)  # fmt: skip

    deviations = []
    for vector in VECTORS["stages"]:
        file.write_text(json.dumps(vector["spec"]), "utf-8")
        done = ask("stage", "add", str(file))
        id = json.loads(done.stdout)["data"]["id"] if done.returncode == 0 else None
        if (done.returncode, id) != (vector["exit"], vector.get("id")):
            deviations.append(f"stage {vector['spec']['name']}: {done.returncode} {id}")
    for vector in VECTORS["runs"]:
        file.write_text(json.dumps(vector["graph"]), "utf-8")
        done = ask("run", str(file), *vector["flags"], "--input", json.dumps(vector["input"]))
        deviations += _of_run(vector, done, executes=executes)
    return deviations


def _of_run(
    vector: dict[str, Any], done: subprocess.CompletedProcess[str], *, executes: bool
) -> list[str]:
    comparable = executes or _names(vector["graph"]) <= _STANDARD
    if comparable and done.returncode != vector["exit"]:
        return [f"run {vector['name']}: exit {done.returncode}, recorded {vector['exit']}"]
    if done.returncode != 0 or vector["exit"] != 0:
        return []
    data = json.loads(done.stdout)["data"]
    names = ("composition_id", "effects", *(("output",) if comparable else ()))
    return [
        f"run {vector['name']}: {name} {data[name]!r}, recorded {vector[name]!r}"
        for name in names
        if data[name] != vector[name]
    ]


def _names(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(_names, node))
    if not isinstance(node, dict):
        return set()
    own = {node["id"]} if node.get("op") == "Stage" else set()
    return own | _names(list(node.values()))
