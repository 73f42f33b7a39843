"""Each cell of the table in docs/people.md: what a person does and where the task is.

The person's later act wins, and the sprint comes to its end afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from caloron.forge.local.forge import create_local_forge
from caloron.ports import Forge
from tests.integration.engine.loop import Loop
from tests.integration.forge.people import Clone
from tests.integration.forge.worlds import LocalPerson, Person

STATES = ("running", "in review", "verifying", "merging")
each_state = pytest.mark.parametrize("state", STATES)


@pytest.fixture
def forge_of_a_person(tmp_path: Path) -> Iterator[tuple[Forge, Person]]:
    """A forge and a person on it; the same tests run on every forge."""
    forge = create_local_forge(tmp_path / "project", name="sample")
    person = LocalPerson(tmp_path / "project", Clone(forge.remote().url, tmp_path / "clone"))
    yield forge, person
    person.forge.close()
    forge.close()


@pytest.fixture
def loop(
    forge_of_a_person: tuple[Forge, Person], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Loop]:
    monkeypatch.setenv("CALORON_KV_DIR", str(tmp_path / "kv"))
    (tmp_path / "home").mkdir()
    made = Loop(tmp_path / "home", forge_of_a_person[0])
    yield made
    made.close()


@pytest.fixture
def person(forge_of_a_person: tuple[Forge, Person]) -> Person:
    return forge_of_a_person[1]


def act(loop: Loop, state: str) -> None:
    """Run the sprint after a person's act; a decided merge is tried before the next poll."""
    if state == "merging":
        loop.perform()
    loop.settle()


def on_main(loop: Loop) -> set[str]:
    main = loop.mirror.fetch_main()
    return set(loop.mirror.files(main))


def ends_well(loop: Loop) -> None:
    loop.run()
    assert {t.id: str(t.status) for t in loop.state.tasks.values()} == {"a": "Done", "b": "Done"}
    assert [p.state for p in loop.pulls()].count("merged") == 1


@each_state
def test_a_person_who_merges_completes_the_task(loop: Loop, person: Person, state: str) -> None:
    loop.bring_to(state)
    person.merge(loop.pull())
    act(loop, state)
    assert loop.status() == "Done"
    assert loop.role() == ""
    assert loop.role("b") == "implement"
    ends_well(loop)


@each_state
def test_a_person_who_closes_the_pull_request_gets_another_one(
    loop: Loop, person: Person, state: str
) -> None:
    loop.bring_to(state)
    person.close_pull(loop.pull())
    act(loop, state)
    assert loop.role() == "fix"
    assert "was closed by" in loop.task().reason
    ends_well(loop)
    assert [p.state for p in loop.pulls()] == ["closed", "merged"]


@each_state
def test_a_person_who_pushes_to_the_branch_makes_the_change(
    loop: Loop, person: Person, state: str
) -> None:
    loop.bring_to(state)
    commit = person.push(loop.task().change.branch, "hers.txt")
    act(loop, state)
    assert (loop.task().change.head, loop.role()) == (commit, "verify")
    ends_well(loop)
    assert "hers.txt" in on_main(loop)


@each_state
def test_a_person_who_approves_needs_no_reviewer(loop: Loop, person: Person, state: str) -> None:
    loop.bring_to(state)
    head = loop.task().change.head
    person.review(loop.pull(), "approved")
    act(loop, state)
    if state == "verifying":
        # An approval does not replace the verification.
        assert loop.role() == "verify"
        loop.finish()
    assert loop.status() == "Done"
    assert loop.pulls()[0].head == head
    ends_well(loop)


@each_state
def test_a_person_who_requests_changes_starts_a_fix_round(
    loop: Loop, person: Person, state: str
) -> None:
    loop.bring_to(state)
    head = loop.task().change.head
    person.review(loop.pull(), "changes_requested", "no globals please")
    act(loop, state)
    assert loop.role() == "fix"
    assert loop.work().reason.startswith("no globals please")
    ends_well(loop)
    assert loop.pulls()[0].head != head


@each_state
def test_a_person_who_reopens_the_issue_reopens_the_task(
    loop: Loop, person: Person, state: str
) -> None:
    loop.bring_to(state)
    person.close_issue(loop.issue())
    act(loop, state)
    assert loop.status() == "Cancelled"
    person.reopen_issue(loop.issue())
    loop.settle()
    if state == "merging":
        loop.run()
    else:
        assert loop.role() == {"running": "fix", "in review": "review"}.get(state, "verify")
    ends_well(loop)
    assert len(loop.pulls()) == 1


@each_state
def test_a_person_who_reopens_the_pull_request_continues_with_it(
    loop: Loop, person: Person, state: str
) -> None:
    loop.bring_to(state)
    number = loop.pull()
    person.close_pull(number)
    act(loop, state)
    assert loop.role() == "fix"
    person.reopen_pull(number)
    loop.settle()
    assert loop.pull() == number
    ends_well(loop)
    assert [p.state for p in loop.pulls()] == ["merged"]


@each_state
def test_a_person_who_changes_labels_changes_nothing_else(
    loop: Loop, person: Person, state: str
) -> None:
    loop.bring_to(state)
    before = loop.task().work
    person.unlabel(loop.issue(), "caloron:task")
    person.label(loop.issue(), "caloron:done")
    act(loop, state)
    if state == "merging":
        assert loop.status() == "Done"
    else:
        assert loop.task().work == before
    ends_well(loop)


@each_state
def test_a_person_who_edits_the_body_has_the_change_judged_by_the_new_text(
    loop: Loop, person: Person, state: str
) -> None:
    loop.bring_to(state)
    before = loop.task().work
    body = loop.forge.issue(loop.issue()).body
    person.edit_issue(loop.issue(), body.replace("Do a", "Do a well\n\n- [ ] really"))
    act(loop, state)
    assert loop.task().plan.agent_prompt == "Do a well"
    assert loop.task().plan.acceptance == ("really",)
    if state == "merging":
        assert loop.status() != "Done"
        loop.settle()
        assert loop.role() in ("verify", "review")
        while loop.role() == "verify":
            loop.finish()
        assert loop.role() == "review"
    else:
        # No running agent is interrupted.
        assert loop.task().work == before
    if state == "in review":
        loop.finish()
        assert loop.role() == "review"
        assert loop.forge.reviews(loop.pull()) == []
    ends_well(loop)


@each_state
def test_a_person_who_removes_the_marker_changes_nothing(
    loop: Loop, person: Person, state: str
) -> None:
    loop.bring_to(state)
    before, number = loop.task().work, loop.issue()
    person.edit_issue(number, loop.forge.issue(number).body.split("<!--")[0])
    act(loop, state)
    if state == "merging":
        assert loop.status() == "Done"
    else:
        assert loop.task().work == before
    assert loop.issue() == number
    ends_well(loop)
    assert len([i for i in loop.forge.issues() if i.title == "Title of a"]) == 1


@each_state
@pytest.mark.parametrize("forge_closes", ["never", "at once", "later"])
def test_a_person_who_deletes_the_branch_gets_another_pull_request(
    loop: Loop, person: Person, state: str, forge_closes: str
) -> None:
    """The forge may close the pull request, at any time; the result is the same."""
    loop.bring_to(state)
    number = loop.pull()
    person.delete_branch(loop.task().change.branch)
    if forge_closes == "at once":
        person.close_pull(number)
    act(loop, state)
    if forge_closes == "later" and loop.forge.pull(number).state == "open":
        person.close_pull(number)
    ends_well(loop)
    assert [p.state for p in loop.pulls()] == ["closed", "merged"]
    assert loop.task().links.generation == 2
    assert loop.task().escalation.number == 0


@each_state
def test_a_person_who_closes_the_issue_cancels_the_task(
    loop: Loop, person: Person, state: str
) -> None:
    loop.bring_to(state)
    person.close_issue(loop.issue())
    act(loop, state)
    assert loop.status() == "Cancelled"
    assert loop.status("b") == "Blocked"
    assert loop.role() == ""
    loop.run()
    assert [p.state for p in loop.pulls()] == ["open"]
    assert loop.state.sprint.phase == "ended"


@each_state
def test_a_person_who_pushes_to_main_has_the_result_verified_on_that(
    loop: Loop, person: Person, state: str
) -> None:
    loop.bring_to(state)
    commit = person.push_main("hers.txt")
    act(loop, state)
    assert loop.status() != "Done"
    loop.run()
    merged = loop.pulls()[0]
    assert merged.state == "merged"
    bases = [base for head, base in loop.verified if head == merged.head]
    assert loop.mirror.is_ancestor(commit, bases[-1])
    assert "hers.txt" in on_main(loop)
    ends_well(loop)


# Cases beyond the table


def test_a_person_who_pushes_before_the_agent_did_makes_the_change(
    loop: Loop, person: Person
) -> None:
    loop.settle()
    commit = person.push(loop.task().change.branch, "hers.txt")
    loop.finish()
    assert loop.task().change.head == commit
    ends_well(loop)
    assert "hers.txt" in on_main(loop)


@pytest.mark.parametrize("state", STATES)
def test_a_person_may_take_over_push_and_hand_back(loop: Loop, person: Person, state: str) -> None:
    loop.bring_to(state)
    person.comment(loop.issue(), "caloron:take-over")
    loop.settle(merges=False)
    loop.settle()
    assert loop.task().reason == f"taken over by {person.login}"
    assert not [p for p in loop.pulls() if p.state == "merged"]
    commit = person.push(loop.task().change.branch, "hers.txt")
    loop.settle()
    person.comment(loop.issue(), "resolved")
    loop.settle()
    assert (loop.task().change.head, loop.role()) == (commit, "verify")
    ends_well(loop)


@pytest.mark.parametrize("state", STATES)
def test_a_person_may_cancel_and_retry(loop: Loop, person: Person, state: str) -> None:
    loop.bring_to(state)
    number = loop.pull()
    person.comment(loop.issue(), "caloron:cancel")
    loop.settle(merges=False)
    loop.settle()
    assert loop.status() == "Cancelled"
    assert loop.forge.issue(loop.issue()).state == "closed"
    assert loop.forge.pull(number).state == "closed"
    person.comment(loop.issue(), "caloron:retry")
    loop.settle()
    assert loop.forge.issue(loop.issue()).state == "open"
    ends_well(loop)


@pytest.mark.parametrize("where", ["issue", "pull"])
@pytest.mark.parametrize(
    ("command", "status", "role"),
    [
        ("caloron:cancel", "Cancelled", ""),
        ("caloron:take-over", "Escalated", ""),
        ("caloron:retry", "InReview", "verify"),
    ],
)
def test_an_unread_command_stops_a_decided_merge(
    loop: Loop, person: Person, where: str, command: str, status: str, role: str
) -> None:
    loop.bring_to("merging")
    person.comment(loop.issue() if where == "issue" else loop.pull(), command)
    # Without a poll, the facts of the refused merge are enough.
    loop.perform()
    loop.tick()
    assert (loop.status(), loop.role()) == (status, role)
    assert [p.state for p in loop.pulls()] == ["open"]
    loop.settle()
    assert "merged" not in [p.state for p in loop.pulls()]


def test_a_command_on_an_issue_before_it_was_a_task_stops_no_merge(
    loop: Loop, person: Person
) -> None:
    number = person.open_issue("More", "Do more", ("later",))
    person.comment(number, "caloron:cancel")
    loop.poller.begin()
    loop.settle()
    person.label(number, "caloron:task")
    loop.settle()
    loop.run()
    assert loop.status(f"issue-{number}") == "Done"


def test_a_person_may_push_to_a_branch_that_has_no_pull_request_yet(
    loop: Loop, person: Person
) -> None:
    loop.settle()
    person.comment(loop.issue(), "caloron:take-over")
    loop.settle()
    commit = person.push(loop.task().change.branch, "hers.txt")
    person.comment(loop.issue(), "caloron:retry")
    loop.settle()
    assert (loop.task().change.head, loop.role()) == (commit, "verify")
    ends_well(loop)


def test_a_deleted_progress_comment_is_not_written_again_and_is_no_error(
    loop: Loop, person: Person
) -> None:
    loop.settle()
    person.comment(loop.issue(), "how is it going?")
    forge = loop.forge
    (known,) = [c.id for c in forge.comments(loop.issue()) if "/progress -->" in c.body]
    person.delete_comment(known)
    loop.run()
    assert loop.status() == "Done"
    assert not [c for c in forge.comments(loop.issue()) if "/progress -->" in c.body]
    rows = loop.ledger.db.rows("SELECT state FROM actions WHERE kind = 'progress'")
    assert {row["state"] for row in rows} <= {"done", "dropped"}
    assert not loop.ledger.db.rows("SELECT 1 FROM events WHERE type = 'effect_failed'")


def test_a_labelled_issue_joins_the_sprint_and_is_merged(loop: Loop, person: Person) -> None:
    loop.settle()
    number = person.open_issue("More", "Do more\n\nDepends on: a, #9999", ("caloron:task",))
    loop.settle()
    name = f"issue-{number}"
    assert loop.task(name).plan.depends_on == ("a",)
    comments = [c.body for c in loop.forge.comments(number) if "/progress -->" not in c.body]
    assert len(comments) == 1
    assert "`#9999`" in comments[0]
    loop.run()
    assert loop.status(name) == "Done"
    assert loop.forge.issue(number).state == "closed"
