"""Files that are either the old ones or the new ones, never half of each."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from caloron.errors import StoreError
from caloron.store.crash import crashpoint


def write_atomic(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace a file durably: temporary file, fsync, rename, fsync of the directory.

    What is not durable outlives every process but not the machine, and waits for no disk.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
