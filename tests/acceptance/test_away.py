"""A sprint goes on without its terminal, and any terminal can watch it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from tests.acceptance.terminals import Terminal
from tests.support.home import Gate, Home, does, task, writes
from tests.support.wait import wait_for

_ASKS = "[r]eplan"


@pytest.fixture
def writing(home: Home) -> Iterator[Gate]:
    """A sprint of two tasks whose first agent waits at a gate."""
    gate = home.gate("writing")
    plan = json.dumps([task("first"), task("second", "first")])
    home.script(does("po", output=plan), writes("first", run=gate.line), writes("second"))
    yield gate
    gate.open()
    home.caloron("stop")


def _engine(home: Home) -> int:
    """The process that drives the sprint; 0: none."""
    engine = home.caloron("status").data["engine"]
    return int(engine["pid"]) if engine else 0


def test_an_approved_plan_runs_without_the_terminal_that_approved_it(
    home: Home, writing: Gate
) -> None:
    code, screen = Terminal(home, "sprint", "go", "--detach").end((_ASKS, "y"))
    assert code == 0, screen
    assert "caloron attach" in screen
    writing.wait_for_agent()
    assert os.getsid(_engine(home)) != os.getsid(0)
    writing.open()
    answer = home.caloron("attach")
    assert answer.code == 0, answer
    assert home.files() == {"first.txt": b"first\n", "second.txt": b"second\n"}
    assert home.attempts("po") == 1
    log = home.project() / "logs" / "demo-1.log"
    assert "all 2 tasks are done" in log.read_text()


def test_a_plan_that_is_not_approved_starts_nothing_in_the_background(
    home: Home, writing: Gate
) -> None:
    code, screen = Terminal(home, "sprint", "go", "--detach").end((_ASKS, "n"))
    assert code == 11, screen
    assert "error:" not in screen
    assert _engine(home) == 0
    assert home.issues() == []


def test_a_detached_sprint_is_stopped_and_resumed_in_the_background(
    home: Home, writing: Gate
) -> None:
    started = home.data("sprint", "go", "--yes", "--detach", "--timeout", "77")
    writing.wait_for_agent()
    assert _engine(home) == started["pid"]
    assert home.data("stop")["stopped"]
    assert _engine(home) == 0
    assert home.caloron("attach").code == 11
    again = home.data("resume", "--detach")
    assert _engine(home) == again["pid"]
    writing.open()
    assert home.caloron("attach").code == 0
    assert home.files().keys() == {"first.txt", "second.txt"}


def test_what_keeps_a_detached_sprint_from_starting_is_shown_at_once(home: Home) -> None:
    home.script(does("implement", run="echo x > x.txt"))
    home.sprint(task("a"), options=("--begin-only",))
    home.set(framework="claude-code")
    answer = home.caloron("resume", "--detach", PATH="/usr/bin:/bin")
    assert answer.code == 8, answer
    assert "Claude Code" in answer.error["message"]
    assert _engine(home) == 0


def test_leaving_the_view_does_not_stop_the_sprint(home: Home, writing: Gate) -> None:
    home.data("sprint", "go", "--yes", "--detach")
    writing.wait_for_agent()
    engine = _engine(home)
    view = Terminal(home, "attach")
    # The live view shows the last line of the agent, and what the other task waits for.
    view.read_until("at gate writing")
    view.read_until("waiting for first")
    view.interrupt()
    code, screen = view.end()
    assert code == 0, screen
    assert "demo-1 continues" in screen
    assert _engine(home) == engine
    writing.open()
    assert home.caloron("attach").code == 0


def test_after_the_engine_was_killed_the_view_names_the_agent_that_still_works(
    home: Home, writing: Gate
) -> None:
    home.data("sprint", "go", "--yes", "--detach")
    writing.wait_for_agent()
    os.kill(_engine(home), signal.SIGKILL)
    wait_for(lambda: _engine(home) == 0, "the engine is gone")
    answer = home.caloron("attach")
    assert answer.code == 11
    assert "agent first (implement) still runs" in answer.error["message"]
    assert home.data("resume", "--detach")["pid"]
    writing.open()
    assert home.caloron("attach").code == 0
    assert home.attempts("implement", "first") == 1


def test_a_sprint_whose_terminal_was_closed_continues_with_the_same_agents(
    home: Home, writing: Gate
) -> None:
    home.set(on_hangup="continue")
    terminal = Terminal(home, "sprint", "go", "--yes")
    writing.wait_for_agent()
    before = _engine(home)
    assert terminal.hang_up() == 0
    wait_for(lambda: _engine(home) not in (0, before), "another process drives the sprint")
    writing.open()
    assert home.caloron("attach").code == 0
    assert home.attempts("implement", "first") == 1
    assert home.files().keys() == {"first.txt", "second.txt"}
    assert list((home.path / "logs").glob("defect-*")) == []


def test_a_sprint_whose_terminal_was_closed_saves_and_stops(home: Home, writing: Gate) -> None:
    terminal = Terminal(home, "sprint", "go", "--yes")
    writing.wait_for_agent()
    assert terminal.hang_up() == 11
    assert _engine(home) == 0
    assert home.processes("supervise/shim.py") == []
    assert list((home.path / "logs").glob("defect-*")) == []
    writing.open()
    assert home.caloron("resume").code == 0


def test_a_sprint_started_with_nohup_does_not_notice_a_closed_terminal(
    home: Home, writing: Gate
) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        running = home.start("sprint", "go", "--yes")
    finally:
        signal.signal(signal.SIGHUP, before)
    writing.wait_for_agent()
    running.process.send_signal(signal.SIGHUP)
    writing.open()
    assert running.wait().code == 0


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_cannot_draw_gets_plain_lines(home: Home, term: str) -> None:
    home.script(writes("a"))
    plan = home.plan(task("a"))
    terminal = Terminal(home, "sprint", "go", "--plan", str(plan), "--yes", TERM=term)
    code, screen = terminal.end()
    assert code == 0, screen
    assert "a: InReview → Done" in screen
    assert b"\x1b" not in terminal.raw
