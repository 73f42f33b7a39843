"""Git as the person of a test runs it: with a name, and without settings of this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_PERSON = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "Anna"), ("EMAIL", "anna@example.org"))
}
_SETTINGS = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


def git(
    folder: Path, *arguments: str | Path, stdin: str = "", env: dict[str, str] | None = None
) -> str:
    """Run git in a folder, and return its output without the last line end."""
    done = subprocess.run(
        ("git", *arguments),
        cwd=folder,
        env=os.environ | _PERSON | _SETTINGS | (env or {}),
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout.rstrip("\n")


def new_repository(path: Path, files: dict[str, str] | None = None) -> Path:
    """Make a repository with one commit on main."""
    path.mkdir(parents=True, exist_ok=True)
    git(path, "init", "-q", "-b", "main")
    for name, text in (files or {"README.md": "hello\n"}).items():
        (path / name).write_text(text, "utf-8")
    git(path, "add", "-A")
    git(path, "commit", "-q", "-m", "first")
    return path
