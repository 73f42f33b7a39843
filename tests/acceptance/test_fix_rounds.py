"""Fix and resolve rounds of agents that misbehave as real ones do: the task's work stays."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.home import Answer, Home, does, task, writes

REJECTED = "CHANGES_NEEDED: say more"
FAILS: dict[str, dict[str, Any]] = {
    "exits 1": {"output": "Traceback: overloaded", "exit_code": 1},
    "exits 0": {"output": "I see nothing to change"},
    "says nothing": {},
    "looks at main": {"run": "git checkout -q main"},
    "pulls main": {"run": "git merge -q --ff-only origin/main || git checkout -q origin/main"},
    "leaves a branch of main": {
        "run": "git checkout -q -b try origin/main && git commit -q --allow-empty -m try"
        " && git checkout -q -"
    },
}


def fixed_after_another_merge(home: Home, *fixes: dict[str, Any]) -> Answer:
    """Run `a` and `b`: `a` is rejected, and `b` is merged before `a` is fixed."""
    reading = home.gate("reading")
    home.script(
        writes("a"),
        writes("b"),
        does("review", "a", round=1, run=reading.line, output=REJECTED),
        *fixes,
    )
    running = home.start_sprint(task("a"), task("b"))
    home.wait_for_status("b", "Done")
    reading.open()
    return running.wait()


@pytest.mark.parametrize("kind", FAILS)
def test_a_fix_round_without_a_change_never_takes_the_work_back(home: Home, kind: str) -> None:
    answer = fixed_after_another_merge(home, does("fix", "a", **FAILS[kind]))
    assert answer.statuses == {"a": "Escalated", "b": "Done"}
    assert home.files() == {"b.txt": b"b\n"}
    (pull,) = home.pulls("open")
    assert home.git("show", f"{pull['branch']}:a.txt") == b"a\n"


def test_a_fixer_that_fails_is_tried_again_with_the_work_still_there(home: Home) -> None:
    answer = fixed_after_another_merge(
        home,
        does("fix", "a", attempt=1, output="overloaded", exit_code=1),
        does("fix", "a", match="exit code 1: overloaded", run="echo more >> a.txt"),
    )
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\nmore\n", "b.txt": b"b\n"}


@pytest.mark.parametrize("branch", ["main", "-b aside origin/main"])
def test_a_fix_committed_on_a_branch_of_main_is_added_to_the_change(
    home: Home, branch: str
) -> None:
    away = f"git checkout -q {branch} && echo more > note.txt && git add note.txt"
    fix = does("fix", "a", run=f"{away} && git commit -q -m fixed && git checkout -q -")
    answer = fixed_after_another_merge(home, fix)
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n", "note.txt": b"more\n"}


def test_a_fix_that_leaves_nothing_of_the_change_is_never_merged(home: Home) -> None:
    """A reviewer who approves whatever it is shown is no reason to lose the task's work."""
    empties = does("fix", "a", run="git rm -q a.txt; git commit -q -m 'take it back'")
    answer = fixed_after_another_merge(home, empties)
    assert answer.statuses == {"a": "Escalated", "b": "Done"}
    assert "leaves nothing of the change" in answer.tasks["a"]["why"]


def test_a_failure_that_is_not_the_changes_is_verified_again_when_the_fix_changes_nothing(
    home: Home,
) -> None:
    """A flaky test: red twice, and the fixer rightly finds nothing to change."""
    fixing = home.gate("fixing")
    passes = fixing.folder / "fixing-open"
    home.set(
        verify=f"test ! -e a.txt || test -e {passes} || {{ echo test_timing failed; exit 1; }}"
    )
    home.script(writes("a"), does("fix", "a", run=fixing.line, output="fine\nAPPROVED"))
    running = home.start_sprint(task("a"))
    fixing.wait_for_agent()
    fixing.open()
    answer = running.wait()
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n"}
    assert home.attempts("fix") == 1


def test_a_red_result_that_no_fix_changes_is_escalated_with_what_was_red(home: Home) -> None:
    home.set(verify="test ! -e a.txt || { echo test_timing failed; exit 1; }")
    home.script(writes("a"), does("fix", "a", output="fine\nAPPROVED"))
    answer = home.sprint(task("a"))
    assert answer.statuses == {"a": "Escalated"}, answer
    why = answer.tasks["a"]["why"]
    assert "test_timing failed" in why
    assert "the fix round changed nothing" in why
    assert "APPROVED" not in why
    assert home.attempts("fix") == 1
