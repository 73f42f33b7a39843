"""Where agents run. Unconfined: with the user's own rights, but not with the user's secrets."""

from __future__ import annotations

import os
from pathlib import Path

_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TERM", "TZ")


class NoSandbox:
    """No confinement; only an allow-list of the environment reaches the agent."""

    def wrap(self, argv: tuple[str, ...], workspace: Path) -> tuple[str, ...]:
        return argv

    def environment(self, extra: dict[str, str]) -> dict[str, str]:
        known = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        return {"PATH": os.defpath, **known, **extra}
