"""The completion scripts are valid, and `caloron` answers their requests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_CALORON = """#!/bin/sh
exec "{python}" -m caloron.cli "$@"
"""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_accepts_its_script(shell: str, run, tmp_path: Path) -> None:
    answer = run.data("completion", shell)
    assert "_CALORON_COMPLETE" in answer["script"]
    script = tmp_path / "script"
    script.write_text(run.text("completion", shell))
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(script)], check=True)


def test_an_unsupported_shell_is_refused(run) -> None:
    assert run("completion", "tcsh")[0] == 2


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("caloron proj", {"project"}),
        ("caloron project sw", {"switch"}),
        ("caloron sprint --plan-o", {"--plan-only"}),
        ("caloron status --output ", {"text", "json", "table"}),
        ("caloron project switch d", {"demo"}),
        ("caloron projects del", {"delete"}),
        ("caloron -p demo logs ", {"a"}),
        ("caloron why --project d", {"demo"}),
        ("caloron report ", {"1"}),
        ("caloron config get paral", {"parallel"}),
        ("caloron init other --framework cl", {"claude-code"}),
        ("caloron logs --project nowhere ", set()),
    ],
)
@pytest.mark.usefixtures("sprinted")
def test_bash_completes_commands_options_and_values(line, expected, run, tmp_path) -> None:
    (tmp_path / "script").write_text(run.text("completion", "bash"))
    program = tmp_path / "bin" / "caloron"
    program.parent.mkdir()
    program.write_text(_CALORON.format(python=sys.executable))
    program.chmod(0o755)
    words = line.split(" ")
    ask = (
        f"source {tmp_path}/script; COMP_WORDS=({' '.join(words[:-1])} '{words[-1]}');"
        f" COMP_CWORD={len(words) - 1}; _caloron_completion caloron;"
        ' printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = os.environ | {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        ["bash", "-c", ask], env=environment, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == expected
    assert done.stderr == ""
