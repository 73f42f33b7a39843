"""`caloron doctor` on this machine, and on machines that lack something."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_SOURCE = Path(__file__).parents[3] / "src"
_TRIED = {
    "python", "git", "bubblewrap", "sandbox", "seccomp", "processes", "memory", "file size",
    "temporary files", "disk", "output", "wall clock", "network none", "network model",
    "disk space", "clock",
}  # fmt: skip


def caloron(home: Path, *arguments: str, **env: str) -> tuple[int, str]:
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(home), "CALORON_HOME": str(home / "caloron"),
        "PYTHONPATH": str(_SOURCE), "GIT_CONFIG_NOSYSTEM": "1",
    }  # fmt: skip
    argv = (sys.executable, "-m", "caloron.cli", *arguments)
    done = subprocess.run(
        argv, capture_output=True, text=True, env=environment | env, cwd=home, check=False
    )
    return done.returncode, done.stdout + done.stderr


def checks(said: str) -> dict[str, dict[str, Any]]:
    return {row["check"]: row for row in json.loads(said)["data"]["checks"]}


def test_everything_is_tried_without_a_project(tmp_path: Path) -> None:
    code, said = caloron(tmp_path, "doctor", "--output", "json")
    rows = checks(said)
    assert code == 0, said
    # Whether one is installed is told, but nobody needs it yet.
    assert rows.pop("framework")["detail"]
    assert set(rows) == _TRIED
    assert all(row["ok"] and row["detail"] and not row["remedy"] for row in rows.values())
    assert "RLIMIT_NPROC" in rows["processes"]["detail"]
    mode = "as root" if os.getuid() == 0 else "as an ordinary user"
    assert mode in rows["sandbox"]["detail"]


def test_people_get_a_line_for_each_check(tmp_path: Path) -> None:
    code, said = caloron(tmp_path, "doctor")
    assert code == 0
    told = [line for line in said.splitlines() if line.startswith("ok ")]
    assert len([line for line in told if "framework" not in line]) == len(_TRIED)
    assert said.endswith("Agents can run here.\n")


def test_without_bubblewrap_it_says_what_to_install_and_tries_nothing_more(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("git", "sh", "prlimit", "setpriv"):
        program = shutil.which(name)
        assert program is not None
        (programs / name).symlink_to(program)
    code, said = caloron(tmp_path, "doctor", "--output", "json", PATH=str(programs))
    rows = checks(said)
    assert code == 8
    assert not rows["bubblewrap"]["ok"]
    assert "apt-get install bubblewrap" in rows["sandbox"]["remedy"]
    assert "memory" not in rows
    assert json.loads(said)["error"]["code"] == "PRECONDITION_FAILED"


def test_a_sandbox_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "bwrap").write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 0.9.0 && exit\n'
        "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1\n"
    )
    (programs / "bwrap").chmod(0o755)
    code, said = caloron(tmp_path, "doctor", PATH=f"{programs}:{os.environ['PATH']}")
    assert code == 8
    assert "AppArmor" in said
    assert "profile bwrap /usr/bin/bwrap" in said


def test_an_old_git_or_bubblewrap_is_named(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, version in (("git", "git version 2.30.2"), ("bwrap", "bubblewrap 0.6.1")):
        (programs / name).write_text(f"#!/bin/sh\necho {version}\n")
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    rows = checks(caloron(tmp_path, "doctor", "--output", "json", PATH=path)[1])
    assert not rows["git"]["ok"]
    assert "2.38" in rows["git"]["remedy"]
    assert not rows["bubblewrap"]["ok"]
    assert "0.8" in rows["bubblewrap"]["remedy"]


@pytest.mark.parametrize("fixture", ['{"responses": [], "default": "APPROVED"}', "not a fixture"])
def test_the_framework_of_the_project_is_tried(tmp_path: Path, fixture: str) -> None:
    file = tmp_path / "fixture.json"
    file.write_text(fixture)
    code, said = caloron(tmp_path, "init", "demo", CALORON_STUB_FIXTURE=str(file))
    assert code == 0, said
    code, said = caloron(
        tmp_path, "doctor", "--project", "demo", "-o", "json", CALORON_STUB_FIXTURE=str(file)
    )
    row = checks(said)["framework"]
    assert row["ok"] is fixture.startswith("{")
    assert code == (0 if row["ok"] else 8)
    assert json.loads(said)["data"]["project"] == "demo"


def test_an_unknown_project_is_an_error(tmp_path: Path) -> None:
    assert caloron(tmp_path, "doctor", "--project", "nobody")[0] == 3
