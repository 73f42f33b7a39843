"""Nothing is merged, and nothing counts as done, without a clear yes."""

from __future__ import annotations

from tests.support.home import Home, does, task, writes
from tests.support.wait import wait_for


def release(home: Home, name: str) -> None:
    """Comment `resolved` as a person, because the cause is gone."""
    number = next(issue["number"] for issue in home.issues() if issue["task"] == name)
    assert home.caloron("issue", "comment", str(number), "resolved").code == 0


def test_a_rejected_change_is_fixed_with_the_whole_review_and_reviewed_again(
    home: Home,
) -> None:
    home.script(
        writes("a"),
        does("review", round=1, output="Line 3 has no greeting.\nCHANGES_NEEDED: say hello"),
        does("fix", "a", round=1, match="Line 3 has no greeting", files={"a.txt": "hello\n"}),
        does("review", round=2, match="+hello", output="Good.\nAPPROVED"),
        default="?",
    )
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert answer.tasks["a"]["review_rounds"] == 2
    assert home.files() == {"a.txt": b"hello\n"}
    (pull,) = home.pulls()
    assert home.reviews(pull["number"]) == [
        ("changes_requested", "CHANGES_NEEDED: say hello"),
        ("approved", "APPROVED"),
    ]
    shown = home.caloron("pr", "show", str(pull["number"]))
    assert "Line 3 has no greeting." in shown.stdout


def test_only_the_exact_word_on_the_last_line_of_a_reviewer_that_ends_well_approves(
    home: Home,
) -> None:
    """An unclear verdict is requested once more, then a person releases or approves."""
    answers = {
        "goes-on": "APPROVED\nbut please change the name",
        "lower-case": "approved",
        "full-stop": "APPROVED.",
        "in-a-sentence": "I think this is APPROVED",
        "no-reason": "CHANGES_NEEDED",
        "empty-reason": "not APPROVED\nCHANGES_NEEDED:",
    }
    line = 'echo "asked: $CALORON_ROUND $CALORON_ATTEMPT"'
    home.script(
        *(does("review", name, output=words) for name, words in answers.items()),
        does("review", "crashes", output="APPROVED", exit_code=3),
        does("review", "unclear", run=line, output="hmm, dunno"),
        does("review", "clear-later", round=1, attempt=1, output=""),
        *(writes(name) for name in (*answers, "crashes", "unclear", "clear-later")),
    )
    names = (*answers, "crashes", "unclear", "clear-later")
    answer = home.sprint(*(task(name) for name in names))
    assert answer.code == 10, answer
    assert answer.statuses == dict.fromkeys(names, "Escalated") | {"clear-later": "Done"}
    assert home.files() == {"clear-later.txt": b"clear-later\n"}
    assert "exit code 3" in answer.tasks["crashes"]["why"]
    assert "no clear verdict" in answer.tasks["unclear"]["why"]
    assert "hmm, dunno" in answer.tasks["unclear"]["why"]
    assert home.printed("asked: ") == ["1 1", "1 2"]

    home.script()
    release(home, "unclear")
    number = next(p["number"] for p in home.pulls("open") if p["task"] == "full-stop")
    assert home.caloron("pr", "review", str(number), "--approve").code == 0
    answer = home.caloron("resume")
    done = {"clear-later", "unclear", "full-stop"}
    assert {name for name, status in answer.statuses.items() if status == "Done"} == done
    assert answer.tasks["unclear"]["review_rounds"] == 1
    assert home.files().keys() == {f"{name}.txt" for name in done}


def test_after_three_fix_rounds_a_person_decides_and_a_release_restarts_the_rounds(
    home: Home,
) -> None:
    fixes = does("fix", run="echo more >> a.txt")
    home.script(writes("a"), does("review", output="CHANGES_NEEDED: still bad"), fixes)
    answer = home.sprint(task("a"))
    assert answer.code == 10, answer
    assert answer.json["error"]["code"] == "TASKS_NOT_DONE"
    assert answer.statuses == {"a": "Escalated"}
    assert "not approved after 3 fix rounds: still bad" in answer.tasks["a"]["why"]
    (pull,) = home.pulls()
    assert pull["state"] == "open"
    # The work of every round is there, the last fix included, and each was reviewed.
    assert home.git("show", f"{pull['head']}:a.txt") == b"a\nmore\nmore\nmore\n"
    assert len(home.reviews(pull["number"])) == 4

    # After the release another fix runs at once, and then a new review.
    home.script(does("review", round=[5, 6], output="CHANGES_NEEDED: nearly"), fixes)
    release(home, "a")
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert answer.tasks["a"]["review_rounds"] == 7
    assert home.files()["a.txt"].count(b"more") == 6
    assert len(home.escalations()) == 1


def test_an_empty_change_is_done_if_a_reviewer_agrees_and_goes_back_to_work_if_not(
    home: Home,
) -> None:
    home.script(
        does("implement", output="It is there already."),
        does("review", "a", match="no file is changed", output="Right.\nAPPROVED"),
        does("review", "b", match="no file is changed", output="CHANGES_NEEDED: it is missing"),
        does("fix", "b", match="it is missing", files={"b.txt": "b\n"}),
        does("review", "b", round=2, output="APPROVED"),
        default="?",
    )
    answer = home.sprint(task("a"), task("b", "a"))
    assert answer.code == 0, answer
    assert answer.tasks["a"]["reason"] == "nothing to do"
    assert home.files() == {"b.txt": b"b\n"}
    assert [pull["task"] for pull in home.pulls()] == ["b"]
    assert [i["state"] for i in home.issues()] == ["closed", "closed"]


def test_a_check_is_done_or_escalated_without_a_pull_request_and_runs_again_when_released(
    home: Home,
) -> None:
    """Files that a check or a reviewer writes into its workspace never reach main."""
    sneaky = {"sneaky.txt": "x"}
    check = does(
        "check", "inspect", run="test -f a.txt", files=sneaky, output="All there.\nAPPROVED"
    )
    others = (writes("a"), does("review", files=sneaky, output="APPROVED"), check)
    home.script(*others, does("check", "finds", output="CHANGES_NEEDED: no tests at all"))
    checks = (task("inspect", "a", kind="check"), task("finds", kind="check"))
    answer = home.sprint(task("a"), *checks, task("next", "finds", kind="check"))
    assert answer.code == 10, answer
    ends = {"a": "Done", "inspect": "Done", "finds": "Escalated", "next": "Blocked"}
    assert answer.statuses == ends
    assert home.comments(answer.tasks["inspect"]["issue_number"]) != []
    assert "no tests at all" in answer.tasks["finds"]["why"]
    assert "no tests at all" in "\n".join(home.comments(answer.tasks["finds"]["issue_number"]))

    home.script(*others)
    release(home, "finds")
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert len(home.pulls()) == 1
    assert home.files() == {"a.txt": b"a\n"}


def pull_of(home: Home, name: str) -> str:
    return str(next(pull["number"] for pull in home.pulls("open") if pull["task"] == name))


def questions(home: Home, pull: str) -> int:
    """Count the comments that ask for the approval of a person."""
    comments = home.caloron("pr", "show", pull).data["comments"]
    return sum("A person has to approve" in comment["body"] for comment in comments)


def test_nothing_reaches_main_before_a_person_approves_it_where_people_review_all(
    home: Home,
) -> None:
    home.caloron("config", "set", "require_human_review", "true")
    home.script(
        does("fix", "a", match="say hello", files={"a.txt": "hello\n"}),
        *(writes(name) for name in "abc"),
    )
    answer = home.sprint(task("a"), task("b", "a"), task("c"))
    assert answer.code == 10, answer
    assert answer.statuses == {"a": "InReview", "b": "Pending", "c": "InReview"}
    assert home.files() == {}
    assert {home.reviews(int(pull_of(home, name)))[-1][0] for name in "ac"} == {"approved"}
    a, c = pull_of(home, "a"), pull_of(home, "c")
    waiting = {item["task"]: item for item in home.data("inbox")["items"] if item["task"]}
    assert {name: item["kind"] for name, item in waiting.items()} == {"a": "review", "c": "review"}
    assert waiting["a"]["holds"] == ["b"]
    approve = f"pr review {a} --approve"
    assert any(approve in command for command in waiting["a"]["commands"])
    # A resume without an answer changes nothing, and asks nobody twice.
    assert home.caloron("resume").code == 10
    assert home.files() == {}
    assert questions(home, a) == 1

    home.caloron("pr", "review", a, "--request-changes", "say hello")
    assert home.caloron("issue", "comment", c, "caloron:approve").code == 0
    answer = home.caloron("resume")
    assert (answer.code, answer.statuses["c"]) == (10, "Done")
    assert home.files() == {"c.txt": b"c\n"}
    assert home.git("show", f"{home.pulls('open')[0]['head']}:a.txt") == b"hello\n"

    home.caloron("pr", "review", a, "--approve")
    assert home.caloron("resume").statuses == {"a": "Done", "b": "InReview", "c": "Done"}
    assert home.files() == {"a.txt": b"hello\n", "c.txt": b"c\n"}
    home.caloron("pr", "review", pull_of(home, "b"), "--approve")
    assert home.caloron("resume").code == 0
    assert home.files() == {"a.txt": b"hello\n", "b.txt": b"b\n", "c.txt": b"c\n"}


def test_a_task_asks_for_a_person_by_itself_and_its_change_is_merged_while_others_work(
    home: Home,
) -> None:
    other = home.gate("other")
    home.script(
        *(writes(name) for name in "ab"),
        does("implement", "c", run=f"{other.line}; echo c > c.txt"),
    )
    tasks = (task("a", require_human_review=True), task("b"), task("c"))
    running = home.start_sprint(*tasks)
    other.wait_for_agent()
    home.wait_for_status("b", "Done")
    wait_for(lambda: questions(home, pull_of(home, "a")), "the question")
    assert home.files() == {"b.txt": b"b\n"}
    home.caloron("pr", "review", pull_of(home, "a"), "--approve")
    home.wait_for_status("a", "Done")
    assert home.files() == {"a.txt": b"a\n", "b.txt": b"b\n"}
    other.open()
    assert running.wait().code == 0
    assert home.files().keys() == {"a.txt", "b.txt", "c.txt"}
