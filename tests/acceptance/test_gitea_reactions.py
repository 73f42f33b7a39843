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
from tests.integration.engine.loop import Person
from tests.integration.engine.test_reaction_table import *  # noqa: F403
from tests.integration.forge.people import Clone
from tests.support.gitea import Repository, Server

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


class PersonAtGitea:
    """Anna, with the server's own API and with plain git over HTTP."""

    def __init__(self, repository: Repository, clone: Clone) -> None:
        self.name = repository.who.login
        self.repository = repository
        self.clone = clone

    def merge(self, pull: int) -> None:
        self.repository.merge(pull)

    def close_pull(self, pull: int) -> None:
        self.repository.edit_issue(pull, state="closed")

    def reopen_pull(self, pull: int) -> None:
        self.repository.edit_issue(pull, state="open")

    def approve(self, pull: int) -> None:
        self.repository.review(pull, "APPROVED", "")

    def request_changes(self, pull: int, text: str) -> None:
        self.repository.review(pull, "REQUEST_CHANGES", text)

    def push(self, branch: str, file: str) -> str:
        self.clone.git("fetch", "--quiet", "origin")
        known = self.clone.git("branch", "--remotes", "--list", f"origin/{branch}")
        start = f"origin/{branch}" if known else "origin/main"
        commit = self.clone.commit(branch, {file: "hers\n"}, start)
        self.clone.push(f"{branch}:{branch}")
        return commit

    def push_main(self, file: str) -> str:
        return self.repository.write_file(file, "hers\n")

    def delete_branch(self, branch: str) -> None:
        self.clone.git("push", "--quiet", "origin", "--delete", branch)

    def close_issue(self, number: int) -> None:
        self.repository.edit_issue(number, state="closed")

    def reopen_issue(self, number: int) -> None:
        self.repository.edit_issue(number, state="open")

    def label(self, number: int, label: str) -> None:
        self.repository.label(number, label)

    def unlabel(self, number: int, label: str) -> None:
        self.repository.unlabel(number, label)

    def edit_issue(self, number: int, body: str) -> None:
        self.repository.edit_issue(number, body=body)

    def comment(self, number: int, body: str) -> None:
        self.repository.comment(number, body)

    def delete_comment(self, comment: int) -> None:
        self.repository.delete_comment(comment)

    def open_issue(self, title: str, body: str, label: str) -> int:
        number: int = self.repository.open_issue(title, body)["number"]
        self.label(number, label)
        return number


@pytest.fixture  # type: ignore[no-redef]
def forge_of_a_person(gitea: Server, tmp_path: Path) -> Iterator[tuple[Forge, Person]]:
    """In the place of the local one of the table."""
    ours, anna = gitea.person("caloron"), gitea.person("anna")
    repository = gitea.repository(ours)
    repository.collaborator(anna)
    hers = repository.seen_by(anna)
    forge = connect("gitea", gitea.url, repository.full_name, ours.token)
    yield forge, PersonAtGitea(hers, Clone(hers.push_url, tmp_path / "clone"))
    forge.close()
