"""Files that hold no text, or are gone, end in a message that says what to do."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.checkouts import writes_file
from tests.support.home import Home

NO_TEXT = b"\xff\xfe\x00demo\xe9\n"


@pytest.fixture
def worked(home: Home) -> Home:
    home.script(writes_file("new.txt"))
    assert home.caloron("sprint", "go", "--yes", "--single").code == 0
    return home


COMMANDS = (
    ("status",),
    ("status", "--project", "demo"),
    ("history",),
    ("show",),
    ("why",),
    ("report",),
    ("metrics",),
    ("logs", "go"),
    ("projects", "list"),
    ("config", "show"),
    ("state", "verify"),
    ("state", "show"),
    ("doctor",),
    ("resume",),
    ("sprint", "more", "--yes", "--single", "--project", "demo"),
)


def text_files(home: Home) -> list[Path]:
    """List the text files of Caloron that commands read."""
    names = ["config.yml", "sprints.json", "ledger.id", "engine.lock"]
    files = [home.project() / name for name in names]
    files += [home.path / "active", home.path / "kv" / "demo-1.json"]
    files += sorted((home.project() / "workspace").rglob("*.json"))
    files += sorted(home.project().glob("runs/*/*/*/*/*.json"))
    return [file for file in files if file.is_file()]


def test_a_file_that_is_not_text_causes_no_internal_error(worked: Home) -> None:
    files = text_files(worked)
    assert worked.path / "active" in files
    for file in files:
        before = file.read_bytes()
        file.write_bytes(NO_TEXT)
        # The last two commands make changes: they run once, for the file that every command reads.
        commands = COMMANDS if file.name == "active" else COMMANDS[:-2:3]
        for arguments in commands:
            answer = worked.caloron(*arguments)
            assert answer.code != 1, (file, arguments, answer)
        file.write_bytes(before)


def test_an_explicit_project_needs_no_active_project(worked: Home) -> None:
    (worked.path / "active").write_bytes(NO_TEXT)
    assert worked.caloron("status", "--project", "demo").code == 0
    assert worked.caloron("why", "--project", "demo").code == 0


@pytest.mark.parametrize("folder_stays", [True, False])
def test_a_mirror_that_lost_its_objects_is_named_with_the_remedy(
    worked: Home, folder_stays: bool
) -> None:
    mirror = worked.project() / "mirror.git"
    shutil.rmtree(mirror / "objects")
    if folder_stays:
        (mirror / "objects").mkdir()
    answer = worked.caloron("sprint", "more", "--yes", "--single")
    assert answer.code == 8, answer
    assert str(mirror) in answer.error["message"]
    remedy = answer.error["hint"].rpartition(": ")[2]
    assert shlex.split(remedy) == ["mv", str(mirror), f"{mirror}.damaged"]
    subprocess.run(remedy, shell=True, check=True)
    worked.script(writes_file("more.txt"))
    assert worked.caloron("sprint", "more", "--yes", "--single").code == 0
    assert worked.files()["new.txt"] == b"new\n"


def test_stray_files_among_the_runs_are_no_attempts(worked: Home) -> None:
    runs = worked.project() / "runs" / "demo-1" / "go"
    before = worked.caloron("logs", "go")
    (runs / ".DS_Store").write_text("")
    (runs / "notes").mkdir()
    (runs / "notes" / "12").mkdir()
    next(runs.glob("*-*")).joinpath("7").write_text("")
    after = worked.caloron("logs", "go")
    assert (after.code, after.data) == (0, before.data)
