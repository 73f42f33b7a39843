"""At a terminal: the plan is shown before it runs, and the tasks are a live table."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

from tests.acceptance.home import Home, does, task, writes


class Terminal:
    """`caloron` at a terminal of its own; the test reads the screen and types."""

    def __init__(self, home: Home, *arguments: str) -> None:
        self._handle, other = pty.openpty()
        self._process = subprocess.Popen(
            (sys.executable, "-m", "caloron.cli.main", *arguments),
            stdin=other,
            stdout=other,
            stderr=other,
            env=home.environment | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
            cwd=home.root,
            start_new_session=True,
        )
        os.close(other)
        self._seen = ""

    def read_until(self, words: str) -> None:
        give_up = time.monotonic() + 60
        while words not in self._seen:
            assert time.monotonic() < give_up, self._seen
            assert self._read(), f"the program ended without {words!r}: {self._seen}"

    def type(self, text: str) -> None:
        os.write(self._handle, text.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> tuple[int, str]:
        """The exit code, and everything that was on the screen, without its colours."""
        while self._read():
            pass
        os.close(self._handle)
        return self._process.wait(), self._seen

    def _read(self) -> bool:
        select.select([self._handle], [], [], 60)
        try:
            data = os.read(self._handle, 1 << 16)
        except OSError:  # a terminal that nobody holds any more
            return False
        self._seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode("utf-8", "replace"))
        return bool(data)


def _planned(home: Home) -> None:
    plan = json.dumps([task("first"), task("second", "first")])
    home.script(does("po", output=plan), writes("first"), writes("second"))


def test_a_plan_is_shown_and_runs_once_the_user_says_yes(home: Home) -> None:
    _planned(home)
    terminal = Terminal(home, "sprint", "make it so")
    terminal.read_until("Run these 2 tasks?")
    terminal.type("y\n")
    code, seen = terminal.end()
    assert code == 0, seen
    assert "second: Task second  after first" in seen
    assert "2/2 done" in seen
    assert home.files() == {"first.txt": b"first\n", "second.txt": b"second\n"}


def test_a_plan_that_is_declined_is_kept_and_runs_after_resume_says_yes(home: Home) -> None:
    _planned(home)
    terminal = Terminal(home, "sprint", "make it so")
    terminal.read_until("Run these 2 tasks?")
    terminal.type("n\n")
    code, seen = terminal.end()
    assert code == 11, seen
    assert home.issues() == []
    assert "your yes" in home.caloron("why").data["why"]

    terminal = Terminal(home, "resume")
    terminal.read_until("Run these 2 tasks?")
    terminal.type("y\n")
    code, seen = terminal.end()
    assert code == 0, seen
    assert home.attempts("po") == 1


def test_with_yes_nobody_is_asked(home: Home) -> None:
    _planned(home)
    code, seen = Terminal(home, "sprint", "make it so", "--yes").end()
    assert code == 0, seen
    assert "Run these" not in seen


def test_ctrl_c_at_the_terminal_saves_and_stops(home: Home) -> None:
    writing = home.gate("writing")
    home.script(writes("a", run=writing.line))
    plan = home.plan(task("a"))
    terminal = Terminal(home, "sprint", "make it so", "--plan", str(plan), "--yes")
    terminal.read_until("an agent is writing the change")
    writing.wait_for_agent()
    terminal.interrupt()
    code, seen = terminal.end()
    assert code == 11, seen
    assert "caloron resume" in seen


def test_a_goal_with_brackets_is_only_text_to_the_live_view(home: Home) -> None:
    home.script(writes("a"))
    plan = home.plan(task("a"))
    terminal = Terminal(home, "sprint", "Parse [/b] tags", "--plan", str(plan), "--yes")
    code, screen = terminal.end()
    assert code == 0, screen
    assert "Parse [/b] tags" in screen
