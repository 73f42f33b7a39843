"""The text of each command that shows a finished sprint: as recorded, and on a narrow terminal.

`pytest --update-snapshots` records the texts again, in tests/snapshots.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.terminals import Terminal
from tests.support.home import Home, does, task, writes

_COMMANDS = (
    "status", "why", "history", "inbox", "agents", "agents show checkout-page",
    "agents show reviewer-1", "issue list", "pr list", "logs checkout-page --tail 20",
    "logs checkout-page --sprint 1", "trace checkout-page", "trace planner --sprint 1", "retro",
    "retro 1", "report", "report 1", "show 1", "show 2", "metrics", "state show",
    "config list", "project list", "schedule list -c scheduler.json",
)  # fmt: skip


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Two sprints with the same task: one rejected, fixed and merged, one escalated."""
    home = Home(tmp_path_factory.mktemp("s")).init()
    home.set(verify="true", max_fix_rounds=1)
    plan = [
        task("checkout-page", title="Show what the basket costs before the customer pays for it"),
        task("mail", "checkout-page", title="Send a receipt with every article and its price"),
    ]
    cost = {"cost_usd": 0.125, "tokens_in": 12000, "tokens_out": 345}
    home.script(
        does("po", output=json.dumps(plan)),
        writes("checkout-page", report=cost), writes("mail", report=cost),
        does("fix", run="echo more >> checkout-page.txt", report=cost),
        does("review", "checkout-page", round=1, report=cost,
             output="CHANGES_NEEDED: the sum of an empty basket has to be shown as 0.00, too"),
    )  # fmt: skip
    assert home.sprint().code == 0
    again = "CHANGES_NEEDED: the price of a discounted article is the one from before the discount"
    home.script(
        does("implement", run="date +%N >> checkout-page.txt"),
        does("fix", run="echo again >> checkout-page.txt"), does("review", output=again),
    )  # fmt: skip
    assert home.sprint(*plan).statuses["checkout-page"] == "Escalated"
    (home.root / "graph.json").write_text("{}")
    job = {"name": "nightly-summary", "cron": "30 4 * * 1-5", "graph": "graph.json", "input": "x"}
    (home.root / "scheduler.json").write_text(json.dumps({"jobs": [job]}))
    yield home
    home.close()


@pytest.mark.parametrize("command", _COMMANDS)
def test_a_table_fits_the_terminal_and_loses_nothing(shop: Home, command: str) -> None:
    code, screen = Terminal(shop, *command.split(), columns=60).end()
    assert code == 0, screen
    too_long = [line for line in screen.split("\n") if len(line) > 60]
    # `logs` shows the output of an agent unchanged.
    printed = shop.printed("") if command.startswith("logs") else ()
    assert [line for line in too_long if not _is_copied(line) and line not in printed] == []
    piped = shop.caloron(*command.split(), json=False).stdout
    assert _words(piped) - _words(screen) == Counter()


#: The settings and sizes of files differ between machines.
_RECORDED = [command for command in _COMMANDS if command not in ("config list", "state show")]


@pytest.mark.parametrize("command", _RECORDED)
def test_the_text_of_a_command_is_as_recorded(
    shop: Home, command: str, request: pytest.FixtureRequest
) -> None:
    snapshot = _SNAPSHOTS / f"{re.sub('[^a-z0-9]+', '_', command).strip('_')}.txt"
    text = _normalized(shop, shop.caloron(*command.split(), json=False).stdout)
    if command.startswith("trace"):
        # The forge and the agents go on at the same time.
        text = "\n".join(sorted(set(text.split("\n"))))
    if request.config.getoption("--update-snapshots"):
        snapshot.parent.mkdir(exist_ok=True)
        snapshot.write_text(text)
    assert text == snapshot.read_text(), "if this is meant: pytest --update-snapshots"


_SNAPSHOTS = Path(__file__).parents[1] / "snapshots"
#: Texts that differ between two runs, and their names in a snapshot.
_CHANGING = (
    (r"\d{4}-\d\d-\d\d", "DATE"), (r"\d{4}-W\d\d", "WEEK"), (r"\d\d:\d\d(:\d\d)?", "TIME"),
    (r"\b\d+(\.\d+)? (h|min|s)\b( \d+ (min|s)\b)?", "DURATION"), (r"engine-\d+", "ENGINE"),
    (r"\b[0-9a-f]{12,40}\b", "COMMIT"), (r"\b\d+(\.\d+)? [kM]?B\b", "SIZE"),
    # Average times in minutes of a table.
    (r"(?<=\| )0\.0\d(?= \|)", "0"),
    # Durations of different length move the columns.
    (r"(?<=\S) {2,}", "  "),
)  # fmt: skip


def _normalized(home: Home, text: str) -> str:
    text = text.replace(str(home.root), "HOME")
    for changing, name in _CHANGING:
        text = re.sub(changing, name, text)
    return text


def _is_copied(line: str) -> bool:
    """A path, an address or a command: a line break in it would be copied with it."""
    return " " not in line.strip() or line.lstrip().startswith("$ ")


def _words(text: str) -> Counter[str]:
    bare = (word.strip("|:,;()") for word in text.split())
    return Counter(word for word in bare if any(c.isalnum() for c in word))


def test_long_text_goes_through_the_pager_of_a_terminal_and_never_of_a_pipe(shop: Home) -> None:
    count = "sh -c 'echo PAGED $(grep -c setup_timeout_s)'"
    _, paged = Terminal(shop, "config", "list", columns=60, PAGER=count).end()
    assert "PAGED 1" in paged
    _, plain = Terminal(shop, "config", "list", "--no-pager", columns=60, PAGER=count).end()
    _, short = Terminal(shop, "config", "get", "name", columns=60, PAGER=count).end()
    assert "PAGED" not in plain + short
