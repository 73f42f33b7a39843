"""From a review to main: trains of several changes, and mains that move at the wrong moment."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.support import blind_forge
from tests.support.home import Gate, Home, does, task, writes
from tests.support.wait import wait_for

AT_MOST_ONE_PART = "test $(ls parts 2>/dev/null | wc -l) -le 1"


def push(home: Home, name: str, text: str) -> None:
    """A person pushes a file to main."""
    clone = home.root / "person"
    if not clone.exists():
        home.run_outside("git", "clone", "-q", str(home.project() / "forge.git"), str(clone),
                         cwd=home.root)  # fmt: skip
    home.run_outside("git", "pull", "-q", "origin", "main", cwd=clone)
    (clone / name).write_text(text)
    home.run_outside("git", "add", "-A", cwd=clone)
    home.run_outside("git", "commit", "-q", "-m", name, cwd=clone)
    home.run_outside("git", "push", "-q", "origin", "HEAD:main", cwd=clone)


def test_changes_that_are_ready_at_once_are_verified_together_and_the_culprit_goes_back(
    home: Home,
) -> None:
    """c and d are green alone and red together; b, c and d are ready while a is verified."""
    names = "abcd"
    written, read = ({n: home.gate(f"{step}-{n}") for n in names} for step in ("write", "read"))
    verify = home.gate("verify")
    together = "if [ -e parts/c ] && [ -e parts/d ]; then echo c and d; exit 1; fi"
    home.set(verify=f"if [ -e slow.txt ]; then {verify.line}; fi; {together}")
    home.script(
        *(writes(n, {f"parts/{n}": f"{n}\n"}, run=written[n].line) for n in names),
        *(does("review", n, round=1, run=read[n].line, output="APPROVED") for n in names),
        does("fix", "d", match="c and d", run="mv parts/d parts/d2", output="done"),
    )
    running = home.start_sprint(*(task(n) for n in names), options=("--parallel", "8"))
    for name in names:
        written[name].open()
        read[name].wait_for_agent()
    push(home, "slow.txt", "slow\n")
    read["a"].open()
    verify.wait_for_agent()
    _approve(home, [read[name] for name in "bcd"])
    why = wait_for(lambda: _why(home, "b", "approved: waiting"), "b waits")
    assert why == "approved: waiting for its turn to merge"
    verify.open()
    answer = running.wait()
    assert answer.code == 0, answer
    assert set(home.files()) == {"slow.txt", "parts/a", "parts/b", "parts/c", "parts/d2"}
    again = [run for run in home.verify_runs() if not run[1].startswith("2-")]
    # a on the moved main; then b, c and d as a train (red, so twice), b, c; and d after its fix.
    assert [name for name, _ in again] == ["a", "b", "b", "b", "c", "d"]
    fixes = [move for move in home.events("task_moved") if "merged result failed" in move["reason"]]
    assert [(move["task"], move["reason"]) for move in fixes] == [
        ("d", "verification of the merged result failed: c and d")
    ]
    assert home.attempts("fix") == 1
    assert _never_red(home, "parts/c", "parts/d")


def _approve(home: Home, gates: list[Gate]) -> None:
    for gate in gates:
        gate.open()
    by_task = {pull["task"]: pull["number"] for pull in home.pulls()}
    for name in [gate.name[-1] for gate in gates]:
        wait_for(partial(home.reviews, by_task[name]), f"{name} is approved")


def _why(home: Home, name: str, words: str) -> str:
    line = str(home.caloron("why", name).data["tasks"][0]["why"])
    return line if words in line else ""


def _never_red(home: Home, *together: str) -> bool:
    """True if no commit on the line of main has all these files."""
    for commit in home.git("rev-list", "--first-parent", "main").decode().split():
        names = home.git("ls-tree", "-r", "--name-only", commit).decode().split()
        if set(together) <= set(names):
            return False
    return True


@pytest.fixture
def blind(home: Home) -> Home:
    """A person's commit comes onto main between the check and the merge of task a."""
    home.program = (sys.executable, str(Path(blind_forge.__file__)))
    return home


def test_a_merge_that_turned_main_red_is_reverted_and_comes_back_fixed(blind: Home) -> None:
    blind.set(verify=f"{AT_MOST_ONE_PART} || {{ echo too many parts; exit 1; }}").script(
        writes("a", {"parts/a": "a\n"}),
        does("fix", match="too many parts", run="cat parts/* > both; rm parts/*; mv both parts/",
             output="done"),
    )  # fmt: skip
    answer = blind.sprint(task("a"), task("b", "a"))
    assert answer.code == 0, answer
    files = blind.files()
    assert files["parts/both"] == b"a\ntheirs\n", "the fix began with the change brought back"
    pulls = blind.pulls()
    titles = [pull["title"] for pull in pulls]
    assert {pull["state"] for pull in pulls} == {"merged"}
    first = next(pull["number"] for pull in pulls if pull["title"] == "[a] Task a")
    assert titles.count("[a] Task a") == 2
    assert titles.count(f"Revert #{first}: [a] Task a") == 1
    (issue,) = [i for i in blind.issues() if i["task"] == "a"]
    assert issue["state"] == "closed"
    subjects = blind.git("log", "--first-parent", "--format=%s", "main").decode().splitlines()
    assert sum("Revert [a]" in subject for subject in subjects) == 1


def test_a_merge_that_cannot_be_reverted_needs_a_person_and_blocks_other_merges(
    blind: Home,
) -> None:
    """A person changes the same file while main is verified again: the revert would conflict."""
    gate, read = blind.gate("verify"), {n: blind.gate(f"read-{n}") for n in "ab"}
    theirs = "if [ -e parts/theirs ] && [ ! -e fixed.txt ]"
    blind.set(verify=f"{theirs}; then {gate.line}; echo red; exit 1; fi")
    blind.script(
        writes("a", {"parts/a": "a\n"}),
        writes("b"),
        *(does("review", n, round=1, run=read[n].line, output="APPROVED") for n in "ab"),
    )
    running = blind.start_sprint(task("a"), task("b"))
    for name in "ab":
        read[name].wait_for_agent()
    read["a"].open()
    gate.wait_for_agent()
    push(blind, "parts/a", "a and more\n")
    read["b"].open()
    gate.open()
    answer = running.wait()
    assert answer.code == 10, answer
    assert answer.statuses["a"] == "Escalated"
    assert "cannot be taken out" in answer.tasks["a"]["why"]
    assert answer.statuses["b"] == "InReview"
    assert "b.txt" not in blind.files()
    push(blind, "fixed.txt", "fixed\n")
    (escalation,) = blind.escalations()
    comment = blind.caloron("issue", "comment", str(escalation["number"]), "resolved")
    assert comment.code == 0, comment
    answer = blind.caloron("resume")
    assert answer.code == 0, answer
    assert set(answer.statuses.values()) == {"Done"}


SUMMARY = """I wrote a lot before this.

## Summary
Adds the greeting. Assumed: English. Tested by hand; see #1, thanks @ada.
"""


def _described(home: Home, style: str) -> str:
    """Run a sprint of one task, whose change takes a fix round; return the body of its request."""
    home.set(verify="ls a.txt && echo 7 passed", merge_style=style)
    home.script(
        writes("a", {"a.txt": "a\n"}, output=SUMMARY),
        does("review", round=1, output="[ ] 1: no comma\n[x] 2: a.txt\nCHANGES_NEEDED: a comma"),
        does("fix", run="echo hello, >> a.txt; git commit -qam 'Add a comma'", output="A comma."),
        does("review", round=2, output="- [x] 1: there is one\n\n[x] #2 a.txt\n\nAPPROVED"),
    )
    answer = home.sprint(task("a", acceptance=["it has a comma", "it is a file"]))
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\nhello,\n"}
    (pull,) = home.pulls()
    assert pull["state"] == "merged"
    return str(home.caloron("pr", "show", str(pull["number"])).data["body"])


def _messages(home: Home) -> list[str]:
    """The messages of the commits that the sprint put on the first-parent line of main."""
    log = home.git("log", "--first-parent", "--format=%B%x00", "main").decode().split("\0")
    return [message.strip() for message in log][:-2]


def test_a_change_explains_itself_in_its_pull_request_the_report_and_the_merge_commit(
    home: Home,
) -> None:
    body = _described(home, "merge")
    assert "### Summary\n\nAdds the greeting. Assumed: English." in body
    assert "**Later round 1:** A comma." in body
    assert "I wrote a lot" not in body
    assert "- [x] it has a comma (there is one)\n- [x] it is a file (a.txt)\n" in body
    assert "`ls a.txt && echo 7 passed`: green, 7 passed (commit " in body
    assert "@ada" not in body
    (message,) = _messages(home)
    assert message.startswith("Merge [a] Task a\n\nAdds the greeting.")
    for words in ("A comma.", "[x] it has a comma (there is one)", "7 passed"):
        assert words in message
    # Main is pushed to other forges, where these numbers mean something else.
    everything = home.git("log", "--format=%B", "main").decode()
    assert not re.search(r"#\d", everything)
    author = "Co-authored-by: caloron-agent-a <caloron-agent-a@localhost>"
    assert message.endswith(f"\nTask: a\nAgent: caloron-agent-a\n{author}")
    # The agent's own commit, the one made of what it left, and the merge.
    assert everything.count(author) == 3
    (row,) = home.caloron("report").data["tasks"]
    assert row["summaries"][0].startswith("Adds the greeting.")
    assert [(c["text"], c["met"], c["reason"]) for c in row["criteria"]] == [
        ("it has a comma", True, "there is one"),
        ("it is a file", True, "a.txt"),
    ]
    assert (row["verification"], row["verify_summary"]) == ("green", "7 passed")
    page = home.caloron("report", "--format", "md").data["page"]
    assert "Adds the greeting." in page
    assert "it has a comma" in page


def test_a_squash_puts_one_commit_of_the_user_on_main(home: Home) -> None:
    _described(home, "squash")
    (message,) = _messages(home)
    assert message.startswith("Task a\n\nAdds the greeting.")
    shown = home.git("log", "-1", "--format=%P %an %cn", "main").decode().split()
    assert (len(shown), shown[1:]) == (3, ["Ada", "Caloron"])
    assert home.caloron("pr", "diff", str(home.pulls()[0]["number"])).data["diff"]


def test_a_rebase_puts_the_commits_of_the_agent_on_a_main_that_moved(home: Home) -> None:
    reviewer = home.gate("review")
    home.set(merge_style="rebase")
    home.script(
        writes("a", run="git add -A; git commit -qm One; echo 2 > b.txt", output="Two commits."),
        does("review", run=reviewer.line, output="APPROVED"),
    )
    running = home.start_sprint(task("a"))
    reviewer.wait_for_agent()
    push(home, "mine.txt", "mine\n")
    reviewer.open()
    assert running.wait().code == 0
    last, first, mine = _messages(home)
    assert (first.splitlines()[0], last.splitlines()[0], mine) == ("One", "Task a", "mine.txt")
    assert home.git("rev-list", "--merges", "main") == b""
    assert set(home.files()) == {"a.txt", "b.txt", "mine.txt"}
    (pull,) = home.pulls()
    assert pull["state"] == "merged"


def test_a_squash_that_was_killed_after_its_push_to_main_is_made_once(home: Home) -> None:
    """Main does not contain the branch afterwards, so only the journal knows of the merge."""
    home.set(merge_style="squash").script(writes("a"))
    once = home.root / "once"
    at = f"engine|forge.merge.before_commit|1|{once}"
    arguments = ("sprint", "make it so", "--yes", "--plan", str(home.plan(task("a"))))
    home.caloron(*arguments, CALORON_CRASH_AT=at)
    assert once.exists()
    (pull,) = home.pulls()
    assert (pull["state"], home.files()) == ("open", {"a.txt": b"a\n"})
    assert home.caloron("resume").code == 0
    (message,) = _messages(home)
    assert message.startswith("Task a\n")
    assert home.pulls()[0]["state"] == "merged"
    assert [issue["state"] for issue in home.issues()] == ["closed"]
