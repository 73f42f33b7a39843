"""What the shell is told by its environment; a value that cannot be meant is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from caloron.errors import PreconditionFailed, UsageError

PORT = "CALORON_SHELL_PORT"
TOKEN = "CALORON_SHELL_TOKEN"
ROOT = "CALORON_SHELL_ROOT"
_PORT = 7710
_LARGEST_PORT = 65535


class ShellSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the shell listens, whom it believes, and where its agents may work."""

    port: int
    token: str
    #: Repositories and worktrees lie here and nowhere else.
    root: Path

    def __repr__(self) -> str:
        return f"ShellSettings(port={self.port}, root={self.root})"


def shell_settings(environment: Mapping[str, str]) -> ShellSettings:
    """The settings, or what is wrong with them."""
    return ShellSettings(
        port=_port(environment.get(PORT, "")),
        token=_token(environment.get(TOKEN, "")),
        root=_root(environment.get(ROOT, "")),
    )


def _port(given: str) -> int:
    if not given:
        return _PORT
    if not (given.isascii() and given.isdecimal() and int(given) <= _LARGEST_PORT):
        raise UsageError(
            f"{PORT} is {given!r}, which is no port",
            hint=f"take a number from 0 (any free port) to {_LARGEST_PORT}, or leave it unset: "
            f"{_PORT}",
        )
    return int(given)


def _token(given: str) -> str:
    if not given:
        raise PreconditionFailed(
            f"the shell does not start without {TOKEN}: everybody on this machine could start"
            " agents with it",
            hint=f'export {TOKEN}="$(openssl rand -hex 32)", for the shell and for those who call',
        )
    if not (given.isascii() and given.isprintable()) or given != given.strip():
        raise UsageError(
            f"{TOKEN} holds what no HTTP header can carry",
            hint="take printable ASCII without spaces around it",
        )
    return given


def _root(given: str) -> Path:
    root = Path(given or ".").expanduser()
    if not root.is_dir():
        raise UsageError(f"{ROOT} is {given!r}, which is no folder", hint="name one that is there")
    return root.resolve()
