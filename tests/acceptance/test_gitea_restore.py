"""A restored project whose forge, a real Gitea, went on without it: nothing is made twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.gitea import Server
from tests.support.home import task, writes
from tests.support.live import GiteaHome


@pytest.mark.long
def test_a_forge_that_went_on_after_the_backup_gets_nothing_twice(
    tmp_path: Path, gitea: Server
) -> None:
    home = GiteaHome(tmp_path, gitea).on_gitea()
    gate = home.gate("work")
    home.script(writes("a", run=gate.line), writes("b"))
    sprint = home.start_sprint(task("a"), task("b", "a"))
    try:
        gate.wait_for_agent()
        backup = home.root / "demo.tar"
        made = home.caloron("state", "backup", str(backup))
        assert made.code == 0, made
        assert any("the forge" in what for what in made.data["left_out"])
        assert not any(token.encode() in backup.read_bytes() for token in home.tokens)
        gate.open()
        assert sprint.wait().code == 0
        issues, pulls = home.issues(), home.pulls()

        shutil.rmtree(home.path)
        assert home.caloron("state", "restore", str(backup)).code == 0
        assert home.caloron("state", "verify").data["deviations"] == []
        ended = home.caloron("resume")

        assert set(ended.statuses.values()) == {"Done"}, ended
        assert home.issues() == issues
        assert home.pulls() == pulls
    finally:
        home.close()
