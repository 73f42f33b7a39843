"""`caloron issue` and `caloron pr`, used by a person on a real local forge."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from caloron.domain.model.snapshots import marker
from caloron.forge.local.forge import LocalForge
from caloron.store.wake import Wake
from tests.support.git import git

BRANCH = "agent/basket/shop-1"


@pytest.fixture
def forge(run, home):
    """The engine's forge of a project with one issue and one pull request."""
    run("init", "shop", "--framework", "stub")
    forge = LocalForge(home / "projects" / "shop")
    forge.create_issue("A basket", f"Please.\n\n{marker('issue/shop-1/basket')}", ("caloron:task",))
    _push(forge, home.parent / "work", BRANCH, "basket.py", "items = []\n")
    forge.open_pull("A basket", f"Closes #1\n\n{marker('pull/shop-1/basket/1')}", BRANCH)
    yield forge
    forge.close()


def _push(forge: LocalForge, work: Path, branch: str, file: str, content: str) -> str:
    if not work.exists():
        git(work.parent, "clone", "-q", forge.remote().url, work)
    git(work, "checkout", "-qfB", branch, "origin/main")
    (work / file).write_text(content)
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "change")
    head = git(work, "rev-parse", "HEAD")
    before = forge.branch(branch)
    forge.push(work, branch, head, before.commit if before else "")
    return head


def test_issues_and_pull_requests_are_listed_with_their_task(run, forge):
    head = forge.branch(BRANCH)
    assert head is not None
    common: dict[str, Any] = {"title": "A basket", "state": "open", "url": "", "author": "caloron"}
    common |= {"sprint_id": "shop-1", "sprint_number": 1, "task": "basket"}
    issue = {"number": 1, "labels": ["caloron:task"]} | common
    assert run.data("issue", "list")["issues"] == [issue]
    pull = {"number": 2, "branch": BRANCH, "head": head.commit, "closes": [1]} | common
    assert run.data("pr", "list")["pull_requests"] == [pull]


def test_a_marker_of_a_person_names_no_task(run, forge, home):
    person = LocalForge(home / "projects" / "shop", actor="Ada")
    person.create_issue("Mine", marker("issue/shop-1/basket"))
    person.close()
    assert "task" not in run.data("issue", "list")["issues"][1]


@pytest.mark.parametrize(
    ("state", "issues", "pulls"),
    [("open", 0, 0), ("closed", 1, 0), ("merged", 0, 1), ("all", 1, 1)],
)
def test_lists_are_filtered_by_state(run, forge, state, issues, pulls):
    assert run("pr", "merge", "2")[0] == 0
    assert len(run.data("issue", "list", "--state", state)["issues"]) == issues
    assert len(run.data("pr", "list", "--state", state)["pull_requests"]) == pulls


def test_a_comment_has_the_name_of_its_author(run, forge):
    assert run("issue", "comment", "1", "resolved")[0] == 0
    run.refused(2, "is empty", "issue", "comment", "1", "  ")
    (comment,) = run.data("issue", "show", "1")["comments"]
    assert (comment["author"], comment["body"]) == ("Ada", "resolved")


def test_a_person_named_caloron_does_not_count_as_the_engine(run, forge, tmp_path):
    (tmp_path / "gitconfig").write_text("[user]\n\tname = Caloron\n")
    author = run.data("issue", "comment", "1", "hello")["comment"]["author"]
    assert author.casefold() != "caloron"


def test_a_long_comment_comes_from_standard_input(run, forge, monkeypatch):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"one\ntwo \xff\n")))
    assert run.data("issue", "comment", "1", "-")["comment"]["body"].startswith("one\ntwo")


@pytest.mark.parametrize("option", ["--body", "--body-file"])
def test_an_issue_is_created_with_labels_and_a_text_from_standard_input(
    run, forge, monkeypatch, option
):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"one\n\n- [ ] two\n")))
    labels = ("--label", "caloron:task,urgent", "-l", "shop")
    made = run.data("issue", "create", "--title", "Log out", option, "-", *labels)
    assert (made["author"], made["title"]) == ("Ada", "Log out")
    assert made["labels"] == ["caloron:task", "shop", "urgent"]
    assert forge.issue(made["number"]).body == "one\n\n- [ ] two"


def test_a_text_comes_from_a_file_and_a_missing_one_is_refused(run, forge, tmp_path):
    (tmp_path / "notes.md").write_text("from a file")
    number = run.data("issue", "create", "-t", "x", "-F", str(tmp_path / "notes.md"))["number"]
    assert forge.issue(number).body == "from a file"
    run.refused(2, "cannot be read", "issue", "create", "-t", "x", "-F", str(tmp_path / "no"))
    run.refused(2, "given twice", "pr", "comment", "2", "one", "--body", "two")
    run.refused(2, "", "issue", "create", "--title", " ")
    assert len(forge.issues()) == 2


def test_an_edited_issue_keeps_our_marker_and_what_is_not_named(run, forge):
    forge.label(1, "shop")
    run.data("issue", "edit", "1", "--title", "A big basket")
    body = forge.issue(1).body
    assert body == f"Please.\n\n{marker('issue/shop-1/basket')}"
    forged = f"Now!\n{marker('issue/shop-1/other')}"
    edited = run.data(
        "issue", "edit", "1", "--body", forged, "--add-label", "a,b", "--remove-label", "shop"
    )
    assert (edited["title"], edited["labels"]) == ("A big basket", ["a", "b", "caloron:task"])
    assert edited["task"] == "basket"
    assert forge.issue(1).body.startswith("Now!")
    assert forge.find_issue("issue/shop-1/basket") == forge.issue(1)
    for nothing in ((), ("--title", " "), ("--add-label", " ")):
        run.refused(2, "", "issue", "edit", "1", *nothing)


def test_labels_are_added_and_removed(run, forge):
    labelled = run.data("issue", "label", "1", "--add", "x", "--remove", "caloron:task")
    assert labelled["labels"] == ["x"] == list(forge.issue(1).labels)
    run.refused(2, "no label", "issue", "label", "1")


def test_a_pull_request_is_commented_on(run, forge):
    assert run.data("pr", "comment", "2", "--body", "Nice")["comment"]["body"] == "Nice"
    assert [c.body for c in forge.comments(2)] == ["Nice"]


def test_an_issue_is_closed_and_opened_again(run, forge):
    assert run.data("issue", "close", "1")["state"] == "closed"
    assert run.data("issue", "close", "1")["state"] == "closed"
    assert forge.issue(1).closed_by == "Ada"
    assert run.data("issue", "reopen", "1")["state"] == "open"


def test_a_review_is_bound_to_the_newest_commit(run, forge, home):
    head = _push(forge, home.parent / "work", BRANCH, "basket.py", "items = [1]\n")
    assert run("pr", "review", "2", "--request-changes", "Start empty")[0] == 0
    assert run("pr", "review", "2", "--comment", "Nice name")[0] == 0
    assert run("pr", "review", "2", "--approve")[0] == 0
    reviews = run.data("pr", "show", "2")["reviews"]
    assert [(r["verdict"], r["author"], r["head"]) for r in reviews] == [
        ("changes_requested", "Ada", head),
        ("commented", "Ada", head),
        ("approved", "Ada", head),
    ]


@pytest.mark.parametrize(
    "options", [[], ["--approve", "--comment", "x"], ["--request-changes", " "], ["--comment", ""]]
)
def test_a_review_without_exactly_one_verdict_is_refused(run, forge, options):
    assert run("pr", "review", "2", *options)[0] == 2
    assert run.data("pr", "show", "2")["reviews"] == []


def test_the_diff_is_what_git_would_apply(run, forge, home):
    assert "+items = []" in run.data("pr", "diff", "2")["diff"]
    patch = run.text("pr", "diff", "2")
    checkout = home.parent / "checkout"
    git(home.parent, "clone", "-q", forge.remote().url, checkout)
    git(checkout, "apply", stdin=patch)
    assert (checkout / "basket.py").read_text() == "items = []\n"


def test_a_merge_by_a_person_puts_the_change_on_main_and_closes_the_issue(run, forge):
    reply = run.data("pr", "merge", "2")
    assert reply["state"] == "merged"
    main_branch = forge.branch("main")
    assert main_branch is not None
    assert reply["merge_commit"] == main_branch.commit
    assert run.data("issue", "show", "1")["state"] == "closed"


def test_an_ended_pull_request_cannot_be_merged_reviewed_or_closed(run, forge):
    assert run.data("pr", "close", "2")["state"] == "closed"
    for act in (("merge",), ("close",), ("review", "--approve")):
        run.refused(8, "is closed already", "pr", act[0], "2", *act[1:])


def test_a_conflict_with_main_is_reported_and_changes_nothing(run, forge, home):
    work = home.parent / "other"
    _push(forge, work, "agent/rival/shop-1", "basket.py", "items = {}\n")
    forge.open_pull("A rival", "", "agent/rival/shop-1")
    assert run("pr", "merge", "2")[0] == 0
    run.refused(7, "", "pr", "merge", "3")
    assert run.data("pr", "show", "3")["state"] == "open"


@pytest.mark.parametrize(
    "arguments",
    [
        ("issue", "show", "99"),
        ("issue", "comment", "99", "hello"),
        ("issue", "close", "99"),
        ("issue", "edit", "99", "--title", "x"),
        ("issue", "label", "99", "--add", "x"),
        ("pr", "comment", "99", "hello"),
        ("pr", "show", "99"),
        ("pr", "diff", "99"),
        ("pr", "review", "99", "--approve"),
        ("pr", "merge", "99"),
        ("pr", "close", "99"),
    ],
)
def test_an_unknown_number_is_not_found(run, forge, arguments):
    run.refused(3, "99", *arguments)


def test_each_change_wakes_a_running_engine(run, forge, home):
    wake = Wake(home / "projects" / "shop" / "wake")
    wake.create()
    acts = [
        ("issue", "comment", "1", "hello"),
        ("issue", "close", "1"),
        ("issue", "reopen", "1"),
        ("issue", "create", "--title", "x"),
        ("issue", "edit", "1", "--title", "x"),
        ("issue", "label", "1", "--add", "x"),
        ("pr", "comment", "2", "hello"),
        ("pr", "review", "2", "--approve"),
        ("pr", "merge", "2"),
    ]
    for act in acts:
        assert not wake.wait(0)
        run(*act)
        assert wake.wait(0), act
    wake.close()


def test_the_text_for_people_hides_markers_and_control_characters(run, forge):
    forge.comment(1, "red \x1b[31malert")
    shown = run.text("issue", "show", "1") + run.text("pr", "show", "2")
    assert "A basket" in shown
    assert "<!--" not in shown
    assert "\x1b" not in shown
    assert "closes #1" in shown


def test_the_text_for_people_has_no_markup_that_only_a_web_page_needs(run, forge):
    table = "| a | b |\n|---|---|\n| 1 | \\[x\\] |"
    report = f"Use &lt;=.\n<details><summary>Log</summary>\n\n{table}\n</details>"
    forge.comment(1, report)
    forge.comment(2, report)
    forge.edit_pull(2, f"{forge.pull(2).body}\n\n{report}")
    for kind, number in (("issue", "1"), ("pr", "2")):
        shown = run.text(kind, "show", number)
        assert "Use <=." in shown
        assert "Log" in shown
        assert "1  [x]" in shown
        assert not any(markup in shown for markup in ("&lt;", "<details", "</", "|---"))


def test_a_project_is_chosen_by_name(run, forge):
    run("init", "garden", "--framework", "stub")
    assert run.data("issue", "list")["issues"] == []
    assert len(run.data("issue", "list", "--project", "shop")["issues"]) == 1
