"""A backup at every boundary of a sprint: whenever it was taken, it resumes to the end."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from caloron.backup.backup import back_up
from caloron.ledger.projects import load_project
from tests.chaos.forms import durable_form, final_form
from tests.chaos.matrix import problems_of
from tests.chaos.recorder import record
from tests.chaos.world import World, new_world
from tests.support.home import does, task, writes

RESPONSES = (
    does("po", output=json.dumps([task("a")])),
    writes("a"),
    does("review", round=1, output="CHANGES_NEEDED: more"),
    does("fix", files={"a.txt": "more a\n"}),
    does("review", output="APPROVED"),
)


class Backups:
    """A backup for each situation that a crash would leave differently."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.of: dict[str, Path] = {}

    def take(self, world: World) -> str:
        """Take a backup while all processes are stopped at a crash point."""
        form = durable_form(world)
        begun = bool(form and json.loads(form)["sprints"])
        if begun and form not in self.of and not _is_written(world.project() / "ledger.sqlite"):
            target = self.folder / f"{len(self.of)}.tar"
            back_up(load_project("demo"), target, lambda _line: None)
            self.of[form] = target
        return form


def _is_written(ledger: Path) -> bool:
    """True if the stopped process is inside a transaction: a backup would wait for it."""
    with closing(sqlite3.connect(ledger, isolation_level=None, timeout=0)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        connection.execute("ROLLBACK")
    return False


@pytest.mark.long
def test_a_backup_at_any_boundary_resumes_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = new_world(tmp_path / "world", verify="")
    world.work = {"a": {"a.txt": "more a"}}
    world.script(*RESPONSES)
    monkeypatch.setenv("CALORON_HOME", str(world.path))
    (folder := tmp_path / "backups").mkdir()
    backups = Backups(folder)
    try:
        points, code = record(world, backups.take)
        assert code == 0, world.log()
        assert len(backups.of) > 20, f"only {len(backups.of)} of {len(points)} points"
        expected = final_form(world)
        for form, backup in backups.of.items():
            shutil.rmtree(world.path)
            assert world.run("state", "restore", str(backup)) == 0, world.log()
            assert world.run("resume", "--yes") == 0, (form, world.log())
            assert final_form(world) == expected, form
            assert problems_of(world) == [], form
    finally:
        world.kill_everything()
    print(f"{len(points)} points, {len(backups.of)} backups, all resumed")
