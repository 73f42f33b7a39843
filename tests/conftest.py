"""Settings for every test: no test depends on the speed of a shared machine."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from caloron.store import redact

settings.register_profile(
    "shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared machine")

if TYPE_CHECKING:
    from tests.support.gitea import Server
    from tests.support.github_api import GithubApi


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-snapshots", action="store_true", help="Record the texts in tests/snapshots again."
    )


@pytest.fixture(scope="session", autouse=True)
def nobodys_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give tests without a home of their own an empty one, so that the user's home is untouched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALORON_HOME", str(tmp_path_factory.mktemp("nobodys-home")))
        yield


@pytest.fixture
def user_without_hermes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Cycles are kept in `~/.hermes` where that exists: take a user's home without it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("user")))
        yield


@pytest.fixture(autouse=True)
def nothing_learned() -> Iterator[None]:
    """A secret that one test has read is no secret of the next one."""
    yield
    redact._learned.clear()
    redact._learned_marks.clear()


@pytest.fixture(scope="session")
def gitea() -> Iterator[Server]:
    """One real Gitea for all tests of this process; each takes a repository of its own."""
    yield from _started()


@pytest.fixture
def own_gitea() -> Iterator[Server]:
    """A real Gitea for one test alone, which may stop, kill and restart it."""
    yield from _started()


def _started() -> Iterator[Server]:
    from tests.support.gitea import GiteaMissing, Server, program

    try:
        program()
    except GiteaMissing as missing:
        reason = f"NO REAL GITEA HERE, so nothing is tested on one: {missing}"
        warnings.warn(reason, stacklevel=1)
        pytest.skip(reason)
    server = Server()
    yield server
    server.remove()


@pytest.fixture
def github_api() -> Iterator[GithubApi]:
    """GitHub as its official description has it; a request that it does not have is a failure."""
    from tests.support.github_api import DescriptionMissing, GithubApi, description

    try:
        description()
    except DescriptionMissing as missing:
        reason = f"NO DESCRIPTION OF GITHUB HERE, so nothing is checked against it: {missing}"
        warnings.warn(reason, stacklevel=1)
        pytest.skip(reason)
    api = GithubApi()
    yield api
    api.close()
    assert api.problems == []
