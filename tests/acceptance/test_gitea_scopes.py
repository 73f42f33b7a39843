"""The least scopes of a Gitea token: a sprint runs with them, and names any that is missing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gitea import Server
from tests.support.home import does, task, writes
from tests.support.live import REVIEWER_TOKEN, TOKEN, GiteaHome

LEAST = ("read:user", "write:issue", "write:repository")
#: The second account only reads and reviews.
LEAST_OF_REVIEWER = ("read:user", "write:repository")


@pytest.fixture
def home(gitea: Server, tmp_path: Path) -> Iterator[GiteaHome]:
    made = GiteaHome(tmp_path, gitea, reviewer=True)
    made.environment[TOKEN] = gitea.token("ada", *LEAST)
    made.environment[REVIEWER_TOKEN] = gitea.token("judge", *LEAST_OF_REVIEWER)
    yield made
    made.close()


def test_a_sprint_runs_with_exactly_the_least_scopes(home: GiteaHome) -> None:
    home.on_gitea()
    home.script(
        writes("a"),
        does("review", round=1, run="echo 'CHANGES_NEEDED: more'"),
        does("fix", files={"a.txt": "more\n"}),
    )
    answer = home.sprint(task("a"))
    assert (answer.code, answer.statuses) == (0, {"a": "Done"}), answer
    (pull,) = home.repository.pulls()
    path = f"{home.repository.path}/pulls/{pull['number']}/reviews"
    reviews = [(r["user"]["login"], r["state"]) for r in home.repository.who.get(path)]
    assert reviews == [("judge", "REQUEST_CHANGES"), ("judge", "APPROVED")]
    (issue,) = home.repository.issues()
    assert issue["state"] == "closed"


@pytest.mark.parametrize(
    ("account", "scopes", "missing"),
    [
        ("ada", ("read:user", "read:issue", "write:repository"), "write:issue"),
        ("ada", ("read:user", "write:issue", "read:repository"), "write:repository"),
        ("judge", ("read:user", "read:repository"), "write:repository"),
    ],
    ids=str,
)
def test_a_sprint_with_fewer_scopes_names_the_missing_scope(
    home: GiteaHome, gitea: Server, account: str, scopes: tuple[str, ...], missing: str
) -> None:
    """The token was replaced by a weaker token since `init` checked it."""
    home.on_gitea()
    home.environment[TOKEN if account == "ada" else REVIEWER_TOKEN] = gitea.token(account, *scopes)
    home.script(writes("a"))
    answer = home.sprint(task("a"))
    assert answer.code != 0
    assert missing in answer.stdout, answer
    assert home.repository.files() == {"README.md"}
    if account == "ada":
        # Refused by the forge at the first question, or by us before anything is begun.
        assert answer.code in (7, 8), answer
        assert home.repository.issues() == []
        assert home.repository.branches().keys() == {"main"}
