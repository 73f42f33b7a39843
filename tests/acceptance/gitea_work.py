"""A clone of a forge's repository, to push changes from."""

from __future__ import annotations

from pathlib import Path

from caloron.domain.model.snapshots import PullSnapshot
from caloron.forge.remote.forge import RemoteForge
from caloron.git.mirror import Mirror
from tests.support.git import git


class Work:
    """A repository of our own to push from."""

    def __init__(self, forge: RemoteForge, path: Path) -> None:
        self.forge = forge
        self.mirror = Mirror(path, forge.remote(), forge.main)
        self.mirror.ensure()
        self.main = self.mirror.fetch_main()

    def commit(self, files: dict[str, str], parent: str = "") -> str:
        path, parent = self.mirror.path, parent or self.main
        index = {"GIT_INDEX_FILE": str(path / "index-of-tests")}
        git(path, "read-tree", parent, env=index)
        for name, text in files.items():
            blob = git(path, "hash-object", "-w", "--stdin", stdin=text, env=index)
            git(path, "update-index", "--add", "--cacheinfo", f"100644,{blob},{name}", env=index)
        tree = git(path, "write-tree", env=index)
        return git(path, "commit-tree", tree, "-p", parent, "-m", "work", env=index)

    def open_pull(
        self, branch: str, files: dict[str, str] | None = None, body: str = ""
    ) -> PullSnapshot:
        commit = self.commit(files or {f"{branch.replace('/', '-')}.txt": branch})
        self.forge.push(self.mirror.path, branch, commit, "")
        return self.forge.open_pull(f"Change of {branch}", body, branch)
