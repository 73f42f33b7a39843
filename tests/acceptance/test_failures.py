"""Agents that fail: one more attempt, then a person; dependents wait and come back."""

from __future__ import annotations

import json
import re
import sys

from tests.support.home import Home, does, task, writes


def test_a_failed_task_blocks_its_dependents_until_a_person_releases_it(home: Home) -> None:
    """A task that fails again after its release is a new incident."""
    bad = does("implement", "a", output="no network here", exit_code=7)
    others = (writes("b"), writes("c"), writes("free"))
    tasks = (task("a"), task("b", "a"), task("c", "b"), task("free"))
    home.script(bad, *others)
    answer = home.sprint(*tasks)
    assert answer.code == 10, answer
    assert answer.error["code"] == "TASKS_NOT_DONE"
    assert answer.statuses == {"a": "Escalated", "b": "Blocked", "c": "Blocked", "free": "Done"}
    assert "exit code 7" in answer.tasks["a"]["why"]
    assert "no network here" in answer.tasks["a"]["why"]
    assert answer.tasks["b"]["why"] == "held by a"
    assert answer.tasks["c"]["why"] == "held by b"
    assert home.attempts("implement", "a") == 2
    assert home.files() == {"free.txt": b"free\n"}
    assert home.pulls("open") == []
    (escalation,) = home.escalations()
    assert f"#{escalation['number']}" in answer.tasks["a"]["why"]

    release(home, escalation["number"])
    assert home.caloron("resume").code == 10
    assert [e["state"] for e in home.escalations()] == ["closed", "open"]

    home.script(writes("a"), *others)
    release(home, home.escalations()[-1]["number"])
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert set(answer.statuses.values()) == {"Done"}
    assert set(home.files()) == {"a.txt", "b.txt", "c.txt", "free.txt"}
    assert {e["state"] for e in home.escalations()} == {"closed"}
    # Nothing was made twice.
    assert len([i for i in home.issues() if "caloron:task" in i["labels"]]) == 4
    assert len(home.pulls()) == 4


def release(home: Home, number: int) -> None:
    assert home.caloron("issue", "comment", str(number), "resolved").code == 0


def failure_notes(home: Home, item: str) -> list[str]:
    """Return the note about the previous attempt in each prompt of an item, in order."""
    runs = (home.project() / "runs" / "demo-1" / item).iterdir()
    prompts = [run / "prompt.txt" for run in sorted(runs, key=lambda run: int(run.name))]
    notes = (re.search("The last attempt at this failed: (.*)", p.read_text()) for p in prompts)
    return [note[1] if note else "" for note in notes]


def test_every_role_learns_why_its_last_attempt_failed(home: Home) -> None:
    home.script(
        does("po", attempt=1, output="lost my notes", exit_code=3),
        does("po", attempt=2, output=json.dumps([task("a"), task("c", "a", kind="check")])),
        does("implement", attempt=1, output="no space for wheels", exit_code=7),
        writes("a", attempt=2),
        does("review", round=1, output="CHANGES_NEEDED: more"),
        does("fix", attempt=1, output="a stuck key", exit_code=4),
        does("fix", attempt=2, files={"a.txt": "better\n"}),
        does("review", round=2, attempt=1, output="I cannot say"),
        does("check", attempt=1, output="a flat tyre", exit_code=5),
    )
    answer = home.sprint()
    assert answer.code == 0, answer
    assert home.escalations() == []
    assert home.files() == {"a.txt": b"better\n"}
    died = "the agent ended with exit code"
    assert failure_notes(home, "po/1-po") == [
        "",
        "the planner ended with exit code 3: lost my notes",
    ]
    assert failure_notes(home, "a/1-implement") == ["", f"{died} 7: no space for wheels"]
    assert failure_notes(home, "a/4-fix") == ["", f"{died} 4: a stuck key"]
    unclear = "no clear verdict in the review's answer: I cannot say"
    assert failure_notes(home, "a/6-review") == ["", unclear]
    assert failure_notes(home, "c/1-check") == ["", f"{died} 5: a flat tyre"]


def test_an_agent_that_is_released_on_its_own_issue_learns_why_it_was_stopped(home: Home) -> None:
    home.script(
        does("implement", "a", attempt=1, output="no network here", exit_code=7),
        does("implement", "a", attempt=2, output="no memory left", exit_code=8),
    )
    answer = home.sprint(task("a"))
    assert answer.code == 10, answer
    home.script(writes("a"))
    release(home, answer.tasks["a"]["issue_number"])
    assert home.caloron("resume").code == 0
    assert home.files() == {"a.txt": b"a\n"}
    died = "the agent ended with exit code"
    notes = failure_notes(home, "a/1-implement")
    assert notes == ["", f"{died} 7: no network here", f"{died} 8: no memory left"]


def test_damage_to_its_repository_and_its_exit_code_harm_no_work(home: Home) -> None:
    """Work before a bad exit, commits of the agent itself, and a `.git` that is deleted once."""
    own = "git add -A && git commit -q -m mine && echo more >> own.txt"
    home.script(
        writes("exit", output="Traceback: oops", exit_code=1),
        writes("own", run=own),
        writes("deletes", attempt=1, run="rm -rf .git"),
        writes("deletes", attempt=2),
    )
    answer = home.sprint(task("exit"), task("own"), task("deletes"))
    assert answer.code == 0, answer
    files = {"exit.txt": b"exit\n", "own.txt": b"own\nmore\n", "deletes.txt": b"deletes\n"}
    assert home.files() == files
    assert (home.attempts("implement", "exit"), home.attempts("implement", "deletes")) == (1, 2)
    assert b"mine" in home.git("log", "--format=%s", "main")


def test_a_framework_that_is_not_set_up_fails_only_its_task(
    home: Home,
) -> None:
    plan = json.dumps([task("a", framework="command"), task("b")])
    home.script(does("po", output=plan), writes("b"))
    answer = home.sprint()
    assert answer.code == 10, answer
    assert answer.statuses == {"a": "Escalated", "b": "Done"}
    assert "`command` has no command" in answer.tasks["a"]["why"]


#: Caloron with a rule of the sprint that fails while a change is being merged.
_DEFECT = """
from caloron.cli.start import run
from caloron.domain.rules import evaluate, workflow
real = workflow.queue.advance_merge_queue

def advance_merge_queue(turn):
    real(turn)
    if any(task.merge.merging for task in turn.state.tasks.values()):
        raise KeyError("a defect")

workflow.queue.advance_merge_queue = evaluate.advance_merge_queue = advance_merge_queue
workflow.QUEUES = tuple(
    rule._replace(do=advance_merge_queue) if rule.do is real else rule for rule in workflow.QUEUES
)
run()
"""


def test_a_rule_of_the_sprint_that_fails_pauses_the_sprint_and_nothing_is_lost(home: Home) -> None:
    upgraded = home.program
    file = home.root / "defect.py"
    file.write_text(_DEFECT)
    home.program = (sys.executable, str(file))
    home.script(writes("a"), writes("b"))
    paused = home.sprint(task("a"), task("b", "a"))
    reason = "internal error in rule advance_merge_queue: KeyError('a defect')"
    for answer in (paused, home.caloron("resume")):
        assert answer.error["code"] == "STOPPED", answer
        assert reason in answer.error["message"]
        assert "caloron resume demo-1" in answer.error["hint"]
    assert home.files() == {}
    assert reason in home.caloron("why").stdout
    log = (home.project() / "logs" / "caloron.log").read_text().splitlines()
    record = next(entry for entry in map(json.loads, log) if "rule" in entry)
    assert (record["level"], record["rule"]) == ("error", "advance_merge_queue")
    assert "in advance_merge_queue" in record["traceback"]
    home.program = upgraded
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}
    assert len(home.pulls()) == 2
