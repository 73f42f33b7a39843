"""Lines that people paste or type ahead."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from caloron.cli.commands.sprint import discard
from caloron.cli.commands.sprint.approval import _prompt_until
from caloron.git.command import git, git_environment


def test_a_line_that_was_typed_ahead_is_an_answer(monkeypatch) -> None:
    read, write = os.pipe()
    os.write(write, b"what?\ny\n")
    checks: list[int] = []

    def decided() -> bool:
        checks.append(1)
        return True

    with os.fdopen(read, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        answers = [_prompt_until("Run?", decided) for _ in range(2)]
    os.close(write)
    assert checks == []
    assert answers == ["what?\n", "y\n"]


def test_the_command_that_undoes_a_sprint_runs_no_injected_command(
    tmp_path: Path, monkeypatch
) -> None:
    main = "$(touch${IFS}pwned)"
    forge = tmp_path / "forge.git"
    git(tmp_path, "init", "--quiet", "--bare", f"--initial-branch={main}", str(forge))
    git(tmp_path, "clone", "--quiet", str(forge), "work")
    work = tmp_path / "work"
    for name in ("one", "two"):
        git(work, "commit", "--quiet", "--allow-empty", "-m", name)
    git(work, "branch", "side", "HEAD~1")
    git(work, "checkout", "--quiet", "side")
    (work / "new.txt").write_text("new")
    git(work, "add", "new.txt")
    git(work, "commit", "--quiet", "-m", "side")
    git(work, "checkout", "--quiet", main)
    git(work, "merge", "--quiet", "--no-ff", "side")
    git(work, "push", "--quiet", "origin", f"HEAD:refs/heads/{main}")
    merged = git(work, "rev-parse", "HEAD")

    monkeypatch.setattr(discard, "merge_commits", lambda _: [merged])
    project = SimpleNamespace(git_here=forge, is_remote=False, forge_git=forge)
    state = SimpleNamespace(
        sprint=SimpleNamespace(settings=SimpleNamespace(main_branch=main), id="shop-1")
    )
    line = discard._undo(cast(Any, project), cast(Any, state))
    environment = git_environment()
    done = subprocess.run(line, shell=True, cwd=tmp_path, env=environment, check=False)
    assert done.returncode == 0, done
    assert not list(tmp_path.rglob("pwned"))
    assert git(forge, "ls-tree", "-r", "--name-only", f"refs/heads/{main}") == ""
