"""Cycles: reported crashes, unique numbers, repaired damage, one active cycle per agent."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from caloron.cycles import StopRequested, cycle, location_of
from caloron.cycles.storage import KEPT, Log
from caloron.errors import InUse, StoreError, UsageError
from caloron.store.lock import this_process
from tests.integration.agentstate.cycles.conftest import UNKNOWN, Agent

DAMAGES = {
    "corrupt": b"\xff\xfe{not json",
    "truncated": b'{"version": 1, "agent": "allegro", "cycle_nu',
    "empty": b"",
    "blank": b"\n \n",
    "a list": b"[]",
    "of wrong types": b'{"version": 1, "cycle_number": "three"}',
    "negative": b'{"version": 1, "cycle_number": -3}',
    "too high to be true": b'{"version": 1, "cycle_number": 99999999999999999999}',
    "from the future": b'{"version": 2, "shape": {}}',
}
#: Files in which only the number is usable.
NUMBERED = {
    "a time that is none": b'{"version": 1, "cycle_number": 41, "timestamp": 1775512800}',
    "of wrong types": b'{"cycle_number": "41", "last_action": "merged PR 3"}',
    "cut off": b'{"version": 1, "agent": "allegro", "cycle_number": 41, "last_act',
    "from the future": b'{"version": 99, "cycle_number": 41, "shape": {}}',
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_state_is_kept_and_rebuilt_from_the_log(agent: Agent, damage: bytes) -> None:
    agent.whole_cycle()
    agent.cycles.begin(holder=this_process(), work="issue 4")
    agent.cycles.act("pushed", artefact="branch x")
    good = agent.cycles.load().state
    agent.places.state.write_bytes(damage)
    loaded = agent.cycles.load()
    assert loaded.state == good
    assert str(agent.places.state) in loaded.notices[0]
    assert agent.places.state.read_bytes() == damage, "reading changed the file"
    after = agent.cycles.act("opened PR 12")
    assert (after.cycle_number, after.artefacts) == (2, ("branch x",))
    asides = [f for f in agent.places.state.parent.iterdir() if f.name.startswith("allegro.json.")]
    assert [aside.read_bytes() for aside in asides] == [damage]
    events = [entry["event"] for entry in agent.cycles.log.entries()]
    assert events[-2:] == ["set_aside", "act"]
    # A second damaged file does not replace the first.
    agent.places.state.write_bytes(b"again")
    agent.cycles.act("merged PR 12")
    kept = [f.read_bytes() for f in agent.places.state.parent.glob("allegro.json.*")]
    assert sorted(kept) == sorted([damage, b"again"])


@pytest.mark.parametrize("known", [0, 2], ids=["without a log", "with a log"])
@pytest.mark.parametrize("content", NUMBERED.values(), ids=NUMBERED)
def test_the_number_in_an_unusable_file_is_never_used_again(
    agent: Agent, content: bytes, known: int
) -> None:
    for _ in range(known):
        agent.whole_cycle(next_target="go on")
    agent.places.state.parent.mkdir(parents=True, exist_ok=True)
    agent.places.state.write_bytes(content)
    assert agent.cycles.load().highest == 41
    loaded, report = agent.cycles.begin(holder=UNKNOWN)
    assert report.cycle_number == 42
    assert "its number, 41, is kept" in loaded.notices
    assert len(list(agent.places.state.parent.glob("allegro.json.*"))) == 1
    if known:
        assert (report.last_cycle, report.outcome, report.next_target) == (2, "ended", "go on")
    else:
        assert "Cycle 41 was the last; nothing more is known of it." in report.text()
    agent.places.state.unlink()
    assert agent.cycles.load().state.cycle_number == 42, "the log knows it too"


def test_an_open_cycle_keeps_its_number_when_a_higher_one_appears(
    agent: Agent,
) -> None:
    agent.cycles.begin(holder=UNKNOWN, work="issue 4")
    agent.places.state.write_bytes(NUMBERED["from the future"])
    agent.cycles.act("pushed", cycle=1, artefact="branch x")
    agent.cycles.end(cycle=1)
    _, report = agent.cycles.begin(holder=UNKNOWN)
    assert (report.last_cycle, report.cycle_number) == (1, 42)
    assert report.work_cycles == 2, "cycles that never were do not count"


@pytest.mark.parametrize("content", [b"", b'{"cycle_'])
@pytest.mark.parametrize("log", [None, b""])
def test_a_number_that_only_the_lock_file_has_is_not_used_again(
    agent: Agent, content: bytes, log: bytes | None
) -> None:
    assert [agent.whole_cycle() for _ in range(3)][-1] == 3
    agent.places.state.write_bytes(content)
    agent.places.log.unlink()
    if log is not None:
        agent.places.log.write_bytes(log)
    assert agent.whole_cycle() == 4


@pytest.mark.parametrize("rotated", [False, True])
def test_a_missing_state_is_rebuilt_from_the_log_with_a_notice(
    tmp_path: Path, rotated: bool
) -> None:
    agent = Agent(tmp_path, rotate_bytes=10)
    agent.whole_cycle(next_target="go on")
    assert not rotated or agent.cycles.log.rotate()
    agent.places.state.unlink()
    loaded, report = agent.cycles.begin(holder=UNKNOWN)
    assert "was missing" in loaded.notices[0]
    assert (report.cycle_number, report.next_target) == (2, "go on")


def test_a_lost_log_starts_again_from_the_state(agent: Agent) -> None:
    for _ in range(3):
        agent.whole_cycle(next_target="go on")
    agent.places.log.unlink()
    agent.cycles.begin(holder=UNKNOWN)
    agent.places.state.unlink()
    state = agent.cycles.load().state
    assert (state.cycle_number, state.next_target) == (4, "go on")
    assert state.previous is not None
    assert state.previous["cycle_number"] == 3


@pytest.mark.parametrize("restored", [("state",), ("log",), ("state", "log")])
def test_numbers_go_on_rising_after_a_restore_of_old_files(
    agent: Agent, tmp_path: Path, restored: tuple[str, ...]
) -> None:
    agent.whole_cycle()
    for file in (agent.places.state, agent.places.log):
        shutil.copy(file, tmp_path / file.name)
    last = [agent.whole_cycle() for _ in range(4)][-1]
    for name in restored:
        file = getattr(agent.places, name)
        shutil.copy(tmp_path / file.name, file)
    assert agent.whole_cycle() == last + 1
    seqs = [entry["seq"] for entry in agent.cycles.log.entries()]
    assert seqs == sorted(set(seqs))


@pytest.mark.parametrize(("work", "cycles"), [(None, 0), ("issue 4", 1)])
def test_a_state_of_another_program_is_continued(
    agent: Agent, work: str | None, cycles: int
) -> None:
    agent.places.state.parent.mkdir(parents=True)
    state = {"cycle_number": 41, "last_action": "merged PR 3", "last_action_result": "success",
              "work_in_progress": work, "timestamp": "2026-04-06T21:00:00Z",
              "next_target": "check PR 4"}  # fmt: skip
    agent.places.state.write_text(json.dumps(state))
    assert agent.cycles.report().work_cycles == cycles
    _, report = agent.cycles.begin(holder=UNKNOWN)
    assert (report.cycle_number, report.last_cycle, report.next_target) == (42, 41, "check PR 4")
    assert "Cycle 41 ended as success; its last step: merged PR 3 (success)." in report.text()
    assert (report.work_cycles, report.slice_it) == (2 * cycles, False)


def test_an_end_without_a_step_leaves_the_last_action_its_own_result(agent: Agent) -> None:
    agent.whole_cycle("merged PR 3")
    agent.cycles.begin(holder=UNKNOWN)
    state = agent.cycles.end("failure", reason="the forge is away")
    assert (state.last_action, state.last_action_result) == ("merged PR 3", "success")
    assert state.result == "failure"
    assert "Cycle 2 ended as failure. Reason: the forge is away." in agent.cycles.report().text()


def test_an_agent_without_activity_for_twenty_minutes_is_dead_and_changes_nothing(
    agent: Agent,
) -> None:
    agent.cycles.begin(holder=UNKNOWN)
    agent.cycles.act("pushed")
    agent.wait(15)
    agent.cycles.beat()
    agent.wait(20)
    with pytest.raises(InUse, match="held by process 7 on elsewhere"):
        agent.cycles.begin(holder=UNKNOWN)
    agent.wait(1)
    assert agent.cycles.report().outcome == "crashed"
    _, report = agent.cycles.begin(holder=UNKNOWN)
    assert (report.outcome, report.last_cycle, report.last_step) == ("crashed", 1, "pushed")
    assert "no sign for 21 min" in report.text()

    for late in (
        lambda: agent.cycles.act("late", cycle=1),
        lambda: agent.cycles.end(reason="late", cycle=1),
        lambda: agent.cycles.beat(cycle=1),
    ):
        with pytest.raises(InUse, match="cycle 1 of allegro is over"):
            late()
    with pytest.raises(InUse, match="has had no cycle 7 yet: the last one is 2"):
        agent.cycles.end(reason="r", cycle=7)


def test_the_living_process_of_a_cycle_may_end_it_after_a_long_silence(agent: Agent) -> None:
    agent.cycles.begin(holder=this_process())
    agent.wait(60)
    assert agent.cycles.end(reason="a long build").status == "ended"


def test_a_stop_request_refuses_wakes_until_it_is_withdrawn(agent: Agent) -> None:
    agent.cycles.begin(holder=UNKNOWN)
    agent.cycles.request_stop("wait for the release")
    assert "Stop was requested: wait for the release" in agent.cycles.report().text()
    agent.cycles.end(reason="stopped")
    with pytest.raises(StopRequested, match="wait for the release"):
        agent.cycles.begin(holder=UNKNOWN)
    assert agent.cycles.load().state.cycle_number == 1
    assert list(agent.cycles.log.entries())[-1]["event"] == "stopped"
    assert agent.cycles.clear_stop()
    assert not agent.cycles.clear_stop()
    assert agent.whole_cycle() == 2


def test_work_over_more_than_three_cycles_is_to_be_sliced(agent: Agent) -> None:
    flagged = []
    for _ in range(5):
        _, report = agent.cycles.begin(holder=UNKNOWN, work="issue 4")
        flagged.append(report.slice_it)
        agent.cycles.end(reason="not done")
    assert flagged == [False, False, False, True, True]
    assert "slice it" in agent.cycles.report().text()
    _, report = agent.cycles.begin(holder=UNKNOWN, work="issue 5")
    assert (report.slice_it, report.work_cycles) == (False, 1)


def test_a_long_log_is_rotated_without_loss(tmp_path: Path) -> None:
    agent = Agent(tmp_path, rotate_bytes=2000)
    for _ in range(60):
        agent.whole_cycle("did a step with a rather long description", next_target="go on")
    older = sorted(agent.places.log.parent.glob("allegro.log.*"))
    assert len(older) == KEPT
    first = json.loads(agent.places.log.read_bytes().splitlines()[0])
    assert first["event"] == "snapshot"
    agent.places.state.unlink()
    state = agent.cycles.load().state
    assert (state.cycle_number, state.next_target) == (60, "go on")
    assert agent.cycles.log.newest(0) == []
    newest = agent.cycles.log.newest(30)
    assert [entry["cycle"] for entry in newest if entry["event"] == "begin"][-5:] == [
        56, 57, 58, 59, 60,
    ]  # fmt: skip


def test_a_block_that_fails_ends_its_cycle_as_a_failure_with_the_reason(agent: Agent) -> None:
    def divide() -> None:
        with cycle("allegro", location=agent.places) as c:
            c.act("divided")
            raise ZeroDivisionError("by nothing")

    with pytest.raises(ZeroDivisionError):
        divide()
    state = agent.cycles.load().state
    assert (state.status, state.result) == ("ended", "failure")
    assert (state.last_action, state.last_action_result) == ("divided", "success")
    assert state.reason == "ZeroDivisionError: by nothing"


def test_a_block_without_an_artefact_ends_as_partial(agent: Agent) -> None:
    with cycle("allegro", location=agent.places) as c:
        assert c.number == 1
    state = agent.cycles.load().state
    assert (state.result, state.reason) == (
        "partial", "ended without an artefact and without a reason",
    )  # fmt: skip


def test_a_block_reports_its_work_and_what_comes_next(agent: Agent) -> None:
    with cycle("allegro", work="issue 4", location=agent.places) as c:
        c.act("opened PR 12", artefact="PR 12")
        c.beat()
        c.plan("answer the review")
    with cycle("allegro", location=agent.places) as c:
        assert c.report.text().splitlines() == [
            "This is cycle 2 of allegro.",
            "Cycle 1 ended as success; its last step: opened PR 12 (success). It left: PR 12.",
            "In progress: issue 4, for 2 cycles now.",
            "To do next: answer the review.",
        ]
        c.because("nothing to review yet")
        c.work("")
    state = agent.cycles.load().state
    assert (state.work_in_progress, state.reason) == ("", "nothing to review yet")


def test_the_files_are_in_the_folder_of_hermes_if_it_exists_or_is_requested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CALORON_HOME", str(tmp_path / "caloron"))
    caloron_home, hermes_home = tmp_path / "caloron/cycles", tmp_path / ".hermes"
    assert location_of("a").state == caloron_home / "a.json"
    assert location_of("a").log == caloron_home / "a.log"
    assert location_of("a", hermes=True).log == hermes_home / "burn-logs/a.log"
    hermes_home.mkdir()
    assert location_of("a").state == hermes_home / "burn-state/a.json"
    assert location_of("a", hermes=False).state == caloron_home / "a.json"
    for bad in ("", "..", "a/b", "-x", "a" * 65, "ä"):
        with pytest.raises(UsageError):
            location_of(bad)


def test_a_wake_does_not_read_the_whole_log(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.whole_cycle()

    def refuse(_log: Log) -> None:
        raise AssertionError("the whole log was read")

    monkeypatch.setattr(Log, "entries", refuse)
    agent.cycles.begin(holder=UNKNOWN)


@pytest.mark.parametrize("name", ["log", "state"])
@pytest.mark.parametrize("what", ["/dev/full", "/dev/zero", "pipe", "folder"])
def test_a_device_or_a_pipe_in_place_of_a_file_is_named_and_not_read(
    agent: Agent, name: str, what: str
) -> None:
    cycles = agent.cycles
    cycles.begin()
    path = getattr(agent.places, name)
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to(what)
    for act in (cycles.load, cycles.begin, lambda: cycles.log.newest(5) and cycles.load()):
        with pytest.raises(StoreError, match=f"cannot read {path}"):
            act()
    assert path.exists()
