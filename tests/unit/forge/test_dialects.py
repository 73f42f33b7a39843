"""The words of each forge and their meaning."""

from __future__ import annotations

import pytest

from caloron.forge.api.gitea import Gitea, is_for


@pytest.mark.parametrize(
    ("name", "required", "same"),
    [
        ("ci/test", "ci/*", True),
        ("ci/test", "ci/lint", False),
        # In a pattern the brackets would be one letter.
        ("ci/test [3.11]", "ci/test [3.11]", True),
    ],
)
def test_a_required_check_of_gitea_is_a_pattern_or_a_name(
    name: str, required: str, same: bool
) -> None:
    assert Gitea().is_required(name, required) is same


@pytest.mark.parametrize(
    ("rule", "branch", "holds"),
    [
        ("main", "Main", True),
        ("agent/**", "agent/login/shop-1", True),
        ("agent/*", "agent/login/shop-1", False),
        ("**", "agent/login/shop-1", True),
        ("*", "agent/login/shop-1", False),
        ("agent/*/shop-?", "agent/login/shop-1", True),
        ("{agent,caloron}/**", "caloron/revert/shop-1/login/1", True),
        ("[!b]gent/**", "agent/a/b", True),
        ("[a-c]gent/**", "dgent/a/b", False),
        ("a.ent/**", "agent/a/b", False),
        ("[", "[", True),
        ("[z-a]", "z", False),
    ],
)
def test_a_rule_of_gitea_is_for_a_name_or_for_a_pattern(
    rule: str, branch: str, holds: bool
) -> None:
    assert is_for(rule, branch) is holds
