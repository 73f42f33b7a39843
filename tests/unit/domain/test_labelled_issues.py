"""Labelled issues join the sprint; edits of an issue change the request of its task."""

from __future__ import annotations

import msgspec
import pytest

from caloron.domain.model.effects import CreateIssue, Merge
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.snapshots import marker, with_section
from caloron.domain.model.status import Status
from caloron.domain.reporting.forge_texts import issue_body
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.people.labelled_issues import read_text
from caloron.testing import SprintDriver, planned
from tests.support.sprints import act, finishes, issue_of, phase, pull_of

LABEL = "caloron:task"


def comments(made: SprintDriver, number: int) -> list[str]:
    return [c.body for c in made.forge.comments(number) if "<!--" in c.body]


def test_a_labelled_issue_becomes_a_task_and_is_done_like_any_other(made: SprintDriver) -> None:
    created = len(made.effects(CreateIssue))
    n = made.person.open_issue(
        "Dark mode", "Make it dark.\n\n- [ ] a switch\n- [x] no flicker", LABEL
    )
    made.settle()
    task = made.task(f"issue-{n}")
    assert (task.plan.title, task.plan.agent_prompt) == ("Dark mode", "Make it dark.")
    assert task.plan.acceptance == ("a switch", "no flicker")
    assert task.links.issue == n
    assert len(made.effects(CreateIssue)) == created
    assert "This is task `issue-" in comments(made, n)[0]
    assert finishes(made)
    assert made.forge.issue(n).state == "closed"


def test_an_issue_without_the_label_or_with_our_marker_does_not_join(made: SprintDriver) -> None:
    made.person.open_issue("Just talk", "Hello")
    n = made.person.open_issue("Old task", f"x {marker('issue/shop-0/a')}", LABEL)
    made.facts[:] = [msgspec.structs.replace(made.forge.issue(n), author="caloron", version=10**6)]
    made.tick()
    assert set(made.state.tasks) == {"a"}


def test_a_labelled_issue_may_depend_on_tasks_and_issues_and_unknown_names_are_reported() -> None:
    made = SprintDriver.start(planned("a"), planned("b", "a"))
    first = made.person.open_issue("One", f"x\nDepends on: a, #{made.task('b').links.issue}", LABEL)
    second = act(made).open_issue("Two", f"Depends on: `issue-{first}`, #999, nobody.", LABEL)
    assert made.task(f"issue-{first}").plan.depends_on == ("a", "b")
    assert made.task(f"issue-{second}").plan.depends_on == (f"issue-{first}",)
    comment = comments(made, second)[0]
    assert "`#999`" in comment
    assert "`nobody`" in comment
    assert Evaluation(made.state, 0.0).critical_path(made.task("a")) == 4
    assert finishes(made)


def test_two_issues_that_depend_on_each_other_make_no_cycle(made: SprintDriver) -> None:
    first = made.forge.number + 1
    made.person.open_issue("One", f"Depends on: #{first + 1}", LABEL)
    act(made).open_issue("Two", f"Depends on: #{first}", LABEL)
    assert made.task(f"issue-{first}").plan.depends_on == (f"issue-{first + 1}",)
    assert made.task(f"issue-{first + 1}").plan.depends_on == ()
    assert finishes(made)


def test_a_comment_before_the_issue_joined_is_no_command(made: SprintDriver) -> None:
    n = made.person.open_issue("Talk", "x")
    act(made).comment(n, "caloron:cancel")
    act(made).set_labels(n, LABEL)
    assert made.status(f"issue-{n}") is Status.IN_PROGRESS
    act(made).comment(n, "caloron:cancel")
    assert made.status(f"issue-{n}") is Status.CANCELLED


def test_removing_the_label_before_work_removes_the_task_and_adding_it_restores_it() -> None:
    made = SprintDriver.start(planned("a"))
    n = act(made).open_issue("Later", "Depends on: a", LABEL)
    act(made).set_labels(n)
    assert made.status(f"issue-{n}") is Status.CANCELLED
    act(made).set_labels(n, LABEL)
    assert made.status(f"issue-{n}") is Status.PENDING


def test_removing_the_label_after_the_start_changes_nothing(made: SprintDriver) -> None:
    n = act(made).open_issue("Now", "x", LABEL)
    act(made).set_labels(n)
    assert made.role(f"issue-{n}") == "implement"


def test_a_labelled_issue_resumes_a_sprint_whose_last_task_just_ended(made: SprintDriver) -> None:
    made.run()
    assert phase(made) == "ended"
    n = act(made).open_issue("One more", "x", LABEL)
    assert phase(made) == "running"
    made.run()
    assert made.status(f"issue-{n}") is Status.DONE


# Edits


@pytest.mark.parametrize(
    "plan",
    [
        planned("a"),
        planned("a", "b"),
        PlannedTask(id="a", title="T  t", agent_prompt="x\r\n\n - [ ] in it\n", acceptance=("y",)),
        PlannedTask(id="a", title="T", agent_prompt="### Acceptance\nnone <!-- x -->"),
    ],
)
def test_our_own_body_reads_back_as_its_source_text(plan: PlannedTask) -> None:
    made = SprintDriver.start(planned("b"))
    task = msgspec.structs.replace(made.task("b"), plan=plan)
    body = issue_body(made.state.sprint, task)
    first = read_text(plan.title, body)
    changed = msgspec.structs.replace(
        plan, title=first.title, agent_prompt=first.prompt, acceptance=first.acceptance
    )
    again = issue_body(made.state.sprint, msgspec.structs.replace(task, plan=changed))
    assert read_text(first.title, again) == first
    assert read_text(plan.title, body.replace("\n", "\r\n") + "\r\n") == first
    assert "of sprint" not in first.prompt


def test_an_unchanged_text_is_no_edit(made: SprintDriver) -> None:
    act(made).set_labels(issue_of(made), LABEL, "help wanted")
    assert made.task("a").conversation.edits == 0


def test_the_section_of_an_agent_is_no_part_of_the_request(made: SprintDriver) -> None:
    number = issue_of(made)
    text = "cycle 2\n- [ ] not asked for\n\nDepends on: #99"
    body = with_section(made.forge.issue(number).body, "cycle/allegro", text, add=True)
    act(made).edit_issue(number, body)
    assert made.task("a").conversation.edits == 0
    act(made).edit_issue(number, body.replace("Do a", "Do it well"))
    assert made.task("a").plan.agent_prompt == "Do it well"
    assert made.task("a").plan.acceptance == ()
    labelled = act(made).open_issue("Dark mode", f"Make it dark.\n\n{body}", LABEL)
    (joined,) = [t for t in made.state.tasks.values() if t.links.issue == labelled]
    assert "allegro" not in joined.plan.agent_prompt
    assert joined.plan.acceptance == ()


@pytest.mark.parametrize("with_marker", [True, False])
def test_an_edit_of_a_person_becomes_the_request(with_marker: bool) -> None:
    made = SprintDriver.start(planned("a"))
    number = issue_of(made)
    item = made.item("a")
    body = made.forge.issue(number).body.replace("Do a", "Do it well\n\n- [ ] really")
    act(made).edit_issue(number, body if with_marker else body.split("<!--")[0])
    task = made.task("a")
    assert (task.plan.agent_prompt, task.plan.acceptance) == ("Do it well", ("really",))
    assert made.item("a") == item
    assert task.links.issue == number
    assert finishes(made)


def test_an_approval_of_the_old_text_does_not_count(reviewed: SprintDriver) -> None:
    number = issue_of(reviewed)
    reviewed.end(reviewed.item("a"))
    reviewed.tick()
    reviewed.perform(0)
    reviewed.tick()
    assert reviewed.task("a").merge.merging
    act(reviewed).edit_issue(number, "Do something else")
    assert not reviewed.effects(Merge)
    assert reviewed.role("a") == "review"
    assert finishes(reviewed)


def test_a_reviewer_that_read_the_old_text_is_asked_again_if_it_approves() -> None:
    made = SprintDriver.start(planned("a"))
    made.bring_to_review("a")
    first = made.item("a")
    act(made).edit_issue(issue_of(made), "Do something else")
    assert made.item("a") == first
    made.finish("a")
    assert made.role("a") == "review"
    assert made.item("a") != first
    assert finishes(made)


def untrusted_issue(made: SprintDriver) -> int:
    n = made.person.open_issue("Theirs", "first text", LABEL)
    made.facts.clear()
    made.facts[:] = [made.forge.change_issue(n, trusted=False)]
    made.settle()
    return n


def approval_requests(made: SprintDriver, n: int) -> list[str]:
    return [body for body in comments(made, n) if f"/stranger/{n}/" in body]


def test_an_untrusted_issue_waits_for_approval_and_is_answered_once(made: SprintDriver) -> None:
    n = untrusted_issue(made)
    act(made).set_labels(n, LABEL, "urgent")
    assert set(made.state.tasks) == {"a"}
    assert len(approval_requests(made, n)) == 1
    assert "@ada, who wrote it, has no say here" in approval_requests(made, n)[0]
    made.facts[:] = [
        msgspec.structs.replace(made.user("eve").comment(n, "caloron:approve"), trusted=False)
    ]
    made.tick()
    assert set(made.state.tasks) == {"a"}
    act(made, "anna").comment(n, "caloron:approve")
    assert made.task(f"issue-{n}").plan.agent_prompt == "first text"
    assert finishes(made)
    assert len(approval_requests(made, n)) == 1


def test_an_issue_that_waits_for_approval_does_not_delay_the_end_of_the_sprint() -> None:
    made = SprintDriver.start(planned("a"))
    untrusted_issue(made)
    made.run()
    assert phase(made) == "ended"


def test_a_text_changed_after_the_approval_is_not_approved(made: SprintDriver) -> None:
    n = untrusted_issue(made)
    made.user("anna").comment(n, "caloron:approve")
    act(made).edit_issue(n, "evil")
    assert set(made.state.tasks) == {"a"}
    assert "read it and say it again" in approval_requests(made, n)[-1]
    made.settle()
    assert len(approval_requests(made, n)) == 2
    act(made, "anna").comment(n, "caloron:approve")
    assert made.task(f"issue-{n}").plan.agent_prompt == "evil"


def test_a_persons_approval_of_the_change_survives_a_changed_text(reviewed: SprintDriver) -> None:
    reviewed.person.review(pull_of(reviewed), "approved")
    act(reviewed).edit_issue(issue_of(reviewed), "Do something else")
    assert reviewed.status("a") is Status.DONE


# Acts of an untrusted author on her own issue


def approved_by_anna(made: SprintDriver) -> int:
    n = untrusted_issue(made)
    act(made, "anna").comment(n, "caloron:approve")
    assert made.task(f"issue-{n}").plan.agent_prompt == "first text"
    return n


def test_closing_reopening_and_editing_approves_no_untrusted_issue(made: SprintDriver) -> None:
    n = made.person.open_issue("Theirs", "first text", LABEL)
    made.facts[:] = [made.forge.change_issue(n, trusted=False, state="closed")]
    made.settle()
    made.person.reopen_issue(n)
    act(made).edit_issue(n, "evil")
    assert set(made.state.tasks) == {"a"}


def test_closing_an_approved_issue_withdraws_the_approval(made: SprintDriver) -> None:
    n = untrusted_issue(made)
    made.user("anna").comment(n, "caloron:approve")
    act(made, "anna").close_issue(n)
    act(made).reopen_issue(n)
    assert set(made.state.tasks) == {"a"}


def test_a_text_that_changed_between_polls_is_not_approved(made: SprintDriver) -> None:
    n = untrusted_issue(made)
    made.forge.change_issue(n, body="harmless")
    made.user("anna").comment(n, "caloron:approve")
    act(made).edit_issue(n, "first text")
    assert set(made.state.tasks) == {"a"}
    assert "read it and say it again" in approval_requests(made, n)[-1]


def test_an_untrusted_edit_needs_a_new_approval(made: SprintDriver) -> None:
    n = approved_by_anna(made)
    name = f"issue-{n}"
    made.bring_to_review(name)
    act(made).edit_issue(n, "second text")
    act(made).edit_issue(n, "third text")
    assert made.task(name).plan.agent_prompt == "first text"
    assert (
        len([body for body in approval_requests(made, n) if "goes on with the text it had" in body])
        == 1
    )
    act(made, "anna").comment(n, "caloron:approve")
    assert made.task(name).plan.agent_prompt == "third text"
    # The command approved the text, not a commit.
    assert made.task(name).review.approvals == ()
    act(made).edit_issue(n, "evil")
    assert made.task(name).plan.agent_prompt == "third text"
    made.user("anna").comment(n, "caloron:approve")
    act(made).edit_issue(n, "worse")
    assert made.task(name).plan.agent_prompt == "third text"


def test_a_restored_untrusted_text_needs_no_new_approval(made: SprintDriver) -> None:
    n = approved_by_anna(made)
    name = f"issue-{n}"
    made.bring_to_review(name)
    act(made).edit_issue(n, "evil")
    act(made).edit_issue(n, "first text")
    made.user("anna").comment(n, "caloron:approve")
    act(made).edit_issue(n, "evil")
    assert made.task(name).plan.agent_prompt == "first text"


def test_an_approval_of_a_commit_stays_while_the_text_is_approved(made: SprintDriver) -> None:
    name = f"issue-{approved_by_anna(made)}"
    made.bring_to_review(name)
    act(made, "anna").comment(issue_of(made, name), "caloron:approve")
    assert made.status(name) is Status.DONE


def test_an_untrusted_author_who_reopens_her_issue_does_not_reopen_the_task() -> None:
    made = SprintDriver.start(planned("a"))
    n = approved_by_anna(made)
    name = f"issue-{n}"
    act(made, "anna").close_issue(n)
    act(made).reopen_issue(n)
    act(made).set_labels(n, LABEL, "urgent")
    assert made.status(name) is Status.CANCELLED
    assert (
        len([body for body in approval_requests(made, n) if "stays cancelled until" in body]) == 1
    )
    act(made, "anna").comment(n, "caloron:retry")
    assert made.status(name) is Status.IN_PROGRESS
    act(made, "anna").close_issue(n)
    act(made).reopen_issue(n)
    assert made.status(name) is Status.CANCELLED
