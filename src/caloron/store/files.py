"""Files that are either the old ones or the new ones, never half of each."""

from __future__ import annotations

import errno
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

from caloron.errors import StoreError
from caloron.store.crash import crashpoint

#: What git and SQLite say about a full disk.
_FULL = ("No space left", "disk is full", "Out of diskspace", "Disk quota exceeded")
_TOO_LITTLE = 64 << 10


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file durably: temporary file, fsync, rename, fsync of the directory.

    What is not durable outlives every process but not the machine, and waits for no disk.
    """
    # Processes and threads that write one path at the same time have a file each.
    temporary = path.with_name(f".{path.name}.{threading.get_ident():x}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            crashpoint("file.temp")
            if durable:
                os.fsync(file.fileno())
        crashpoint("file.fsync")
        temporary.replace(path)
        if durable:
            sync_directory(path.parent)
    except OSError as error:
        # Where nothing can be written there may be nothing to remove, or no way to do it.
        with suppress(OSError):
            temporary.unlink()
        raise StoreError(
            f"cannot write {path}: {error.strerror}",
            hint="the old file is untouched; free space or make the directory writable",
        ) from error
    crashpoint("file.rename")


def is_disk_full(error: BaseException, place: Path) -> bool:
    """Whether an error, or what caused it, says that a disk of this machine is full.

    A program such as git may fail without a word about that: then the disk of `place` decides.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if any(sign in str(cause) for sign in _FULL):
            return True
        cause = cause.__cause__
    try:
        disk = os.statvfs(place)
    except OSError:
        # The place is gone: nothing says that its disk is full.
        return False
    return disk.f_bavail * disk.f_frsize < _TOO_LITTLE


def read_plain(path: Path, last: int | None = None) -> bytes:
    """What stands in a file, or its last bytes; FileNotFoundError if there is none.

    A device or a pipe in its place has no end, or never begins: it is refused unread.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:  # noqa: PTH123 - opened already
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is no plain file")
            if last is not None:
                file.seek(max(0, found.st_size - last))
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(
            f"cannot read {path}: {error.strerror}",
            hint="make it readable for you, or move away what stands there",
        ) from error


def read_text(path: Path) -> str:
    """The text of a file; bytes that are no text are shown as such, and raise nothing."""
    return read_plain(path).decode("utf-8", "replace")


def append_line(path: Path, line: bytes) -> None:
    """Add one whole line durably; one that could not be written whole is taken back.

    Whoever died in the middle of a line left half of it: that stays, on a line of its own.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _append(handle, line, path.parent)
        finally:
            os.close(handle)
    except OSError as error:
        raise StoreError(
            f"cannot append to {path}: {error.strerror}",
            hint="what it held is untouched; free space or make it writable for you",
        ) from error


def _append(handle: int, line: bytes, directory: Path) -> None:
    size = os.fstat(handle).st_size
    torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
    data = (b"\n" if torn else b"") + line + b"\n"
    try:
        while data:
            # A disk that is nearly full takes a part; the next write says why.
            data = data[os.write(handle, data) :]
        crashpoint("append.write")
        os.fsync(handle)
        if not size:
            sync_directory(directory)
    except OSError:
        with suppress(OSError):
            # The first error is the one that is raised.
            os.ftruncate(handle, size)
        raise
    crashpoint("append.fsync")


def swap(one: Path, other: Path) -> bool:
    """Let two places change their content in one step; False where the system cannot do that."""
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    here, exchange = -100, 2
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def sync_tree(folder: Path) -> None:
    """Bring everything below a folder to the disk."""
    for place, _, names in os.walk(folder):
        for name in names:
            handle = os.open(Path(place, name), os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        sync_directory(Path(place))


def sync_directory(directory: Path) -> None:
    """Make what was renamed in a folder survive a power cut."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
