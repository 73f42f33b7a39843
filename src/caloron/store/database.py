"""SQLite databases: open, migrate, read, write; SQL statements in files."""

from __future__ import annotations

import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from caloron.errors import StoreError
from caloron.store.crash import crashpoint

Parameters = Sequence[Any] | dict[str, Any]

_PAUSE_S = 0.01
_BUSY_S = 10.0
_MANY_EVENTS = 50_000


class Migration(NamedTuple):
    """One step of a schema, identified by its name and the checksum of its text."""

    name: str
    sql: str
    #: Changes rows in a way that SQL cannot, after the SQL was run.
    rewrite: Callable[[sqlite3.Connection], None] | None = None

    @property
    def checksum(self) -> str:
        import hashlib

        return hashlib.sha256(self.sql.encode()).hexdigest()

    def problem(self) -> str:
        """Return why this file cannot be the one that was shipped; empty if it may be."""
        statements, rest = _statements(self.sql)
        if rest:
            return "is cut short"
        return "" if statements else "is empty"


def migrations_in(directory: Path, room: str) -> tuple[Migration, ...]:
    """Return the migrations of one package, in the order of their file names."""
    files = sorted(directory.glob("*.sql"))
    return tuple(Migration(f"{room}/{f.stem}", f.read_text("utf-8")) for f in files)


def _begin_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL mode. SQLite does not wait by itself if another process does the same."""
    give_up = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not busy or time.monotonic() > give_up:
                raise
            time.sleep(_PAUSE_S)
        else:
            return


class Database:
    """One connection, which the threads of a process use one at a time."""

    def __init__(
        self,
        path: Path,
        migrations: Sequence[Migration] = (),
        *,
        table: str = "migrations",
        patience_s: float = _BUSY_S,
    ) -> None:
        """`table` stores the migrations; those that were applied now are in `migrated`.

        `patience_s`: how long to wait for other writers.
        """
        self.path = path
        self.migrated: tuple[str, ...] = ()
        self._table = table
        self._lock = threading.RLock()
        refuse_without_file(path)
        try:
            self._connection = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False, timeout=patience_s
            )
            self._connection.row_factory = sqlite3.Row
            self._connection.execute("PRAGMA foreign_keys = ON")
            _begin_wal(self._connection)
            self._connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error as error:
            raise store_error(path, error) from error
        if migrations:
            self.migrate(migrations)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    @contextmanager
    def transaction(self, name: str) -> Iterator[sqlite3.Connection]:
        """Begin a transaction; crash tests find its commit by the name."""
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:
                # No transaction was begun; one that is open now belongs to the caller.
                raise store_error(self.path, error) from error
            try:
                yield self._connection
                crashpoint(f"{name}.before_commit")
                self._connection.execute("COMMIT")
            except BaseException as error:
                self._roll_back()
                if isinstance(error, sqlite3.Error):
                    raise store_error(self.path, error) from error
                raise
        crashpoint(f"{name}.after_commit")

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """Read from one snapshot; within a transaction of this thread, from that transaction."""
        with self._lock:
            # Only the thread that began an open transaction can hold the lock.
            around = self._connection.in_transaction
            try:
                if not around:
                    self._connection.execute("BEGIN")
                yield self._connection
            except sqlite3.Error as error:
                raise store_error(self.path, error) from error
            finally:
                if not around:
                    self._roll_back()

    def rows(self, sql: str, parameters: Parameters = ()) -> list[sqlite3.Row]:
        with self._lock:
            try:
                return self._connection.execute(sql, parameters).fetchall()
            except sqlite3.Error as error:
                raise store_error(self.path, error) from error

    def row(self, sql: str, parameters: Parameters = ()) -> sqlite3.Row | None:
        rows = self.rows(sql, parameters)
        return rows[0] if rows else None

    def migrate(self, migrations: Sequence[Migration]) -> None:
        """Apply missing migrations in one transaction; refuse a newer database."""
        with self.snapshot() as connection:
            if applied_in(connection, self._table) == _checksums(migrations):
                return
        with self.transaction("migrate") as connection:
            connection.execute(
                f"CREATE TABLE IF NOT EXISTS {self._table} ("
                "name TEXT PRIMARY KEY, checksum TEXT NOT NULL, applied_at TEXT NOT NULL)"
            )
            applied = applied_in(connection, self._table)
            self._refuse_unknown(applied, _checksums(migrations))
            fresh = [m for m in migrations if m.name not in applied]
            for migration in fresh:
                if problem := migration.problem():
                    # If it were recorded, every intact installation would refuse this database.
                    raise StoreError(
                        f"migration {migration.name} of this installation {problem}",
                        hint="install Caloron again; nothing was changed",
                    )
                run_script(connection, migration.sql)
                if migration.rewrite:
                    migration.rewrite(connection)
                connection.execute(
                    f"INSERT INTO {self._table} VALUES (?, ?, datetime('now'))",
                    (migration.name, migration.checksum),
                )
        self.migrated = tuple(m.name for m in fresh)

    def _refuse_unknown(self, applied: dict[str, str], known: dict[str, str]) -> None:
        newer = sorted(applied.keys() - known.keys())
        if newer:
            raise StoreError(
                f"{self.path} was written by a newer Caloron (it has {', '.join(newer)})",
                hint="upgrade Caloron; nothing was changed",
            )
        for name, checksum in applied.items():
            if known[name] != checksum:
                raise StoreError(
                    f"{self.path}: migration {name} is not the one this Caloron ships",
                    hint="install the version that wrote it; nothing was changed",
                )


def _checksums(migrations: Sequence[Migration]) -> dict[str, str]:
    return {migration.name: migration.checksum for migration in migrations}


def applied_in(connection: sqlite3.Connection, table: str = "migrations") -> dict[str, str]:
    """Return the checksums of the migrations of a database, in the order of their application."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
        return {}
    rows = connection.execute(f"SELECT name, checksum FROM {table} ORDER BY rowid")
    return {str(row[0]): str(row[1]) for row in rows}


def open_read_only(path: Path) -> sqlite3.Connection:
    """Open a database for reading; never create or migrate it."""
    refuse_without_file(path)
    try:
        try:
            return _connect_read_only(path)
        except sqlite3.OperationalError:
            # A reader also creates a file beside the database, which a read-only or full disk
            # refuses. A database without a log can be read without that file.
            wal = path.with_name(f"{path.name}-wal")
            if not path.exists() or (wal.exists() and wal.stat().st_size):
                raise
            return open_copy(path)
    except sqlite3.Error as error:
        raise store_error(path, error) from error


def open_copy(path: Path) -> sqlite3.Connection:
    """Open a database that no process writes, without creating files beside it."""
    return _connect_read_only(path, "&immutable=1")


def _connect_read_only(path: Path, options: str = "") -> sqlite3.Connection:
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro{options}", uri=True, timeout=_BUSY_S)
    connection.row_factory = sqlite3.Row
    connection.execute("SELECT 1 FROM sqlite_master LIMIT 1")
    return connection


def refuse_damaged(path: Path) -> None:
    """Refuse a database with damaged pages; a missing database is not damaged.

    A million events take seconds to read, so a long event log is left to `state verify`: no
    decision depends on old events.
    """
    if not path.exists():
        return
    try:
        with closing(open_read_only(path)) as connection:
            if problem := _page_damage(connection):
                raise StoreError(f"{path} is damaged: {problem}", hint=restore_hint(path))
    except sqlite3.Error as error:
        raise store_error(path, error) from error


def _page_damage(connection: sqlite3.Connection) -> str:
    """Return the first problem of the pages, without those of a long event log."""
    names = "SELECT name FROM sqlite_master WHERE type = 'table'"
    tables = [str(row[0]) for row in connection.execute(names)]
    many = f"SELECT 1 FROM events WHERE id > {_MANY_EVENTS} LIMIT 1"
    is_long = "events" in tables and connection.execute(many).fetchone() is not None
    parts = [f"'{table}'" for table in tables if table != "events"] if is_long else ["1"]
    results = (connection.execute(f"PRAGMA quick_check({part})").fetchone()[0] for part in parts)
    return next((str(result) for result in results if result != "ok"), "")


def refuse_without_file(path: Path) -> None:
    """Refuse an empty or missing file beside a log with changes: SQLite would delete the log."""
    log = path.with_name(f"{path.name}-wal")
    try:
        if log.stat().st_size == 0 or (path.exists() and path.stat().st_size):
            return
    except OSError:
        # Without a log nothing can be lost. Opening the database reports other errors.
        return
    raise StoreError(
        f"{path} is empty or gone, and {log.name} beside it contains changes",
        hint=f"restore the file from a backup, or move {log.name} away",
    )


def store_error(path: Path, error: sqlite3.Error) -> StoreError:
    """Return the error with a hint that says what to do."""
    # The Python library raises errors without a code.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    hint = _HINTS.get(code, "")
    if path.is_dir():
        hint = "that is a folder and not a file; move it away"
    elif code in _DAMAGED:
        hint = restore_hint(path)
    return StoreError(f"{path}: {error}", hint=hint)


def is_damage(error: BaseException | None) -> bool:
    """True if a database could not be read because it is damaged or has no tables."""
    if isinstance(error, StoreError):
        error = error.__cause__
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (*_DAMAGED, sqlite3.SQLITE_ERROR)


def restore_hint(path: Path) -> str:
    """Return the command that replaces a damaged database."""
    if path.name == "ledger.sqlite":
        return f"put a backup back: caloron state restore FILE --as {path.parent.name} --force"
    return "move the file aside and restore a copy of it"


_FULL = "free some space on that disk; what was committed is safe, and a sprint can be resumed"
_HELD = "another program holds it; close that program and try again"
_NOT_OURS = "make the file and its directory writable for you"
_HINTS = {
    sqlite3.SQLITE_FULL: _FULL,
    sqlite3.SQLITE_IOERR: _FULL,
    sqlite3.SQLITE_BUSY: _HELD,
    sqlite3.SQLITE_LOCKED: _HELD,
    sqlite3.SQLITE_READONLY: _NOT_OURS,
    sqlite3.SQLITE_CANTOPEN: _NOT_OURS,
    sqlite3.SQLITE_PERM: _NOT_OURS,
}
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def run_script(connection: sqlite3.Connection, script: str) -> None:
    """Run a script statement by statement: `executescript` would commit the open transaction."""
    for statement in _statements(script)[0]:
        connection.execute(statement)


def _statements(script: str) -> tuple[list[str], str]:
    """Return the statements of a script, and the rest that is not a whole statement."""
    complete: list[str] = []
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            complete.append(statement)
            statement = ""
    rest = [line for line in statement.splitlines() if not line.lstrip().startswith("--")]
    return complete, "\n".join(rest).strip()


def load_statements(path: Path) -> dict[str, str]:
    """Return the statements of a file by name; each follows a line `-- name: <name>`."""
    statements: dict[str, str] = {}
    name = ""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("-- name:"):
            name = line.removeprefix("-- name:").strip()
            statements[name] = ""
        elif name:
            statements[name] += line + "\n"
    return statements


def with_prefix(statements: dict[str, str], tables: Iterable[str], prefix: str) -> dict[str, str]:
    """Return the statements for a database in which these tables have a prefix."""
    names = re.compile(rf"\b({'|'.join(tables)})\b")
    return {name: names.sub(rf"{prefix}\1", sql) for name, sql in statements.items()}
