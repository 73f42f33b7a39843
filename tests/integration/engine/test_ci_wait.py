"""A merge waits a limited time for a CI that has not reported on a new head yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from caloron.forge.local.forge import LocalForge, create_local_forge
from caloron.ports import Checks, Forge
from tests.integration.engine.loop import Loop
from tests.integration.forge.people import Clone
from tests.integration.forge.worlds import LocalPerson


class ForgeWithCI:
    """A forge with pages, on which a CI may report."""

    def __init__(self, forge: LocalForge) -> None:
        self._forge = forge
        self.pages = "https://forge.invalid/"
        self.state = Checks(state="none")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._forge, name)

    def url(self, number: int) -> str:
        return self.pages and f"{self.pages}{number}"

    def checks(self, head: str) -> Checks:
        return self.state


@pytest.fixture
def forge(tmp_path: Path) -> Iterator[ForgeWithCI]:
    made = create_local_forge(tmp_path / "project", name="sample")
    yield ForgeWithCI(made)
    made.close()


def decided(forge: ForgeWithCI, folder: Path, file: str) -> Loop:
    """A sprint whose merge is decided, in a repository with this file."""
    person = LocalPerson(folder / "project", Clone(forge.remote().url, folder / "clone"))
    person.push_main(file)
    person.forge.close()
    (folder / "home").mkdir()
    loop = Loop(folder / "home", cast(Forge, forge))
    loop.bring_to("merging")
    loop.perform()
    loop.tick()
    return loop


def test_a_merge_waits_a_limited_time_for_a_ci_without_a_report(
    forge: ForgeWithCI, tmp_path: Path
) -> None:
    loop = decided(forge, tmp_path, ".gitlab-ci.yml")
    waits = loop.task().merge.waiting
    assert waits is not None
    assert waits.what == "waits for the forge's CI: nothing reported yet"
    assert [p.state for p in loop.pulls()] == ["open"]
    loop.clock.time = loop.task().review.seen_at + 60
    loop.settle()
    assert loop.status() == "Done"
    loop.close()


def test_a_ci_report_during_the_wait_decides(forge: ForgeWithCI, tmp_path: Path) -> None:
    loop = decided(forge, tmp_path, ".gitlab-ci.yml")
    forge.state = Checks(state="red", detail="build")
    loop.clock.time = loop.task().review.seen_at + 60
    loop.settle()
    assert (loop.role(), loop.work().reason) == ("fix", "the forge's CI failed: build")
    loop.close()


@pytest.mark.parametrize(("file", "pages"), [("notes.txt", "https://x/"), (".gitlab-ci.yml", "")])
def test_a_merge_without_a_ci_does_not_wait(
    forge: ForgeWithCI, tmp_path: Path, file: str, pages: str
) -> None:
    forge.pages = pages
    loop = decided(forge, tmp_path, file)
    assert loop.status() == "Done"
    loop.close()
