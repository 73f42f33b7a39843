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

from caloron.errors import PreconditionFailed, store_errors

SOCKET = "proxy.sock"

_LINK = "net-"
#: Far longer than it takes to start a sandbox with a file.
_STALE_S = 3600.0


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
    with store_errors(f"cannot write {path}", hint="free some space in /tmp"):
        if path.is_file() and path.read_bytes() == content:
            os.utime(path)
            return path
        prune(path.parent)
        handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        with os.fdopen(handle, "wb") as file:
            os.fchmod(handle, 0o644)
            file.write(content)
        Path(fresh).replace(path)
    return path


def link_folder() -> Path:
    """Make a folder for the socket of one proxy; the proxy removes it when it ends."""
    parent = folder()
    prune(parent)
    made = Path(tempfile.mkdtemp(dir=parent, prefix=_LINK))
    # The agent may have a user id of its own, and must find the socket.
    made.chmod(0o755)
    return made


def prune(runtime: Path) -> None:
    """Remove stale files: a proxy that was killed could not remove its own."""
    limit = time.time() - _STALE_S
    for path in runtime.iterdir():
        # Another process may remove the same, and its owner may be another user.
        with suppress(OSError):
            if path.lstat().st_mtime > limit:
                continue
            if not path.name.startswith(_LINK):
                path.unlink()
            elif not _is_used(path / SOCKET):
                (path / SOCKET).unlink(missing_ok=True)
                path.rmdir()


def _is_used(path: Path) -> bool:
    """True if a socket has a listener, or may have one that is busy."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        return probe.connect_ex(str(path)) not in (errno.ECONNREFUSED, errno.ENOENT)
