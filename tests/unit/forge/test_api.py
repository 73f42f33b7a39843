"""The addresses of a forge, and what Gitea means by its patterns."""

from __future__ import annotations

import pytest

from caloron.errors import UsageError
from caloron.forge.api.base import Address, address_of, repo_of
from caloron.forge.api.gitea import Gitea, is_for

GITHUB = Address("https://github.com", "https://api.github.com")


@pytest.mark.parametrize(
    ("kind", "host", "expected"),
    [
        ("github", "https://api.github.com", GITHUB),
        ("github", "https://api.github.com/", GITHUB),
        ("github", "https://github.com", GITHUB),
        ("github", "https://ghe.example/api/v3", Address("https://ghe.example", "https://ghe.example/api/v3")),
        ("github", "https://ghe.example", Address("https://ghe.example", "https://ghe.example/api/v3")),
        ("github", "https://acme.ghe.com", Address("https://acme.ghe.com", "https://api.acme.ghe.com")),
        ("github", "https://api.acme.ghe.com", Address("https://acme.ghe.com", "https://api.acme.ghe.com")),
        ("gitea", "https://forge.example/api/v1", Address("https://forge.example", "https://forge.example/api/v1")),
        ("gitea", "https://forge.example/api/v1/", Address("https://forge.example", "https://forge.example/api/v1")),
        ("gitea", "http://127.0.0.1:3000", Address("http://127.0.0.1:3000", "http://127.0.0.1:3000/api/v1")),
        ("gitea", "https://x.example/git/", Address("https://x.example/git", "https://x.example/git/api/v1")),
    ],
)  # fmt: skip
def test_the_root_of_the_api_and_the_base_address_mean_the_same_forge(
    kind: str, host: str, expected: Address
) -> None:
    assert address_of(kind, host) == expected


@pytest.mark.parametrize(
    "host",
    [
        "",
        "forge.example",
        "ftp://forge.example",
        "https://",
        "https://me:pw@x.example",
        "http://[x",
    ],
)
def test_an_invalid_address_is_refused(host: str) -> None:
    with pytest.raises(UsageError, match="address of a forge"):
        address_of("gitea", host)


def test_a_repository_is_owner_and_name() -> None:
    assert repo_of(" owner/name.git ") == repo_of("/owner/name/") == "owner/name"
    for wrong in ("", "name", "a/b/c", "a/..", "a/b?x=1", "../b", "a/b c"):
        with pytest.raises(UsageError, match="repository"):
            repo_of(wrong)


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
