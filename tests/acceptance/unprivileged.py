"""A home of a user who is not root: the same claims must hold for every kind of user."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from tests.integration.agents.cage import ORDINARY
from tests.support.home import PROGRAM, Home

_PYTHON = "/usr/bin/python3"
_NEEDED = (
    "click", "yaml", "_yaml", "msgspec", "rich", "markdown_it", "mdurl", "pygments",
)  # fmt: skip


class UnprivilegedHome(Home):
    """A home that belongs to a user id without an account, which runs `caloron` there."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        # Another program than Caloron, so that no process of root is forked for it.
        self.program = (_PYTHON, *PROGRAM[1:])
        library = root / "library"
        skip = shutil.ignore_patterns("__pycache__")
        installed = Path(sysconfig.get_path("purelib"))
        for name in _NEEDED:
            if (installed / name).is_dir():
                shutil.copytree(installed / name, library / name, ignore=skip)
        source = Path(self.environment["PYTHONPATH"]) / "caloron"
        shutil.copytree(source, library / "caloron", ignore=skip)
        self.environment |= {"PYTHONPATH": str(library), "HOME": str(root), "PATH": "/usr/bin:/bin"}
        with (root / "gitconfig").open("a") as file:
            # Who looks at it afterwards is root.
            file.write("[safe]\n\tdirectory = *\n")
        for folder, _, files in os.walk(root):
            for name in (".", *files):
                os.chown(Path(folder, name), ORDINARY, ORDINARY, follow_symlinks=False)

    def _argv(self, arguments: Sequence[str], *, json: bool) -> list[str]:
        who = (f"--reuid={ORDINARY}", f"--regid={ORDINARY}", "--clear-groups")
        _, *rest = super()._argv(arguments, json=json)
        return ["setpriv", *who, "--", _PYTHON, *rest]


def version_of_system_python() -> tuple[int, ...]:
    """Ours, if the system's own interpreter can run what is installed for us."""
    code = "import sys; print(*sys.version_info[:2])"
    if not Path(_PYTHON).exists():
        return ()
    result = subprocess.run((_PYTHON, "-c", code), capture_output=True, text=True, check=True)
    return tuple(map(int, result.stdout.split()))


def can_run_unprivileged() -> bool:
    return os.getuid() == 0 and version_of_system_python() == sys.version_info[:2]
