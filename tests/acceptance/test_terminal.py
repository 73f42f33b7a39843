"""At a terminal: the plan is shown before it runs, and the tasks are a live table."""

from __future__ import annotations

import json

from tests.acceptance.terminals import Terminal
from tests.support.home import Home, does, task, writes


def _planned(home: Home) -> None:
    plan = json.dumps([task("first"), task("second", "first")])
    home.script(does("po", output=plan), writes("first"), writes("second"))


def test_a_plan_that_is_declined_is_kept_and_runs_after_resume_says_yes(home: Home) -> None:
    _planned(home)
    code, screen = Terminal(home, "sprint", "make it so").end(("Run these 2 tasks?", "n"))
    assert code == 11, screen
    assert "waits for approval" in screen
    assert "caloron discard" in screen
    assert home.issues() == []
    assert "your approval" in home.caloron("why").data["why"]

    code, screen = Terminal(home, "resume").end(("Run these 2 tasks?", "y"))
    assert code == 0, screen
    assert home.attempts("po") == 1


def test_with_yes_there_is_no_question(home: Home) -> None:
    _planned(home)
    code, screen = Terminal(home, "sprint", "make it so", "--yes").end()
    assert code == 0, screen
    assert "Run these" not in screen


def test_ctrl_c_at_the_terminal_saves_and_stops(home: Home) -> None:
    writing = home.gate("writing")
    home.script(writes("a", run=writing.line))
    plan = home.plan(task("a"))
    terminal = Terminal(home, "sprint", "make it so", "--plan", str(plan), "--yes")
    terminal.read_until("at gate writing")
    writing.wait_for_agent()
    terminal.type("\x03")
    terminal.interrupt()
    code, screen = terminal.end()
    assert code == 11, screen
    assert "caloron resume" in screen
    # The `^C` of the terminal moves the cursor, and the table is drawn beside its old position.
    assert "^C" not in screen
    assert "demo-1  stopping" in screen
    assert "the agent's work is saved" in screen
    assert "error:" not in screen
    assert "Sprint demo-1 was stopped with 0 of 1 tasks done" in screen


def test_a_goal_with_brackets_is_only_text_to_the_live_view(home: Home) -> None:
    home.script(writes("a"))
    plan = home.plan(task("a"))
    terminal = Terminal(home, "sprint", "Parse [/b] tags", "--plan", str(plan), "--yes")
    code, screen = terminal.end()
    assert code == 0, screen
    assert "Parse [/b] tags" in screen
