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


def report_conflicts(at: Loop, times: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    merge = at.forge.merge
    merge_calls: list[int] = []

    def merge_late(number: int, head: str, base: str, message: str, verified: Any) -> Merged:
        merge_calls.append(number)
        if len(merge_calls) <= times:
            raise MergeConflict(f"pull request #{number} conflicts with main")
        return merge(number, head, base, message, verified)

    monkeypatch.setattr(at.forge, "merge", merge_late)
    return merge_calls


def test_a_conflict_that_git_does_not_find_is_checked_again(
    loop: Loop,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop.bring_to("merging")
    merge_calls = report_conflicts(loop, 2, monkeypatch)
    loop.settle()
    assert (loop.status(), len(merge_calls)) == ("Done", 3)


def test_a_forge_that_keeps_reporting_a_conflict_is_believed_in_the_end(
    loop: Loop,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop.bring_to("merging")
    report_conflicts(loop, 99, monkeypatch)
    loop.settle()
    assert loop.role() == "resolve"
