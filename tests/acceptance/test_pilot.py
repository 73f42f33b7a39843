"""The live pilot: whole sprints on a real Gitea, with people, and with the server dying."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.support.figures import record_figures
from tests.support.gitea import Gitea, Server
from tests.support.home import Answer, Home, does, task, writes
from tests.support.live import Live, artefacts, done_twice, live_project, marker_of
from tests.support.wait import wait_for

_FEEDBACK = """done
---
caloron_feedback:
  task_id: samples
  agent_role: developer
  task_clarity: 4
  blockers:
    - "nobody said how numbers are rounded"
  tools_used: [bash]
  self_assessment: completed
---
"""
_DIAMOND = ("samples", "averages", "spread", "report")


def _demo(home: Home) -> list[dict[str, Any]]:
    """A diamond; the review of one side says no once, and both sides write the same file."""
    both = home.gate("both")
    both.open()
    return [
        does("po", output=f"The plan:\n{json.dumps(_plan())}"),
        writes("samples", {"samples.py": "VALUES = ()\n"}, output=_FEEDBACK),
        writes("averages", {"averages.py": "mean\n", "NOTES.md": "averages\n"}),
        writes("spread", {"spread.py": "range\n", "NOTES.md": "spread\n"}),
        writes("report", {"report.py": "report\n"}),
        does("review", "averages", round=1, output="CHANGES_NEEDED: the median is missing"),
        does("fix", "averages", files={"averages.py": "mean\nmedian\n"}, output="done"),
        does("resolve", files={"NOTES.md": "averages\nspread\n"}, output="kept both"),
        does("review", output="fine\nAPPROVED"),
    ]


def _plan() -> list[dict[str, Any]]:
    return [
        task("samples"),
        task("averages", "samples"),
        task("spread", "samples"),
        task("report", "averages", "spread", acceptance=["it prints four lines"]),
    ]


@pytest.mark.parametrize("two_accounts", [True, False], ids=["two accounts", "one account"])
def test_the_demo_sprint_is_merged_on_gitea_and_the_next_sprint_gets_its_lessons(
    bare_home: Home, gitea: Gitea, two_accounts: bool
) -> None:
    live = live_project(bare_home, gitea, two_accounts=two_accounts)
    bare_home.script(*_demo(bare_home))
    began = time.monotonic()
    answer = live.home.sprint()
    took = time.monotonic() - began
    assert answer.code == 0, (answer.stdout, answer.stderr)
    assert answer.statuses == dict.fromkeys(_DIAMOND, "Done")
    assert live.repository.file("NOTES.md") == "averages\nspread\n"
    assert live.repository.file("averages.py") == "mean\nmedian\n"
    _artefacts_are_there_once(live)
    _verdicts_are_published(live, two_accounts=two_accounts)
    record_figures(
        f"the demo sprint, {'two accounts' if two_accounts else 'one account'}",
        {"tasks": 4, "seconds": round(took, 1), "pull requests": len(live.repository.pulls())},
    )
    if two_accounts:
        _second_sprint(live)


def _artefacts_are_there_once(live: Live) -> None:
    on_forge = artefacts(live.repository)
    assert done_twice(live.repository) == []
    assert [name for name, _, _ in on_forge["issues"]] == [
        f"issue/demo-1/{name}" for name in sorted(_DIAMOND)
    ]
    for _, state, labels in on_forge["issues"]:
        assert state == "closed"
        assert {"caloron:task", "caloron:assigned", "caloron:done"} <= set(labels)
    assert [(name, state) for name, state, _ in on_forge["pulls"]] == [
        (f"pull/demo-1/{name}/1", "merged") for name in sorted(_DIAMOND)
    ]
    for name in _DIAMOND:
        on_issue = [what for where, what in on_forge["comments"] if where == f"issue/demo-1/{name}"]
        assert on_issue.count(f"comment/demo-1/{name}/progress") == 1, on_issue
        assert on_issue.count(f"comment/demo-1/{name}/completed/done") == 1, on_issue
    bodies = {p["number"]: p["body"] for p in live.repository.pulls()}
    issues = {marker_of(i["body"]): i["number"] for i in live.repository.issues()}
    for body in bodies.values():
        name = marker_of(body).split("/")[2]
        assert f"Closes #{issues[f'issue/demo-1/{name}']}" in body
    feedback = [what for where, what in on_forge["comments"] if "/feedback/" in what]
    assert any(what.startswith("comment/demo-1/samples/feedback/") for what in feedback)


def _verdicts_are_published(live: Live, *, two_accounts: bool) -> None:
    repository = live.repository
    (pull,) = [p for p in repository.pulls() if "/averages/" in marker_of(p["body"])]
    reviews = repository.who.get(f"{repository.path}/pulls/{pull['number']}/reviews")
    comments = [
        c for c in repository.comments(pull["number"]) if marker_of(c["body"]).startswith("review/")
    ]
    if two_accounts:
        assert {r["user"]["login"] for r in reviews} == {"second"}
        assert [r["state"] for r in reviews if r["commit_id"] == pull["head"]["sha"]] == [
            "APPROVED"
        ]
        assert "REQUEST_CHANGES" in {r["state"] for r in reviews}
        assert comments == []
    else:
        assert reviews == []
        assert comments[0]["body"].startswith("CHANGES_NEEDED: the median is missing")
        assert comments[-1]["body"].startswith("APPROVED")
        statuses = {s["context"]: s["status"] for s in repository.statuses(pull["head"]["sha"])}
        assert statuses["caloron/review"] == "success"


def _second_sprint(live: Live) -> None:
    home = live.home
    plan = json.dumps([task("rounding")])
    home.script(does("po", output=plan), writes("rounding"), default="APPROVED")
    answer = live.home.sprint()
    assert answer.code == 0, (answer.stdout, answer.stderr)
    prompt = home.prompts("po", sprint="demo-2")[0]
    assert "nobody said how numbers are rounded" in prompt
    assert "demo-1" in prompt
    assert done_twice(live.repository) == []


def test_people_act_during_a_sprint_in_the_forge_itself(bare_home: Home, gitea: Gitea) -> None:
    live = live_project(bare_home, gitea)
    at_work, reading = bare_home.gate("at-work"), bare_home.gate("reading")
    bare_home.script(
        writes("push", run="true"),
        writes("merge", run="true"),
        writes("cancel", run=at_work.line),
        writes("change", {"change.txt": "first\n"}),
        does("fix", "change", files={"change.txt": "as ada asked\n"}),
        does("review", "push", round=1, run=reading.line, output="APPROVED"),
        does("review", "merge", round=1, run=reading.line, output="APPROVED"),
        does("review", "change", round=1, run=reading.line, output="APPROVED"),
        does("review", output="APPROVED"),
    )
    tasks = [task(name) for name in ("push", "merge", "cancel", "change")]
    running = bare_home.start_sprint(*tasks, options=("--parallel", "4"))
    reading.wait_for_agent(3)
    at_work.wait_for_agent()
    pulls = {marker_of(p["body"]).split("/")[2]: p for p in live.ada.pulls()}
    issues = {marker_of(i["body"]).split("/")[2]: i for i in live.ada.issues()}
    live.ada.write_file("push.txt", "by ada\n", pulls["push"]["head"]["ref"])
    live.ada.merge(pulls["merge"]["number"])
    live.ada.comment(issues["cancel"]["number"], "caloron:cancel\nnot needed after all")
    live.ada.review(pulls["change"]["number"], "REQUEST_CHANGES", "please say who asked")
    joined = live.ada.open_issue("Also this", "Write also.txt")
    live.ada.label(joined["number"], "caloron:task")
    bare_home.script(
        writes(f"issue-{joined['number']}", {"also.txt": "also\n"}),
        does("fix", "change", files={"change.txt": "as ada asked\n"}),
        does("review", output="APPROVED"),
    )
    wait_for(lambda: bare_home.attempts("fix", "change") == 1, "ada's review starts a fix")
    reading.open()
    at_work.open()
    answer = running.wait()
    assert answer.code in (0, 10), answer
    assert answer.statuses == {
        "push": "Done",
        "merge": "Done",
        "cancel": "Cancelled",
        "change": "Done",
        f"issue-{joined['number']}": "Done",
    }
    assert live.repository.file("push.txt") == "by ada\n"
    assert live.repository.file("change.txt") == "as ada asked\n"
    assert live.repository.file("also.txt") == "also\n"
    assert done_twice(live.repository) == []
    record_figures("people in mid-flight", {"acts": 5, "tasks": len(answer.statuses)})


def test_a_gitea_that_dies_in_the_middle_costs_nothing_but_time(
    bare_home: Home, own_gitea: Server
) -> None:
    live = live_project(bare_home, own_gitea)
    at_work = bare_home.gate("at-work")
    bare_home.script(
        writes("a", run=at_work.line), writes("b", run=at_work.line), writes("c"),
        default="APPROVED",
    )  # fmt: skip
    running = bare_home.start_sprint(task("a"), task("b"), task("c", "a", "b"))
    at_work.wait_for_agent(2)
    own_gitea.kill()
    at_work.open()
    wait_for(
        lambda: "does not answer" in bare_home.caloron("status", json=False).stdout,
        "status says that the forge does not answer",
    )
    assert "The sprint waits: forge does not answer" in bare_home.caloron("why", json=False).stdout
    own_gitea.start()
    answer: Answer = running.wait()
    assert answer.code == 0, (answer.stdout, answer.stderr)
    assert "the forge answers again" in answer.stderr
    assert bare_home.caloron("status").data["last_sprint"]["outage"] == ""
    assert answer.statuses == dict.fromkeys("abc", "Done")
    assert {name: bare_home.attempts("implement", name) for name in "abc"} == dict.fromkeys(
        "abc", 1
    )
    assert done_twice(live.repository) == []
    record_figures("Gitea killed and started again", {"tasks": 3, "attempts": 3})
