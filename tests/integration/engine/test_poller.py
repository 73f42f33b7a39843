"""The poller reports changed snapshots; a new version of the same snapshot is no change."""

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
    """Answers polls in order, repeats the last answer, and counts the polls."""

    main = "main"

    def __init__(self, *answers: tuple[Snapshot, ...] | Exception) -> None:
        self.answers = list(answers)
        self.polls = 0

    def branch(self, name: str) -> BranchSnapshot:
        return BranchSnapshot(version=1, name=name, commit="a" * 40)

    def poll(self, cursor: str) -> Poll:
        self.polls += 1
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


def make_poller(ledger: Ledger, forge: Scripted, tmp_path: Path, every_s: float = 600.0) -> Poller:
    return Poller(ledger, "shop-1", forge, LoopSignal(Wake(tmp_path / "wake")), every_s)  # type: ignore[arg-type]


def reported_titles(ledger: Ledger) -> list[str]:
    facts = ledger.load("shop-1").facts
    return [fact.title for fact in facts if isinstance(fact, IssueSnapshot)]


def test_the_same_snapshot_with_another_version_is_reported_once(
    ledger: Ledger, tmp_path: Path
) -> None:
    forge = Scripted((issue("A", 1),), (issue("A", 2),), (issue("A", 3),), (issue("B", 4),))
    poller = make_poller(ledger, forge, tmp_path)
    assert [poller.poll() for _ in range(4)] == [True, False, False, True]
    assert reported_titles(ledger) == ["A", "B"]


def test_a_person_who_reverts_our_change_is_reported(ledger: Ledger, tmp_path: Path) -> None:
    """The poll reports A, our effect reports B, a person restores A: A is a change again."""
    remembered = SnapshotFilter()
    forge = Scripted((issue("A", 1),), (issue("A", 9),))
    poller = Poller(ledger, "shop-1", forge, LoopSignal(Wake(tmp_path / "wake")), 600, remembered)  # type: ignore[arg-type]
    assert poller.poll()
    remembered.record([issue("B", 5)])
    assert poller.poll()
    assert reported_titles(ledger) == ["A", "A"]


def test_the_next_poll_corrects_a_snapshot_that_was_recorded_late() -> None:
    remembered = SnapshotFilter()
    assert remembered.new_ones([issue("A", 1)])
    assert not remembered.new_ones([issue("A", 5)])
    remembered.record([issue("B", 3)])
    assert remembered.new_ones([issue("A", 6)])


def test_polls_without_changes_write_nothing(ledger: Ledger, tmp_path: Path) -> None:
    poller = make_poller(ledger, Scripted((issue("A", 1),)), tmp_path)
    assert poller.poll()
    before = ledger.get("forge_cursor/shop-1")
    for _ in range(5):
        assert not poller.poll()
    assert ledger.get("forge_cursor/shop-1") == before


def test_a_wake_up_polls_at_once_and_a_burst_polls_once(ledger: Ledger, tmp_path: Path) -> None:
    forge = Scripted((issue("A", 1),))
    poller = make_poller(ledger, forge, tmp_path)
    poller.start()
    try:
        for _ in range(50):
            poller.wake_up()
        wait_for(lambda: reported_titles(ledger) == ["A"])
        time.sleep(0.3)
        assert forge.polls <= 2
    finally:
        poller.stop()


def test_a_webhook_long_after_a_slow_poll_polls_at_once(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poller = make_poller(ledger, Scripted((issue("A", 1),)), tmp_path)
    pauses: list[float] = []
    monkeypatch.setattr(poller._end, "wait", pauses.append)
    poller._poll_took_s, poller._polled_at = 100.0, time.monotonic() - 200
    poller.wake_up()
    poller._sleep(600)
    poller._polled_at = time.monotonic()
    poller.wake_up()
    poller._sleep(600)
    assert pauses[0] < 1
    assert 90 < pauses[1] <= 100


def test_between_constant_webhooks_the_poller_rests_as_long_as_a_poll_takes(
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

    poller = make_poller(ledger, Slow((issue("A", 1),)), tmp_path)
    poller.start()
    try:
        while len(spans) < 4:
            poller.wake_up()
            time.sleep(0.01)
    finally:
        poller.stop()
    rests = [after[0] - before[1] for before, after in pairwise(spans)]
    assert min(rests) >= 0.3


def test_a_quota_is_shown_with_its_end_and_ends_by_itself(ledger: Ledger, tmp_path: Path) -> None:
    reset = time.time() + 2.0
    forge = Scripted(ForgePaused("quota", reset), (issue("A", 1),))
    poller = make_poller(ledger, forge, tmp_path, 0.01)
    poller.start()
    try:
        wait_for(lambda: poller.outage)
        with ledger.db.snapshot() as connection:
            assert str(read_outage(connection, "shop-1")).startswith("forge quota until ")
        wait_for(lambda: reported_titles(ledger) == ["A"])
        assert time.time() >= reset
        wait_for(lambda: poller.outage is None)
        with ledger.db.snapshot() as connection:
            assert read_outage(connection, "shop-1") is None
    finally:
        poller.stop()


def test_an_unexpected_error_of_the_poller_stops_the_loop(ledger: Ledger, tmp_path: Path) -> None:
    signal = LoopSignal(Wake(tmp_path / "wake"))
    error = RuntimeError("an unexpected error")
    poller = Poller(ledger, "shop-1", Scripted(error), signal, 0.01)  # type: ignore[arg-type]
    poller.start()
    try:
        wait_for(lambda: signal.errors == [error])
    finally:
        poller.stop()


def test_after_an_outage_the_poller_is_current_once_a_poll_succeeds(
    ledger: Ledger, tmp_path: Path
) -> None:
    poller = make_poller(ledger, Scripted((issue("A", 1),)), tmp_path)
    poller.poll()
    assert poller.is_current
    poller.report_unreachable()
    assert not poller.is_current
    poller.poll()
    assert poller.is_current


def test_a_poll_that_began_before_the_outage_does_not_end_it(
    ledger: Ledger, tmp_path: Path
) -> None:
    forge = Scripted((issue("A", 1),))
    poller = make_poller(ledger, forge, tmp_path)
    answer = forge.poll

    def poll_during_outage(cursor: str) -> Poll:
        poller.report_unreachable()
        return answer(cursor)

    forge.poll = poll_during_outage  # type: ignore[method-assign]
    poller.poll()
    assert not poller.is_current
    forge.poll = answer  # type: ignore[method-assign]
    poller.poll()
    assert poller.is_current


def test_an_effect_without_an_answer_polls_at_once(ledger: Ledger, tmp_path: Path) -> None:
    forge = Scripted((issue("A", 1),))
    poller = make_poller(ledger, forge, tmp_path, every_s=600.0)
    poller.start()
    try:
        poller.report_unreachable()
        wait_for(lambda: poller.is_current)
        assert forge.polls == 1
    finally:
        poller.stop()


def test_the_first_poll_of_the_next_engine_ends_a_stored_outage(
    ledger: Ledger, tmp_path: Path
) -> None:
    forge = Scripted(ForgeUnavailable("no answer"))
    poller = make_poller(ledger, forge, tmp_path, 0.01)
    poller.start()
    wait_for(lambda: poller.outage)
    poller.stop()
    make_poller(ledger, Scripted((issue("A", 1),)), tmp_path).poll()
    with ledger.db.snapshot() as connection:
        assert read_outage(connection, "shop-1") is None


def test_a_silent_forge_is_polled_often_and_a_refusing_forge_seldom() -> None:
    silent = [pause_after(ForgeUnavailable("no answer"), n, 10.0) for n in range(50)]
    refusing = [pause_after(ForgeError("no"), n, 10.0) for n in range(50)]
    assert silent == sorted(silent)
    assert (silent[0], silent[-1], refusing[-1]) == (0.5, 5.0, 60.0)
