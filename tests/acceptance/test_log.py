"""Errors that a sprint survives are in the project's log."""

from __future__ import annotations

import json

from tests.acceptance.checkouts import writes_file
from tests.support.home import Home, does, task


def test_an_error_that_the_engine_survives_is_in_the_log_of_the_project(home: Home) -> None:
    home.script(writes_file("new.txt"))
    # The traces cannot be written: their folder is a file.
    (home.path / "traces").write_text("")
    answer = home.caloron("sprint", "go", "--yes", "--single", "--verbose")
    assert answer.code == 0, answer
    lines = (home.project() / "logs" / "caloron.log").read_text("utf-8").splitlines()
    ignored = [entry for line in lines if (entry := json.loads(line))["level"] == "warning"]
    assert any(
        entry["message"] == "cannot write the trace of a tick" and entry["sprint"] == "demo-1"
        for entry in ignored
    ), lines
    # The answer stays one JSON envelope: the log is printed on stderr.
    assert answer.data["sprint_id"] == "demo-1"
    assert "cannot write the trace of a tick" in answer.stderr


def test_a_failed_attempt_its_retry_and_the_escalation_are_in_the_log(home: Home) -> None:
    home.script(does("implement", "a", output="no disk", exit_code=9))
    home.sprint(task("a"))
    text = (home.project() / "logs" / "caloron.log").read_text("utf-8")
    entries = [json.loads(line) for line in text.splitlines()]
    failed = [
        (entry["item"], entry["exit_code"], entry["reason"])
        for entry in entries
        if entry["level"] == "warning" and entry["message"] == "an attempt ended"
    ]
    assert failed == [("demo-1/a/1-implement", 9, "no disk")] * 2
    moves = [entry["new"] for entry in entries if entry["message"] == "a task moved"]
    assert moves == ["Ready", "InProgress", "Escalated"]
