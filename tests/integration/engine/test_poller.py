"""The poller reports changed snapshots; a new version of the same snapshot is no change."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from caloron.domain.model.snapshots import BranchSnapshot, IssueSnapshot, Snapshot
from caloron.domain.reporting.waiting import Outage
from caloron.engine.forge.poller import SnapshotFilter, pause_after
from caloron.errors import ForgeError, ForgePaused, ForgeUnavailable
from caloron.ledger.reading import read_outage
from caloron.ports import Poll
from tests.integration.engine.parts import Parts
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
def parts(tmp_path: Path) -> Iterator[Parts]:
    made = Parts(tmp_path)
    yield made
    made.ledger.close()


def reported_titles(parts: Parts) -> list[str]:
    return [fact.title for fact in parts.facts() if isinstance(fact, IssueSnapshot)]


def stored_outage(parts: Parts) -> Outage | None:
    with parts.ledger.db.snapshot() as connection:
        return read_outage(connection, parts.sprint)


def test_the_same_snapshot_with_another_version_is_reported_once(parts: Parts) -> None:
    forge = Scripted((issue("A", 1),), (issue("A", 2),), (issue("A", 3),), (issue("B", 4),))
    poller = parts.poller_of(forge)
    assert [poller.poll() for _ in range(4)] == [True, False, False, True]
    assert reported_titles(parts) == ["A", "B"]


def test_a_person_who_reverts_our_change_is_reported(parts: Parts) -> None:
    """The poll reports A, our effect reports B, a person restores A: A is a change again."""
    remembered = SnapshotFilter()
    forge = Scripted((issue("A", 1),), (issue("A", 9),))
    poller = parts.poller_of(forge, reported=remembered)
    assert poller.poll()
    remembered.record([issue("B", 5)])
    assert poller.poll()
    assert reported_titles(parts) == ["A", "A"]


def test_the_next_poll_corrects_a_snapshot_that_was_recorded_late() -> None:
    remembered = SnapshotFilter()
    assert remembered.new_ones([issue("A", 1)])
    assert not remembered.new_ones([issue("A", 5)])
    remembered.record([issue("B", 3)])
    assert remembered.new_ones([issue("A", 6)])


def test_polls_without_changes_write_nothing(parts: Parts) -> None:
    poller = parts.poller_of(Scripted((issue("A", 1),)))
    assert poller.poll()
    before = parts.ledger.get("forge_cursor/shop-1")
    for _ in range(5):
        assert not poller.poll()
    assert parts.ledger.get("forge_cursor/shop-1") == before


def test_a_wake_up_polls_at_once_and_a_burst_polls_once(parts: Parts) -> None:
    forge = Scripted((issue("A", 1),))
    poller = parts.poller_of(forge)
    poller.start()
    try:
        for _ in range(50):
            poller.wake_up()
        wait_for(lambda: reported_titles(parts) == ["A"])
        time.sleep(0.3)
        assert forge.polls <= 2
    finally:
        poller.stop()


def test_a_webhook_long_after_a_slow_poll_polls_at_once(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    poller = parts.poller_of(Scripted((issue("A", 1),)))
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


def test_between_constant_webhooks_the_poller_rests_as_long_as_a_poll_takes(parts: Parts) -> None:
    spans: list[tuple[float, float]] = []

    class Slow(Scripted):
        def poll(self, cursor: str) -> Poll:
            began = time.monotonic()
            time.sleep(0.3)
            answer = super().poll(cursor)
            spans.append((began, time.monotonic()))
            return answer

    poller = parts.poller_of(Slow((issue("A", 1),)))
    poller.start()
    try:
        while len(spans) < 4:
            poller.wake_up()
            time.sleep(0.01)
    finally:
        poller.stop()
    rests = [after[0] - before[1] for before, after in pairwise(spans)]
    assert min(rests) >= 0.3


def test_a_quota_is_shown_with_its_end_and_ends_by_itself(parts: Parts) -> None:
    reset = time.time() + 2.0
    forge = Scripted(ForgePaused("quota", reset), (issue("A", 1),))
    poller = parts.poller_of(forge, 0.01)
    poller.start()
    try:
        wait_for(lambda: poller.outage)
        assert str(stored_outage(parts)).startswith("forge quota until ")
        wait_for(lambda: reported_titles(parts) == ["A"])
        assert time.time() >= reset
        wait_for(lambda: poller.outage is None)
        assert stored_outage(parts) is None
    finally:
        poller.stop()


def test_an_unexpected_error_of_the_poller_stops_the_loop(parts: Parts) -> None:
    error = RuntimeError("an unexpected error")
    poller = parts.poller_of(Scripted(error), 0.01)
    poller.start()
    try:
        wait_for(lambda: parts.signal.errors == [error])
    finally:
        poller.stop()


def test_after_an_outage_the_poller_is_current_once_a_poll_succeeds(parts: Parts) -> None:
    poller = parts.poller_of(Scripted((issue("A", 1),)))
    poller.poll()
    assert poller.epoch is not None
    poller.report_unreachable()
    assert poller.epoch is None
    poller.poll()
    assert poller.epoch is not None


def test_a_poll_that_began_before_the_outage_does_not_end_it(parts: Parts) -> None:
    forge = Scripted((issue("A", 1),))
    poller = parts.poller_of(forge)
    answer = forge.poll

    def poll_during_outage(cursor: str) -> Poll:
        poller.report_unreachable()
        return answer(cursor)

    forge.poll = poll_during_outage  # type: ignore[method-assign]
    poller.poll()
    assert poller.epoch is None
    forge.poll = answer  # type: ignore[method-assign]
    poller.poll()
    assert poller.epoch is not None


def test_an_effect_without_an_answer_polls_at_once(parts: Parts) -> None:
    forge = Scripted((issue("A", 1),))
    poller = parts.poller_of(forge)
    poller.start()
    try:
        poller.report_unreachable()
        wait_for(lambda: poller.epoch is not None)
        assert forge.polls == 1
    finally:
        poller.stop()


def test_the_first_poll_of_the_next_engine_ends_a_stored_outage(parts: Parts) -> None:
    forge = Scripted(ForgeUnavailable("no answer"))
    poller = parts.poller_of(forge, 0.01)
    poller.start()
    wait_for(lambda: poller.outage)
    poller.stop()
    parts.poller_of(Scripted((issue("A", 1),))).poll()
    assert stored_outage(parts) is None


def test_a_silent_forge_is_polled_often_and_a_refusing_forge_seldom() -> None:
    silent = [pause_after(ForgeUnavailable("no answer"), n, 10.0) for n in range(50)]
    refusing = [pause_after(ForgeError("no"), n, 10.0) for n in range(50)]
    assert silent == sorted(silent)
    assert (silent[0], silent[-1], refusing[-1]) == (0.5, 5.0, 60.0)
