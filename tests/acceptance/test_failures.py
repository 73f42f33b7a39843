"""Agents that fail: one more attempt, then a person; dependents wait and come back."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys

import pytest

from caloron.agents.supervise.processes import children
from tests.support.home import Home, does, task, writes
from tests.support.wait import process_lives


def test_a_failed_task_holds_its_dependents_until_a_person_releases_it(home: Home) -> None:
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

    home.script(writes("a"), *others)
    number = str(escalation["number"])
    assert home.caloron("issue", "comment", number, "resolved").code == 0
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert set(answer.statuses.values()) == {"Done"}
    assert set(home.files()) == {"a.txt", "b.txt", "c.txt", "free.txt"}
    assert [e["state"] for e in home.escalations()] == ["closed"]
    # Nothing was made twice.
    assert len([i for i in home.issues() if "caloron:task" in i["labels"]]) == 4
    assert len(home.pulls()) == 4


def test_resolved_on_the_tasks_own_issue_releases_it_too(home: Home) -> None:
    home.script(does("implement", exit_code=1))
    answer = home.sprint(task("a"))
    assert answer.code == 10, answer
    home.script(writes("a"))
    number = str(answer.tasks["a"]["issue_number"])
    assert home.caloron("issue", "comment", number, "resolved").code == 0
    assert home.caloron("resume").code == 0
    assert home.files() == {"a.txt": b"a\n"}


def test_a_comment_that_only_mentions_the_word_releases_nothing(home: Home) -> None:
    home.script(does("implement", exit_code=1))
    answer = home.sprint(task("a"))
    number = str(answer.tasks["a"]["issue_number"])
    home.script(writes("a"))
    home.caloron("issue", "comment", number, "this is not resolved")
    assert home.caloron("resume").code == 10
    assert home.files() == {}


def test_a_task_that_fails_again_after_its_release_is_a_new_incident(home: Home) -> None:
    home.script(does("implement", exit_code=1))
    home.sprint(task("a"))
    (first,) = home.escalations()
    home.caloron("issue", "comment", str(first["number"]), "resolved")
    answer = home.caloron("resume")
    assert answer.code == 10, answer
    assert [e["state"] for e in home.escalations()] == ["closed", "open"]


def test_a_failure_that_does_not_repeat_is_only_one_more_attempt(home: Home) -> None:
    home.script(does("implement", attempt=1, exit_code=1), writes("a", attempt=2))
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n"}
    assert home.escalations() == []


def notes_to(home: Home, item: str) -> list[str]:
    """What each attempt at an item was told about the one before, in order."""
    runs = (home.project() / "runs" / "demo-1" / item).iterdir()
    prompts = [run / "prompt.txt" for run in sorted(runs, key=lambda run: int(run.name))]
    found = (re.search("The last attempt at this failed: (.*)", p.read_text()) for p in prompts)
    return [note[1] if note else "" for note in found]


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
    assert home.files() == {"a.txt": b"better\n"}
    died = "the agent ended with exit code"
    assert notes_to(home, "po/1-po") == ["", "the planner ended with exit code 3: lost my notes"]
    assert notes_to(home, "a/1-implement") == ["", f"{died} 7: no space for wheels"]
    assert notes_to(home, "a/4-fix") == ["", f"{died} 4: a stuck key"]
    unclear = "no clear verdict in the review's answer: I cannot say"
    assert notes_to(home, "a/6-review") == ["", unclear]
    assert notes_to(home, "c/1-check") == ["", f"{died} 5: a flat tyre"]


def test_an_agent_released_by_a_person_learns_why_it_was_stopped(home: Home) -> None:
    home.script(
        does("implement", "a", attempt=1, output="no network here", exit_code=7),
        does("implement", "a", attempt=2, output="no memory left", exit_code=8),
    )
    answer = home.sprint(task("a"))
    assert answer.code == 10, answer
    home.script(writes("a"))
    number = str(answer.tasks["a"]["issue_number"])
    assert home.caloron("issue", "comment", number, "resolved").code == 0
    assert home.caloron("resume").code == 0
    died = "the agent ended with exit code"
    notes = notes_to(home, "a/1-implement")
    assert notes == ["", f"{died} 7: no network here", f"{died} 8: no memory left"]


def test_good_work_before_a_bad_exit_goes_on_to_review(home: Home) -> None:
    home.script(writes("a", output="Traceback: oops", exit_code=1))
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n"}


def test_commits_that_the_agent_made_itself_count_like_those_made_for_it(home: Home) -> None:
    line = "git add -A && git commit -q -m mine && echo more >> a.txt"
    home.script(writes("a", run=line))
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\nmore\n"}
    assert b"mine" in home.git("log", "--format=%s", "main")


def test_an_agent_killed_by_a_signal_has_failed(home: Home) -> None:
    home.script(does("implement", run="kill -9 $PPID"))
    answer = home.sprint(task("a"))
    assert answer.code == 10, answer
    assert "exit code 137" in answer.tasks["a"]["why"]


def test_an_agent_that_kills_everything_it_can_reach_ends_nobody_but_itself(home: Home) -> None:
    """Neither its shim nor the agent of another task is there for it to kill."""
    other = home.gate("other")
    home.script(does("implement", "a", run="kill -9 -1; sleep 600"), writes("b", run=other.line))
    running = home.start_sprint(task("a"), task("b"))
    other.wait_for_agent()
    home.wait_for_status("a", "Escalated")
    other.open()
    answer = running.wait()
    assert answer.code == 10, answer
    assert answer.statuses == {"a": "Escalated", "b": "Done"}
    # Its end was seen and written down by its own shim: both attempts failed, none was lost.
    assert "exit code 137" in answer.tasks["a"]["why"]
    assert (home.attempts("implement", "a"), home.attempts("implement", "b")) == (2, 1)
    reasons = [event["reason"] for event in home.events("work_item_reopened")]
    assert reasons == ["the agent ended with exit code 137: no output"]


def test_an_agent_that_destroys_its_repository_harms_only_its_own_attempt(home: Home) -> None:
    home.script(writes("a", attempt=1, run="rm -rf .git"), writes("a", attempt=2), writes("b"))
    answer = home.sprint(task("a"), task("b"))
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}


def test_a_fix_round_that_changes_nothing_is_a_failure_and_not_a_loop(home: Home) -> None:
    rejects = does("review", output="CHANGES_NEEDED: more")
    home.script(writes("a"), rejects, does("fix", output="no"))
    answer = home.sprint(task("a"))
    assert answer.code == 10, answer
    assert "changed nothing" in answer.tasks["a"]["why"]


def test_an_agent_whose_shim_is_killed_was_interrupted_and_has_not_failed(home: Home) -> None:
    writing = home.gate("writing")
    home.script(writes("a", run=writing.line))
    running = home.start_sprint(task("a"))
    for arrival in (1, 2, 3):
        writing.wait_for_agent(arrival)
        shims = [json.loads(file.read_bytes()) for file in home.run_files("shim.json")]
        living = [shim["pid"] for shim in shims if process_lives(shim["pid"])]
        assert len(living) == 1
        os.kill(living[0], signal.SIGKILL)
    writing.wait_for_agent(4)
    writing.open()
    answer = running.wait()
    assert answer.code == 0, answer
    assert home.escalations() == []
    assert home.files() == {"a.txt": b"a\n"}


def test_a_planned_framework_that_is_not_set_up_is_the_reason_of_that_task_alone(
    home: Home,
) -> None:
    plan = json.dumps([task("a", framework="command"), task("b")])
    home.script(does("po", output=plan), writes("b"))
    answer = home.sprint()
    assert answer.code == 10, answer
    assert answer.statuses == {"a": "Escalated", "b": "Done"}
    assert "`command` has no command" in answer.tasks["a"]["why"]


@pytest.mark.parametrize("process", ["outside", "inside"])
def test_a_killed_sandbox_is_an_interruption_and_not_a_failure_of_the_agent(
    home: Home, process: str
) -> None:
    """Twice, which would be a person's concern if it counted as a failure."""
    writing = home.gate("writing")
    home.script(does("implement", "a", run=f"{writing.line}; echo a > a.txt"))
    running = home.start_sprint(task("a"))
    for attempt in (1, 2):
        writing.wait_for_agent(attempt)
        # The shim started the first of the sandbox's processes, and that one the first inside.
        outer = min(home.processes("bwrap"))
        (inner,) = children(outer)
        os.kill(outer if process == "outside" else inner, signal.SIGKILL)
    writing.wait_for_agent(3)
    writing.open()
    answer = running.wait()
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n"}
    assert home.escalations() == []


def test_a_killed_git_of_ours_is_an_interruption_and_not_a_failure_of_the_agent(
    home: Home,
) -> None:
    """The first three checkouts of workspaces die of a signal."""
    real, place = shutil.which("git"), home.root / "bin"
    place.mkdir()
    count = home.root / "killed"
    script = (
        f'#!/bin/sh\ncase " $* " in *" checkout "*) if [ "$(cat {count} | wc -c)" -lt 3 ]; then'
        f" printf x >> {count}; kill -9 $$; fi;; esac\n"
        f'exec {real} "$@"\n'
    )
    count.touch()
    (place / "git").write_text(script)
    (place / "git").chmod(0o755)
    home.environment["PATH"] = f"{place}:{home.environment['PATH']}"
    home.script(writes("a"))
    answer = home.sprint(task("a"))
    assert count.read_text() == "xxx"
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n"}


_DEFECT = """
from caloron.cli.start import run
from caloron.domain.rules import evaluate, workflow
owner = workflow.forge if hasattr(workflow.forge, "{name}") else workflow.queue
real = owner.{name}

def {name}(turn):
    real(turn)
    if {when}:
        raise KeyError("a defect")

owner.{name} = evaluate.{name} = {name}
workflow.QUEUES = tuple(
    rule._replace(do={name}) if rule.do is real else rule for rule in workflow.QUEUES
)
run()
"""


def _with_a_defect(home: Home, name: str, when: str) -> tuple[str, ...]:
    """Caloron with a rule of the sprint that fails at some moments."""
    file = home.root / "defect.py"
    file.write_text(_DEFECT.format(name=name, when=when))
    return (sys.executable, str(file))


def test_a_rule_of_the_sprint_that_fails_pauses_the_sprint_and_nothing_is_lost(home: Home) -> None:
    upgraded = home.program
    merging = "any(task.merge.merging for task in turn.state.tasks.values())"
    home.program = _with_a_defect(home, "advance_merge_queue", merging)
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


def test_a_visit_of_cron_to_a_sprint_that_a_failed_rule_paused_ends(home: Home) -> None:
    upgraded = home.program
    home.script(writes("a"))
    assert home.sprint(task("a"), options=("--begin-only",)).code == 0
    home.program = _with_a_defect(home, "bind", "True")
    versions = set()
    for _ in range(2):
        answer = home.caloron("tick")
        assert "internal error in rule bind" in answer.stdout, answer
        with home.ledger() as ledger:
            versions.add(ledger.execute("SELECT version FROM sprints").fetchone()[0])
    # A tick that comes to the same writes nothing.
    assert len(versions) == 1
    home.program = upgraded
    assert home.caloron("resume").code == 0
    assert home.files() == {"a.txt": b"a\n"}


def test_a_discard_that_a_failed_rule_stops_says_so_and_can_be_repeated(home: Home) -> None:
    upgraded = home.program
    home.script(does("implement", "a", exit_code=1))
    assert home.sprint(task("a")).code == 10
    home.program = _with_a_defect(home, "bind", "True")
    answer = home.caloron("discard", "--yes")
    assert "internal error in rule bind" in answer.error["message"], answer
    home.program = upgraded
    assert home.caloron("discard", "--yes").code == 0
    assert [issue for issue in home.issues() if issue["state"] == "open"] == []
