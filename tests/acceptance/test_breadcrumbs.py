"""Work over more than one cycle leaves its trail where people read the change, once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.gitea import Server
from tests.support.home import Home, does, task, writes
from tests.support.live import GiteaHome

pytestmark = pytest.mark.usefixtures("user_without_hermes")

REJECTED = (
    writes("a"),
    does("review", "a", round=1, output="CHANGES_NEEDED: say hello, which fixes #77 of @ada"),
    does("fix", "a", round=1, files={"a.txt": "hello\n"}),
    does("review", round=2, output="APPROVED"),
)
SECTION = "<!-- caloron-section:"


@pytest.fixture
def on_gitea(tmp_path_factory: pytest.TempPathFactory, gitea: Server) -> GiteaHome:
    return GiteaHome(tmp_path_factory.mktemp("breadcrumbs"), gitea).on_gitea()


def body_of(home: Home, number: int, *, pull: bool = True) -> str:
    answer = home.caloron("pr" if pull else "issue", "show", str(number))
    return str(answer.data["body"])


def progress_of(home: Home, number: int) -> list[str]:
    return [body for body in home.comments(number) if "/progress -->" in body]


def test_a_rejected_change_has_one_section_in_the_description_of_its_pull_request(
    home: Home,
) -> None:
    """A change that is right at once has no history."""
    home.script(*REJECTED, writes("b"))
    answer = home.sprint(task("a"), task("b", "a"))
    assert answer.code == 0, answer
    pull, other = home.pulls()
    assert "### Cycle" not in body_of(home, other["number"])
    body = body_of(home, pull["number"])
    assert body.count(SECTION) == 1
    assert body.index("Closes #1") < body.index("<!-- caloron:pull/") < body.index(SECTION)
    assert "### Cycle 2 of a\n\n**a** is **Done**." in body
    rows = [line for line in body.splitlines() if line.startswith(("| 1 |", "| 3 |", "| 4 |"))]
    assert [row.split(" | ")[1] for row in rows] == ["implement", "review", "fix"]
    # The words of a reviewer close no issue when this is merged.
    assert pull["closes"] == [1]
    (comment,) = progress_of(home, 1)
    assert "| cycle | 2 |" in comment
    shown = home.caloron("pr", "show", str(pull["number"]), json=False).stdout
    assert "### Cycle 2 of a" in shown
    assert "caloron-section" not in shown
    status = home.caloron("status").data["last_sprint"]["tasks"]
    assert [(task_row["cycle"], task_row["slice_it"]) for task_row in status] == [
        (2, False),
        (1, False),
    ]


def test_after_three_cycles_every_view_says_to_split_the_task(home: Home) -> None:
    home.script(
        writes("a"),
        does("review", output="CHANGES_NEEDED: still bad"),
        does("fix", run="echo more >> a.txt"),
    )
    assert home.sprint(task("a")).code == 10
    (pull,) = home.pulls()
    flag = "more than 3 cycles: cut it smaller"
    assert f"| too large | {flag} |" in body_of(home, pull["number"])
    assert f"| too large | {flag} |" in progress_of(home, 1)[0]
    (task_row,) = home.caloron("status").data["last_sprint"]["tasks"]
    assert (task_row["cycle"], task_row["slice_it"]) == (4, True)
    assert flag in home.caloron("status", json=False).stdout
    assert f"4 cycles, {flag}" in home.caloron("agents", "show", "a", json=False).stdout
    page = home.caloron("retro", json=False).stdout
    assert "a took 4 rounds of work; consider splitting such tasks" in page


def test_on_gitea_edits_of_a_person_around_the_section_stay(
    on_gitea: GiteaHome,
) -> None:
    home, repository = on_gitea, on_gitea.repository
    first, second = home.gate("first"), home.gate("second")
    home.script(
        writes("a"),
        does("review", round=1, output="CHANGES_NEEDED: one, which fixes #77 of @ada"),
        does("fix", "a", round=1, run=f"echo 1 >> a.txt; {first.line}"),
        does("review", round=2, output="CHANGES_NEEDED: two"),
        does("fix", "a", round=2, run=f"echo 2 >> a.txt; {second.line}"),
        does("review", round=3, output="APPROVED"),
    )
    running = home.start_sprint(task("a"))

    def body() -> str:
        (pull,) = repository.pulls()
        return str(pull["body"])

    def edit(text: str) -> None:
        (pull,) = repository.pulls()
        repository.edit_issue(pull["number"], body=text)

    first.wait_for_agent()
    assert "### Cycle 2 of a" in body()
    assert "#77" not in body()
    edit(f"Read this first.\r\n\r\n{body()}\r\n\r\nAnd this last.")
    first.open()
    second.wait_for_agent()
    kept = body()
    assert "### Cycle 3 of a" in kept
    assert kept.startswith("Read this first.")
    assert kept.endswith("And this last.")
    assert kept.count(SECTION) == 1
    edit("My own words.")
    second.open()
    assert running.wait().code == 0
    assert body() == "My own words."


def wake(home: Home, *steps: str, **end: str) -> None:
    """Run a whole cycle of an agent that works in no sprint."""
    assert home.caloron("cycle", "begin", "allegro", "--work", "issue 1").code == 0
    for step in steps:
        assert home.caloron("cycle", "act", "allegro", step).code == 0
    options = [word for name, value in end.items() for word in (f"--{name}", value)]
    assert home.caloron("cycle", "end", "allegro", "--artefact", "a commit", *options).code == 0


def crumb(home: Home, *options: str) -> dict[str, Any]:
    answer = home.caloron("cycle", "breadcrumb", "allegro", *options)
    assert answer.code == 0, answer
    return answer.data


def test_an_agent_without_a_sprint_keeps_one_comment_and_one_section(home: Home) -> None:
    home.script(writes("a"))
    assert home.sprint(task("a")).code == 0
    wake(home, "looked at the change")
    wake(home, "looked again")
    assert crumb(home, "--pull", "2")["written"]["section"]
    assert body_of(home, 2).count(f"{SECTION}cycle/allegro") == 1
    comments = home.caloron("pr", "show", "2").data["comments"]
    assert len([comment for comment in comments if "allegro" in comment["body"]]) == 1
    assert home.caloron("cycle", "breadcrumb", "allegro", "--issue", "2").code == 3
    assert home.caloron("state", "verify").code == 0


def test_on_gitea_a_deleted_comment_of_an_agent_is_not_written_again(
    on_gitea: GiteaHome,
) -> None:
    home, repository = on_gitea, on_gitea.repository
    number = repository.open_issue("Broken", "It is broken.")["number"]
    wake(home, "read")
    comment = crumb(home, "--issue", str(number))["written"]["comment"]
    repository.delete_comment(comment)
    wake(home, "wrote")
    written = crumb(home, "--issue", str(number))["written"]
    assert (written["comment"], written["section"]) == (None, True)
    assert home.comments(number) == []
    repository.edit_issue(number, body="It was broken.")
    wake(home, "wrote more")
    crumb(home, "--issue", str(number))
    assert body_of(home, number, pull=False) == "It was broken."
