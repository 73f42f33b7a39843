"""A home follows its ledger: by its times, whatever is deleted, and told where it differs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from caloron.agentstate.home import AgentHome
from caloron.engine.agent_homes import AgentHomes, Disagreement, disagreements
from caloron.ledger.ledger import Ledger
from caloron.store import queue
from caloron.store.database import open_read_only

ITEM = "demo-1/a/1-implement"
MINUTE = 60_000


class Project:
    """A ledger in which one agent, `a`, works, with a clock that a test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = Ledger(folder / "ledger.sqlite")
        self.told: list[str] = []

    @property
    def home(self) -> Path:
        return self.folder / "agents" / "a"

    def homes(self) -> AgentHomes:
        """As another process would have them."""
        return AgentHomes(self.folder / "agents", self.ledger, "demo-1", self.told.append)

    def follow(self) -> None:
        self.homes().catch_up()

    def wait(self, minutes: int) -> None:
        self.ledger.db.rows("UPDATE clock_offset SET ms = ms + ?", (minutes * MINUTE,))

    def begin(self, item: str = ITEM) -> int:
        """An agent's process starts."""
        with self.ledger.db.transaction("begin") as connection:
            queue.enqueue(connection, item, "agent", "{}")
            taken = queue.claim(connection, ["agent"], holder="s", lease_ms=10**9, cap=9)
            assert taken is not None
            queue.begin_attempt(connection, taken.item, taken.token, 10**9)
        return taken.token

    def end(self, token: int, status: str = "done", item: str = ITEM) -> None:
        with self.ledger.db.transaction("end") as connection:
            queue.write_result(connection, item, token, {"exit_code": 0, "last_line": "ready"})
            queue.settle(connection, item, token, status, "merged")

    def differs(self) -> list[Disagreement]:
        with closing(open_read_only(self.folder / "ledger.sqlite")) as connection:
            return disagreements(self.home, connection)


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    made.ledger.close()


def test_what_was_changed_in_a_home_by_hand_is_told(project: Project) -> None:
    token = project.begin()
    project.follow()
    # What the home has not followed yet is no disagreement.
    project.end(token)
    assert project.differs() == []
    with AgentHome(project.home) as home:
        home.errands.resolve(ITEM, "failed", notes="by hand")
        home.errands.enqueue("my own", "note", {})
    assert project.differs() == [Disagreement(ITEM, "in_flight", "failed")]


def test_a_home_that_is_not_there_or_was_never_followed_differs_in_nothing(
    project: Project,
) -> None:
    project.begin()
    assert project.differs() == []
    AgentHome(project.home).close()
    assert project.differs() == []


def test_a_home_that_follows_another_ledger_is_told(project: Project) -> None:
    project.end(project.begin())
    project.follow()
    with sqlite3.connect(project.home / "state.sqlite") as connection:
        connection.execute("UPDATE caloron_followed SET through = 1000")
    assert [one.target for one in project.differs()] == ["caloron_followed"]
