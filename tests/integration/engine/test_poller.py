"""What the poller tells of a forge on which each look gives the same picture another version."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from caloron.domain.model.snapshots import BranchSnapshot, IssueSnapshot, Snapshot
from caloron.domain.model.sprint import Sprint
from caloron.engine.forge.poller import Poller, SnapshotFilter, pause_after
from caloron.engine.signals import LoopSignal
from caloron.errors import ForgeError, ForgePaused, ForgeUnavailable
from caloron.ledger.ledger import Ledger
from caloron.ledger.reading import read_outage
from caloron.ports import Poll
from caloron.store.wake import Wake
from tests.support.wait import wait_for


def issue(title: str, version: int) -> IssueSnapshot:
    return IssueSnapshot(
        version=version, number=1, title=title, body="", state="open", author="ada"
    )


class Scripted:
    """Answers looks one after the other, the last one again and again; counts them."""

    main = "main"

    def __init__(self, *answers: tuple[Snapshot, ...] | Exception) -> None:
        self.answers = list(answers)
        self.looks = 0

    def branch(self, name: str) -> BranchSnapshot:
        return BranchSnapshot(version=1, name=name, commit="a" * 40)

    def poll(self, cursor: str) -> Poll:
        self.looks += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return Poll(answer, f"{int(cursor or 0) + 1}")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "ledger.sqlite")
    ledger.create_sprint(Sprint(id="shop", number=0, goal="g"), {})
    yield ledger
    ledger.close()


def poller(ledger: Ledger, forge: Scripted, tmp_path: Path, every_s: float = 600.0) -> Poller:
    return Poller(ledger, "shop-1", forge, LoopSignal(Wake(tmp_path / "wake")), every_s)  # type: ignore[arg-type]


def told(ledger: Ledger) -> list[str]:
    facts = ledger.load("shop-1").facts
    return [fact.title for fact in facts if isinstance(fact, IssueSnapshot)]


def test_the_same_picture_with_another_version_is_told_once(ledger: Ledger, tmp_path: Path) -> None:
    forge = Scripted((issue("A", 1),), (issue("A", 2),), (issue("A", 3),), (issue("B", 4),))
    looking = poller(ledger, forge, tmp_path)
    assert [looking.poll() for _ in range(4)] == [True, False, False, True]
    assert told(ledger) == ["A", "B"]


def test_a_change_that_a_person_takes_back_after_our_own_is_told(
    ledger: Ledger, tmp_path: Path
) -> None:
    """We told A, our own effect told B, and a person made it A again: that is news."""
    remembered = SnapshotFilter()
    forge = Scripted((issue("A", 1),), (issue("A", 9),))
    looking = Poller(ledger, "shop-1", forge, LoopSignal(Wake(tmp_path / "wake")), 600, remembered)  # type: ignore[arg-type]
    assert looking.poll()
    remembered.record([issue("B", 5)])
    assert looking.poll()
    assert told(ledger) == ["A", "A"]


def test_an_old_picture_that_is_told_late_is_put_right_by_the_next_look() -> None:
    remembered = SnapshotFilter()
    assert remembered.new_ones([issue("A", 1)])
    assert not remembered.new_ones([issue("A", 5)])
    remembered.record([issue("B", 3)])
    assert remembered.new_ones([issue("A", 6)])


def test_looks_without_news_write_nothing(ledger: Ledger, tmp_path: Path) -> None:
    looking = poller(ledger, Scripted((issue("A", 1),)), tmp_path)
    assert looking.poll()
    before = ledger.get("forge_cursor/shop-1")
    for _ in range(5):
        assert not looking.poll()
    assert ledger.get("forge_cursor/shop-1") == before


def test_whoever_wakes_the_poller_makes_it_look_at_once_and_a_burst_is_one_look(
    ledger: Ledger, tmp_path: Path
) -> None:
    forge = Scripted((issue("A", 1),))
    looking = poller(ledger, forge, tmp_path)
    looking.start()
    try:
        for _ in range(50):
            looking.wake_up()
        wait_for(lambda: told(ledger) == ["A"])
        time.sleep(0.3)
        assert forge.looks <= 2
    finally:
        looking.stop()


def test_a_webhook_long_after_a_slow_look_does_not_wait_as_long_as_that_look_took(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = poller(ledger, Scripted((issue("A", 1),)), tmp_path)
    pauses: list[float] = []
    monkeypatch.setattr(looking._end, "wait", pauses.append)
    looking._poll_took_s, looking._polled_at = 100.0, time.monotonic() - 200
    looking.wake_up()
    looking._sleep(600)
    looking._polled_at = time.monotonic()
    looking.wake_up()
    looking._sleep(600)
    assert pauses[0] < 1
    assert 90 < pauses[1] <= 100


def test_webhooks_without_end_leave_the_forge_alone_for_as_long_as_a_look_takes(
    ledger: Ledger, tmp_path: Path
) -> None:
    spans: list[tuple[float, float]] = []

    class Slow(Scripted):
        def poll(self, cursor: str) -> Poll:
            began = time.monotonic()
            time.sleep(0.3)
            answer = super().poll(cursor)
            spans.append((began, time.monotonic()))
            return answer

    looking = poller(ledger, Slow((issue("A", 1),)), tmp_path)
    looking.start()
    try:
        while len(spans) < 4:
            looking.wake_up()
            time.sleep(0.01)
    finally:
        looking.stop()
    rests = [after[0] - before[1] for before, after in pairwise(spans)]
    assert min(rests) >= 0.3


def test_a_quota_is_shown_with_its_end_and_goes_away_by_itself(
    ledger: Ledger, tmp_path: Path
) -> None:
    reset = time.time() + 2.0
    forge = Scripted(ForgePaused("quota", reset), (issue("A", 1),))
    looking = poller(ledger, forge, tmp_path, 0.01)
    looking.start()
    try:
        wait_for(lambda: looking.outage)
        with ledger.db.snapshot() as connection:
            assert str(read_outage(connection, "shop-1")).startswith("forge quota until ")
        wait_for(lambda: told(ledger) == ["A"])
        assert time.time() >= reset
        wait_for(lambda: looking.outage is None)
        with ledger.db.snapshot() as connection:
            assert read_outage(connection, "shop-1") is None
    finally:
        looking.stop()


def test_a_poller_that_fails_in_a_way_nobody_thought_of_stops_the_loop_with_it(
    ledger: Ledger, tmp_path: Path
) -> None:
    signal = LoopSignal(Wake(tmp_path / "wake"))
    fault = RuntimeError("nobody thought of this")
    looking = Poller(ledger, "shop-1", Scripted(fault), signal, 0.01)  # type: ignore[arg-type]
    looking.start()
    try:
        wait_for(lambda: signal.errors == [fault])
    finally:
        looking.stop()


def test_after_an_outage_the_forge_counts_as_seen_only_once_a_poll_took_succeeds(
    ledger: Ledger, tmp_path: Path
) -> None:
    looking = poller(ledger, Scripted((issue("A", 1),)), tmp_path)
    looking.poll()
    assert looking.is_current
    looking.report_unreachable()
    assert not looking.is_current
    looking.poll()
    assert looking.is_current


def test_a_look_that_was_begun_before_the_outage_does_not_count_as_one_after_it(
    ledger: Ledger, tmp_path: Path
) -> None:
    forge = Scripted((issue("A", 1),))
    looking = poller(ledger, forge, tmp_path)
    answer = forge.poll

    def lost_meanwhile(cursor: str) -> Poll:
        looking.report_unreachable()
        return answer(cursor)

    forge.poll = lost_meanwhile  # type: ignore[method-assign]
    looking.poll()
    assert not looking.is_current
    forge.poll = answer  # type: ignore[method-assign]
    looking.poll()
    assert looking.is_current


def test_an_effect_without_an_answer_makes_the_poller_look_at_once(
    ledger: Ledger, tmp_path: Path
) -> None:
    forge = Scripted((issue("A", 1),))
    looking = poller(ledger, forge, tmp_path, every_s=600.0)
    looking.start()
    try:
        looking.report_unreachable()
        wait_for(lambda: looking.is_current)
        assert forge.looks == 1
    finally:
        looking.stop()


def test_an_outage_that_was_kept_is_over_with_the_first_look_of_the_next_engine(
    ledger: Ledger, tmp_path: Path
) -> None:
    forge = Scripted(ForgeUnavailable("no answer"))
    looking = poller(ledger, forge, tmp_path, 0.01)
    looking.start()
    wait_for(lambda: looking.outage)
    looking.stop()
    poller(ledger, Scripted((issue("A", 1),)), tmp_path).poll()
    with ledger.db.snapshot() as connection:
        assert read_outage(connection, "shop-1") is None


def test_a_forge_that_is_silent_is_asked_often_and_one_that_refuses_seldom() -> None:
    silent = [pause_after(ForgeUnavailable("no answer"), n, 10.0) for n in range(50)]
    refusing = [pause_after(ForgeError("no"), n, 10.0) for n in range(50)]
    assert silent == sorted(silent)
    assert (silent[0], silent[-1], refusing[-1]) == (0.5, 5.0, 60.0)
