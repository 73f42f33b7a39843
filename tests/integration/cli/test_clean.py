"""`caloron clean`: frees disk space, and never removes unsaved work."""

from __future__ import annotations

import io
import os
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from caloron.cli.app import main
from caloron.store.lock import ProcessLock
from tests.support.git import git

_DAY_S = 86_400


@pytest.fixture
def old(sprinted: Path) -> Path:
    """The sprint ended forty days ago."""
    ended = time.time() - 40 * _DAY_S
    with sqlite3.connect(sprinted / "ledger.sqlite") as ledger:
        ledger.execute("UPDATE sprints SET ended_at = ?", (ended,))
    return sprinted


def left_workspace(project: Path, work: str) -> Path:
    workspace = project / "runs" / "demo-1" / "a" / work / "1" / "workspace"
    workspace.mkdir(parents=True, exist_ok=True)
    (workspace / "file").write_text("work")
    return workspace


def refer(project: Path, ref: str) -> None:
    # The mirror lacks the last merge until the next sprint, so this uses the mirror's own main.
    git(project / "mirror.git", "update-ref", ref, "refs/heads/main")


def removed(answer: dict[str, Any]) -> set[str]:
    return {entry["kind"] for entry in answer["data"]["removed"]}


def test_old_logs_of_an_ended_sprint_are_removed(run, old: Path) -> None:
    assert run.data("clean", "--older-than", "41", "--yes")["removed"] == []
    code, answer = run("clean", "--dry-run")
    assert code == 9
    targets = {a["target"] for a in answer["planned_actions"]}
    assert targets == {str(old / "runs" / "demo-1"), "agent/a/demo-1"}
    assert (old / "runs" / "demo-1").exists()
    code, answer = run("clean", "--yes")
    assert code == 0
    assert removed(answer) == {"logs", "branch"}
    assert answer["data"]["bytes"] > 0
    assert not (old / "runs" / "demo-1").exists()
    assert run("status")[0] == run("history")[0] == run("trace", "a")[0] == 0


@pytest.mark.parametrize(
    ("column", "value"), [("phase", "running"), ("status", "Escalated"), ("status", "Blocked")]
)
def test_files_of_a_sprint_that_can_continue_stay(run, old: Path, column: str, value: str) -> None:
    table = "sprints" if column == "phase" else "tasks"
    with sqlite3.connect(old / "ledger.sqlite") as ledger:
        ledger.execute(f"UPDATE {table} SET {column} = ?", (value,))
    workspace = left_workspace(old, "9-review")
    assert run.data("clean", "--yes", "--older-than", "0")["removed"] == []
    assert workspace.exists()


def test_a_workspace_with_unsaved_work_stays_with_its_logs(run, old: Path) -> None:
    workspace = left_workspace(old, "9-implement")
    code, answer = run("clean", "--yes", "--older-than", "0")
    assert code == 0
    assert removed(answer) == {"branch"}
    assert [kept["target"] for kept in answer["data"]["kept"]] == [str(workspace)]
    assert (workspace / "file").read_text() == "work"
    refer(old, "refs/salvage/demo-1/a/9-implement/1")
    code, answer = run("clean", "--yes", "--older-than", "50")
    assert removed(answer) == {"workspace"}
    assert not workspace.exists()


def test_a_workspace_without_work_is_removed(run, old: Path) -> None:
    workspace = left_workspace(old, "9-verify")
    assert removed(run("clean", "--yes", "--older-than", "50")[1]) == {"workspace"}
    assert not workspace.exists()


def test_a_merged_branch_is_removed_and_its_pull_request_stays_readable(run, old) -> None:
    forge = old / "forge.git"
    tree = git(forge, "rev-parse", "main^{tree}")
    alone = git(forge, "commit-tree", "-m", "not merged", tree)
    git(forge, "branch", "agent/b/demo-1", alone)
    git(forge, "branch", "agent/a/demo-2", "main")
    before = run.data("pr", "show", "2"), run.data("pr", "diff", "2")
    _, answer = run("clean", "--yes")
    gone = [t["target"] for t in answer["data"]["removed"] if t["kind"] == "branch"]
    assert gone == ["agent/a/demo-1"]
    assert git(forge, "branch").split() == ["agent/a/demo-2", "agent/b/demo-1", "*", "main"]
    assert (run.data("pr", "show", "2"), run.data("pr", "diff", "2")) == before


def test_saved_work_is_removed_only_on_request(run, old: Path) -> None:
    ref = "refs/salvage/demo-1/a/9-implement/1"
    refer(old, ref)
    assert removed(run("clean", "--yes")[1]) == {"logs", "branch"}
    assert git(old / "mirror.git", "for-each-ref", ref)
    assert removed(run("clean", "--yes", "--salvage")[1]) == {"salvage"}
    assert not git(old / "mirror.git", "for-each-ref", ref)


def test_old_caches_and_the_pool_are_removed(run, sprinted: Path, home: Path) -> None:
    ancient = time.time() - 40 * _DAY_S
    for name in ("pool/1", "seeds/young", "seeds/old"):
        (sprinted / name).mkdir(parents=True)
        (sprinted / name / "file").write_text("x" * 1000)
    (home / "logs").mkdir()
    (home / "logs" / "defect-1.log").write_text("oh")
    os.utime(sprinted / "seeds" / "old", (ancient, ancient))
    os.utime(home / "logs" / "defect-1.log", (ancient, ancient))
    _, answer = run("clean", "--yes")
    assert removed(answer) == {"pool", "seed", "defect"}
    assert [p.name for p in (sprinted / "seeds").iterdir()] == ["young"]
    assert answer["data"]["bytes"] >= 2000


def test_no_file_is_removed_while_an_engine_or_an_agent_runs(run, old: Path) -> None:
    lock = ProcessLock(old / "engine.lock")
    lock.acquire("demo-1")
    try:
        assert run("clean", "--yes")[0] == 5
        assert run("clean", "--dry-run")[0] == 5
    finally:
        lock.release()
    with sqlite3.connect(old / "ledger.sqlite") as ledger:
        ledger.execute("UPDATE work_items SET status = 'in_flight' WHERE id LIKE '%-fix'")
        ledger.execute("UPDATE leases SET result = NULL, expires_at = 9e15 WHERE item LIKE '%-fix'")
    run.refused(5, "demo-1/a/", "clean", "--yes")
    assert run("project", "delete", "demo", "--force")[0] == 5
    assert (old / "runs" / "demo-1").exists()


def test_without_yes_it_asks_and_shows_sizes(old: Path, monkeypatch, capsys) -> None:
    for typed in ("", "n\n", "perhaps\n"):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        capsys.readouterr()
        assert main(["clean"]) == 1
        assert "kB  logs" in capsys.readouterr().err
        assert (old / "runs" / "demo-1").exists()
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main(["clean"]) == 0
    assert not (old / "runs" / "demo-1").exists()


def test_a_task_whose_logs_were_removed_is_not_reported_as_never_run(run, old: Path) -> None:
    assert run("clean", "--yes")[0] == 0
    error = run.refused(3, "removed by", "logs", "a", "--sprint", "1")
    assert error["hint"].endswith("caloron trace a --sprint demo-1")
    run.refused(3, "nothing has run", "logs", "ghost", "--sprint", "1")


def test_a_sprint_without_a_plan_keeps_its_logs_until_it_is_discarded(
    run, tmp_path: Path, monkeypatch
) -> None:
    fixture = tmp_path / "fixture.json"
    fixture.write_text('{"responses": [{"when": {"role": "po"}, "output": "no plan"}]}')
    monkeypatch.setenv("CALORON_STUB_FIXTURE", str(fixture))
    assert run("init", "demo", "--framework", "stub")[0] == 0
    assert run("sprint", "go", "--yes", "--project", "demo")[0] == 8
    assert len(run.data("inbox")["items"]) == 1
    assert "logs" not in removed(run("clean", "--older-than", "0", "--yes")[1])
    assert run("logs", "planner", "--sprint", "1")[0] == 0
    assert run("discard", "1", "--yes")[0] == 0
    assert run.data("inbox")["items"] == []
    assert "logs" in removed(run("clean", "--older-than", "0", "--yes")[1])
