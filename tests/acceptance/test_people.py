"""People take part in mid-flight with the forge's own commands, and the later act wins."""

from __future__ import annotations

import subprocess
from typing import Any

from tests.support.home import Home, Running, does, task, writes
from tests.support.wait import wait_for


def _open_pull(home: Home, name: str = "a") -> dict[str, Any]:
    """The task's pull request, once it is open."""

    def look() -> list[dict[str, Any]]:
        return [pull for pull in home.pulls("open") if pull.get("task") == name]

    found: list[dict[str, Any]] = wait_for(look, f"a pull request of {name}")
    return found[0]


def _in_review(home: Home, *more: dict[str, Any]) -> tuple[Running, dict[str, Any]]:
    """A sprint whose task `a` waits for its reviewer; `b` depends on it."""
    reviewer = home.gate("review")
    review = does("review", "a", run=reviewer.line, output="APPROVED")
    home.script(*more, writes("a"), writes("b"), review)
    running = home.start_sprint(task("a"), task("b", "a"))
    reviewer.wait_for_agent()
    return running, _open_pull(home)


def test_a_person_merging_the_pull_request_completes_the_task_at_once(home: Home) -> None:
    running, pull = _in_review(home)
    assert home.caloron("pr", "merge", str(pull["number"])).code == 0
    answer = running.wait()
    assert answer.code == 0, answer
    assert answer.tasks["a"]["reason"] == f"merged by Ada as pull request #{pull['number']}"
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}
    assert home.reviews(pull["number"]) == []


def test_a_person_approving_needs_no_reviewing_agent(home: Home) -> None:
    running, pull = _in_review(home)
    assert home.caloron("pr", "review", str(pull["number"]), "--approve").code == 0
    answer = running.wait()
    assert answer.code == 0, answer
    assert home.reviews(pull["number"]) == [("approved", "")]
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}


def test_a_persons_request_for_changes_goes_to_the_agent_in_its_own_words(home: Home) -> None:
    fix = does("fix", match="keep the old name", files={"a.txt": "old name\n"})
    running, pull = _in_review(home, fix)
    words = "please keep the old name"
    home.caloron("pr", "review", str(pull["number"]), "--request-changes", words)
    home.wait_for_status("a", "InProgress")
    home.gate("review").open()
    answer = running.wait()
    assert answer.code == 0, answer
    assert home.files()["a.txt"] == b"old name\n"
    assert home.reviews(pull["number"])[0] == ("changes_requested", words)


def test_a_person_closing_the_pull_request_sends_the_task_back_to_work(home: Home) -> None:
    fix = does("fix", match="was closed by Ada", files={"a.txt": "another way\n"})
    running, pull = _in_review(home, fix)
    assert home.caloron("pr", "close", str(pull["number"])).code == 0
    home.gate("review").open()
    answer = running.wait()
    assert answer.code == 0, answer
    assert home.files()["a.txt"] == b"another way\n"
    states = {p["number"]: p["state"] for p in home.pulls() if p["task"] == "a"}
    assert states.pop(pull["number"]) == "closed"
    assert list(states.values()) == ["merged"]


def test_a_person_closing_the_issue_cancels_the_task_and_holds_its_dependents(home: Home) -> None:
    running, _ = _in_review(home)
    issue = next(i for i in home.issues() if i["task"] == "a")
    assert home.caloron("issue", "close", str(issue["number"])).code == 0
    answer = running.wait()
    assert answer.code == 10, answer
    assert answer.statuses == {"a": "Cancelled", "b": "Blocked"}
    assert f"issue #{issue['number']} was closed by Ada" in answer.tasks["a"]["why"]
    assert answer.tasks["b"]["why"] == "held by a"
    assert home.files() == {}
    # The sprint ended with it: nobody looks any more, and whoever changes their mind is told how.
    assert "continue with: caloron resume demo-1 --project demo" in answer.error["hint"]

    # Opened again, the task goes on where it was.
    assert home.caloron("issue", "reopen", str(issue["number"])).code == 0
    home.gate("review").open()
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}


def test_a_person_closing_the_issue_while_the_agent_writes_stops_that_agent(home: Home) -> None:
    writing = home.gate("writing")
    home.script(writes("a", run=writing.line), writes("b"))
    running = home.start_sprint(task("a"), task("b"))
    writing.wait_for_agent()
    issue = next(i for i in home.issues() if i["task"] == "a")
    home.caloron("issue", "close", str(issue["number"]))
    answer = running.wait()
    assert answer.code == 10, answer
    assert answer.statuses == {"a": "Cancelled", "b": "Done"}
    assert home.files() == {"b.txt": b"b\n"}
    assert [p["task"] for p in home.pulls()] == ["b"]


def test_a_person_cancelling_a_task_that_has_not_started_yet_is_heard(home: Home) -> None:
    running, _ = _in_review(home)
    issue = next(i for i in home.issues() if i["task"] == "b")
    home.caloron("issue", "close", str(issue["number"]))
    home.wait_for_status("b", "Cancelled")
    home.gate("review").open()
    answer = running.wait()
    assert answer.code == 10, answer
    assert answer.statuses == {"a": "Done", "b": "Cancelled"}


def test_a_remark_in_a_review_decides_nothing(home: Home) -> None:
    running, pull = _in_review(home)
    home.caloron("pr", "review", str(pull["number"]), "--comment", "APPROVED")
    home.gate("review").open()
    answer = running.wait()
    assert answer.code == 0, answer
    assert [v for v, _ in home.reviews(pull["number"])] == ["commented", "approved"]


def test_the_diff_a_person_reads_is_the_change_of_the_pull_request(home: Home) -> None:
    running, pull = _in_review(home)
    diff = home.caloron("pr", "diff", str(pull["number"])).data["diff"]
    assert "+++ b/a.txt" in diff
    assert "+a" in diff
    home.gate("review").open()
    assert running.wait().code == 0


def test_acts_while_nothing_runs_are_taken_in_by_the_next_resume(home: Home) -> None:
    running, pull = _in_review(home)
    assert running.interrupt().code == 11
    home.caloron("pr", "merge", str(pull["number"]))
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}


def test_a_pull_request_closed_for_the_second_time_is_a_matter_for_people(home: Home) -> None:
    fix = does("fix", run="date +%N >> a.txt")
    running, pull = _in_review(home, fix)
    home.caloron("pr", "close", str(pull["number"]))
    home.gate("review").wait_for_agent(2)
    second = _open_pull(home)
    assert second["number"] != pull["number"]
    home.caloron("pr", "close", str(second["number"]))
    answer = running.wait()
    assert answer.code == 10, answer
    assert answer.statuses == {"a": "Escalated", "b": "Blocked"}
    assert "for the second time" in answer.tasks["a"]["why"]

    home.gate("review").open()
    (escalation,) = home.escalations()
    home.caloron("issue", "comment", str(escalation["number"]), "resolved")
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files().keys() == {"a.txt", "b.txt"}


def test_a_person_can_settle_an_escalated_task_by_merging_it(home: Home) -> None:
    home.script(writes("a"), writes("b"), does("review", "a", output="no idea"))
    assert home.sprint(task("a"), task("b", "a")).code == 10
    home.caloron("pr", "merge", str(_open_pull(home)["number"]))
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}
    assert [e["state"] for e in home.escalations()] == ["closed"]


def test_a_person_can_settle_an_escalated_task_by_cancelling_it(home: Home) -> None:
    home.script(does("implement", "a", exit_code=1))
    answer = home.sprint(task("a"), task("b", "a"))
    home.caloron("issue", "close", str(answer.tasks["a"]["issue_number"]))
    answer = home.caloron("resume")
    assert answer.code == 10, answer
    assert answer.statuses == {"a": "Cancelled", "b": "Blocked"}


def test_a_commit_that_a_person_pushes_to_the_branch_is_what_gets_reviewed_and_merged(
    home: Home,
) -> None:
    running, pull = _in_review(home)
    line = (
        f"git clone -q -b {pull['branch']} {home.project() / 'forge.git'} mine && cd mine"
        " && echo better > a.txt && git commit -q -a -m better && git push -q"
    )
    subprocess.run(("sh", "-c", line), cwd=home.root, env=home.environment, check=True)
    home.gate("review").wait_for_agent(2)
    home.gate("review").open()
    answer = running.wait()
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"better\n", "b.txt": b"b\n"}
    assert len(home.reviews(pull["number"])) == 1


def test_a_branch_that_a_person_deletes_is_answered_with_another_pull_request(home: Home) -> None:
    fix = does("fix", match="was deleted by a person", files={"a.txt": "another way\n"})
    running, pull = _in_review(home, fix)
    home.git("update-ref", "-d", f"refs/heads/{pull['branch']}")
    home.gate("review").open()
    answer = running.wait()
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"another way\n", "b.txt": b"b\n"}
    states = [p["state"] for p in home.pulls() if p["branch"] == pull["branch"]]
    assert sorted(states) == ["closed", "merged"]
    assert not home.escalations()


def test_what_is_said_after_the_end_is_carried_out_by_the_next_resume(home: Home) -> None:
    running, _ = _in_review(home)
    issue = next(i["number"] for i in home.issues() if i.get("task") == "a")
    assert home.caloron("issue", "comment", str(issue), "caloron:cancel").code == 0
    assert running.wait().code == 10
    home.gate("review").open()
    assert home.caloron("issue", "comment", str(issue), "caloron:retry").code == 0
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}
