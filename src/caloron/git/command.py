"""Runs git so that neither the user's configuration nor a repository's own can run anything."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from caloron.errors import CaloronError

_SAFE = (
    "-c", "core.hooksPath=/dev/null",
    "-c", "core.fsmonitor=false",
    "-c", "core.pager=cat",
    "-c", "diff.external=",
    "-c", "gc.auto=0",
    "-c", "maintenance.auto=false",
    "-c", "protocol.ext.allow=never",
    "-c", "commit.gpgSign=false",
    "-c", "init.defaultBranch=main",
    "-c", "advice.detachedHead=false",
    "-c", "merge.conflictStyle=merge",
)  # fmt: skip


class GitError(CaloronError):
    """A git command failed."""

    def __init__(self, argv: Sequence[str], code: int, stderr: str) -> None:
        super().__init__(f"git {' '.join(argv)} failed ({code}): {stderr.strip()}")
        self.returncode = code
        self.stderr = stderr


def git_environment(identity: tuple[str, str] = ("Caloron", "caloron@localhost")) -> dict[str, str]:
    """The environment of every git process of ours: nobody's configuration, no prompt."""
    name, email = identity
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": email,
        "GIT_COMMITTER_NAME": name,
        "GIT_COMMITTER_EMAIL": email,
    }


def git_argv(repository: Path, args: Sequence[str]) -> list[str]:
    return ["git", *_SAFE, "-C", str(repository), *args]


def git(
    repository: Path,
    *args: str,
    check: bool = True,
    stdin: bytes | None = None,
    environment: dict[str, str] | None = None,
) -> str:
    """Run git in a repository and return what it printed, without the last newline."""
    return (
        git_bytes(repository, *args, check=check, stdin=stdin, environment=environment)
        .decode("utf-8", "replace")
        .rstrip("\n")
    )


def git_bytes(
    repository: Path,
    *args: str,
    check: bool = True,
    stdin: bytes | None = None,
    environment: dict[str, str] | None = None,
) -> bytes:
    done = git_process(repository, *args, stdin=stdin, environment=environment)
    if check and done.returncode != 0:
        raise GitError(args, done.returncode, done.stderr.decode("utf-8", "replace"))
    return done.stdout


def git_process(
    repository: Path,
    *args: str,
    stdin: bytes | None = None,
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run git and give back everything, for callers that read the exit code."""
    return subprocess.run(
        git_argv(repository, args),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        env=environment or git_environment(),
        check=False,
        # Ctrl-C on the terminal is for Caloron: git must not die half-way of it.
        process_group=0,
    )
