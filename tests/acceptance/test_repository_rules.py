"""Prompts contain a description of the repository and its rules for contributors."""

from __future__ import annotations

from tests.acceptance.checkouts import from_repository
from tests.support.home import Home

PLAN = '{"tasks": [{"id": "a", "title": "A", "agent_prompt": "do a", "depends_on": []}]}'


def test_the_planner_gets_a_description_of_the_repository_and_agents_get_its_rules(
    bare_home: Home,
) -> None:
    files = {
        "shop.py": "items = []\n",
        ".github/workflows/test.yml": "on: push\n",
        "CONTRIBUTING.md": "Every change has a line in NEWS.\n",
    }
    home = from_repository(bare_home, files).script(
        {"when": {"role": "po"}, "output": PLAN},
        {"when": {"role": "implement"}, "files": {"a.txt": "a\n"}, "output": "done"},
    )
    asked = home.caloron("sprint", "make it so", "--yes", "--debug").stderr
    po, _, others = asked.partition("do a")
    assert "Languages, by number of files: Python (1)" in po
    assert "CI: .github/workflows/test.yml" in po
    assert "Ada: what was there" in po
    assert "Every change has a line in NEWS." in po
    assert "What the repository asks of contributors" in others
    assert "Every change has a line in NEWS." in others
