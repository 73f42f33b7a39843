"""The context of a repository, read from the mirror."""

from __future__ import annotations

from pathlib import Path

import pytest

from caloron.git.mirror import Mirror
from caloron.git.repository_context import RepoContext, page, read_repository_context, rules_page
from caloron.ports import Remote
from tests.support.git import git

FILES = {
    "README.md": "# Shop\n",
    "shop/basket.py": "items = []\n",
    "shop/till.py": "total = 0\n",
    "web/app.ts": "export {}\n",
    ".github/workflows/test.yml": "on: push\n",
    ".github/workflows/README.md": "not a workflow\n",
    ".gitlab-ci.yml": "test:\n",
    "docs/contributing.md": "A file that the context does not read.\n",
    "CONTRIBUTING.md": "Write tests first.\n",
    ".github/pull_request_template.md": "What does it change?\n",
    ".github/CODEOWNERS": "* @ada\n",
}


@pytest.fixture
def context(tmp_path: Path) -> RepoContext:
    source = tmp_path / "source"
    for name, text in FILES.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(text)
    git(source, "init", "-q", "-b", "trunk")
    git(source, "add", "-A")
    git(source, "commit", "-q", "-m", "A shop\n\nwith a basket")
    mirror = Mirror(tmp_path / "mirror.git", Remote(str(source)), "trunk")
    mirror.ensure()
    return read_repository_context(mirror, mirror.fetch_main(), description="A shop", open_issues=3)


def test_the_context_has_languages_ci_rules_and_commits(context: RepoContext) -> None:
    assert context.default_branch == "trunk"
    assert context.languages == {"Python": 2, "TypeScript": 1}
    assert context.ci == (".github/workflows/test.yml", ".gitlab-ci.yml")
    assert [(rule.kind, rule.path) for rule in context.rules] == [
        ("contributing", "CONTRIBUTING.md"),
        ("pull request template", ".github/pull_request_template.md"),
        ("code owners", ".github/CODEOWNERS"),
    ]
    (commit,) = context.recent_commits
    assert (commit.message, commit.author) == ("A shop", "Anna")
    assert len(commit.sha) == 8
    assert (context.description, context.open_issues) == ("A shop", 3)


def test_the_page_for_planners_has_a_line_for_each_fact(context: RepoContext) -> None:
    text = page(context)
    assert "Languages, by number of files: Python (2), TypeScript (1)" in text
    assert "Branch that work is merged into: trunk" in text
    assert "Open issues: 3" in text
    assert "Anna: A shop" in text


def test_the_page_for_developers_has_the_rules_of_the_repository(context: RepoContext) -> None:
    text = rules_page(context)
    assert "CONTRIBUTING.md:\nWrite tests first." in text
    assert "What does it change?" in text


def test_the_pages_of_an_almost_empty_repository_are_short() -> None:
    assert rules_page(RepoContext()) == ""
    assert "CI" not in page(RepoContext(files=1))
