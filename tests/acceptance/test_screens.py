"""Every table of a finished sprint fits a narrow terminal, and keeps all that a wide one shows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.acceptance.terminals import Terminal
from tests.support.home import Home, does, task, writes

_COMMANDS = (
    "status", "why", "history", "inbox", "agents", "agents show checkout-page",
    "agents show reviewer-1", "issue list", "pr list", "logs checkout-page --tail 20",
    "logs checkout-page --sprint 1", "trace checkout-page", "trace po --sprint 1", "retro",
    "retro --sprint 1", "report", "report 1", "show 1", "show 2", "metrics", "state show",
    "config list", "projects list", "schedule list -c scheduler.json", "agents -o table",
    "history -o table", "issue list -o table", "state show -o table",
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


def _is_copied(line: str) -> bool:
    """A path, an address or a command: a line break in it would be copied with it."""
    return " " not in line.strip() or line.lstrip().startswith("$ ")


def _words(text: str) -> Counter[str]:
    bare = (word.strip("|:,;()") for word in text.split())
    return Counter(word for word in bare if any(c.isalnum() for c in word))
