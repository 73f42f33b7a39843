"""A home follows its ledger: by its times, whatever is deleted, and told where it differs."""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from caloron.agentstate.home import AgentHome
from caloron.engine.agent_homes import AgentHomes, Disagreement, disagreements, mend
from caloron.engine.home_view import about, cycles_in, numbers_in, past_of, queue_of
from caloron.ledger.ledger import Ledger
from caloron.store import queue
from caloron.store.database import open_read_only

ITEM = "demo-1/a/1-implement"
MINUTE = 60_000


class Project:
    """A ledger in which one agent, `a`, works, with a clock that a test moves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
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

    def wake(self, number: int, status: str = "done", minutes: int = 12) -> None:
        """A whole wake of the agent, which takes its time."""
        item = f"demo-1/a/{number}-implement"
        token = self.begin(item)
        self.wait(minutes)
        self.end(token, status, item)

    def lose(self, token: int, item: str = ITEM) -> None:
        """Its process is gone, and nobody knows how."""
        with self.ledger.db.transaction("lose") as connection:
            lost = {"token": token, "last_line": "halfway"}
            queue.append_event(connection, "attempt_lost", lost, item=item)
            queue.reopen(connection, item, "its process is gone")

    @property
    def number(self) -> int:
        return cycles_in(self.home).look().state.cycle_number

    def form(self) -> Any:
        """All that a home says, but for what is its own: ids of lines and of processes."""
        with closing(open_read_only(self.home / "state.sqlite")) as connection:
            items = connection.execute("SELECT * FROM work_items ORDER BY id").fetchall()
            events = connection.execute("SELECT ts, type, work_item_id, payload FROM events")
            told = [tuple(row) for row in (*items, *events)]
        state = cycles_in(self.home).look().state._replace(holder=None, seq=0, last_known=0)
        return told, past_of(self.home, 100), state

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


def test_a_home_has_the_times_of_the_ledger_also_when_it_is_made_anew(project: Project) -> None:
    for number in (1, 2):
        project.wake(number)
        project.wait(60)
    project.follow()
    first = project.form()
    for past in past_of(project.home, 9):
        began, ended = map(datetime.fromisoformat, (past.started_at, past.ended_at))
        assert 12 <= (ended - began).total_seconds() / 60 < 13
    for errand in queue_of(project.home):
        assert 12 * MINUTE <= errand["updated_at"] - errand["created_at"] < 13 * MINUTE
    assert "ended as success after 12 min" in about(project.home.parent, "a")
    project.wait(10_000)
    shutil.rmtree(project.home)
    project.follow()
    assert project.form() == first


def test_the_retro_of_a_home_shows_how_long_things_took(project: Project) -> None:
    project.wake(1)
    project.follow()
    with AgentHome(project.home) as home:
        (ended,) = home.db.rows("SELECT ts FROM events WHERE type = 'work_item_resolved'")
        week = f"{datetime.fromtimestamp(ended['ts'] / 1000, UTC):%G-W%V}"
        page = home.write_retro(week).read_text()
    assert page.count("| 12 min | 12 min | 12 min |") == 2


@pytest.mark.parametrize(
    "lost", [("state.sqlite",), ("cycle.json", "cycle.log"), ("cycle.json", "cycle.log", ".a.lock")]
)
def test_a_part_of_a_home_that_is_lost_is_told_again_and_nothing_else_is(
    project: Project, lost: tuple[str, ...]
) -> None:
    project.wake(1)
    project.lose(project.begin("demo-1/a/2-implement"), "demo-1/a/2-implement")
    project.follow()
    first = project.form()
    for name in lost:
        (project.home / name).unlink()
    for beside in project.home.glob("state.sqlite-*"):
        beside.unlink()
    if "cycle.json" in lost:
        assert project.differs() == [Disagreement("cycle.json", "at least cycle 2", "cycle 0")]
    project.follow()
    assert project.form() == first
    project.wake(2)
    project.follow()
    assert [past.number for past in past_of(project.home, 9)] == [3, 2, 1]


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 8])
def test_following_again_after_a_kill_between_cycles_and_file_changes_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    project.wake(1)
    # Two at once: the first of them ends while the cycle goes on.
    first, second = project.begin("demo-1/a/2-implement"), project.begin("demo-1/a/3-implement")
    project.end(first, item="demo-1/a/2-implement")
    project.end(second, item="demo-1/a/3-implement")
    project.lose(project.begin("demo-1/a/4-implement"), "demo-1/a/4-implement")
    project.follow()
    expected = project.form()
    shutil.rmtree(project.home)
    project.ledger.put("agent_homes/through", "0")
    kills = 0

    def killed(name: str, *_of: str) -> None:
        nonlocal kills
        if name == "follow.before_commit" and kills < 40:
            kills += 1
            # Every second time the batch gets through, so that each is killed once.
            if kills % 2:
                raise KeyboardInterrupt

    monkeypatch.setattr("caloron.engine.agent_homes._BATCH", batch)
    monkeypatch.setattr("caloron.store.database.crashpoint", killed)
    for _ in range(40):
        with suppress(KeyboardInterrupt):
            project.follow()
    assert kills > 20 // batch
    assert project.form() == expected


def _others(project: Project, agents: int) -> None:
    """Work of other agents, which no home has followed yet."""
    for number in range(agents):
        item = f"demo-1/other{number}/1-implement"
        project.end(project.begin(item), item=item)


def test_an_agent_that_wakes_does_not_wait_for_the_homes_of_others(project: Project) -> None:
    project.wake(1)
    project.follow()
    _others(project, 5)
    project.wake(2)
    opening = project.homes().opening("a")
    assert "this is your cycle 3." in opening
    assert [home.name for home in project.home.parent.iterdir()] == ["a"]
    project.follow()
    assert len(list(project.home.parent.iterdir())) == 6


def test_an_agent_whose_home_is_far_behind_starts_without_what_it_tells(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caloron.engine.agent_homes._BATCH", 2)
    monkeypatch.setattr("caloron.engine.agent_homes._PATIENCE_S", -1.0)
    project.wake(1)
    assert project.homes().opening("a") == ""
    assert "the home of a is behind" in project.told[0]
    for _ in range(10):
        project.homes().opening("a")
    assert "this is your cycle 2." in project.homes().opening("a"), "it comes further each time"


def test_a_catch_up_that_is_ended_goes_on_where_it_was(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("caloron.engine.agent_homes._BATCH", 3)
    _others(project, 3)
    project.wake(1)
    project.wake(2)
    project.follow()
    expected = project.form()
    shutil.rmtree(project.home.parent)
    project.ledger.put("agent_homes/through", "0")
    project.homes().catch_up(give_up=lambda: True)
    assert len(list(project.home.parent.iterdir())) == 1
    for _ in range(20):
        project.homes().catch_up(give_up=lambda: True)
    assert project.form() == expected


def test_an_agent_far_behind_is_found_by_its_own_lines(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    review = "demo-1/other0/2-review"
    project.wake(1)
    _others(project, 2)
    project.end(project.begin(review), item=review)
    project.follow()
    reviewer = project.home.parent / "reviewer-1"
    expected = project.form(), queue_of(reviewer)
    shutil.rmtree(project.home.parent)
    monkeypatch.setattr("caloron.engine.agent_homes._FEW", 0)
    project.homes().opening("a")
    project.homes().opening("reviewer-1")
    assert (project.form(), queue_of(reviewer)) == expected


def test_a_thread_that_cannot_follow_says_so_and_ends_without_an_error(project: Project) -> None:
    homes = project.homes()
    project.wake(1)
    homes.start()
    project.ledger.close()
    homes.notice()
    give_up = time.monotonic() + 30
    while not project.told and time.monotonic() < give_up:
        time.sleep(0.01)
    assert "left as it is for now" in project.told[0]
    homes.close()


def test_a_start_that_the_shim_records_late_is_in_the_home_while_the_agent_works(
    project: Project,
) -> None:
    homes = project.homes()
    project.wake(1)
    homes.start()
    homes.notice()
    give_up = time.monotonic() + 60
    while not project.ledger.get("agent_homes/through") and time.monotonic() < give_up:
        time.sleep(0.01)
    # The notice is used up: the process of a shim needs longer on a busy machine.
    project.begin("demo-1/a/2-implement")
    while project.number < 2 and time.monotonic() < give_up:
        time.sleep(0.01)
    try:
        assert cycles_in(project.home).look().state.status == "open"
    finally:
        homes.close()


def test_what_was_changed_by_hand_is_put_right_when_the_next_sprint_begins(
    project: Project,
) -> None:
    at_work, waiting = "demo-1/a/2-implement", "demo-1/a/3-implement"
    project.wake(1)
    project.begin(at_work)
    project.lose(project.begin(waiting), waiting)
    project.follow()
    with AgentHome(project.home) as home:
        home.errands.reopen(ITEM)
        home.db.rows("UPDATE work_items SET status = 'failed' WHERE id != ?", (ITEM,))
        home.errands.enqueue("my own", "note", {})
    assert len(project.differs()) == 3
    project.follow()
    assert project.differs() == []
    assert len([line for line in project.told if "was put right" in line]) == 3
    statuses = {errand["id"]: errand["status"] for errand in queue_of(project.home)}
    assert statuses == {
        ITEM: "done", at_work: "in_flight", waiting: "pending", "my own": "pending"
    }  # fmt: skip


def test_mending_puts_right_one_home_and_leaves_the_rest_to_the_next_sprint(
    project: Project,
) -> None:
    project.wake(1)
    project.follow()
    with AgentHome(project.home) as home:
        home.errands.reopen(ITEM)
    wrong = project.differs()
    assert mend(project.home, wrong) == wrong
    assert project.differs() == []
    (project.home / "state.sqlite").write_bytes(b"no database" * 100)
    (unreadable,) = project.differs()
    assert unreadable.target == "state.sqlite"
    assert mend(project.home, [unreadable]) == []


def test_a_home_that_followed_another_ledger_begins_anew_with_higher_numbers(
    project: Project, tmp_path: Path
) -> None:
    for number in range(1, 6):
        project.wake(number)
    project.follow()
    other = Project(tmp_path / "other")
    other.wake(1)
    shutil.copytree(project.folder / "agents", other.folder / "agents")
    other.follow()
    assert "followed another ledger" in other.told[0]
    assert [past.number for past in past_of(other.home, 9)] == [1]
    assert len(queue_of(other.home)) == 1
    other.wake(2)
    other.follow()
    assert other.number == 6
    other.ledger.close()


def test_numbers_go_on_after_an_older_ledger_was_restored(project: Project) -> None:
    for number in range(1, 4):
        project.wake(number)
    project.follow()
    with project.ledger.db.transaction("restore") as connection:
        told = {"cycles": {"a": 7, "b": 2}}
        queue.append_event(connection, "state_restored", told)
    shutil.rmtree(project.home)
    project.follow()
    assert numbers_in(project.home.parent) == {"a": 7, "b": 2}
    assert "Cycle 3 ended as success" in about(project.home.parent, "a")
    project.wake(4)
    project.follow()
    assert [past.number for past in past_of(project.home, 9)] == [8, 3, 2, 1]
    shutil.rmtree(project.home)
    project.follow()
    assert project.number == 8, "also when the home is told again"


def test_an_agent_that_works_longer_than_twenty_minutes_is_not_dead(project: Project) -> None:
    project.wake(1, minutes=90)
    project.follow()
    (past,) = past_of(project.home, 9)
    assert (past.status, past.result) == ("ended", "success")
