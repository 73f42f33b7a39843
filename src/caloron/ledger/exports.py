"""Files that are written from the ledger for people and scripts.

An export is only written. A managed file is an export whose edits are read back. The digest of a
text is stored before the file is written, so a text that Caloron did not write is recognised. Such
a text is never overwritten: it is read back, or kept beside its place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from caloron.errors import StoreError
from caloron.ledger.ledger import Ledger, remember_export
from caloron.store import queue
from caloron.store.files import move_aside, write_atomic

LARGEST_FILE = 64 << 20


class Export(NamedTuple):
    #: The key of its stored digests.
    name: str
    path: Path
    text: Callable[[], bytes]
    #: Set for a managed file. Describes the edit that is read back, empty if the text says nothing
    #: new; raises `ValueError` for a text that cannot be read.
    describe_edit: Callable[[bytes], str] | None = None


class Content(NamedTuple):
    """The content of an exported file, and which program wrote it."""

    author: Literal["caloron", "other", "none"]
    text: bytes = b""


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def stored_digests(ledger: Ledger, name: str) -> list[str]:
    """Return the digests of a file's last two texts, the newest last; none: never written."""
    return ledger.get(f"projection/{name}").split()


def read(ledger: Ledger, name: str, path: Path) -> Content:
    """Read an exported file; `StoreError` if it is there and cannot be read."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        return Content("none")
    except OSError as error:
        raise _unusable(path, error) from error
    return Content("caloron" if digest(text) in stored_digests(ledger, name) else "other", text)


def write(ledger: Ledger, *exports: Export) -> list[str]:
    """Write files whose text has changed; return messages about texts of other programs.

    The digests are stored in one transaction before the first file is written.
    """
    messages: list[str] = []
    changed: list[tuple[Export, bytes]] = []
    for export in exports:
        text, content = export.text(), read(ledger, export.name, export.path)
        if content.author == "other" and content.text != text:
            kept = keep_aside(ledger, export.path, content.text)
            problem = "is corrupt" if ".corrupt-" in kept.name else "was changed"
            messages.append(f"{export.path} {problem}; it is kept as {kept}, and written again")
        if content != Content("caloron", text):
            changed.append((export, text))
    if changed:
        with ledger.db.transaction(changed[0][0].name.partition("/")[0]) as connection:
            for export, text in changed:
                remember_export(connection, export.name, digest(text))
    for export, text in changed:
        write_atomic(export.path, text)
    return messages


def keep_aside(ledger: Ledger, path: Path, text: bytes, *, readable: bool | None = None) -> Path:
    """Rename a file that another program wrote, and record that. Return the new path."""
    is_readable = _is_readable(path, text) if readable is None else readable
    kind = "foreign" if is_readable else "corrupt"
    try:
        kept = move_aside(path, kind)
    except OSError as error:
        raise _unusable(path, error) from error
    with ledger.db.transaction("set_aside") as connection:
        payload = {"file": str(path), "kind": kind, "kept": str(kept)}
        queue.append_event(connection, "state_file_set_aside", payload)
    return kept


def _is_readable(path: Path, text: bytes) -> bool:
    """False for a JSON file whose text is not JSON, such as one that was half written."""
    if path.suffix != ".json":
        return True
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _unusable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{path} cannot be used: {error.strerror}",
        hint="make it a file that you can read and move, or move it away; nothing is lost with it",
    )
