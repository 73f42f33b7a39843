"""Fix and resolve rounds of agents that misbehave as real ones do: the task's work stays."""

from __future__ import annotations

from typing import Any

from tests.support.home import Home, does, task, writes

REJECTED = "CHANGES_NEEDED: say more"
#: Fix rounds that change nothing.
IDLE: dict[str, dict[str, Any]] = {
    "fails": {"output": "Traceback: overloaded", "exit_code": 1},
    "talks": {"output": "I see nothing to change"},
    "silent": {},
    "looks-at-main": {"run": "git checkout -q main"},
    "pulls-main": {"run": "git merge -q --ff-only origin/main || git checkout -q origin/main"},
    "branches": {
        "run": "git checkout -q -b try origin/main && git commit -q --allow-empty -m try"
        " && git checkout -q -"
    },
}
#: Where an agent commits its fix, instead of on its branch.
ELSEWHERE = {"on-main": "main", "aside": "-b aside origin/main"}


def commits(name: str, branch: str) -> str:
    away = f"git checkout -q {branch} && echo more > {name}.md && git add {name}.md"
    return f"{away} && git commit -q -m fixed && git checkout -q -"


def test_no_fix_round_takes_the_work_back_and_a_fix_anywhere_is_added_to_it(home: Home) -> None:
    """All changes are rejected, and another change is merged before they are fixed."""
    reading = home.gate("reading")
    changes = [*IDLE, *ELSEWHERE, "again", "empties"]
    home.script(
        *(writes(name) for name in (*changes, "other")),
        does("review", "other", output="APPROVED"),
        does("review", round=1, run=reading.line, output=REJECTED),
        *(does("fix", name, **what) for name, what in IDLE.items()),
        *(does("fix", name, run=commits(name, branch)) for name, branch in ELSEWHERE.items()),
        does("fix", "again", attempt=1, output="overloaded", exit_code=1),
        does("fix", "again", match="exit code 1: overloaded", run="echo more >> again.txt"),
        # A reviewer that approves everything is no reason to lose the work.
        does("fix", "empties", run="git rm -q empties.txt; git commit -q -m 'take it back'"),
    )
    tasks = [task(name) for name in (*changes, "other")]
    running = home.start_sprint(*tasks, options=("--parallel", str(len(tasks))))
    home.wait_for_status("other", "Done")
    reading.open()
    answer = running.wait()
    done = {*ELSEWHERE, "again", "other"}
    escalated = {*IDLE, "empties"}
    assert answer.statuses == dict.fromkeys(done, "Done") | dict.fromkeys(escalated, "Escalated")
    own = {f"{name}.txt": f"{name}\n".encode() for name in done}
    fixes = {f"{name}.md": b"more\n" for name in ELSEWHERE}
    assert home.files() == own | fixes | {"again.txt": b"again\nmore\n"}
    branches = {pull["task"]: pull["branch"] for pull in home.pulls("open")}
    for name in IDLE:
        assert home.git("show", f"{branches[name]}:{name}.txt") == f"{name}\n".encode()
    assert "leaves nothing of the change" in answer.tasks["empties"]["why"]


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
