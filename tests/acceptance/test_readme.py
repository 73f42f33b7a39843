"""The shell and Python blocks of the README and of every page, run from their own text."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.claude import claude
from tests.support.documents import DOCS, ROOT, Block, blocks, pages, sections
from tests.support.model_server import ModelServer, Rule, write
from tests.support.newcomer import Newcomer, Typed
from tests.support.reader import files_of_page, reader, script_of

#: Text that cannot be typed as written, and its replacement.
_STAND_INS = {
    # The clone is there, with uncommitted files.
    "git clone <this repository> caloron && cd caloron": "cd caloron",
}
#: Blocks that another test covers, because they would run this test again.
_TESTED_ELSEWHERE = {"make test\n"}
_ANSWERS = {"[r]eplan": "y\n", "[y/N": "y\n", "to delete all of it:": "shop\n"}
#: Pages whose blocks run in a test of their own, and pages whose blocks do not run.
_NOT_IN_ORDER = {
    "README.md": "test_each_block_of_the_readme_works",
    "five-minutes.md": "test_each_block_of_the_readme_works",
    "getting-started.md": "test_getting_started_leads_to_a_result_in_the_users_repository",
    "commands.md": "examples of single commands, which test_documents parses",
}

_PLAN = [{"id": "discount", "title": "Discount", "agent_prompt": "Write discount.py."}]
_CODE = "def discounted(price):\n    return price * 0.9\n"


def shell_blocks(page: Path) -> list[Block]:
    return [block for block in blocks(page.read_text("utf-8")) if block.language == "sh"]


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """The model server behind the real Claude Code."""
    rules = (
        Rule(("You are the product owner",), [[json.dumps(_PLAN)]]),
        Rule(
            ("Carry out the task below",),
            [[write("/workspace/discount.py", _CODE)], ["I wrote it."]],
        ),
        Rule(("You are the reviewer",), [["It does what was asked.\nAPPROVED"]]),
    )
    with ModelServer(*rules) as server:
        yield server


@pytest.fixture
def newcomer(tmp_path: Path, model: ModelServer) -> Newcomer:
    user = Newcomer(tmp_path, claude())
    user.environment |= {
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "sk-ant-planted-key-4711",
        "CLAUDE_CODE_MAX_RETRIES": "1",
    }
    return user


def types(newcomer: Newcomer, cwd: Path, *texts: str) -> Typed:
    script = "".join(texts)
    for text, instead in _STAND_INS.items():
        script = script.replace(text, instead)
    typed = newcomer.types(script, cwd, _ANSWERS)
    assert typed.code == 0, f"{script}\n----\n{typed.screen}"
    return typed


def first_line(block: Block) -> str:
    return block.text.partition("\n")[0]


@pytest.mark.parametrize("block", shell_blocks(ROOT / "README.md"), ids=first_line)
def test_each_block_of_the_readme_works(
    newcomer: Newcomer, model: ModelServer, block: Block
) -> None:
    if block.text in _TESTED_ELSEWHERE:
        return
    # Settings of the user's shell for the scripted agent are not for the demo.
    before = "export CALORON_STUB_FIXTURE=/nowhere\n" if "make demo" in block.text else ""
    typed = types(newcomer, newcomer.checkout, before, block.text)
    if "make demo" in block.text:
        assert "all 4 tasks are done" in typed.screen
        assert_demo_left_its_result(newcomer)
        assert_page_about_the_demo_holds(newcomer, block)
    if "caloron sprint" in block.text:
        assert model.requests, "the real Claude Code was not asked"
        assert_merged(newcomer)


def test_the_readme_shows_a_demo_a_sprint_and_the_tests() -> None:
    text = "".join(block.text for block in shell_blocks(ROOT / "README.md"))
    assert all(line in text for line in ("make demo", "caloron sprint ", "make test"))


def test_getting_started_leads_to_a_result_in_the_users_repository(newcomer: Newcomer) -> None:
    """All blocks of the page run one after the other in one shell."""
    types(newcomer, newcomer.home, *(b.text for b in shell_blocks(DOCS / "getting-started.md")))
    assert "discounted" in (newcomer.shop / "discount.py").read_text()


def pages_with(language: str) -> list[Path]:
    return [
        page
        for page in pages()
        if any(block.language == language for block in blocks(page.read_text("utf-8")))
    ]


def parts() -> Iterator[tuple[Path, str, list[Block]]]:
    """Yield what one reader types: the blocks of a page, or of one section of the recipes."""
    for page in pages_with("sh"):
        if page.name not in _NOT_IN_ORDER:
            by_section = sections(page.read_text("utf-8"))
            if page.name != "howto.md":
                by_section = {"": [block for found in by_section.values() for block in found]}
            for title, found in by_section.items():
                typed = [b for b in found if b.language == "sh" and not b.not_run]
                yield page, title, typed


@pytest.mark.parametrize(
    ("page", "typed"), [pytest.param(p, b, id=f"{p.stem} {title}") for p, title, b in parts() if b]
)
def test_the_shell_blocks_of_a_page_run_one_after_the_other(
    tmp_path: Path, page: Path, typed: list[Block]
) -> None:
    """A block that does not run has its reason in a comment above it."""
    user = reader(tmp_path, claude())
    for name, text in files_of_page(page.read_text("utf-8")).items():
        (user.shop / name).write_text(text)
    script = script_of(typed)
    done = user.types(script, user.shop, _ANSWERS)
    assert done.code == 0, f"{script}\n----\n{done.screen}"


@pytest.mark.parametrize("page", pages_with("python"), ids=lambda page: page.name)
def test_the_python_blocks_of_a_page_run_one_after_the_other(tmp_path: Path, page: Path) -> None:
    found = [b for b in blocks(page.read_text("utf-8")) if b.language == "python" and not b.not_run]
    done = subprocess.run(
        (sys.executable, "-c", "\n".join(block.text for block in found)),
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def assert_demo_left_its_result(newcomer: Newcomer) -> None:
    done = subprocess.run(
        ("python3", "-m", "tally", "1", "2", "3", "6"),
        cwd=newcomer.checkout / ".demo" / "tally",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split()[:4] == ["mean", "3", "median", "2.5"]


def assert_page_about_the_demo_holds(newcomer: Newcomer, demo: Block) -> None:
    """The page begins with the same command, and goes on with commands that read the result."""
    first, *others = shell_blocks(DOCS / "five-minutes.md")
    assert first.text == demo.text
    typed = types(newcomer, newcomer.checkout, *(block.text for block in others))
    assert "4 of 4 tasks done" in typed.screen
    assert "CHANGES_NEEDED" in typed.screen


def assert_merged(newcomer: Newcomer) -> None:
    """The work is on the project's forge, and was taken into the user's branch."""
    (forge,) = (newcomer.home / ".caloron" / "projects").glob("*/forge.git")
    shown = subprocess.run(
        ("git", "-C", str(forge), "show", "main:discount.py"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout == _CODE
    assert (newcomer.shop / "discount.py").read_text() == _CODE
