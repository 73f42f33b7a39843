"""The file of one agent: `state.sqlite`, which agent-state 0.3 can use as well."""

from __future__ import annotations

from pathlib import Path

from caloron.agentstate.notes import encode
from caloron.errors import NotFound, StoreError
from caloron.store.database import Database, migrations_in
from caloron.store.queue import Queue
from caloron.store.statements import load_statements

_HERE = Path(__file__).parent
MIGRATIONS = migrations_in(_HERE / "migrations", "agentstate")
#: What this version ships: a folder cannot tell which of its files are missing.
MIGRATION_NAMES = (
    "agentstate/0001-agent-state",
    "agentstate/0002-caloron",
    "agentstate/0003-nothing-replaced",
)
#: The versions of agent-state's own tables that are known here.
VERSIONS = frozenset({"0001"})
#: Ours; `schema_migrations` holds nothing but the versions of agent-state.
MIGRATIONS_TABLE = "caloron_migrations"
#: Whoever waits among many that claim without a pause is passed over again and again.
_PATIENCE_S = 30.0
SQL = load_statements(_HERE / "sql" / "errands.sql")
_ANY_OF = "      AND kind IN (SELECT value FROM json_each(:kinds))\n"
SQL["claim_any"] = SQL["claim"].replace(_ANY_OF, "")
SQL["claim_kind"] = SQL["claim"].replace(_ANY_OF, "      AND kind = :kind\n")
QUEUE = Queue("caloron_", SQL, encode=encode, plain=True)


def there_in(where: Path) -> Path:
    """The file of a folder, for what makes none: a page about nothing helps nobody."""
    path = where / "state.sqlite"
    if not path.exists():
        raise NotFound(f"there is no {path}", hint="set MF_INSTANCE_DIR, or scaffold it first")
    return path


def open_file(path: Path) -> Database:
    """The database, made or brought up to date where it must be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot make {path.parent}: {error.strerror}", hint="choose another MF_INSTANCE_DIR"
        ) from error
    db = Database(path, table=MIGRATIONS_TABLE, patience_s=_PATIENCE_S)
    try:
        # Every list of statuses, as in the CHECK of the table, is a temporary table, and one that
        # could become a file takes longer than the change that it is for.
        db.rows("PRAGMA temp_store = MEMORY")
        known = _versions(db)
        db.migrate(MIGRATIONS)
    except BaseException:
        db.close()
        raise
    if known:
        # agent-state had done that one itself.
        db.migrated = tuple(name for name in db.migrated if name != MIGRATIONS[0].name)
    return db


def _versions(db: Database) -> set[str]:
    """The versions of agent-state that a file has had; one that is not known here is refused."""
    if not db.rows("SELECT 1 FROM sqlite_master WHERE name = 'schema_migrations'"):
        return set()
    versions = {str(row["version"]) for row in db.rows("SELECT version FROM schema_migrations")}
    if newer := sorted(versions - VERSIONS):
        raise StoreError(
            f"{db.path} was changed by a newer agent-state (it has {', '.join(newer)[:80]})",
            hint="use that one, or upgrade Caloron; nothing was changed",
        )
    return versions
