"""Durable file operations: a crash leaves the old file or the new one, never half of it."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from caloron.errors import StoreError, store_errors
from caloron.store.crash import crashpoint

#: Messages of git and SQLite about a full disk.
_FULL = ("No space left", "disk is full", "Out of diskspace", "Disk quota exceeded")
_TOO_LITTLE = 64 << 10


def home() -> Path:
    """Return `$CALORON_HOME`, or `~/.caloron`: it holds all that belongs to no single project."""
    return Path(os.environ.get("CALORON_HOME") or "~/.caloron").expanduser().absolute()


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file durably, and create its folder if it does not exist."""
    hint = "the old file is untouched; free space or make the directory writable"
    with store_errors(f"cannot write {path}", hint=hint):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path, durable=durable) as file:
            file.write(data)


@contextmanager
def atomic_file(path: Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Open a file that replaces `path` when the block ends, and not at all if the block fails.

    The steps are: temporary file, fsync, rename, fsync of the directory. Without `durable` the file
    survives a killed process but not a power cut.
    """
    # Each process and thread that writes this path has a temporary file of its own.
    temporary = path.with_name(f".{path.name}.{threading.get_ident():x}.{os.getpid()}.tmp")
    try:
        with temporary.open("w+b") as file:
            yield file
            file.flush()
            crashpoint("file.temp")
            if durable:
                os.fsync(file.fileno())
        crashpoint("file.fsync")
        temporary.replace(path)
        if durable:
            sync_directory(path.parent)
    except BaseException:
        # On a full or read-only disk there may be nothing to remove.
        with suppress(OSError):
            temporary.unlink()
        raise
    crashpoint("file.rename")


def is_disk_full(error: BaseException, place: Path) -> bool:
    """True if an error, or its cause, is a full disk.

    A program such as git may fail without saying so: then the disk of `place` decides.
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
        # The folder is gone.
        return False
    return disk.f_bavail * disk.f_frsize < _TOO_LITTLE


def read_plain(path: Path, last: int | None = None) -> bytes:
    """Return the content of a file, or its last bytes; FileNotFoundError if there is none.

    A device or a pipe is refused: reading it may never end.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:  # noqa: PTH123 - opened already
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is not a plain file")
            if last is not None:
                file.seek(max(0, status.st_size - last))
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(
            f"cannot read {path}: {error.strerror}",
            hint="make it readable for you, or move it away",
        ) from error


def read_text(path: Path) -> str:
    """Return the text of a file; bytes that are not UTF-8 are replaced."""
    return read_plain(path).decode("utf-8", "replace")


def append_line(path: Path, line: bytes) -> None:
    """Append one line durably; a line that could not be written whole is removed.

    Half a line of a killed process stays, on a line of its own.
    """
    hint = "the file is unchanged; free space or make it writable for you"
    with store_errors(f"cannot append to {path}", hint=hint):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _append(handle, line, path.parent)
        finally:
            os.close(handle)


def _append(handle: int, line: bytes, directory: Path) -> None:
    size = os.fstat(handle).st_size
    torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
    data = (b"\n" if torn else b"") + line + b"\n"
    try:
        while data:
            # A nearly full disk takes a part of it; the next write raises.
            data = data[os.write(handle, data) :]
        crashpoint("append.write")
        os.fsync(handle)
        if not size:
            sync_directory(directory)
    except OSError:
        with suppress(OSError):
            # The first error is raised.
            os.ftruncate(handle, size)
        raise
    crashpoint("append.fsync")


def swap(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False if the system cannot do that."""
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    here, exchange = -100, 2
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0)


def move_aside(path: Path, kind: str) -> Path:
    """Rename a file to `<name>.<kind>-<time>`, so that nothing overwrites it."""
    from datetime import UTC, datetime

    kept = path.with_name(f"{path.name}.{kind}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}")
    path.rename(kept)
    return kept


@contextmanager
def staging(folder: Path, prefix: str, *, mode: int = 0o700) -> Iterator[Path]:
    """Create a folder to build something in, and delete it if it was not renamed.

    Those of killed processes are deleted first.
    """
    import shutil

    remove_leftovers(folder, f"{prefix}-*")
    stage = folder / f"{prefix}-{os.getpid()}"
    stage.mkdir(mode=mode)
    try:
        yield stage
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def remove_leftovers(folder: Path, *patterns: str) -> None:
    """Delete files and folders whose names end in the pid of a process that is gone.

    A killed process leaves them: `<anything>-<pid>`, or `<anything>.<pid>.tmp`.
    """
    import shutil

    for leftover in (path for pattern in patterns for path in folder.glob(pattern)):
        pid = leftover.name.removesuffix(".tmp").replace("-", ".").rpartition(".")[2]
        if not pid.isdigit() or Path("/proc", pid).exists():
            continue
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def sync_tree(folder: Path) -> None:
    """Sync every file and folder below a folder to disk."""
    for place, _, names in os.walk(folder):
        for name in names:
            handle = os.open(Path(place, name), os.O_RDONLY | os.O_NOFOLLOW)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        sync_directory(Path(place))


def sync_directory(directory: Path) -> None:
    """Let renames in a folder survive a power cut."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
