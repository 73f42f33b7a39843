"""Whole sprints: a goal goes in, merged code comes out."""

from __future__ import annotations

import json

from tests.acceptance.checkouts import from_repository
from tests.support.home import Home, does, task, writes


def _diamond() -> list[dict[str, object]]:
    return [task("a"), task("b", "a"), task("c", "a"), task("d", "b", "c")]


def test_a_diamond_of_tasks_planned_by_the_planner_ends_merged_in_the_order_of_its_dependencies(
    home: Home,
) -> None:
    needs = {"b": "test -f a.txt", "c": "test -f a.txt", "d": "test -f b.txt && test -f c.txt"}
    home.script(
        does("po", output=f"Here is the plan:\n{json.dumps(_diamond())}\nGood luck!"),
        *(writes(name, run=needs.get(name, "true"), output="done") for name in "abcd"),
    )
    answer = home.sprint()
    assert answer.code == 0, answer
    assert answer.json["command"] == "sprint"
    assert answer.data["sprint_id"] == "demo-1"
    assert (answer.data["completed_tasks"], answer.data["total_tasks"]) == (4, 4)
    assert set(answer.statuses.values()) == {"Done"}
    assert home.files() == {f"{name}.txt": f"{name}\n".encode() for name in "abcd"}

    issues = {issue["task"]: issue for issue in home.issues()}
    assert {i["state"] for i in issues.values()} == {"closed"}
    assert all({"caloron:task", "caloron:done"} <= set(i["labels"]) for i in issues.values())
    pulls = {pull["task"]: pull for pull in home.pulls()}
    assert {p["state"] for p in pulls.values()} == {"merged"}
    assert all(pulls[name]["closes"] == [issues[name]["number"]] for name in "abcd")
    assert {p["branch"] for p in pulls.values()} == {f"agent/{n}/demo-1" for n in "abcd"}
    assert home.reviews(pulls["a"]["number"]) == [("approved", "APPROVED")]
    assert home.comments(issues["a"]["number"])[-1].startswith("Completed via PR #")


def test_plain_output_lists_the_progress_and_the_command_for_the_result(home: Home) -> None:
    home.script(writes("a"))
    plan = home.plan(task("a"))
    answer = home.caloron("sprint", "make a", "--plan", str(plan), json=False)
    assert answer.code == 0, answer
    assert "a: Ready → InProgress" in answer.stdout
    assert "a: InReview → Done  (merged as pull request #2)" in answer.stdout
    assert f"git clone {home.project() / 'forge.git'}" in answer.stdout


def test_parallel_tasks_in_conflict_are_resolved_so_that_main_holds_both_sides(home: Home) -> None:
    # Both are read before either is merged.
    both, reading = home.gate("both"), home.gate("reading")
    home.script(
        *(writes(n, {"list.txt": f"{n}\n", f"{n}.txt": n}, run=both.line) for n in "ab"),
        does("resolve", files={"list.txt": "a\nb\n"}, output="kept both"),
        does("review", run=reading.line, output="APPROVED"),
    )
    running = home.start_sprint(task("a"), task("b"))
    both.wait_for_agent(2)
    both.open()
    reading.wait_for_agent(2)
    reading.open()
    answer = running.wait()
    assert answer.code == 0, answer
    assert home.files() == {"list.txt": b"a\nb\n", "a.txt": b"a", "b.txt": b"b"}
    # The conflict makes a new head, and a new head is reviewed again.
    assert sorted(len(home.reviews(p["number"])) for p in home.pulls()) == [1, 2]
    reasons = [move["reason"] for move in home.events("task_moved")]
    assert reasons.count("conflict with main in list.txt") == 1


def test_a_resolve_round_that_does_not_merge_main_is_a_failure_and_not_a_loop(home: Home) -> None:
    """One agent leaves conflict markers, the other agent throws the merge away."""
    both = home.gate("both")
    pairs = {"a": "marked", "b": "marked", "c": "aborted", "d": "aborted"}
    abort = "git reset -q --hard; date +%N >> aborted.txt"
    home.script(
        *(writes(n, {f"{file}.txt": f"{n}\n"}, run=both.line) for n, file in pairs.items()),
        *(does("resolve", n, output="I changed nothing") for n in "ab"),
        *(does("resolve", n, run=abort) for n in "cd"),
    )
    running = home.start_sprint(*(task(n) for n in pairs), options=("--parallel", "4"))
    both.wait_for_agent(4)
    both.open()
    answer = running.wait()
    assert answer.code == 10, answer
    failed = {pairs[n]: t["why"] for n, t in answer.tasks.items() if t["status"] == "Escalated"}
    assert list(answer.statuses.values()).count("Done") == 2
    assert "conflict markers are left in marked.txt" in failed["marked"]
    assert "did not merge main in" in failed["aborted"]
    assert b"<<<<" not in home.files()["marked.txt"]


def test_the_verify_log_reaches_the_reviewer_and_the_fixing_agent(home: Home) -> None:
    home.set(verify="echo checked by verify; test -f good.txt")
    home.script(
        writes("a"),
        does("fix", match="checked by verify", files={"good.txt": "yes"}),
        does("review", match="checked by verify", output="APPROVED"),
        default="I have not seen the log",
    )
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert home.files()["good.txt"] == b"yes"


def test_a_verification_that_fails_once_is_run_again_in_a_clean_checkout_of_the_result(
    home: Home,
) -> None:
    """Ignored files of an agent's workspace are not in the checkout."""
    clean = "test ! -e junk.log && test -f a.txt && test -f README.md"
    home.set(verify=f'test "$CALORON_ATTEMPT" -gt 1 && {clean}')
    home.script(writes("a", {".gitignore": "*.log\n", "junk.log": "x", "a.txt": "a"}))
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert home.files() == {".gitignore": b"*.log\n", "a.txt": b"a"}
    assert answer.tasks["a"]["review_rounds"] == 1
    assert home.comments(answer.tasks["a"]["issue_number"])[-1].startswith("Completed via PR #")


def test_a_verification_that_never_ends_is_red(home: Home) -> None:
    home.set(verify=f": {home.root}/; sleep 600", verify_timeout_s=0.5)
    home.set(max_fix_rounds=0)
    home.script(writes("a"))
    answer = home.sprint(task("a"))
    assert answer.code == 10, answer
    assert home.attempts("verify", "a") == 2
    assert home.processes() == []
    assert home.files() == {}


def test_the_environment_of_an_agent_names_its_role_and_task(home: Home) -> None:
    names = ("ROLE", "TASK_ID", "SPRINT_ID", "AGENT_ID", "ATTEMPT", "ROUND")
    line = f'echo "environment: {" ".join(f"$CALORON_{name}" for name in names)}"'
    home.script(
        does("po", run=line, output=json.dumps([task("a"), task("inspect", "a", kind="check")])),
        writes("a", run=line),
        does("review", round=1, run=line, output="CHANGES_NEEDED: more"),
        does("review", round=2, attempt=1, run=line, output="hm"),
        does("review", round=2, attempt=2, run=line, output="APPROVED"),
        does("fix", run=f"{line}; echo more >> a.txt"),
        does("check", run=line, output="APPROVED"),
    )
    answer = home.sprint()
    assert answer.code == 0, answer
    po, *others = home.printed("environment: ")
    assert po == "po  demo-1 planner-1 1 1"
    assert others == [
        "implement a demo-1 a 1 1",
        "review a demo-1 reviewer-1 1 1",
        "fix a demo-1 a 1 1",
        "review a demo-1 reviewer-1 1 2",
        "review a demo-1 reviewer-1 2 2",
        "check inspect demo-1 inspect 1 1",
    ]


def test_a_second_sprint_gets_the_next_number_and_leaves_the_first_ones_objects_alone(
    home: Home,
) -> None:
    """A task of the same id has another branch and another issue."""
    home.script(writes("a", run="date +%s%N > stamp.txt"), writes("b"))
    assert home.sprint(task("a")).code == 0
    before = home.issues(), home.pulls()
    assert home.comments(1)

    answer = home.sprint(task("a"), task("b"))
    assert answer.code == 0, answer
    assert answer.data["sprint_id"] == "demo-2"
    assert answer.statuses == {"a": "Done", "b": "Done"}
    assert home.files().keys() == {"a.txt", "b.txt", "stamp.txt"}
    branches = {pull["branch"] for pull in home.pulls() if pull["task"] == "a"}
    assert branches == {"agent/a/demo-1", "agent/a/demo-2"}
    assert [i for i in home.issues() if i["sprint_id"] == "demo-1"] == before[0]
    assert [p for p in home.pulls() if p["sprint_id"] == "demo-1"] == before[1]
    history = json.loads((home.project() / "sprints.json").read_bytes())["sprints"]
    assert [(s["sprint_id"], s["exit_code"], s["completed_tasks"]) for s in history] == [
        (1, 0, 1),
        (2, 0, 2),
    ]
    assert {p.name for p in (home.path / "kv").iterdir()} == {"demo-1.json", "demo-2.json"}


def test_a_project_made_from_a_repository_builds_on_its_main(bare_home: Home) -> None:
    home = from_repository(bare_home, {"old.txt": "old\n"})
    home.script(writes("a", run="cat old.txt >> a.txt"))
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert home.files() == {"old.txt": b"old\n", "a.txt": b"a\nold\n"}
    assert not (home.root / "source" / "a.txt").exists()
