"""The file of one agent: `state.sqlite`, which agent-state 0.3 can use as well."""

from __future__ import annotations

from pathlib import Path

from caloron.agentstate.notes import encode
from caloron.errors import StoreError
from caloron.store.database import Database, migrations_in
from caloron.store.queue import Queue
from caloron.store.statements import load_statements

_HERE = Path(__file__).parent
MIGRATIONS = migrations_in(_HERE / "migrations", "agentstate")
#: Ours; `schema_migrations` holds nothing but the versions of agent-state.
MIGRATIONS_TABLE = "caloron_migrations"
#: Whoever waits among many that claim without a pause is passed over again and again.
_PATIENCE_S = 30.0
SQL = load_statements(_HERE / "sql" / "errands.sql")
_ANY_OF = "      AND kind IN (SELECT value FROM json_each(:kinds))\n"
SQL["claim_any"] = SQL["claim"].replace(_ANY_OF, "")
SQL["claim_kind"] = SQL["claim"].replace(_ANY_OF, "      AND kind = :kind\n")
QUEUE = Queue("caloron_", SQL, encode=encode, plain=True)


def open_file(path: Path) -> Database:
    """The database, made or brought up to date where it must be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot make {path.parent}: {error.strerror}", hint="choose another MF_INSTANCE_DIR"
        ) from error
    return Database(path, MIGRATIONS, table=MIGRATIONS_TABLE, patience_s=_PATIENCE_S)
