"""Where an agent's cycles are kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from caloron.errors import UsageError
from caloron.places import home

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")


class Places(NamedTuple):
    """The two files of one agent; lock and stop request lie beside the state."""

    agent: str
    state: Path
    log: Path
    #: Where else this agent's cycles may be: whoever goes on here must know of those.
    other: Places | None = None

    @property
    def lock(self) -> Path:
        return self.state.with_name(f".{self.agent}.lock")

    @property
    def stop(self) -> Path:
        return self.state.with_name(f"{self.agent}.stop")


def places_of(agent: str, *, hermes: bool | None = None) -> Places:
    """`~/.hermes` when asked for or when it is there, else `$CALORON_HOME/cycles`."""
    if not _NAME.fullmatch(agent):
        raise UsageError(
            f"agent {agent[:60]!r} cannot be used",
            hint="take 1 to 64 letters, digits, '_' and '-', the first of them no '-'",
        )
    folder = Path("~/.hermes").expanduser().absolute()
    theirs = _places(agent, folder / "burn-state", folder / "burn-logs")
    ours = _places(agent, home() / "cycles", home() / "cycles")
    if folder.is_dir() if hermes is None else hermes:
        return theirs._replace(other=ours)
    return ours._replace(other=theirs)


def _places(agent: str, folder: Path, logs: Path) -> Places:
    return Places(agent, folder / f"{agent}.json", logs / f"{agent}.log")
