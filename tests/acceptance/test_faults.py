"""Full disks, locked, read-only and newer databases: a clear word, nothing lost, resumable."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.home import Home, does, task, writes


class SmallDisk:
    """A home on a disk of its own, which the test can fill and make read-only."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self._ballast = home.path / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            try:
                while file.write(b"\0" * 4096):
                    pass
            except OSError:
                return

    def free(self) -> None:
        self._ballast.unlink()

    def remount(self, mode: str) -> None:
        subprocess.run(("mount", "-o", f"remount,{mode}", str(self.home.path)), check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    mount_point = tmp_path / "home"
    mount_point.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(mount_point))
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"NOT TESTED, since this user may not mount a disk: {done.stderr.strip()}")
    home = Home(tmp_path, mount_point)
    try:
        yield SmallDisk(home.init())
    finally:
        home.close()
        subprocess.run(("umount", "--lazy", str(mount_point)), check=True)


def test_a_disk_that_is_full_from_the_start_is_named_and_nothing_is_begun(
    small_disk: SmallDisk,
) -> None:
    home = small_disk.home
    home.script(writes("a"))
    small_disk.fill()
    answer = home.sprint(task("a"))
    assert answer.code == 8, answer
    assert home.caloron("status").code == 0
    assert answer.error["code"] == "PRECONDITION_FAILED"
    assert "space" in answer.error["message"] + answer.error["hint"]
    small_disk.free()
    assert home.issues() == []
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer


@pytest.mark.parametrize("moment", ["po", "implement", "review"])
def test_a_full_disk_stops_the_sprint_and_resume_continues_it_once_there_is_space(
    small_disk: SmallDisk, moment: str
) -> None:
    home = small_disk.home
    gate = home.gate("full")
    po = 'echo \'[{"id": "a", "title": "A", "agent_prompt": "x"}]\''
    home.script(
        does("po", run=f"{gate.line if moment == 'po' else 'true'}; {po}"),
        does("implement", "a", run=f"{gate.line if moment == 'implement' else 'true'}; echo a > a"),
        does("review", run=gate.line if moment == "review" else "true", output="APPROVED"),
    )
    running = home.start_sprint()
    gate.wait_for_agent()
    small_disk.fill()
    gate.open()
    answer = running.wait()
    assert answer.code == 8, answer
    assert answer.error["code"] == "PRECONDITION_FAILED"
    error_text = answer.error["message"] + answer.error["hint"]
    assert "space" in error_text
    assert "resume" in error_text
    small_disk.free()
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a": b"a\n"}
    assert len(home.issues()) == 1
    assert len(home.pulls()) == 1


def test_a_full_disk_of_the_forge_ends_the_sprint_and_nothing_is_lost(home: Home) -> None:
    """Only the repository of the forge is on the full disk: the ledger can be written."""
    gate, forge = home.gate("writing"), home.project() / "forge.git"
    home.script(does("implement", "a", run=f"{gate.line}; head -c 3000000 /dev/urandom > a"))
    aside = forge.rename(forge.with_name("aside.git"))
    forge.mkdir()
    mount = ("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(forge))
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"NOT TESTED, since this user may not mount a disk: {done.stderr.strip()}")
    try:
        shutil.copytree(aside, forge, dirs_exist_ok=True)
        running = home.start_sprint(task("a"))
        gate.wait_for_agent()
        gate.open()
        answer = running.wait()
        assert answer.code == 8, answer
        assert "the disk is full" in answer.error["message"]
        assert "caloron resume" in answer.error["hint"]
        subprocess.run(("mount", "-o", "remount,size=32m", str(forge)), check=True)
        answer = home.caloron("resume")
        assert answer.code == 0, answer
        assert len(home.files()["a"]) == 3_000_000
        assert home.attempts("implement") == 1, "the work was not done twice"
        assert home.escalations() == []
    finally:
        subprocess.run(("umount", "--lazy", str(forge)), check=True)


def test_a_read_only_home_refuses_sprints_and_can_still_be_read(small_disk: SmallDisk) -> None:
    home = small_disk.home
    home.script(writes("a"))
    assert home.sprint(task("a")).code == 0
    small_disk.remount("ro")
    for command in (("sprint", "more", "--yes"), ("resume",)):
        answer = home.caloron(*command)
        assert answer.code == 8, answer
        assert "writable" in answer.error["hint"]
    status = home.caloron("status")
    assert status.code == 0, status
    assert status.data["last_sprint"]["sprint_id"] == "demo-1"
    small_disk.remount("rw")
    assert home.caloron("resume").code == 0


def test_a_stopped_sprint_on_a_disk_that_became_read_only_goes_on_once_it_is_writable(
    small_disk: SmallDisk,
) -> None:
    home = small_disk.home
    gate = home.gate("writing")
    home.script(does("implement", "a", run=f"{gate.line}; echo a > a"))
    running = home.start_sprint(task("a"))
    gate.wait_for_agent()
    assert running.interrupt().code == 11
    small_disk.remount("ro")
    gate.open()
    assert home.caloron("resume").code == 8
    small_disk.remount("rw")
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a": b"a\n"}


def test_a_ledger_that_stays_locked_stops_the_sprint_and_nothing_is_lost(
    home: Home,
) -> None:
    writing = home.gate("writing")
    home.set(lease_s=3)
    home.script(writes("a", run=writing.line), writes("b"))
    running = home.start_sprint(task("a"), task("b", "a"))
    writing.wait_for_agent()
    with home.ledger() as ledger:
        ledger.execute("BEGIN IMMEDIATE")
        writing.open()
        answer = running.wait()
        ledger.execute("ROLLBACK")
    assert answer.code == 8, answer
    assert "ledger.sqlite" in answer.error["message"]
    assert "locked" in answer.error["message"]
    assert answer.error["hint"]
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}
    assert len(home.pulls()) == 2


def test_a_ledger_of_a_newer_caloron_is_refused_untouched(home: Home) -> None:
    home.script(writes("a"))
    assert home.sprint(task("a")).code == 0
    with home.ledger() as ledger:
        ledger.execute("INSERT INTO migrations VALUES ('ledger/9999-later', 'x', 'later')")
    for command in (("sprint", "more", "--yes"), ("resume",)):
        answer = home.caloron(*command)
        assert answer.code == 8, answer
        assert "newer Caloron" in answer.error["message"]
        assert "upgrade" in answer.error["hint"]
    assert len(home.events("sprint_created")) == 1


def test_a_forge_database_of_a_newer_caloron_is_refused_too(home: Home) -> None:
    home.script(writes("a"))
    forge = sqlite3.connect(home.project() / "forge.sqlite")
    forge.execute("INSERT INTO migrations VALUES ('forge/9999-later', 'x', 'later')")
    forge.commit()
    forge.close()
    answer = home.sprint(task("a"))
    assert answer.code == 8, answer
    assert "newer Caloron" in answer.error["message"]


def test_a_ledger_that_is_no_database_is_refused_unchanged(home: Home) -> None:
    home.script(writes("a"))
    ledger = home.project() / "ledger.sqlite"
    ledger.write_bytes(b"this is not a database" * 100)
    answer = home.sprint(task("a"))
    assert answer.code == 8, answer
    assert "ledger.sqlite" in answer.error["message"]
    assert ledger.read_bytes() == b"this is not a database" * 100


def test_a_missing_forge_is_named_and_the_sprint_continues_when_it_is_back(home: Home) -> None:
    writing = home.gate("writing")
    home.script(writes("a", run=writing.line))
    running = home.start_sprint(task("a"))
    writing.wait_for_agent()
    running.interrupt()
    forge = home.project() / "forge.git"
    forge.rename(home.root / "away")
    answer = home.caloron("resume")
    assert answer.code in (7, 8), answer
    assert str(home.project()) in answer.error["message"]
    (home.root / "away").rename(forge)
    writing.open()
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n"}
