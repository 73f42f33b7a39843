"""`caloron doctor` on this machine, and on machines that lack a requirement."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from caloron.agents.doctor import memory_max

_SOURCE = Path(__file__).parents[3] / "src"
_TRIED = {
    "python", "git", "bubblewrap", "sandbox", "seccomp", "processes", "memory", "file size",
    "temporary files", "disk", "output", "wall clock", "network none", "network model",
    "network public", "kernel memory",
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


def checks(output: str) -> dict[str, dict[str, Any]]:
    return {row["check"]: row for row in json.loads(output.partition("\n")[0])["data"]["checks"]}


def test_all_checks_run_without_a_project(tmp_path: Path) -> None:
    code, output = caloron(tmp_path, "doctor", "--output", "json", **agent(tmp_path))
    rows = checks(output)
    assert code == 0, output
    assert "coreutils" in rows.pop("framework")["detail"]
    # Most machines have no scope with limits, so this check may fail.
    cgroup = rows.pop("cgroup")
    assert cgroup["ok"] or ("systemd-run" in cgroup["remedy"] and not cgroup["needed"])
    assert set(rows) == _TRIED
    assert all(row["ok"] and row["detail"] and not row["remedy"] for row in rows.values())
    assert "RLIMIT_NPROC" in rows["processes"]["detail"]
    mode = "as root" if os.getuid() == 0 else "as an ordinary user"
    assert mode in rows["sandbox"]["detail"]


def test_people_get_a_line_for_each_check(tmp_path: Path) -> None:
    code, output = caloron(tmp_path, "doctor", **agent(tmp_path))
    assert code == 0
    shown = [line for line in output.splitlines() if line.startswith("ok ")]
    counted = [line for line in shown if line.split()[1] not in ("framework", "cgroup")]
    assert len(counted) == len(_TRIED)
    assert output.endswith("Agents can run here.\n")


def agent(folder: Path) -> dict[str, str]:
    """A program that answers as Claude Code does, and a key for it."""
    program = folder / "claude"
    if not program.exists():
        # The file is a program, because a script needs an interpreter; it also answers `--version`.
        shutil.copy("/usr/bin/true", program)
    return {"CALORON_CLAUDE": str(program), "ANTHROPIC_API_KEY": "sk-ant-invalid"}


def test_the_smallest_limit_of_the_groups_around_us_counts(tmp_path: Path) -> None:
    membership, root = tmp_path / "cgroup", tmp_path / "fs"
    inner = root / "user.slice" / "caloron.scope"
    inner.mkdir(parents=True)
    membership.write_text("1:cpu:/\n0::/user.slice/caloron.scope\n")
    assert memory_max(membership, root) is None
    (inner / "memory.max").write_text("max\n")
    assert memory_max(membership, root) is None
    (root / "user.slice" / "memory.max").write_text("8589934592\n")
    assert memory_max(membership, root) == 8 << 30
    (inner / "memory.max").write_text("1073741824\n")
    assert memory_max(membership, root) == 1 << 30
    (tmp_path / "memory.max").write_text("1\n")
    assert memory_max(membership, root) == 1 << 30
    membership.write_text("4:memory:/x\n")
    assert memory_max(membership, root) is None


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("no-such", ("no coding agent is installed", "npm install -g @anthropic-ai/claude-code",
                     "--framework")),
        ("claude", ("neither a key nor a login", "ANTHROPIC_API_KEY")),
    ],
)  # fmt: skip
def test_without_an_agent_cli_or_its_key_agents_cannot_run(
    tmp_path: Path, program: str, words: tuple[str, ...]
) -> None:
    agent(tmp_path)
    env = {"PATH": "/usr/bin:/bin", "CALORON_CLAUDE": str(tmp_path / program)}
    code, output = caloron(tmp_path, "doctor", **env)
    assert "Agents can run here" not in output
    assert code == 8
    for word in words:
        assert word in output


def test_a_setup_with_the_whole_network_is_named(tmp_path: Path) -> None:
    fixture = tmp_path / "fixture.json"
    fixture.write_text('{"responses": []}')
    stub = {"CALORON_STUB_FIXTURE": str(fixture)}
    assert caloron(tmp_path, "init", "demo", "--framework", "stub", **stub)[0] == 0
    assert "network setup" not in checks(caloron(tmp_path, "doctor", "-o", "json", **stub)[1])
    line = ("config", "set", "network_roles", "setup=full verify=none review=none")
    assert caloron(tmp_path, *line)[0] == 0
    code, output = caloron(tmp_path, "doctor", "-o", "json", **stub)
    row = checks(output)["network setup"]
    assert (code, row["ok"], row["needed"]) == (0, False, False)
    assert "abstract sockets" in row["detail"]
    assert '"setup=public verify=none review=none"' in row["remedy"]


def test_without_bubblewrap_doctor_names_the_package_and_skips_the_sandbox_checks(
    tmp_path: Path,
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("git", "sh", "prlimit", "setpriv"):
        program = shutil.which(name)
        assert program is not None
        (programs / name).symlink_to(program)
    code, output = caloron(tmp_path, "doctor", "--output", "json", PATH=str(programs))
    rows = checks(output)
    assert code == 8
    assert not rows["bubblewrap"]["ok"]
    assert "apt-get install bubblewrap" in rows["sandbox"]["remedy"]
    assert "memory" not in rows
    assert json.loads(output)["error"]["code"] == "PRECONDITION_FAILED"


def test_a_sandbox_that_cannot_be_made_is_explained(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "bwrap").write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo bubblewrap 0.9.0 && exit\n'
        "echo 'bwrap: setting up uid map: Permission denied' >&2; exit 1\n"
    )
    (programs / "bwrap").chmod(0o755)
    code, output = caloron(tmp_path, "doctor", PATH=f"{programs}:{os.environ['PATH']}")
    assert code == 8
    assert "AppArmor" in output
    assert "profile bwrap /usr/bin/bwrap" in output


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
def test_the_framework_of_the_project_is_checked(tmp_path: Path, fixture: str) -> None:
    file = tmp_path / "fixture.json"
    file.write_text(fixture)
    code, output = caloron(
        tmp_path, "init", "demo", "--framework", "stub", CALORON_STUB_FIXTURE=str(file)
    )
    assert code == 0, output
    code, output = caloron(
        tmp_path, "doctor", "--project", "demo", "-o", "json", CALORON_STUB_FIXTURE=str(file)
    )
    row = checks(output)["framework"]
    assert row["ok"] is fixture.startswith("{")
    assert code == (0 if row["ok"] else 8)
    assert json.loads(output)["data"]["project"] == "demo"


def test_an_unknown_project_is_an_error(tmp_path: Path) -> None:
    assert caloron(tmp_path, "doctor", "--project", "nobody")[0] == 3
