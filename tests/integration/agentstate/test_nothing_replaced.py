"""No statement of any program replaces, deletes or renames rows in the file of an agent."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from caloron.agentstate.database import MIGRATIONS, MIGRATIONS_TABLE, open_database
from caloron.agentstate.instance import AgentInstance
from caloron.errors import InUse
from caloron.ledger.ledger import Ledger
from caloron.store.database import Database
from tests.integration.agentstate.conftest import DATA, agent_state, foreign, shift_clock

ROW = "('a', 'other', '{}', 'pending', NULL, 1, 1, NULL)"
EVENT = "(1, 1, 'forged', NULL, NULL, '{}')"


@pytest.fixture(params=["keys off", "keys on", "keys on, triggers recurse"])
def other_program(
    home: AgentInstance, where: Path, request: pytest.FixtureRequest
) -> sqlite3.Connection:
    """A connection of another program, with the settings that change the effect of REPLACE."""
    home.work_items.enqueue("a", "review", {"pr": 1}, notes="first", priority=3)
    home.work_items.claim("a", "forge")
    connection = foreign(where)
    connection.execute(f"PRAGMA foreign_keys = {int('keys on' in request.param)}")
    connection.execute(f"PRAGMA recursive_triggers = {int('recurse' in request.param)}")
    return connection


def _all(home: AgentInstance) -> list[tuple[object, ...]]:
    tables = ("work_items", "events", "caloron_leases", "caloron_notes")
    return [tuple(row) for name in tables for row in home.db.rows(f"SELECT * FROM {name}")]


@pytest.mark.parametrize(
    "statement",
    [
        f"REPLACE INTO work_items VALUES {ROW}",
        f"INSERT OR REPLACE INTO work_items VALUES {ROW}",
        "UPDATE OR REPLACE work_items SET id = 'a' WHERE id = 'b'",
        "DELETE FROM work_items WHERE id = 'b'",
        f"REPLACE INTO events VALUES {EVENT}",
        f"INSERT OR REPLACE INTO events VALUES {EVENT}",
        "REPLACE INTO events VALUES (-1, 1, 'forged', NULL, NULL, '{}')",
        "UPDATE OR REPLACE events SET id = 1 WHERE id = 2",
        "UPDATE events SET type = 'x'",
        "DELETE FROM events",
    ],
)
def test_no_program_can_replace_existing_rows(
    home: AgentInstance, other_program: sqlite3.Connection, statement: str
) -> None:
    home.work_items.enqueue("b", "review", {})
    before = _all(home)
    with pytest.raises(sqlite3.IntegrityError):
        other_program.execute(statement)
    assert _all(home) == before


def test_every_other_way_to_add_a_row_behaves_as_in_agent_state(
    home: AgentInstance, other_program: sqlite3.Connection
) -> None:
    before = _all(home)
    other_program.execute(f"INSERT OR IGNORE INTO work_items VALUES {ROW}")
    other_program.execute(f"INSERT INTO work_items VALUES {ROW} ON CONFLICT DO NOTHING")
    with pytest.raises(sqlite3.IntegrityError, match=r"UNIQUE constraint failed: work_items\.id"):
        other_program.execute(f"INSERT INTO work_items VALUES {ROW}")
    assert _all(home) == before
    other_program.execute(f"REPLACE INTO work_items VALUES {ROW.replace('a', 'new', 1)}")
    other_program.execute("REPLACE INTO events (ts, type, payload) VALUES (1, 'x', '{}')")
    other_program.execute("INSERT INTO events VALUES (70, 1, 'x', NULL, NULL, '{}')")
    assert home.work_items.get("new").status == "pending"
    assert [event.id for event in home.events.since(0)][:2] == [3, 70]


def test_a_foreign_claim_in_the_name_of_the_holder_is_refused_during_the_lease(
    home: AgentInstance, where: Path
) -> None:
    home.work_items.enqueue("a", "review", {})
    claimed = home.work_items.claim("a", "forge")
    claim = (
        "UPDATE work_items SET status = 'in_flight', owner_agent = 'forge', updated_at = ?"
        " WHERE id = 'a'"
    )
    other_program = foreign(where)
    with pytest.raises(sqlite3.IntegrityError, match="leased to its owner"):
        other_program.execute(claim, (claimed.item.updated_at + 1,))
    assert home.work_items.lease("a") == claimed.lease
    # After the lease another claim succeeds, and the old holder gets an error.
    shift_clock(home, 600_001)
    other_program.execute(claim, (claimed.item.updated_at + 600_002,))
    with pytest.raises(InUse, match="is lost"):
        home.work_items.resolve("a", "done", token=claimed.lease.token)
    # A repeated claim of a program without leases keeps the lease.
    (token,) = other_program.execute("SELECT token FROM caloron_leases").fetchone()
    other_program.execute(claim, (claimed.item.updated_at + 600_003,))
    assert home.work_items.lease("a").token == token


@pytest.fixture
def older(where: Path) -> Path:
    """A file of an older version, with a leased item and a waiting item."""
    where.mkdir(parents=True)
    path = where / "state.sqlite"
    db = Database(path, MIGRATIONS[:2], table=MIGRATIONS_TABLE)
    with db.transaction("test") as connection:
        connection.execute(f"INSERT INTO work_items VALUES {ROW}")
        connection.execute(f"INSERT INTO work_items VALUES {ROW.replace('a', 'b', 1)}")
        connection.execute(
            "UPDATE caloron_leases SET status = 'in_flight', holder = 'forge', token = 5,"
            " attempt = 2, priority = 7, expires_at = 99999999999999 WHERE item = 'a'"
        )
        connection.execute("UPDATE work_items SET status = 'in_flight', owner_agent = 'forge'"
                           " WHERE id = 'a'")  # fmt: skip
    db.close()
    return path


def test_leases_of_an_older_file_stay_valid(older: Path, where: Path) -> None:
    assert len(open_database(older).migrated) == 1
    with AgentInstance(where) as home:
        assert home.work_items.lease("a") == (5, "forge", 99999999999999, 2)
        with pytest.raises(InUse):
            home.work_items.claim("a", "forge")
        assert home.work_items.resolve("a", "done", token=5).status == "done"
        claimed = home.work_items.claim_next("other")
        assert claimed is not None
        assert claimed.item.id == "b"


def test_events_of_the_ledger_cannot_be_replaced(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    connection = sqlite3.connect(tmp_path / "ledger.sqlite", isolation_level=None)
    add = "INSERT INTO events (ts, type, payload) VALUES (1, 'x', '{}')"
    connection.execute(add)
    for statement in (
        f"REPLACE INTO events VALUES {EVENT}",
        "REPLACE INTO events VALUES (-1, 1, 'forged', NULL, NULL, '{}')",
        f"INSERT INTO events VALUES {EVENT} ON CONFLICT (id) DO UPDATE SET type = 'forged'",
    ):
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(statement)
    connection.execute(add)
    types = [row["type"] for row in ledger.db.rows("SELECT type FROM events")]
    assert types == ["x", "x"]


def test_a_file_of_a_newer_agent_state_is_read_and_never_written(tmp_path: Path) -> None:
    shutil.copy(DATA / "state.sqlite", tmp_path / "state.sqlite")
    other_program = foreign(tmp_path)
    other_program.execute("INSERT INTO schema_migrations VALUES ('0002', 1)")
    before = other_program.execute("SELECT * FROM sqlite_master").fetchall()
    for words in (
        ("errands", "next", "--owner", "forge"),
        ("scaffold", str(tmp_path), "--host", "grove", "--agent", "forge"),
        ("dashboard", "regen"),
    ):
        refused = agent_state(tmp_path, *words)
        assert (refused.code, refused.lines) == (1, [])
        assert "newer agent-state (it has 0002)" in refused.err
    assert other_program.execute("SELECT * FROM sqlite_master").fetchall() == before
    assert agent_state(tmp_path, "errands", "list").lines
