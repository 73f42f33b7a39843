"""The sprint's file: real, in its old shape, and heard when a person edits it."""

from __future__ import annotations

import json
from datetime import datetime

import pytest

from tests.support.home import Home, does, task, writes


def test_the_state_file_has_the_shape_that_scripts_know(home: Home) -> None:
    home.script(writes("a"), does("implement", "bad", exit_code=1))
    assert home.sprint(task("a"), task("bad"), task("after", "bad")).code == 10
    content = home.state_file()
    assert content.keys() == {"state", "interventions", "since"}
    assert datetime.fromisoformat(content["since"]).tzinfo is not None
    assert content["interventions"] == {}
    assert content["state"]["sprint_id"] == "demo-1"
    tasks = content["state"]["tasks"]
    assert list(tasks) == ["a", "bad", "after"]
    done = tasks["a"]
    assert done.keys() == {
        "id",
        "title",
        "status",
        "depends_on",
        "agent_id",
        "reviewer_id",
        "issue_number",
        "pr_number",
        "started_at",
        "completed_at",
        "intervention_count",
    }
    assert (done["id"], done["title"], done["status"]) == ("a", "Task a", "Done")
    assert done["depends_on"] == []
    assert done["issue_number"] == home.issues()[0]["number"]
    assert done["pr_number"] == home.pulls()[0]["number"]
    assert datetime.fromisoformat(done["completed_at"]) >= datetime.fromisoformat(
        done["started_at"]
    )
    assert (tasks["bad"]["status"], tasks["bad"]["completed_at"]) == ("Escalated", None)
    assert (tasks["after"]["status"], tasks["after"]["started_at"]) == ("Blocked", None)


def test_the_file_goes_where_the_user_wants_it(home: Home) -> None:
    home.script(writes("a"))
    home.environment["CALORON_KV_DIR"] = str(home.root / "elsewhere")
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    content = json.loads((home.root / "elsewhere" / "demo-1.json").read_bytes())
    assert content["state"]["tasks"]["a"]["status"] == "Done"
    assert answer.data["state_file"] == str(home.root / "elsewhere" / "demo-1.json")


def test_an_edit_is_read_back_by_the_next_resume(home: Home) -> None:
    home.script(does("implement", "a", exit_code=1), writes("b"))
    assert home.sprint(task("a"), task("b", "a")).code == 10
    content = home.state_file()
    content["state"]["tasks"]["a"]["status"] = "Done"
    _write(home, json.dumps(content))
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"b.txt": b"b\n"}
    (event,) = home.events("state_imported")
    assert event["changes"]["a"] == "Escalated → Done"
    assert home.state_file()["state"]["tasks"]["a"]["status"] == "Done"


def test_an_edit_while_an_agent_works_is_kept_aside(home: Home) -> None:
    writing = home.gate("writing")
    home.script(writes("a", run=writing.line))
    running = home.start_sprint(task("a"))
    writing.wait_for_agent()
    running.kill()
    content = home.state_file()
    content["state"]["tasks"]["a"]["status"] = "Cancelled"
    _write(home, json.dumps(content))
    writing.open()
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n"}
    assert len(list((home.path / "kv").glob("demo-1.json.foreign-*"))) == 1
    assert home.events("state_imported") == []


@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
def test_crashes_around_the_writes_of_files_are_repaired_by_the_next_run(
    home: Home, moment: str
) -> None:
    home.script(writes("a"))
    command: tuple[str, ...] = (
        "sprint",
        "make it so",
        "--yes",
        "--plan",
        str(home.plan(task("a"))),
    )
    for file in ("dag.json", "sprints.json", "agent_versions.json"):
        once = home.root / f"killed at {file}"
        killed = home.caloron(*command, CALORON_CRASH_AT=f"engine|{file}.{moment}|1|{once}")
        assert (killed.code, once.exists()) == (-9, True), file
        command = ("resume",)
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    workspace = home.project() / "workspace"
    assert [t["id"] for t in json.loads((workspace / "dag.json").read_bytes())] == ["a"]
    assert (workspace / "agents" / "a.agent").is_file()
    records = json.loads((home.project() / "sprints.json").read_bytes())["sprints"]
    assert [(r["id"], r["completed_tasks"], r["exit_code"]) for r in records] == [("demo-1", 1, 0)]
    versions = json.loads((workspace / "agent_versions.json").read_bytes())
    assert {name: len(v) for name, v in versions.items()} == {"a": 1, "reviewer-1": 1}
    assert home.events("state_file_set_aside") == []


def _write(home: Home, text: str) -> None:
    (home.path / "kv" / "demo-1.json").write_text(text)
