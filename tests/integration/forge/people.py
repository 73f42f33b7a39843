"""A person with plain git: a clone of the forge in which commits are made and pushed by hand."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from caloron.domain.model.snapshots import PullSnapshot
from caloron.ports import Forge


def plain_git(directory: Path, *args: str) -> str:
    """git as a person runs it, with that person's name and no configuration of this machine."""
    environment = {
        **os.environ,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_AUTHOR_NAME": "Anna",
        "GIT_AUTHOR_EMAIL": "anna@example.org",
        "GIT_COMMITTER_NAME": "Anna",
        "GIT_COMMITTER_EMAIL": "anna@example.org",
    }
    done = subprocess.run(
        ["git", *args], cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Clone:
    """A working copy of a forge."""

    def __init__(self, url: str, path: Path) -> None:
        self.path = path
        plain_git(path.parent, "clone", "--quiet", url, str(path))

    def git(self, *args: str) -> str:
        return plain_git(self.path, *args)

    def commit(self, branch: str, files: dict[str, str], start: str = "origin/main") -> str:
        """A commit on a branch, which starts at `start` if it does not exist yet."""
        self.git("fetch", "--quiet", "origin")
        if self.git("branch", "--list", branch):
            self.git("checkout", "--quiet", branch)
        else:
            self.git("checkout", "--quiet", "--no-track", "-b", branch, start)
        for name, content in files.items():
            (self.path / name).write_text(content, "utf-8")
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", f"change {', '.join(files)}")
        return self.git("rev-parse", "HEAD")

    def push(self, *refspecs: str) -> None:
        self.git("push", "--quiet", "--force", "origin", *refspecs)

    def open_pull(
        self,
        forge: Forge,
        branch: str,
        files: dict[str, str] | None = None,
        body: str = "",
        start: str = "origin/main",
    ) -> PullSnapshot:
        """A pull request with one commit, pushed through the forge."""
        commit = self.commit(branch, files or {f"{branch.replace('/', '-')}.txt": branch}, start)
        seen = forge.branch(branch)
        forge.push(self.path, branch, commit, seen.commit if seen else "")
        return forge.open_pull(f"Change of {branch}", body, branch)


def main_of(forge: Forge) -> str:
    seen = forge.branch("main")
    assert seen is not None
    return seen.commit


def files_on_main(forge: Forge) -> dict[str, str]:
    return files_at(Path(forge.remote().url), "main")


def files_at(repository: Path, ref: str) -> dict[str, str]:
    names = plain_git(repository, "ls-tree", "-r", "-z", "--name-only", ref).split("\0")
    return {name: plain_git(repository, "show", f"{ref}:{name}") for name in names if name}
