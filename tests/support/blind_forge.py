"""`caloron` on a forge that cannot check the base of a merge, and whose main moves just before.

Run it as a program in the place of `python -m caloron.cli`. The first merge of task `a` finds a
person's commit on main that the change was not verified with: `parts/theirs`.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from caloron.cli.start import run
from caloron.forge.local.forge import LocalForge
from caloron.ports import Forge, Merged

THEIRS = "parts/theirs"
_ADA = ("-c", "user.name=Ada", "-c", "user.email=ada@localhost")


def run_blind(adapter: Any, push_theirs: Callable[[Forge], None]) -> None:
    """Run `caloron` with an adapter whose merges ignore the base that is expected."""
    merge = adapter.merge

    def merge_blindly(
        self: Forge, number: int, head: str, base: str, message: str, verified: object = None
    ) -> Merged:
        pull = self.pull(number)
        if pull.branch.startswith("agent/a/") and pull.state == "open":
            push_theirs(self)
        result: Merged = merge(self, number, head, "", message)
        return result

    adapter.merge = merge_blindly
    run()


def _push_theirs(local_forge: Forge) -> None:
    """Push once, however often the merge is tried."""
    forge = Path(local_forge.remote().url)
    subjects = _git(forge, "log", "--format=%s", "main").splitlines()
    if THEIRS in subjects:
        return
    with tempfile.TemporaryDirectory(dir=forge.parent, prefix="clone-") as folder:
        clone = Path(folder, "c")
        _git(forge, "clone", "--quiet", "--branch", "main", str(forge), str(clone))
        file = clone / THEIRS
        file.parent.mkdir(exist_ok=True)
        file.write_text("theirs\n", "utf-8")
        _git(clone, "add", "-A")
        _git(clone, *_ADA, "commit", "--quiet", "-m", THEIRS)
        _git(clone, "push", "--quiet", "origin", "HEAD:main")


def _git(repository: Path, *args: str) -> str:
    argv = ("git", "-C", str(repository), *args)
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    run_blind(LocalForge, _push_theirs)
