"""Commands, settings and links in the documents are valid."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import markdown  # type: ignore[import-untyped]
import msgspec
import pytest
import yaml

from caloron.agents.clis.registry import require_framework
from caloron.engine.runs.sandbox_policy import check_setting
from caloron.errors import CaloronError
from caloron.ledger.settings import ProjectConfig, parse_setting
from tests.support.command_lines import calls, problem, synopsis_calls
from tests.support.documents import (
    DOCS,
    ROOT,
    anchors,
    blocks,
    links,
    pages,
    prose,
    shell_lines,
    spans,
)

#: Internal variables: set by the engine for its own processes, by click, or by tests.
_NOT_FOR_USERS = re.compile(
    r"CALORON_(IDENTITY|CRASH_\w+|COMPLETE|SANDBOXED|FEEDBACK_|REPORT|ROLE|TASK_ID|ROUND|ATTEMPT"
    r"|SPRINT_ID|AGENT_ID|MIRROR|REPOSITORY|BRANCH|BASE_COMMIT)"
)

#: A file of this project, or a folder that ends with `/`.
_FILE = re.compile(r"[\w.-]+/[\w./{},-]*(?:\.(?:py|sql|sh|json|md|svg)|/)")


def _named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", pages(), ids=_named)
def test_every_command_of_a_page_is_valid(page: Path) -> None:
    text = page.read_text("utf-8")
    wrong = [
        f"line {number}: {line}: {trouble}"
        for number, line in shell_lines(text)
        for words in calls(line)
        if (trouble := problem(words))
    ]
    wrong += [
        f"line {number}: {span}: {trouble}"
        for number, span in spans(text)
        for words in synopsis_calls(span)
        if (trouble := problem(words, whole=False))
    ]
    assert wrong == []


def test_the_documents_show_many_commands() -> None:
    shown = [w for p in pages() for _, li in shell_lines(p.read_text("utf-8")) for w in calls(li)]
    assert len(shown) > 100


@pytest.mark.parametrize(
    "line",
    [
        "caloron sprnt 'go'",
        "caloron sprint go --bugdet 5",
        "caloron sprint go --budget much",
        "caloron sprint --from-issue",
        "caloron sprint go home",
        "caloron pr list --state half",
        "caloron config put verify x",
        "caloron issue comment seven resolved",
        "cd shop && CALORON_HOME=x caloron reprot > page.html",
        "caloron report --format html > report.html; caloron logs",
    ],
)
def test_an_invalid_command_is_detected(line: str) -> None:
    assert any(problem(words) for words in calls(line))


@pytest.mark.parametrize(
    "line",
    [
        "caloron --version",
        "caloron sprint 'go # on' --budget 5 -y  # as said",
        "make venv && caloron doctor | tee log; FOO=1 caloron status 2>&1",
        "caloron issue comment N resolved",
        "caloron agents",
        "git caloron nonsense",
    ],
)
def test_a_valid_command_is_accepted(line: str) -> None:
    assert not any(problem(words) for words in calls(line))


def test_a_synopsis_is_read_as_its_parts() -> None:
    assert not any(problem(w) for w in synopsis_calls("caloron report [SPRINT] --format md|html"))
    assert any(problem(w) for w in synopsis_calls("caloron report [SPRINT] [--from md|html]"))


@pytest.mark.parametrize("page", pages(), ids=_named)
def test_every_make_target_of_a_page_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    lines = [line for _, line in (*shell_lines(text), *spans(text))]
    named = {m[1] for line in lines for m in re.finditer(r"(?:^|&& )make ([a-z]+)", line)}
    for target in named:
        done = subprocess.run(("make", "-n", target), cwd=ROOT, capture_output=True, check=False)
        assert b"No rule to make target" not in done.stderr, target


def test_ci_runs_what_the_readme_calls_the_tests() -> None:
    ci = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    assert "make test" in ci
    done = subprocess.run(
        ("make", "-n", "test"), cwd=ROOT, capture_output=True, text=True, check=True
    )
    for part in ("ruff check", "mypy", "lint-imports", "mkdocs build --strict"):
        assert part in done.stdout
    for folder in ("tests/unit", "tests/integration", "tests/acceptance", "tests/chaos"):
        assert re.search(rf"pytest .*{folder}\b", done.stdout), folder
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
    assert {"run": "make test"} in workflow["jobs"]["test"]["steps"]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md", "docs/evidence.md"])
def test_every_file_that_a_page_for_contributors_names_exists(page: str) -> None:
    """A path is relative to the repository or to a room; `{a,b}` are alternatives."""
    named = [span for _, span in spans((ROOT / page).read_text("utf-8")) if _FILE.fullmatch(span)]
    paths = [path for span in named for path in _alternatives(span)]
    assert len(paths) > 2
    source = ROOT / "src" / "caloron"
    for path in paths:
        assert (ROOT / path).exists() or any(source.rglob(path.rstrip("/"))), path


def _alternatives(span: str) -> list[str]:
    before, _, rest = span.partition("{")
    names, _, after = rest.partition("}")
    return [f"{before}{name}{after}" for name in names.split(",")]


@pytest.mark.parametrize("page", pages(), ids=_named)
def test_every_link_of_a_page_has_a_target(page: Path) -> None:
    assert broken_links(page) == []


def broken_links(page: Path) -> list[str]:
    return [link for link in links(page.read_text("utf-8")) if not _has_target(page, link)]


def _has_target(page: Path, link: str) -> bool:
    """Return whether the link has a target; links to other sites are not requested."""
    scheme, _, path, _, fragment = urlsplit(link)
    target = page.parent / path if path else page
    if scheme:
        return True
    return target.is_file() and (not fragment or fragment in anchors(target.read_text("utf-8")))


def test_a_broken_link_is_detected(tmp_path: Path) -> None:
    other = tmp_path / "other.md"
    other.write_text("# Other\n\n## What does not hold\n")
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#what-does-not-hold) [b](https://x.example) `[no](link.md)`\n")
    assert broken_links(page) == []
    page.write_text("# Here\n[a](other.md#gone), ![b](gone.svg) [c](#here) [d](#there)\n")
    assert broken_links(page) == ["other.md#gone", "gone.svg", "#there"]


def test_every_setting_is_in_the_reference() -> None:
    """People may set every setting except those that `caloron init` fixes."""
    reference = (DOCS / "reference.md").read_text("utf-8")
    table = reference.partition("## Settings")[2].partition("\n## ")[0]
    answer = {name for cell in re.findall(r"^\| ([^|]*) \|", table, re.MULTILINE)
            for name in re.findall(r"`(\w+)`", cell)}  # fmt: skip
    fields = {field.name for field in msgspec.structs.fields(ProjectConfig)}
    assert answer == fields - {"name", "created_at"}


@pytest.mark.parametrize("page", pages(), ids=_named)
def test_every_setting_of_a_page_is_valid(page: Path) -> None:
    lines = shell_lines(page.read_text("utf-8"))
    for words in (words for _, line in lines for words in calls(line)):
        if words[:2] == ["config", "set"]:
            assert refusal(*words[2:4]) == "", words


def refusal(key: str, value: str) -> str:
    """Return why a setting refuses a value; a missing file is accepted."""
    try:
        parsed = parse_setting(key, value)
        if key == "framework":
            require_framework(parsed)
        elif key != "read_only":
            check_setting(key, parsed)
    except CaloronError as error:
        return str(error)
    return ""


def test_an_invalid_setting_is_detected() -> None:
    for key, value in (
        ("verfiy", "x"),
        ("parallel", "many"),
        ("framework", "cluade"),
        ("network_roles", "setup=some"),
        ("allow_hosts", "https://x"),
    ):
        assert refusal(key, value)


def test_every_variable_of_the_environment_is_in_the_reference() -> None:
    sources = (file.read_text("utf-8") for file in (ROOT / "src").rglob("*.py"))
    used = {name for text in sources for name in re.findall(r"CALORON_[A-Z_]+", text)}
    reference = (DOCS / "reference.md").read_text("utf-8")
    answer = set(re.findall(r"CALORON_[A-Z_]+", reference.partition("## Environment")[2]))
    assert {name for name in used if not _NOT_FOR_USERS.fullmatch(name)} == answer


def test_blocks_are_read_completely_and_without_the_indentation_of_a_list() -> None:
    text = "1. do\n\n   ```sh\n   a \\\n     b\n   ```\n\n````md\n```sh\nno\n```\n````\n`x` \\\n"
    assert [(b.language, b.text, b.line) for b in blocks(text)] == [
        ("sh", "a \\\n  b\n", 4),
        ("md", "```sh\nno\n```\n", 9),
    ]
    assert [line for _, line in shell_lines(text)] == ["a    b"]
    assert "do" in prose(text)
    assert "no" not in prose(text)
    assert list(spans(text)) == [(13, "x")]


def test_numbered_lists_continue_their_numbers_on_the_site() -> None:
    """The site needs four spaces of indentation in an item; fewer begin a new list."""
    extensions = ["tables", "fenced_code", "pymdownx.superfences"]
    for page in DOCS.glob("*.md"):
        html = markdown.markdown(page.read_text("utf-8"), extensions=extensions)
        plain = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        numbers = [int(n) for n in re.findall(r"^(\d+)\. ", plain, re.MULTILINE)]
        assert html.count("<ol") == numbers.count(1), page.name
