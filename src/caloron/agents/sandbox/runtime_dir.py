"""The few small files that sandboxes are started with, in a folder of this user alone.

Its path is short, because that of a socket may not be long; nothing in it is worth keeping.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from caloron.errors import PreconditionFailed, StoreError

SOCKET = "proxy.sock"

_LINK = "net-"
#: Far longer than it takes to start a sandbox with a file.
_STALE_S = 3600.0
_PRUNE_EVERY_S = 60.0
_PRUNED = ".pruned"


def folder() -> Path:
    """Return the folder itself; it is made if it is missing."""
    path = Path("/tmp") / f"caloron-{os.getuid()}"
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PreconditionFailed(
            f"{path} is not a folder of yours alone",
            hint="check what it is, and remove it; Caloron creates it again",
        )
    return path


def keep(name: str, content: bytes) -> Path:
    """Return a file with this content; a new one lets stale files be removed."""
    path = folder() / name
    try:
        if path.is_file() and path.read_bytes() == content:
            os.utime(path)
            return path
        _prune_now_and_then(path.parent)
        handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o644)
            file.write(content)
        Path(fresh).replace(path)
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror}", hint="free some space in /tmp"
        ) from error
    return path


def link_folder() -> Path:
    """Make a folder for the socket of one proxy; the proxy removes it when it ends."""
    parent = folder()
    _prune_now_and_then(parent)
    made = Path(tempfile.mkdtemp(dir=parent, prefix=_LINK))
    # The agent may have a user id of its own, and must find the socket.
    made.chmod(0o755)
    return made


def _prune_now_and_then(runtime: Path) -> None:
    """Prune at most once a minute: under root, every agent has files of its own."""
    mark = runtime / _PRUNED
    with suppress(FileNotFoundError):
        if time.time() - mark.stat().st_mtime < _PRUNE_EVERY_S:
            return
    mark.touch()
    prune(runtime)


def prune(runtime: Path) -> None:
    """Remove stale files: a proxy that was killed could not remove its own."""
    limit = time.time() - _STALE_S
    for path in runtime.iterdir():
        # Another process may remove the same, and its owner may be another user.
        with suppress(OSError):
            old = path.lstat().st_mtime < limit
            if not path.name.startswith(_LINK):
                if old:
                    path.unlink()
            elif _is_dead(path / SOCKET):
                (path / SOCKET).unlink()
                path.rmdir()
            elif old:
                # A folder with a socket is in use: this fails, and it stays.
                path.rmdir()


def _is_dead(path: Path) -> bool:
    """True if a socket has no listener; without a socket its proxy may be about to start."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED
