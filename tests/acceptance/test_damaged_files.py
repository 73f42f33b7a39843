"""Files that hold no text, or are gone, end in a message that says what to do."""

from __future__ import annotations

import shlex
import shutil
import subprocess

import pytest

from tests.acceptance.checkouts import writes_file
from tests.support.home import Home


@pytest.fixture
def worked(home: Home) -> Home:
    home.script(writes_file("new.txt"))
    assert home.caloron("sprint", "go", "--yes", "--single").code == 0
    return home


def test_an_explicit_project_needs_no_active_project(worked: Home) -> None:
    (worked.path / "active").write_bytes(b"\xff\xfe\x00demo\xe9\n")
    for arguments in (("status",), ("why",), ("sprint", "more", "--yes", "--single")):
        assert worked.caloron(*arguments, "--project", "demo").code == 0
    assert worked.caloron("resume").error["message"].endswith("which is not a project name")


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
