"""`caloron noether register`: the specs, the ids, and the code that Noether would run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from caloron.engine.graphs.noether import simple_spec
from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import StageFailed
from caloron.graph.prepare import prepare
from caloron.graph.runners.subprocess import SubprocessRunner
from caloron.graph.runtime.run import run as run_graph
from caloron.graph.stage import StageSpec
from caloron.graph.stage_file import stage_of
from caloron.stages.catalogue import catalogue_stages
from caloron.stages.compositions import composition
from tests.support.fake_noether import stand_in
from tests.support.noether import wrapped
from tests.support.unsandboxed import Unsandboxed

BY_NAME = {stage.name: stage for stage in catalogue_stages()}


@pytest.fixture
def binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("NOETHER_HOME", str(tmp_path / "store"))
    return stand_in(tmp_path)


def test_every_stage_is_added_and_its_id_is_recorded(
    run: Any, binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NOETHER_BIN", binary)
    code, answer = run("noether", "register")
    assert code == 0, answer
    ids = json.loads((tmp_path / "stage_ids.json").read_bytes())
    assert list(ids) == sorted(BY_NAME)
    store = json.loads((tmp_path / "store" / "store.json").read_bytes())["stages"]
    assert {entry["name"]: entry["id"] for entry in store} == ids
    # A signature names the same stage in Caloron and in Noether.
    assert {entry["name"]: entry["signature_id"] for entry in store} == {
        name: stage.signature_id for name, stage in BY_NAME.items()
    }


def test_refused_stages_are_listed_and_the_others_are_registered(run: Any, tmp_path: Path) -> None:
    picky = tmp_path / "picky"
    refusal = '{\\"ok\\":false,\\"error\\":{\\"message\\":\\"near duplicate\\"}}'
    picky.write_text(
        f'#!/bin/sh\ncase "$3" in *dag_validate*) printf "Info: x\\n{refusal}" >&2; exit 1;;\n'
        "*dag_evaluate*) echo 'plain words' >&2; exit 2;;\n"
        "*write_retro*) echo '{}'; exit 0;; esac\n"
        """echo '{"ok": true, "data": {"id": "abc", "note": "there already"}}'\n"""
    )
    picky.chmod(0o755)
    ids = tmp_path / "ids.json"
    code, answer = run("noether", "register", "--binary", str(picky), "--ids", str(ids))
    assert (code, answer["error"]["code"]) == (7, "UPSTREAM_ERROR")
    assert answer["data"]["failures"] == {
        "dag_validate": "near duplicate",
        "dag_evaluate": "plain words",
        "write_retro_report": "its answer names no id",
    }
    assert len(json.loads(ids.read_bytes())) == 28


def test_without_the_program_nothing_is_written(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NOETHER_BIN", raising=False)
    run.refused(8, "", "noether", "register", "--binary", "no-such-noether")
    code, answer = run("noether", "register", "--dry-run")
    assert (code, len(answer["planned_actions"])) == (9, 32)
    assert not (tmp_path / "stage_ids.json").exists()


@pytest.mark.parametrize("stage", catalogue_stages(), ids=lambda stage: stage.name)
def test_noether_accepts_each_spec(stage: StageSpec) -> None:
    spec = simple_spec(stage)
    assert set(spec) >= {"name", "description", "input", "output", "effects", "language",
                         "implementation"}  # fmt: skip
    read = stage_of(spec, strict=False)
    assert (read.signature_id, read.examples) == (stage.signature_id, stage.examples)


def _answer(stage: StageSpec, value: Any, folder: Path, *flags: str) -> Any:
    """Run the code of a spec in a separate process, as a graph does."""
    read = stage_of(simple_spec(stage), strict=False)
    programs = SubprocessRunner(
        folder, Unsandboxed(), interpreters={"python": [sys.executable, *flags]}
    )
    prepared = prepare(wrapped({"op": "Stage", "id": stage.name}), Catalogue([read]), strict=False)
    return run_graph(prepared, value, programs).output


@pytest.mark.parametrize("stage", catalogue_stages(), ids=lambda stage: stage.name)
def test_a_registered_stage_returns_the_answer_of_caloron(
    stage: StageSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    caloron = shutil.which("caloron", path=str(Path(sys.executable).parent))
    assert caloron is not None
    monkeypatch.setenv("CALORON_BIN", caloron)
    if stage.examples:
        example = stage.examples[0]
        assert _answer(stage, example.input, tmp_path) == example.output
        return
    value = {"host": "local", "repo": "nobody"}
    done = subprocess.run(
        [caloron, "stage", "run", stage.name, "--input", json.dumps(value), "--output", "json"],
        env=dict(os.environ), capture_output=True, text=True, check=False,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    if answer["ok"]:
        assert _answer(stage, value, tmp_path) == answer["data"]["output"]
        return
    with pytest.raises(StageFailed) as failed:
        _answer(stage, value, tmp_path)
    assert answer["error"]["message"].splitlines()[0].removeprefix("$.root: ") in str(failed.value)


def test_a_missing_caloron_is_named_in_the_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALORON_BIN", "/nowhere/caloron")
    with pytest.raises(StageFailed, match="/nowhere/caloron"):
        _answer(BY_NAME["design_po"], {"goal": "x"}, tmp_path)


def test_the_resolved_graph_runs_in_a_store_with_the_registered_stages(
    run: Any, binary: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    caloron = shutil.which("caloron", path=str(Path(sys.executable).parent))
    assert caloron is not None
    monkeypatch.setenv("CALORON_BIN", caloron)
    monkeypatch.chdir(tmp_path)
    graph = tmp_path / "shipped.json"
    text = composition("full_cycle_resolved")
    assert text is not None
    graph.write_bytes(text)
    goal = json.dumps({"goal": "Build a Basket.", "constraints": ""})

    def by_noether() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [binary, "run", str(graph), "--input", goal],
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    assert by_noether().returncode == 1, "an empty store knows none of these stages"
    assert run("noether", "register", "--binary", binary)[0] == 0
    done = by_noether()
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)["data"]["output"]
    answer_of_caloron = run.data("graph", "run", "full_cycle_resolved", "--input", goal)["output"]
    assert answer == answer_of_caloron
