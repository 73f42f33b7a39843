"""A ledger that is gone, empty, foreign or damaged is refused, with the way to put it back."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.acceptance.checkouts import Repository, repository, writes_file
from tests.support.home import Answer, Home


@pytest.fixture
def worked(home: Home) -> Home:
    """A project after a sprint, with a backup."""
    home.script(writes_file("new.txt"))
    assert home.caloron("sprint", "go", "--yes", "--single").code == 0
    assert home.caloron("state", "backup", str(home.root / "backup.tar")).code == 0
    return home


def ledger_of(home: Home) -> Path:
    return home.project() / "ledger.sqlite"


def remove(ledger: Path) -> None:
    for file in ledger.parent.glob("ledger.sqlite*"):
        file.unlink()


def empty(ledger: Path) -> None:
    remove(ledger)
    ledger.touch()


@pytest.mark.parametrize("lose", [remove, empty])
def test_a_lost_ledger_is_refused_until_the_backup_is_back(
    worked: Home, lose: Callable[[Path], None]
) -> None:
    lose(ledger_of(worked))
    for arguments in (
        ("status",),
        ("state", "verify"),
        ("sprint", "more", "--yes", "--single"),
        ("resume",),
        ("why",),
        ("history",),
        ("report",),
    ):
        answer = worked.caloron(*arguments)
        assert answer.code == 8, (arguments, answer)
        assert "the ledger of project demo" in answer.error["message"]
        assert "caloron state restore FILE --as demo --force" in answer.error["hint"]
    assert not ledger_of(worked).exists() or ledger_of(worked).stat().st_size == 0
    # The list of projects still works, and names the problem.
    (row,) = worked.caloron("project", "list").data["projects"]
    assert "the ledger of project demo" in row["problem"]

    answer = worked.caloron("state", "restore", str(worked.root / "backup.tar"), "--force")
    assert answer.code == 0, answer
    assert "demo-1" in worked.caloron("status").stdout
    assert worked.caloron("state", "verify").code == 0


@pytest.fixture
def shop(home: Home) -> Repository:
    """The repository of project `shop`, after a sprint whose work was not taken."""
    home.script(writes_file("new.txt"))
    shop = repository(home)
    assert shop.sprint().code == 0
    return shop


@pytest.mark.parametrize("lose", [remove, empty])
def test_merged_work_can_be_taken_without_the_ledger(
    shop: Repository, lose: Callable[[Path], None]
) -> None:
    lose(shop.home.project("shop") / "ledger.sqlite")
    assert "caloron apply --project shop" in shop.caloron("status").error["hint"]
    assert shop.caloron("apply").code == 0
    assert (shop.path / "new.txt").read_text() == "new\n"


def test_deleting_a_project_warns_of_merged_work_that_was_not_taken(shop: Repository) -> None:
    listed = shop.caloron("project", "delete", "shop", "--dry-run")
    assert "the merged work of project shop is not in the branch checked out" in listed.stderr
    assert "caloron apply --project shop" in listed.stderr
    assert shop.caloron("apply").code == 0
    assert not shop.caloron("project", "delete", "shop", "--dry-run").stderr


def test_a_project_with_a_lost_ledger_can_be_deleted(worked: Home) -> None:
    remove(ledger_of(worked))
    assert worked.caloron("project", "delete", "demo", "--force").code == 0


def damage(ledger: Path) -> None:
    """Overwrite a page of the record of the first sprint, which no new sprint reads."""
    data = bytearray(ledger.read_bytes())
    page = int.from_bytes(data[16:18], "big")
    pages = [data[at : at + page] for at in range(0, len(data), page)]
    number = next(n for n, content in enumerate(pages) if b'"avg_clarity"' in content)
    data[number * page : number * page + 200] = b"\xaa" * 200
    ledger.write_bytes(data)


def refused(answer: Answer) -> None:
    assert answer.code not in (0, 1), answer
    assert "ledger.sqlite" in answer.error["message"]
    assert "caloron state restore FILE --as demo --force" in answer.error["hint"]


def test_a_damaged_page_stops_every_sprint_before_it_begins(worked: Home) -> None:
    before = json.dumps(worked.issues())
    damage(ledger_of(worked))
    refused(worked.caloron("resume"))
    refused(worked.caloron("sprint", "more", "--yes", "--single"))
    assert json.dumps(worked.issues()) == before
    answer = worked.caloron("state", "restore", str(worked.root / "backup.tar"), "--force")
    assert answer.code == 0, answer
    assert worked.caloron("sprint", "more", "--yes", "--single").code == 0


_READING = (
    ("status",),
    ("why",),
    ("trace", "planner"),
    ("history",),
    ("metrics",),
    ("report",),
    ("retro",),
    ("agents", "list"),
    ("agents", "show", "planner-1"),
    ("inbox",),
    ("discard", "--dry-run"),
    ("stop",),
)


def test_every_command_that_reads_a_damaged_page_has_the_hint_to_restore(worked: Home) -> None:
    """A defect that "lost nothing" sends the user to `resume` instead of to the backup."""
    ledger = ledger_of(worked)
    whole = ledger.read_bytes()
    page = int.from_bytes(whole[16:18], "big")
    refused_commands = set()
    for number in (5, 8, 12):
        at = number * page
        ledger.write_bytes(whole[:at] + b"\xde\xad" * (2 * page) + whole[at + 4 * page :])
        for arguments in _READING:
            answer = worked.caloron(*arguments)
            assert "defect" not in answer.stdout + answer.stderr, (number, arguments, answer)
            # Commands that do not read this page, or have nothing to do, answer as usual.
            hint = (answer.error or {}).get("hint", "") if answer.code else ""
            if "caloron state restore FILE --as demo --force" in hint:
                assert "ledger.sqlite" in answer.error["message"]
                assert answer.code not in (0, 1)
                refused_commands.add(arguments)
    assert {("status",), ("why",), ("agents", "list")} <= refused_commands
    ledger.write_bytes(whole)
    assert worked.caloron("status").code == 0


def test_no_command_reads_the_ledger_of_another_project(worked: Home) -> None:
    worked.init("other")
    assert worked.caloron("sprint", "theirs", "--yes", "--single", "--project", "other").code == 0
    foreign = worked.project("other") / "ledger.sqlite"
    remove(ledger_of(worked))
    ledger_of(worked).write_bytes(foreign.read_bytes())
    for arguments in (*_READING, ("sprint", "more", "--yes", "--single")):
        answer = worked.caloron(*arguments, "--project", "demo")
        refused(answer)
        assert "is not the ledger that this project had" in answer.error["message"], arguments
    # The refused ledger does not block its own replacement.
    backup = str(worked.root / "backup.tar")
    assert worked.caloron("state", "restore", backup, "--force").code == 0
    assert worked.caloron("status", "--project", "demo").data["last_sprint"]["goal"] == "go"
