"""Opens the databases of this library."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from caloron.store.database import Database, run_script

_PATIENCE_S = 30.0


def open_database(path: Path, schema: str, *, survives_power_loss: bool = True) -> Database:
    """Open a database and create its missing tables; raises StoreError or OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _make_private(path)
    database = Database(path, patience_s=_PATIENCE_S)
    try:
        if not survives_power_loss:
            database.rows("PRAGMA synchronous = NORMAL")
        with database.transaction("graph.schema") as connection:
            run_script(connection, schema)
    except BaseException:
        database.close()
        raise
    return database


def _make_private(path: Path) -> None:
    """Values of graphs may be confidential: only their owner reads the file, also an older one."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError, PermissionError):
            path.with_name(path.name + suffix).chmod(0o600)
