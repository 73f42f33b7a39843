"""Rows of an older version: upgraded once, read as they are today, or refused."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from caloron.domain.model.effects import Effect, Probe, StartWork
from caloron.domain.model.facts import Fact
from caloron.domain.model.snapshots import Snapshot
from caloron.domain.model.sprint import Sprint
from caloron.domain.model.task import Task
from caloron.domain.reporting.learnings import Kept
from caloron.errors import InUse, StoreError
from caloron.ledger import ledger as ledgers
from caloron.ledger import upgrades
from caloron.ledger.ledger import MIGRATIONS, Ledger
from caloron.ledger.reading import open_ledger
from tests.integration.ledger.conftest import Book
from tests.support.older_home import unpack

Data = dict[str, Any]


def aim_of(table: str, data: Data) -> Data:
    """Rename the goal of a sprint to its aim."""
    return {"aim" if name == "goal" else name: value for name, value in data.items()}


def longer(table: str, data: Data) -> Data:
    return data | ({"aim": data["aim"] + "!"} if table == "sprints" else {})


@pytest.fixture
def with_steps(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Turn the program into a later version."""
    before = tuple(m for m in MIGRATIONS if not m.rewrite)

    def install(*steps: upgrades.Upgrade) -> None:
        monkeypatch.setattr(upgrades, "UPGRADES", steps)
        monkeypatch.setattr(ledgers, "MIGRATIONS", before + upgrades.data_migrations(steps))

    install()
    return install


@pytest.fixture
def path(tmp_path: Path, with_steps: Callable[..., None]) -> Path:
    """A ledger with one sprint, written by a program without steps: version 1."""
    path = tmp_path / "ledger.sqlite"
    Book(path).ledger.close()
    return path


def stored(path: Path) -> Data:
    with closing(sqlite3.connect(path)) as connection:
        data: Data = json.loads(connection.execute("SELECT data FROM sprints").fetchone()[0])
        return data


def version_of(path: Path) -> str:
    with closing(Ledger(path)) as ledger:
        return ledger.get(upgrades.DATA_VERSION)


def test_a_writing_program_upgrades_every_row_once(
    path: Path, with_steps: Callable[..., None]
) -> None:
    seen: Counter[str] = Counter()

    def counted(table: str, data: Data) -> Data:
        seen[table] += 1
        return longer(table, data)

    with_steps(aim_of)
    Ledger(path).close()
    assert stored(path)["aim"] == "a shop"
    with_steps(aim_of, counted)
    for _ in range(3):
        assert version_of(path) == "3"
    assert stored(path)["aim"] == "a shop!"
    assert "goal" not in stored(path)
    assert seen["sprints"] == 1


def test_a_new_ledger_has_the_current_version_and_needs_no_upgrade(
    tmp_path: Path, with_steps: Callable[..., None]
) -> None:
    assert version_of(tmp_path / "one.sqlite") == ""
    with_steps(aim_of)
    path = tmp_path / "two.sqlite"
    assert version_of(path) == "2"
    with closing(Ledger(path)) as ledger:
        assert ledger.db.migrated == ()


def test_an_upgrade_that_fails_changes_nothing(path: Path, with_steps: Callable[..., None]) -> None:
    def fails(table: str, data: Data) -> Data:
        if table == "tasks":
            raise ValueError("no such field")
        return aim_of(table, data)

    before = stored(path)
    with closing(Ledger(path)) as ledger, ledger.db.transaction("test") as connection:
        row = {"sprint": "shop-1", "id": "a", "position": 0, "status": "Pending", "reason": ""}
        connection.execute(ledgers.SQL["put_task"], row | {"data": b"{}"})
    with_steps(fails)
    with pytest.raises(StoreError):
        Ledger(path)
    with_steps()
    assert stored(path) == before
    assert version_of(path) == ""


def test_a_reading_program_sees_the_current_form_and_changes_nothing(
    path: Path, with_steps: Callable[..., None]
) -> None:
    before = path.read_bytes()
    with_steps(aim_of, longer)
    by_path = "SELECT json_extract(CAST(data AS TEXT), '$.aim') FROM sprints WHERE id = 'shop-1'"
    with closing(open_ledger(path)) as connection:
        assert connection.execute(by_path).fetchone()[0] == "a shop!"
        assert json.loads(connection.execute("SELECT * FROM sprints").fetchone()["data"])["aim"]
    assert path.read_bytes() == before
    Ledger(path).close()
    with closing(open_ledger(path)) as connection:
        assert connection.execute(by_path).fetchone()[0] == "a shop!"


def test_a_ledger_of_a_newer_version_is_refused_with_a_hint(
    path: Path, with_steps: Callable[..., None]
) -> None:
    with_steps(aim_of)
    Ledger(path).close()
    before = path.read_bytes()
    with_steps()
    for opening in (open_ledger, Ledger):
        with pytest.raises(StoreError, match="was written by a newer Caloron") as refused:
            opening(path)
        assert refused.value.hint == "upgrade Caloron; nothing was changed"
    assert path.read_bytes() == before


_HOLDS = """
import sys
from pathlib import Path
from caloron.store.lock import ProcessLock
with ProcessLock(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_nothing_is_upgraded_while_an_engine_of_the_older_version_writes(
    path: Path, with_steps: Callable[..., None]
) -> None:
    lock = path.with_name("engine.lock")
    argv = (sys.executable, "-c", _HOLDS, str(lock))
    before = stored(path)
    with_steps(aim_of)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:
        assert engine.stdout is not None
        assert engine.stdout.readline() == b"locked\n"
        with pytest.raises(InUse, match="an older Caloron is at work"):
            Ledger(path)
        assert stored(path) == before
        engine.communicate()
    Ledger(path).close()
    assert stored(path)["aim"] == "a shop"


def test_a_damaged_row_stays_for_verify_to_report(
    path: Path, with_steps: Callable[..., None]
) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE sprints SET data = ?", (b'{"id": "shop',))
        connection.commit()
    with_steps(aim_of)
    assert version_of(path) == "2"
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT data FROM sprints").fetchone()[0] == b'{"id": "shop'


_FORMS: dict[str, tuple[str, Any]] = {
    "sprints": ("data", Sprint),
    "tasks": ("data", Task),
    "observations": ("data", Snapshot),
    "inbox": ("data", Fact),
    "actions": ("data", Effect | Probe),
    "work_items": ("payload", StartWork),
}


def test_every_field_that_0_4_0_stored_is_read_or_upgraded(tmp_path: Path) -> None:
    """A field that is renamed without a step in `upgrades` would be dropped in silence."""
    rows: Counter[str] = Counter()
    dropped: set[str] = set()
    for path in sorted(unpack(tmp_path).glob("projects/*/ledger.sqlite")):
        with closing(open_ledger(path)) as connection:
            for table, (column, form) in _FORMS.items():
                for (text,) in connection.execute(f"SELECT {column} FROM {table}"):
                    rows[table] += 1
                    dropped |= {f"{table}{where}" for where in lost(text, form)}
            for (text,) in connection.execute("SELECT value FROM kv WHERE key = 'learnings'"):
                dropped |= {f"learnings{where}" for where in lost(text, Kept)}
    assert rows.keys() == _FORMS.keys()
    assert not dropped


def test_every_task_of_0_4_0_keeps_its_status(tmp_path: Path) -> None:
    statuses: Counter[str] = Counter()
    for path in sorted(unpack(tmp_path).glob("projects/*/ledger.sqlite")):
        with closing(open_ledger(path)) as connection:
            for status, data in connection.execute("SELECT status, data FROM tasks"):
                assert msgspec.json.decode(data, type=Task).status == status
                statuses[status] += 1
    assert statuses.keys() >= {"Done", "Escalated", "Blocked", "InReview", "InProgress"}


@pytest.mark.parametrize(
    ("resume_as", "step"),
    [("Pending", "waiting"), ("InProgress", "publishing"), ("InReview", "review_queued")],
)
def test_a_task_of_version_2_resumes_as_before_and_keeps_its_approval(
    resume_as: str, step: str
) -> None:
    approval = {"version": 7, "id": -3, "pull": 4, "head": "c1", "verdict": "approved"}
    work = {"item": "s-1/a/1-review", "role": "review", "queued_at": 5.0}
    row = {
        "plan": {"id": "a", "title": "A", "agent_prompt": "x"},
        "status": "Escalated",
        "step": "escalated",
        "escalation": {"resume_work": work, "resume_as": resume_as},
        "review": {"approval": approval | {"author": "ann"}},
    }
    task = msgspec.convert(upgrades.upgrade("tasks", row, 2), Task)
    assert (task.status, task.escalation.resume_as) == ("Escalated", step)
    assert [review.author for review in task.review.approvals] == ["ann"]


def lost(text: bytes | str, form: Any) -> list[str]:
    """Return the fields that a read and a write of a row removed or changed."""
    again = msgspec.json.encode(msgspec.json.decode(text, type=form))
    return list(_missing(json.loads(text), json.loads(again), ""))


def _missing(old: Any, new: Any, where: str) -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        yield from (f"{where}.{name}" for name in old.keys() - new.keys())
        for name in old.keys() & new.keys():
            yield from _missing(old[name], new[name], f"{where}.{name}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, item in enumerate(old):
            yield from _missing(item, new[number], f"{where}[]")
    elif old != new:
        yield where
