"""What the forges' words mean, forge by forge."""

from __future__ import annotations

import pytest

from caloron.forge.gitea import Gitea


@pytest.mark.parametrize(
    ("name", "wanted", "same"),
    [
        ("ci/test", "ci/*", True),
        ("ci/test", "ci/lint", False),
        # In a pattern the brackets would be one letter.
        ("ci/test [3.11]", "ci/test [3.11]", True),
    ],
)
def test_a_required_check_of_gitea_is_a_pattern_or_a_name(
    name: str, wanted: str, same: bool
) -> None:
    assert Gitea().is_required(name, wanted) is same
