"""The table of docs/people.md on a real Gitea: the same cells, the same expectations.

A cell takes some seconds of computing, so each act has one in every run, each in another state of
the task than the act before; all of them run with the long tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from caloron.forge.connect import connect
from caloron.ports import Forge
from tests.integration.engine import test_reaction_table as table
from tests.integration.engine.test_reaction_table import *  # noqa: F403
from tests.integration.forge.people import Clone
from tests.integration.forge.worlds import GiteaPerson, Person
from tests.support.gitea import Server

#: The rows of the table, in its order.
ACTS = [
    name
    for name, test in vars(table).items()
    if name.startswith("test_a_person_who_")
    and table.each_state.mark in getattr(test, "pytestmark", ())
]


def in_every_run(test: pytest.Function) -> bool:
    if test.originalname not in ACTS:
        return False
    cell = test.callspec.params
    state = table.STATES[ACTS.index(test.originalname) % len(table.STATES)]
    # This forge closes the pull request of a deleted branch by itself.
    return cell["state"] == state and cell.get("forge_closes", "never") == "never"


@pytest.fixture  # type: ignore[no-redef]
def forge_of_a_person(gitea: Server, tmp_path: Path) -> Iterator[tuple[Forge, Person]]:
    """The forge and the person of the table, on Gitea instead of the local forge."""
    ours, anna = gitea.person("caloron"), gitea.person("anna")
    repository = gitea.repository(ours)
    repository.collaborator(anna)
    hers = repository.acting_as(anna)
    forge = connect("gitea", gitea.url, repository.full_name, ours.token)
    yield forge, GiteaPerson(hers, Clone(hers.push_url, tmp_path / "clone"))
    forge.close()
