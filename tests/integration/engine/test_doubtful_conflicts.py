"""A forge may report a conflict before it has checked the merge, as a busy Gitea does."""

from __future__ import annotations

from typing import Any

import pytest

from caloron.errors import MergeConflict
from caloron.ports import Merged
from tests.integration.engine.loop import Loop
from tests.integration.engine.test_reaction_table import (  # noqa: F401
    forge_of_a_person,
    loop,
    person,
)


def says_conflict(at: Loop, times: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    merge = at.forge.merge
    asked: list[int] = []

    def merge_late(number: int, head: str, base: str, message: str, verified: Any) -> Merged:
        asked.append(number)
        if len(asked) <= times:
            raise MergeConflict(f"pull request #{number} conflicts with main")
        return merge(number, head, base, message, verified)

    monkeypatch.setattr(at.forge, "merge", merge_late)
    return asked


def test_a_conflict_that_git_does_not_find_is_checked_again(
    loop: Loop,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop.bring_to("merging")
    asked = says_conflict(loop, 2, monkeypatch)
    loop.settle()
    assert (loop.status(), len(asked)) == ("Done", 3)


def test_a_forge_that_keeps_reporting_a_conflict_is_believed_in_the_end(
    loop: Loop,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop.bring_to("merging")
    says_conflict(loop, 99, monkeypatch)
    loop.settle()
    assert loop.role() == "resolve"
