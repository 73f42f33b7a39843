"""A goal comes from where it is: the command line, a file, a pipe, or an issue."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.acceptance.terminals import Terminal
from tests.support.home import Home, does, task, writes

_HEBREW = "הוסף קוד הנחה לסל"
_WIDE = "割引コードを追加する"


def _goal(home: Home) -> str:
    with home.ledger() as ledger:
        (goal,) = ledger.execute("SELECT json_extract(data, '$.goal') FROM sprints").fetchone()
    return str(goal)


def _planned(home: Home) -> Home:
    return home.script(does("po", output=json.dumps([task("a")])), writes("a"))


@pytest.mark.parametrize("text", ["Add a basket\n\nwith tests", _HEBREW, _WIDE])
def test_a_goal_is_read_from_a_file_or_from_standard_input(home: Home, text: str) -> None:
    _planned(home)
    file = home.root / "goal.md"
    file.write_text(text, "utf-8")
    assert home.caloron("sprint", "--plan-only", "--file", str(file)).code == 0
    assert _goal(home) == text
    assert text in home.prompts("po")[0]
    assert home.caloron("discard", "--yes").code == 0
    assert home.caloron("sprint", "--plan-only", "-", stdin=text).data["goal"] == text


def test_a_goal_that_cannot_be_read_starts_nothing_and_says_why(home: Home) -> None:
    large, binary, empty = (home.root / name for name in ("large", "binary", "empty"))
    large.write_text("goal " * (1 << 20))
    binary.write_bytes(b"\x7fELF\x02\x01\x00\xff\xfe")
    empty.write_text(" \n")
    for file, words, code in (
        (large, "too long", 2),
        (binary, "not text", 2),
        (empty, "empty", 2),
        (home.root, "directory", 2),
        (home.root / "missing", "no file", 3),
        # A device without an end must not be read to its end.
        (Path("/dev/zero"), "too long", 2),
    ):
        answer = home.caloron("sprint", "--file", str(file), "--yes")
        assert (answer.code, words in answer.error["message"]) == (code, True), answer
    assert home.caloron("sprint", "-", "--yes").error["code"] == "INVALID_ARGS"
    for arguments in ((), ("go", "--file", str(large)), ("go", "--close-issues")):
        assert home.caloron("sprint", *arguments, "--yes").code == 2
    assert not (home.project() / "ledger.sqlite").exists()


def test_a_goal_from_a_pipe_leaves_the_terminal_for_the_questions(home: Home) -> None:
    _planned(home)
    goal = home.root / "goal.md"
    goal.write_text("from a pipe")
    # Standard input of the command is the file; the terminal stays what it is.
    terminal = Terminal(home, "sprint", "-", stdin=goal)
    code, screen = terminal.end(("[r]eplan", "y"))
    assert code == 0, screen
    assert _goal(home) == "from a pipe"


def _issue(home: Home, title: str, body: str) -> int:
    """Open an issue on the local forge, as a person does."""
    from caloron.forge.local.forge import LocalForge

    forge = LocalForge(home.project(), actor="Ada")
    try:
        return forge.create_issue(title, body, ()).number
    finally:
        forge.close()


def test_a_sprint_from_issues_carries_their_text_and_answers_them(home: Home) -> None:
    _planned(home)
    first = _issue(home, "Baskets lose articles", "It happens after a reload.")
    second = _issue(home, "Totals are wrong", "By one cent.")
    home.data("issue", "comment", str(first), "Only in Firefox.")
    answer = home.caloron(
        "sprint", "Do both", "--from-issue", str(first), "--from-issue", str(second), "--yes"
    )
    assert answer.code == 0, answer
    prompt = home.prompts("po")[0]
    for words in ("Do both", "Baskets lose articles", "after a reload", "Firefox", "one cent"):
        assert words in prompt
    (pull,) = home.pulls()
    assert f"#{first}" in home.data("pr", "show", str(pull["number"]))["body"]
    for number in (first, second):
        (result,) = [c for c in home.comments(number) if "demo-1" in c]
        assert "1 of 1 tasks" in result
        assert f"#{pull['number']}" in result
        # The plan may cover a part of the issue only, so a person closes it.
        assert home.data("issue", "show", str(number))["state"] == "open"


@pytest.mark.parametrize(("agent_fails", "state"), [(False, "closed"), (True, "open")])
def test_source_issues_are_closed_on_request_and_only_when_every_task_is_done(
    home: Home, agent_fails: bool, state: str
) -> None:
    home.script(does("implement", exit_code=1) if agent_fails else writes("task"))
    number = _issue(home, "Fix it", "please")
    options = ("--from-issue", str(number), "--close-issues", "--single", "--yes")
    assert home.caloron("sprint", *options).code == (10 if agent_fails else 0)
    assert home.data("issue", "show", str(number))["state"] == state
    assert len([c for c in home.comments(number) if "demo-1" in c]) == 1


def test_an_issue_that_does_not_exist_or_is_a_task_is_refused(home: Home) -> None:
    assert home.caloron("sprint", "--from-issue", "99", "--yes").code == 3
    from caloron.forge.local.forge import LocalForge

    forge = LocalForge(home.project(), actor="Ada")
    number = forge.create_issue("x", "y", ("caloron:task",)).number
    forge.close()
    answer = home.caloron("sprint", "--from-issue", str(number), "--yes")
    assert answer.code == 2
    assert not (home.project() / "ledger.sqlite").exists()
