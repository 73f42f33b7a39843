"""A clone of a forge's repository, to push changes from."""

from __future__ import annotations

import subprocess
from pathlib import Path

from caloron.domain.model.snapshots import PullSnapshot
from caloron.forge.remote.forge import RemoteForge
from caloron.git.mirror import Mirror


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
        run(path, index, "read-tree", parent)
        for name, text in files.items():
            blob = run(path, index, "hash-object", "-w", "--stdin", stdin=text)
            run(path, index, "update-index", "--add", "--cacheinfo", f"100644,{blob},{name}")
        tree = run(path, index, "write-tree")
        return run(path, index, "commit-tree", tree, "-p", parent, "-m", "work")

    def open_pull(
        self, branch: str, files: dict[str, str] | None = None, body: str = ""
    ) -> PullSnapshot:
        commit = self.commit(files or {f"{branch.replace('/', '-')}.txt": branch})
        self.forge.push(self.mirror.path, branch, commit, "")
        return self.forge.open_pull(f"Change of {branch}", body, branch)


def run(path: Path, more: dict[str, str], *args: str, stdin: str = "") -> str:
    names = {
        f"GIT_{w}_{k}": "x@example.org" for w in ("AUTHOR", "COMMITTER") for k in ("NAME", "EMAIL")
    }
    done = subprocess.run(
        ["git", "-C", str(path), *args],
        env={"PATH": "/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null", **names, **more},
        input=stdin, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
