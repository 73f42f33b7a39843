"""Nothing is merged, and nothing counts as done, without a clear yes."""

from __future__ import annotations

from tests.support.home import Home, does, task, writes


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
