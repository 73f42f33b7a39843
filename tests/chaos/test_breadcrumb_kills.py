"""`kill -9` around each step of a breadcrumb: one comment and one section, and the newest words."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.home import Home

pytestmark = pytest.mark.usefixtures("user_without_hermes")

SECTION = "<!-- caloron-section:"
STEPS = [
    f"{step}/{kind}/{{number}}"
    for kind in ("progress", "describe")
    for step in ("effect.intend", "effect.do", "effect.record")
] + ["breadcrumb.before_commit", "breadcrumb.after_commit", "kv.after_commit"]


def wake(home: Home, agent: str, step: str) -> None:
    assert home.caloron("cycle", "begin", agent, "--work", "it").code == 0
    assert home.caloron("cycle", "end", agent, "--artefact", step).code == 0


def comments_and_body(home: Home, number: int) -> tuple[list[str], str]:
    shown = home.caloron("issue", "show", str(number)).data
    return [comment["body"] for comment in shown["comments"]], str(shown["body"])


def killed_at(home: Home, words: tuple[str, ...], point: str, once: Path) -> None:
    at = f"engine|{point}|1|{once}"
    assert home.caloron(*words, CALORON_CRASH_AT=at).code == -signal.SIGKILL, point
    assert once.exists()


def check(home: Home, number: int, step: str, folder: Path, agent: str = "allegro") -> None:
    """Kill a breadcrumb with the first words and again with newer words; then write it once."""
    point = step.format(number=number)
    words = ("cycle", "breadcrumb", agent, "--issue", str(number))
    for cycle in (1, 2):
        wake(home, agent, f"cycle {cycle}")
    body = comments_and_body(home, number)[1]
    killed_at(home, words, point, folder / "first")
    wake(home, agent, "cycle 3")
    killed_at(home, words, point, folder / "second")
    answer = home.caloron(*words)
    assert answer.code == 0, answer
    assert answer.data["written"]["refused"] == []
    comments, now = comments_and_body(home, number)
    assert len(comments) == 1, point
    assert now.count(SECTION) == 1, point
    assert now.startswith(body)
    for text in (comments[0], now):
        assert f"{agent}, cycle 3" in text
        assert "cycle 2" not in text


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "root")
    yield home.init()
    home.close()


@pytest.fixture
def issue(home: Home) -> int:
    from caloron.forge.local.forge import LocalForge

    forge = LocalForge(home.project(), actor="ada")
    number = forge.create_issue("Broken", "It is broken.").number
    forge.close()
    return number


@pytest.mark.parametrize("point", STEPS)
def test_a_breadcrumb_that_is_killed_twice_is_there_once(
    home: Home, issue: int, point: str, tmp_path: Path
) -> None:
    check(home, issue, point, tmp_path)


def test_many_calls_at_once_leave_a_single_comment(home: Home, issue: int) -> None:
    for cycle in (1, 2):
        wake(home, "allegro", f"cycle {cycle}")
    calls = [home.start("cycle", "breadcrumb", "allegro", "--issue", str(issue)) for _ in range(4)]
    assert [call.wait().code for call in calls] == [0] * 4
    comments, body = comments_and_body(home, issue)
    assert len(comments) == 1
    assert body.count(SECTION) == 1
