"""A clone of a forge, in which tests commit and push with plain git as a person does."""

from __future__ import annotations

from pathlib import Path

from caloron.domain.model.snapshots import PullSnapshot
from caloron.ports import Forge
from tests.support.git import git


class Clone:
    """A working copy of a forge."""

    def __init__(self, url: str, path: Path) -> None:
        self.path = path
        git(path.parent, "clone", "--quiet", url, str(path))

    def git(self, *args: str) -> str:
        return git(self.path, *args)

    def commit(self, branch: str, files: dict[str, str], start: str = "origin/main") -> str:
        """Commit on a branch, created from `start` if it does not exist, and return the commit."""
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
        """Push one commit through the forge, and open a pull request for it."""
        commit = self.commit(branch, files or {f"{branch.replace('/', '-')}.txt": branch}, start)
        current = forge.branch(branch)
        forge.push(self.path, branch, commit, current.commit if current else "")
        return forge.open_pull(f"Change of {branch}", body, branch)


def main_of(forge: Forge) -> str:
    main = forge.branch("main")
    assert main is not None
    return main.commit


def files_on_main(forge: Forge) -> dict[str, str]:
    return files_at(Path(forge.remote().url), "main")


def files_at(repository: Path, ref: str) -> dict[str, str]:
    names = git(repository, "ls-tree", "-r", "-z", "--name-only", ref).split("\0")
    return {name: git(repository, "show", f"{ref}:{name}") for name in names if name}
