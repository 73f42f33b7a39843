"""The conformance suite of the port on a real Gitea, with one account of ours and with two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.forge.test_forge_conformance import *  # noqa: F403
from tests.integration.forge.test_forge_conformance_git import *  # noqa: F403
from tests.integration.forge.test_forge_conformance_poll import *  # noqa: F403
from tests.integration.forge.worlds import World, gitea_world
from tests.support.gitea import Server

#: Reviews differ with the number of our accounts.
BOTH = (
    "test_a_forge_reports_its_account_kind_and_address",
    "test_a_review_is_bound_to_the_reviewed_head",
    "test_our_verdict_is_a_review_and_never_a_comment",
    "test_our_own_objects_are_found_again_by_their_marker_in_any_state",
    "test_a_marker_counts_only_if_complete_on_its_object_and_from_our_account",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    kinds = ["gitea", "gitea+reviewer"] if metafunc.function.__name__ in BOTH else ["gitea"]
    metafunc.parametrize("world", kinds, indirect=True)


@pytest.fixture
def world(request: pytest.FixtureRequest, gitea: Server, tmp_path: Path) -> Iterator[World]:
    with gitea_world(gitea, tmp_path, reviewer="reviewer" in request.param) as made:
        yield made
