"""Who sits at the keyboard: the name that a person's acts carry on the forge."""

from __future__ import annotations

import getpass
import subprocess

from caloron.ledger.locate import ProjectPaths
from caloron.ledger.wake import Wake

#: The engine's own account: what a person does must never look like its work.
_ENGINE = "caloron"


def person() -> str:
    """The user's name in git, else the login name, but never the engine's own."""
    for name in (_git_name(), _login_name()):
        if name and name.casefold() != _ENGINE:
            return name
    return "you"


def poke(project: ProjectPaths) -> None:
    """Tell a running engine that a person did something."""
    Wake(project.wake).poke()


def _git_name() -> str:
    try:
        asked = subprocess.run(
            ["git", "config", "--get", "user.name"], capture_output=True, check=False
        )
    except OSError:
        # There is no git to ask.
        return ""
    return asked.stdout.decode("utf-8", "replace").strip()


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # The user has no name on this machine.
        return ""
