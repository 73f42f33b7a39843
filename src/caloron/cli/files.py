"""Files that commands write at the user's request."""

from __future__ import annotations

from pathlib import Path

from caloron.errors import AlreadyExists, StoreError
from caloron.store.files import write_atomic


def is_own_file(path: Path, first_bytes: bytes, what: str, *, force: bool) -> bool:
    """True if the file exists; one that does not begin like ours is refused without `force`."""
    try:
        with path.open("rb") as file:
            is_ours = file.read(len(first_bytes)) == first_bytes
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error
    if not is_ours and not force:
        raise AlreadyExists(
            f"{path} exists already, and is no {what}",
            hint="choose another file, or overwrite it with --force; nothing was changed",
        )
    return True


def write_file(path: Path, content: str) -> None:
    try:
        write_atomic(path, content.encode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: Exception) -> StoreError:
    return StoreError(f"cannot write {path}: {error}", hint="choose another file")
