"""Files that people and scripts read, while the ledger is the truth: one way to deal with all.

The digest of a text is remembered before the file is written, so that a file tells whose it is:
ours, or somebody else's. Nothing of somebody else's is ever overwritten: it is taken in or left
alone, or kept beside its place.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from caloron.errors import StoreError
from caloron.ledger.ledger import Ledger, remember_projection
from caloron.store import queue
from caloron.store.files import write_atomic

LARGEST_FILE = 64 << 20


class Projected(msgspec.Struct, frozen=True, kw_only=True):
    """A file of ours: where it is, and under which name its texts are remembered."""

    name: str
    path: Path


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What stands in the place of a file, and whose it is."""

    whose: Literal["ours", "foreign", "nobody"]
    text: bytes = b""


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def look(ledger: Ledger, file: Projected) -> Seen:
    """Whose text stands in a file; `StoreError` if that cannot be found out."""
    try:
        with file.path.open("rb") as opened:
            text = opened.read(LARGEST_FILE + 1)
    except FileNotFoundError:
        return Seen(whose="nobody")
    except OSError as error:
        raise unusable(file.path, error) from error
    ours = digest(text) in ledger.get(f"projection/{file.name}").split()
    return Seen(whose="ours" if ours else "foreign", text=text)


def write(ledger: Ledger, *texts: tuple[Projected, bytes]) -> None:
    """Write files of ours; those that say it already are left as they are."""
    changed = [(file, text) for file, text in texts if not _says(ledger, file, text)]
    if not changed:
        return
    with ledger.db.transaction(changed[0][0].name.partition("/")[0]) as connection:
        for file, text in changed:
            remember_projection(connection, file.name, digest(text))
    for file, text in changed:
        write_atomic(file.path, text)


def _says(ledger: Ledger, file: Projected, text: bytes) -> bool:
    seen = look(ledger, file)
    return seen.whose == "ours" and seen.text == text


def set_aside(ledger: Ledger, path: Path, kind: Literal["corrupt", "foreign"]) -> Path:
    """Keep a file that is not ours beside its place, and write that down."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    kept = path.with_name(f"{path.name}.{kind}-{stamp}")
    try:
        path.rename(kept)
    except OSError as error:
        raise unusable(path, error) from error
    with ledger.db.transaction("set_aside") as connection:
        payload = {"file": str(path), "kind": kind, "kept": str(kept)}
        queue.append_event(connection, "state_file_set_aside", payload)
    return kept


def unusable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{path} cannot be used: {error.strerror}",
        hint="make it a file that you can read and move, or move it away; nothing is lost with it",
    )
