"""An agent whose files may be in two places: one number, one open cycle, whichever it uses."""

from __future__ import annotations

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from caloron.agentstate.cycles import Cycles, StopRequested, places_of
from caloron.errors import HeldByAnother, PreconditionFailed
from caloron.store.lock import this_holder
from tests.integration.agentstate.cycles.conftest import UNKNOWN
from tests.support.claimers import PROCESSES


@pytest.fixture(autouse=True)
def hermes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CALORON_HOME", str(tmp_path / "caloron"))
    return tmp_path / ".hermes"


def cycles(hermes: bool | None = None) -> Cycles:
    return Cycles(places_of("allegro", hermes=hermes))


def whole_cycle(next_target: str = "go on", hermes: bool | None = None) -> int:
    cycles(hermes).begin(holder=UNKNOWN, work="issue 4")
    cycles(hermes).act("pushed", artefact="branch x")
    return cycles(hermes).end(next_target=next_target).cycle_number


def test_an_agent_goes_on_from_its_number_when_hermes_appears_later(hermes: Path) -> None:
    assert [whole_cycle() for _ in range(3)] == [1, 2, 3]
    hermes.mkdir()
    status = cycles()
    assert status.report().last_cycle == 3
    assert not (hermes / "burn-state").exists(), "looking changes nothing"
    looked, report = cycles().begin(holder=UNKNOWN)
    assert "caloron/cycles/allegro.json, up to cycle 3" in looked.notices[0]
    assert (report.cycle_number, report.last_cycle, report.next_target) == (4, 3, "go on")
    assert (report.last_step, report.work_cycles) == ("pushed", 4)
    events = [entry["event"] for entry in cycles().log.entries()]
    assert events == ["carried", "begin"]
    assert cycles().look().notices == ()


def test_a_place_that_goes_away_takes_no_number_with_it(hermes: Path) -> None:
    assert whole_cycle() == 1
    hermes.mkdir()
    assert [whole_cycle() for _ in range(3)] == [2, 3, 4]
    shutil.rmtree(hermes)
    assert whole_cycle() == 5


def test_whoever_goes_back_and_forth_never_gets_a_number_twice(hermes: Path) -> None:
    hermes.mkdir()
    given = [whole_cycle(f"after {n}", hermes=n % 3 == 0) for n in range(8)]
    assert given == list(range(1, 9))
    for place in (True, False):
        assert cycles(place).report().next_target == "after 7"


def test_a_cycle_that_is_open_in_one_place_refuses_another_in_the_other(hermes: Path) -> None:
    mine = this_holder()
    cycles(True).begin(holder=mine)
    with pytest.raises(HeldByAnother, match=f"held by process {mine.pid}"):
        cycles(False).begin(holder=UNKNOWN)
    assert not places_of("allegro", hermes=False).state.exists()
    cycles(True).act("still here")
    cycles(True).end(reason="r")
    assert cycles(False).begin(holder=UNKNOWN)[1].cycle_number == 2


def test_an_open_cycle_is_ended_where_its_agent_finds_itself(hermes: Path) -> None:
    cycles().begin(holder=UNKNOWN)
    hermes.mkdir()
    assert cycles().end(reason="r", cycle=1).status == "ended"
    # Nobody can go on with what the first place still calls open.
    with pytest.raises(PreconditionFailed, match="no cycle of allegro is open"):
        cycles(False).act("more")
    assert cycles(False).begin(holder=UNKNOWN)[1].cycle_number == 2


def test_a_crash_in_one_place_is_told_in_the_other(hermes: Path) -> None:
    cycles().begin(holder=UNKNOWN)
    cycles().act("pushed")
    hermes.mkdir()
    later = Cycles(places_of("allegro"), now=lambda: datetime.now(UTC) + timedelta(minutes=21))
    _, report = later.begin(holder=UNKNOWN)
    assert (report.cycle_number, report.last_cycle, report.outcome) == (2, 1, "crashed")
    assert report.last_step == "pushed"


def test_a_request_to_stop_holds_in_both_places(hermes: Path) -> None:
    cycles().request_stop("wait")
    hermes.mkdir()
    with pytest.raises(StopRequested, match="wait"):
        cycles().begin(holder=UNKNOWN)
    assert cycles().clear_stop()
    assert cycles(False).stop_request() == ""


def _begin(user_home: Path, hermes: bool, gate, results) -> None:
    # The fork server has the environment of the test that started it, which may be another one.
    os.environ |= {"HOME": str(user_home), "CALORON_HOME": str(user_home / "caloron")}
    gate.wait()
    try:
        cycles(hermes).begin(holder=UNKNOWN)
    except HeldByAnother:
        results.put(False)
    else:
        results.put(True)


def test_of_many_that_wake_in_both_places_at_once_one_begins(hermes: Path) -> None:
    for place in (True, False):
        whole_cycle(hermes=place)
    gate, results = PROCESSES.Barrier(6), PROCESSES.Queue()
    told = [(hermes.parent, n % 2 == 0, gate, results) for n in range(6)]
    workers = [PROCESSES.Process(target=_begin, args=one) for one in told]
    for worker in workers:
        worker.start()
    assert sum(results.get(timeout=60) for _ in workers) == 1
    for worker in workers:
        worker.join()
    assert cycles().look().state.cycle_number == 3
