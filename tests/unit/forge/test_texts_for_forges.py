"""Texts and names that a forge accepts."""

from __future__ import annotations

import pytest

from caloron.domain.model.snapshots import issues_closed_by, marker, marker_key
from caloron.errors import ForgeError, NotFound, UsageError
from caloron.forge.validate import (
    require_number,
    require_remote_branch,
    truncate_body,
    truncate_title,
)


def test_a_body_that_is_too_long_is_cut_visibly_and_keeps_its_marker() -> None:
    body = "x" * 70_000 + "\n\n" + marker("issue/s-1/login")
    cut = truncate_body(body, 65_536)
    assert len(cut) == 65_536
    assert "The rest was cut" in cut
    assert marker_key(cut) == "issue/s-1/login"
    assert truncate_body("short", 65_536) == "short"


def test_a_title_is_one_line_of_a_length_that_every_forge_takes() -> None:
    assert truncate_title("one\ntwo") == "one two"
    assert len(truncate_title("ü" * 300)) == 255


def test_branches_of_people_are_adopted_and_branches_of_forks_are_not_pushed() -> None:
    for name in ("main", "Feature/X", "agent/login/s-1", "fix_#7"):
        assert require_remote_branch(name) == name
    for name in ("", "-x", "a..b", "a b", "a\n", "/a", "a/", "a//b", ".a", "a.lock", "a:", ":a"):
        with pytest.raises((UsageError, ForgeError), match="branch"):
            require_remote_branch(name)
    with pytest.raises(ForgeError, match="fork"):
        require_remote_branch("anna:feature")


def test_an_impossible_number_is_not_found() -> None:
    for number in (0, -1, 10**30):
        with pytest.raises(NotFound, match=f"#{number}$"):
            require_number(number)


def test_each_closing_word_is_understood() -> None:
    words = [
        "close",
        "closes",
        "closed",
        "fix",
        "fixes",
        "fixed",
        "resolve",
        "Resolves",
        "RESOLVED",
    ]
    body = "\n".join(f"This {word} #{n}" for n, word in enumerate(words, 31))
    assert issues_closed_by(body) == tuple(range(31, 40))
