"""Nothing is merged, and nothing counts as done, without a clear yes."""

from __future__ import annotations

from tests.support.home import Answer, Home, does, task, writes


def test_a_rejected_change_is_fixed_and_merged_after_the_next_rounds_approval(home: Home) -> None:
    home.script(
        writes("a"),
        does("review", round=1, output="I miss a greeting.\nCHANGES_NEEDED: say hello"),
        does("fix", "a", round=1, match="say hello", files={"a.txt": "hello\n"}),
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


def test_an_unclear_verdict_is_asked_for_again_once_in_the_same_round_and_then_escalated(
    home: Home,
) -> None:
    line = 'echo "asked: $CALORON_ROUND $CALORON_ATTEMPT"'
    home.script(writes("a"), does("review", run=line, output="hmm, dunno"))
    answer = home.sprint(task("a"))
    assert answer.code == 10, answer
    assert answer.statuses == {"a": "Escalated"}
    assert "no clear verdict" in answer.tasks["a"]["why"]
    assert "hmm, dunno" in answer.tasks["a"]["why"]
    assert home.printed("asked: ") == ["1 1", "1 2"]
    assert home.files() == {}
    assert [p["state"] for p in home.pulls()] == ["open"]


def test_a_verdict_that_is_clear_the_second_time_counts(home: Home) -> None:
    home.script(
        writes("a"),
        does("review", round=1, attempt=1, output=""),
        does("review", round=1, attempt=2, output="APPROVED"),
    )
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n"}


def test_only_the_exact_word_on_the_last_line_approves(home: Home) -> None:
    answers = {
        "goes-on": "APPROVED\nbut please change the name",
        "lower-case": "approved",
        "full-stop": "APPROVED.",
        "in-a-sentence": "I think this is APPROVED",
        "no-reason": "CHANGES_NEEDED",
        "empty-reason": "not APPROVED\nCHANGES_NEEDED:",
    }
    reviews = (does("review", name, output=words) for name, words in answers.items())
    home.script(*(writes(name) for name in answers), *reviews)
    answer = home.sprint(*(task(name) for name in answers))
    assert answer.code == 10, answer
    assert answer.statuses == dict.fromkeys(answers, "Escalated")
    assert home.files() == {}


def test_a_reviewer_that_approves_and_then_crashes_has_not_approved(home: Home) -> None:
    home.script(writes("a"), does("review", output="APPROVED", exit_code=3))
    answer = home.sprint(task("a"))
    assert answer.code == 10, answer
    assert "exit code 3" in answer.tasks["a"]["why"]
    assert home.files() == {}


def test_after_three_fix_rounds_a_person_decides_and_nothing_is_merged_by_force(home: Home) -> None:
    home.script(
        writes("a"),
        does("review", output="CHANGES_NEEDED: still bad"),
        does("fix", run="echo more >> a.txt"),
    )
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
    assert len(home.escalations()) == 1


def test_a_persons_approval_of_an_escalated_change_lets_it_through(home: Home) -> None:
    home.script(writes("a"), does("review", output="no idea"))
    assert home.sprint(task("a")).code == 10
    (pull,) = home.pulls()
    assert home.caloron("pr", "review", str(pull["number"]), "--approve").code == 0
    answer = home.caloron("resume")
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n"}
    assert [e["state"] for e in home.escalations()] == ["closed"]


def test_an_empty_change_is_done_once_a_reviewer_agrees_that_there_is_nothing_to_do(
    home: Home,
) -> None:
    home.script(
        does("implement", output="It is there already."),
        does("review", match="no file is changed", output="Right.\nAPPROVED"),
        default="?",
    )
    answer = home.sprint(task("a"), task("b", "a"))
    assert answer.code == 0, answer
    assert answer.tasks["a"]["reason"] == "nothing to do"
    assert home.pulls() == []
    assert [i["state"] for i in home.issues()] == ["closed", "closed"]


def test_an_empty_change_that_the_reviewer_does_not_accept_goes_back_to_work(home: Home) -> None:
    home.script(
        does("implement", output="nothing to do"),
        does("review", match="no file is changed", output="CHANGES_NEEDED: the file is missing"),
        does("fix", match="the file is missing", files={"a.txt": "a\n"}),
    )
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n"}
    assert len(home.pulls()) == 1


def test_a_check_that_approves_is_done_without_a_pull_request(home: Home) -> None:
    home.script(
        writes("a"), does("check", "look", run="test -f a.txt", output="All there.\nAPPROVED")
    )
    answer = home.sprint(task("a"), task("look", "a", kind="check"))
    assert answer.code == 0, answer
    assert len(home.pulls()) == 1
    assert home.comments(answer.tasks["look"]["issue_number"]) != []


def test_a_check_that_finds_something_is_escalated_with_its_finding(home: Home) -> None:
    home.script(does("check", output="CHANGES_NEEDED: no tests at all"))
    answer = home.sprint(task("look", kind="check"), task("next", "look"))
    assert answer.code == 10, answer
    assert answer.statuses == {"look": "Escalated", "next": "Blocked"}
    assert "no tests at all" in answer.tasks["look"]["why"]
    assert "no tests at all" in "\n".join(home.comments(answer.tasks["look"]["issue_number"]))


def test_what_a_check_or_a_reviewer_writes_into_its_workspace_never_reaches_main(
    home: Home,
) -> None:
    home.script(
        writes("a"),
        does("review", files={"sneaky.txt": "x"}, output="APPROVED"),
        does("check", files={"sneaky.txt": "x"}, output="APPROVED"),
    )
    answer = home.sprint(task("a"), task("look", "a", kind="check"))
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"a\n"}


def _release(home: Home) -> Answer:
    """A person says that the cause is gone, and the sprint goes on."""
    open_ones = [e for e in home.escalations() if e["state"] == "open"]
    assert len(open_ones) == 1
    home.caloron("issue", "comment", str(open_ones[0]["number"]), "resolved")
    return home.caloron("resume")


def test_a_released_task_is_asked_about_again_and_gets_its_fix_rounds_anew(home: Home) -> None:
    rejects = does("review", output="CHANGES_NEEDED: still bad")
    fixes = does("fix", run="echo more >> a.txt")
    home.script(writes("a"), rejects, fixes)
    assert home.sprint(task("a")).code == 10
    # After the release there is one more fix at once, and then a new review.
    home.script(does("review", round=[5, 6], output="CHANGES_NEEDED: nearly"), fixes)
    answer = _release(home)
    assert answer.code == 0, answer
    assert answer.tasks["a"]["review_rounds"] == 7
    assert home.files()["a.txt"].count(b"more") == 6
    assert len(home.escalations()) == 1


def test_a_released_check_is_run_again(home: Home) -> None:
    home.script(does("check", output="CHANGES_NEEDED: no tests"))
    assert home.sprint(task("look", kind="check"), task("next", "look", kind="check")).code == 10
    home.script(default="APPROVED")
    answer = _release(home)
    assert answer.code == 0, answer


def test_an_unclear_reviewer_gets_another_chance_after_a_release(home: Home) -> None:
    home.script(writes("a"), does("review", output="hm"))
    assert home.sprint(task("a")).code == 10
    home.script()
    answer = _release(home)
    assert answer.code == 0, answer
    assert answer.tasks["a"]["review_rounds"] == 1
    assert home.files() == {"a.txt": b"a\n"}


def test_the_fixing_agent_gets_everything_that_the_reviewer_wrote(home: Home) -> None:
    home.script(
        writes("a"),
        does("review", round=1, output="The name is wrong in line 3.\nCHANGES_NEEDED: see above"),
        does("fix", match="wrong in line 3", files={"a.txt": "better\n"}),
        does("review", output="APPROVED"),
    )
    answer = home.sprint(task("a"))
    assert answer.code == 0, answer
    assert home.files() == {"a.txt": b"better\n"}
    shown = home.caloron("pr", "show", str(answer.tasks["a"]["pr_number"]))
    assert "The name is wrong in line 3." in shown.stdout
