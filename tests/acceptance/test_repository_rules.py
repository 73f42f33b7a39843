"""Prompts contain a description of the repository and its rules for contributors."""

from __future__ import annotations

from pathlib import Path

from tests.support.home import Home

PLAN = '{"tasks": [{"id": "a", "title": "A", "agent_prompt": "do a", "depends_on": []}]}'


def test_the_planner_gets_a_description_of_the_repository_and_agents_get_its_rules(
    bare_home: Home, tmp_path: Path
) -> None:
    repository = tmp_path / "shop"
    (repository / ".github" / "workflows").mkdir(parents=True)
    (repository / "shop.py").write_text("items = []\n")
    (repository / ".github" / "workflows" / "test.yml").write_text("on: push\n")
    (repository / "CONTRIBUTING.md").write_text("Every change has a line in NEWS.\n")
    for line in ("init -q", "add -A", "commit -q -m Basket"):
        bare_home.run_outside("git", *line.split(), cwd=repository)
    home = bare_home.init("demo", "--repo", str(repository)).script(
        {"when": {"role": "po"}, "output": PLAN},
        {"when": {"role": "implement"}, "files": {"a.txt": "a\n"}, "output": "done"},
    )
    asked = home.caloron("sprint", "make it so", "--yes", "--debug").stderr
    po, _, others = asked.partition("do a")
    assert "Languages, by number of files: Python (1)" in po
    assert "CI: .github/workflows/test.yml" in po
    assert "Ada: Basket" in po
    assert "Every change has a line in NEWS." in po
    assert "What the repository asks of contributors" in others
    assert "Every change has a line in NEWS." in others
