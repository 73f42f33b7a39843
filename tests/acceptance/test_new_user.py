"""The first ten minutes of a new user, at a terminal, from an empty home."""

from __future__ import annotations

import json

import pytest
from rich.cells import cell_len

from caloron.cli.commands.project.new_project import remote_forge
from tests.acceptance.checkouts import Repository, repository
from tests.acceptance.terminals import Terminal
from tests.support.home import Home, does, task, writes

GOAL = "Add a health endpoint, and let everybody who runs this know how it is asked and answered"
UNCLEAR = (
    "done\n---\ncaloron_feedback:\n  task_clarity: 3\n  blockers: [the docs were missing]\n---\n"
)
LESSON = "Write clearer tasks: name the inputs, the outputs and what must hold when it is done"
_ASKS = "[r]eplan"
LONG = "Answer with the state of the database, of the queue and of 日本語 everything else there is"


@pytest.fixture
def shop(bare_home: Home) -> Repository:
    made = repository(bare_home)
    made.commit("tests/test_it.py", "import unittest\nclass T(unittest.TestCase):\n    pass\n")
    made.write("idea.txt", "not committed\n")
    first = json.dumps([task("endpoint", title=LONG), task("docs", "endpoint")])
    second = json.dumps([task("metrics")])
    bare_home.script(
        # Only a planner with the lesson in its prompt has a plan the second time.
        does("po", match=LESSON, output=second),
        does("po", match="health endpoint", output=first),
        writes("endpoint", output=UNCLEAR),
        writes("docs", output=UNCLEAR),
        writes("metrics"),
        default="no idea",
    )
    script = json.loads(bare_home.fixture.read_text())
    script["responses"].append(does("review", output="APPROVED"))
    bare_home.fixture.write_text(json.dumps(script))
    return made


def _at_terminal(
    shop: Repository, *arguments: str, columns: int = 80, answer: str = "", ends: int = 0
) -> str:
    """Run one command in the repository; what was on the screen, all of which fits it."""
    terminal = Terminal(shop.home, *arguments, cwd=shop.path, columns=columns)
    code, screen = terminal.end(*([(_ASKS, answer)] if answer else ()))
    assert code == ends, screen
    # No line is wider than the terminal, but for paths, which must stay in one piece.
    wide = [line for line in terminal.lines() if cell_len(line) > columns]
    if arguments[0] != "report":
        assert [line for line in wide if str(shop.home.root) not in line] == []
    return screen


def test_from_an_empty_home_to_a_second_sprint_that_uses_a_lesson(shop: Repository) -> None:
    assert not shop.home.path.exists()
    shop.home.environment["CALORON_CLAUDE"] = "no-such-program"
    doctor = _at_terminal(shop, "doctor", columns=80, ends=8)
    assert "ok   sandbox" in doctor
    assert "FAIL framework" in doctor
    assert "--framework" in doctor

    old = shop.head
    screen = _at_terminal(shop, "sprint", GOAL, "--framework", "stub", columns=80, answer="y")
    for words in (
        "Project shop is set up for",
        "verify     python3 -m unittest discover -s tests",
        "NOT SEEN BY AGENTS: 1 file that is not committed (1 new)",
        "  └─ docs  Task docs\n",
        "about 4 agent runs; cost and time are unknown without an earlier",
        "shop-1  2/2 done  Add a health endpoint",
        "Get the result: caloron apply\n",
    ):
        assert words in screen, screen
    # The user's branch and files are unchanged.
    assert shop.head == old
    assert (shop.path / "idea.txt").read_text() == "not committed\n"

    page = _at_terminal(shop, "report")
    assert "2 of 2 tasks done" in page
    assert "$ caloron apply" in page
    brought = _at_terminal(shop, "apply", columns=80)
    assert "Fast-forwarded branch main" in brought
    assert (shop.path / "docs.txt").read_text() == "docs\n"
    assert "Nothing needs your attention." in _at_terminal(shop, "inbox", columns=80)

    screen = _at_terminal(shop, "sprint", "Count what happens", columns=200, answer="y")
    assert "is set up" not in screen
    assert "(by 2 done tasks of 1 earlier sprint)" in screen
    assert "shop-2  1/1 done  Count what happens" in screen
    (prompt,) = (shop.home.project("shop") / "runs" / "shop-2" / "po").glob("*/*/prompt.txt")
    assert LESSON in prompt.read_text()
    assert "shop-1: 2/2 tasks done" in prompt.read_text()
    _at_terminal(shop, "apply", columns=200)
    assert (shop.path / "metrics.txt").exists()


def test_a_declined_plan_waits_and_can_be_discarded(shop: Repository) -> None:
    terminal = Terminal(shop.home, "sprint", GOAL, "--framework", "stub", cwd=shop.path, columns=80)
    code, screen = terminal.end((_ASKS, "what?"), (_ASKS, ""))
    assert code == 11, screen
    assert "waits for approval" in screen
    terminal = Terminal(shop.home, "discard", cwd=shop.path, columns=80)
    code, screen = terminal.end(("Discard this?", "y"))
    assert code == 0, screen
    assert "2 tasks cancelled" in screen
    assert shop.caloron("history").data["sprints"][0]["phase"] == "ended"


def test_the_forge_of_a_clone_is_offered_at_the_first_sprint(shop: Repository) -> None:
    origin = "https://ada:secret@github.com/ada/shop.git"
    shop.home.run_outside("git", "remote", "add", "origin", origin, cwd=shop.path)
    sprint = ("sprint", GOAL, "--framework", "stub")
    code, screen = Terminal(shop.home, *sprint, cwd=shop.path).end(("pull requests?", "y"))
    assert code == 0, screen
    assert "caloron init shop --forge github --repo ada/shop" in screen
    assert "secret" not in screen
    assert not shop.home.project("shop").exists()
    # Nobody answers here, so one note says what could be done.
    answer = shop.home.caloron(*sprint, "--yes", cwd=shop.path)
    assert answer.code == 0, answer
    assert answer.stderr.count("--forge github") == 1
    assert "secret" not in answer.stderr
    assert shop.home.caloron("status", cwd=shop.path).data["forge"]["kind"] == "local"


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("git@github.com:ada/shop.git", "github"),
        ("ssh://git@codeberg.org:22/ada/shop", "gitea"),
        ("https://gitea.example.org:3000/ada/shop.git", "gitea"),
        ("https://gitlab.com/ada/shop.git", ""),
        ("https://github.com.example.org/ada/shop", ""),
        ("/srv/github.com/ada/shop", ""),
        ("../shop", ""),
        ("", ""),
    ],
)
def test_the_kind_of_a_forge_is_only_taken_from_an_address_that_is_clear(
    address: str, kind: str
) -> None:
    options = remote_forge(address)
    assert options[1:2] == ((kind,) if kind else ())
    assert not options or options[-1] == "ada/shop"
    assert (":3000" in address) == any(":3000" in option for option in options)
    assert ":22" not in " ".join(options)
