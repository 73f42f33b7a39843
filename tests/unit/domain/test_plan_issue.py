"""A plan that waits on the forge: read, edited, approved or declined in one issue."""

from __future__ import annotations

import json

import msgspec
import pytest

from caloron.domain.model.effects import CreateIssue
from caloron.domain.model.facts import PlanApproved, PlanEdited
from caloron.domain.reporting.explain import why_sprint
from caloron.domain.reporting.inbox import inbox_items
from caloron.domain.rules.people.plan_issue import MAX_BODY, block_of, parse_block
from caloron.testing import SprintDriver, new_state, planned
from tests.support.sprints import CALORON, PERSON, act, configure, finishes, phase

PLAN = (planned("a"), planned("b", "a"))


def awaiting_approval(*plan: object) -> SprintDriver:
    state = new_state(*(plan or PLAN), ask=True)  # type: ignore[arg-type]
    configure(state, plan_on_forge=True)
    state.sprint.settings = msgspec.structs.replace(state.sprint.settings, frameworks=("stub",))
    made = SprintDriver(state)
    made.settle()
    return made


@pytest.fixture
def made() -> SprintDriver:
    return awaiting_approval()


def number(made: SprintDriver) -> int:
    plan = made.state.sprint.planning.approval
    assert plan is not None
    assert plan.number is not None
    return plan.number


def edit(made: SprintDriver, old: str, new: str) -> None:
    body = made.forge.issue(number(made)).body
    assert old in body
    act(made).edit_issue(number(made), body.replace(old, new))


def answers(made: SprintDriver) -> list[str]:
    comments = [c for c in made.forge.comments(number(made)) if c.author == CALORON]
    return [c.body.split("\n\n<!--")[0] for c in comments if "<!--" in c.body]


def test_a_plan_that_waits_for_approval_is_one_issue_on_the_forge(made: SprintDriver) -> None:
    assert phase(made) == "approval"
    (create,) = made.effects(CreateIssue)
    assert create.title == "Plan of sprint shop-1: a shop"
    assert create.labels == ("caloron:plan",)
    assert "| `b` | Title of b | a | change | - |" in create.body
    assert "caloron:approve" in create.body
    assert answers(made) == []


@pytest.mark.parametrize("who", [PERSON, CALORON])
def test_the_command_of_a_person_approves_the_plan_and_closes_its_issue(who: str) -> None:
    """A person may use our own account."""
    made = awaiting_approval()
    act(made, who).comment(number(made), "caloron:approve\nlooks good")
    assert phase(made) == "running"
    assert made.role("a") == "implement"
    issues = {t.id: t.links.issue for t in made.state.tasks.values()}
    listed = f"- #{issues['a']} `a`\n- #{issues['b']} `b`"
    assert answers(made)[-1] == f"Approved. The tasks of this plan:\n\n{listed}"
    assert made.forge.issue(number(made)).state == "closed"
    assert finishes(made)


def test_an_approval_at_the_terminal_closes_the_issue(made: SprintDriver) -> None:
    made.tick(PlanApproved())
    made.settle()
    assert phase(made) == "running"
    assert made.forge.issue(number(made)).state == "closed"


@pytest.mark.parametrize("body", ["approve", "I caloron:approve", "caloron:approve it", "fine"])
def test_only_the_whole_first_line_approves(body: str, made: SprintDriver) -> None:
    act(made).comment(number(made), body)
    assert phase(made) == "approval"


def test_the_command_of_an_untrusted_author_is_ignored(made: SprintDriver) -> None:
    seen = made.person.comment(number(made), "caloron:approve")
    made.facts[:] = [msgspec.structs.replace(seen, trusted=False, version=seen.version + 1)]
    made.tick()
    assert phase(made) == "approval"


def test_an_edit_of_the_block_replaces_the_plan_and_is_answered(made: SprintDriver) -> None:
    edit(made, "Title of b", "Something else")
    assert made.task("b").plan.title == "Something else"
    assert len(answers(made)) == 1
    assert "| `b` | Something else | a |" in answers(made)[0]
    act(made).comment(number(made), "caloron:approve")
    assert made.forge.issue(made.task("b").links.issue).title == "Something else"


def test_after_an_edit_the_table_matches_the_block_and_text_of_people_stays() -> None:
    made = awaiting_approval()
    body = made.forge.issue(number(made)).body
    edited = body.replace('"Title of b"', '"New | title"') + "\n\nMy own words."
    act(made).edit_issue(number(made), edited.replace("\n", "\r\n"))
    shown = made.forge.issue(number(made)).body
    assert "| `b` | New \\| title | a |" in shown
    assert "| `b` | Title of b |" not in shown
    assert "| `a` | Title of a |" in shown
    assert "My own words." in shown
    assert len(answers(made)) == 1, "our own edit is no edit of a person"
    act(made).comment(number(made), "caloron:approve")
    assert phase(made) == "running"


def test_an_invalid_edit_changes_nothing_and_is_answered_once_with_every_error() -> None:
    made = awaiting_approval()
    edit(made, '"depends_on": [\n      "a"\n    ]', '"depends_on": ["x", "y"]')
    assert made.task("b").plan.depends_on == ("a",)
    (answer,) = answers(made)
    assert "depends on unknown task 'x'" in answer
    assert "depends on unknown task 'y'" in answer
    made.settle()
    assert len(answers(made)) == 1


def test_an_invalid_plan_is_approved_only_after_its_correction(made: SprintDriver) -> None:
    edit(made, '"id": "a"', '"id": "A!"')
    act(made).comment(number(made), "caloron:approve")
    assert phase(made) == "approval"
    assert "correct it first" in answers(made)[-1]
    edit(made, '"id": "A!"', '"id": "a"')
    act(made).comment(number(made), "caloron:approve")
    assert phase(made) == "running"


def test_a_reverted_edit_restores_the_first_plan(made: SprintDriver) -> None:
    edit(made, "Title of b", "Something else")
    edit(made, '"title": "Something else"', '"title": "Title of b"')
    assert made.task("b").plan.title == "Title of b"


def test_a_deleted_block_is_reported_and_the_plan_stays(made: SprintDriver) -> None:
    act(made).edit_issue(number(made), "no plan any more")
    assert set(made.state.tasks) == {"a", "b"}
    assert "no block of JSON" in answers(made)[0]


def test_a_plan_that_was_edited_at_the_terminal_is_shown_in_the_issue(made: SprintDriver) -> None:
    made.tick(PlanEdited(tasks=(planned("c"),), at=1.0))
    made.settle()
    assert '"id": "c"' in made.forge.issue(number(made)).body
    assert answers(made) == []
    edit(made, "Title of c", "Another title")
    assert made.task("c").plan.title == "Another title"


def test_an_edit_on_the_forge_wins_over_an_edit_at_the_terminal(made: SprintDriver) -> None:
    made.tick(PlanEdited(tasks=(planned("c"),), at=1.0))
    edit(made, "Title of b", "From the forge")
    assert made.task("b").plan.title == "From the forge"
    assert "From the forge" in made.forge.issue(number(made)).body


def test_closing_the_issue_declines_the_plan_and_reopening_it_waits_again() -> None:
    made = awaiting_approval()
    act(made).close_issue(number(made))
    assert phase(made) == "approval"
    assert made.state.sprint.planning.approval is not None
    assert made.state.sprint.planning.approval.declined == PERSON
    assert "declined: ada closed issue" in why_sprint(made.state.sprint)
    assert "waits for your approval" not in why_sprint(made.state.sprint)
    (item,) = inbox_items(made.state, running=False)
    assert "declined: ada" in item.why
    act(made).reopen_issue(number(made))
    assert made.state.sprint.planning.approval.declined == ""
    assert "waits for your approval" in why_sprint(made.state.sprint)


def test_other_commands_are_answered_on_the_plan_issue(made: SprintDriver) -> None:
    act(made).comment(number(made), "caloron:retry")
    assert "is approved with `caloron:approve`" in answers(made)[0]


def test_a_prompt_of_several_lines_is_a_list_of_lines_to_edit() -> None:
    plan = (msgspec.structs.replace(planned("a"), agent_prompt="one\n\n```\ntwo\n```"),)
    block = block_of(plan)
    assert json.loads(block)[0]["agent_prompt"] == ["one", "", "```", "two", "```"]
    assert parse_block(block, ()).tasks == plan
    made = awaiting_approval(*plan)
    edit(made, '"one"', '"ONE"')
    assert made.task("a").plan.agent_prompt == "ONE\n\n```\ntwo\n```"


def test_a_plan_that_is_too_long_for_a_forge_can_still_be_approved_there() -> None:
    long = msgspec.structs.replace(planned("a"), agent_prompt="x" * (MAX_BODY + 1))
    made = awaiting_approval(long)
    assert len(made.forge.issue(number(made)).body) < MAX_BODY
    act(made).comment(number(made), "caloron:approve")
    assert made.task("a").plan.agent_prompt == long.agent_prompt
    assert phase(made) == "running"
