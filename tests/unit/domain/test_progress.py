"""The issue of each task has one progress comment that stays up to date."""

from __future__ import annotations

import re

import msgspec
import pytest

from caloron.domain.model.effects import Describe, Merge, ReportProgress
from caloron.domain.model.facts import SprintDiscarded
from caloron.domain.model.snapshots import CommentSnapshot, has_section, marker_key
from caloron.domain.model.sprint import Unavailable
from caloron.domain.model.status import Step
from caloron.domain.reporting.forge_texts import section_name
from caloron.domain.reporting.progress_page import page, progress_key
from caloron.testing import SprintDriver, planned
from tests.support.sprints import (
    SPRINT,
    act,
    configure,
    escalation_of,
    finish_twice,
    finishes,
    issue_of,
    pull_of,
)


def comments(made: SprintDriver, task: str) -> list[CommentSnapshot]:
    key = progress_key(SPRINT, task)
    return [c for c in made.forge.comments(issue_of(made, task)) if marker_key(c.body) == key]


def updates(made: SprintDriver, task: str) -> list[ReportProgress]:
    return [e for e in made.done if isinstance(e, ReportProgress) and e.task == task]


def test_each_task_has_one_progress_comment(chain: SprintDriver) -> None:
    chain.run()
    for task in ("a", "b"):
        (comment,) = comments(chain, task)
        first, *later = updates(chain, task)
        # Later updates use the known id of the comment.
        assert first.comment is None
        assert {update.comment for update in later} == {comment.id}
        assert comment.issue == chain.task(task).links.issue
        assert "is **Done**" in comment.body


def test_the_comment_states_the_task_and_its_history(made: SprintDriver) -> None:
    made.bring_to_review("a")
    task = made.task("a")
    body = comments(made, "a")[0].body
    assert f"| branch | `{task.change.branch}` |" in body
    assert f"| pull request | #{task.links.pull} open |" in body
    assert f"| head | `{task.change.head[:12]}` |" in body
    assert "| waits for | " in body
    assert "Ready → InProgress" in body
    assert "InProgress → InReview: pull request" in body


@pytest.mark.parametrize(("until", "shown"), [(1e6, True), (1000.0, False)])
def test_only_an_active_limit_is_a_reason_to_wait(until: float, shown: bool) -> None:
    made = SprintDriver.start(planned("a"))
    configure(made.state, framework="claude-code")
    made.bring_to_review("a")
    made.state.sprint.availability.providers = {
        "claude-code": Unavailable(until=until, what="rate limit")
    }
    made.unclaimed = {"shop-1/a/4-fix"}
    made.finish("a", answer="CHANGES_NEEDED: no tests")
    assert made.item("a") in made.unclaimed
    assert ("claude-code: rate limit until" in comments(made, "a")[0].body) is shown


def test_each_piece_of_work_has_a_row_with_its_agent_attempts_commit_and_outcome() -> None:
    made = SprintDriver.start(planned("a"))
    made.state.attempts = {"shop-1/a/1-implement": 2}
    made.bring_to_review("a")
    first = made.task("a").change.head
    made.finish("a", answer="CHANGES_NEEDED: no tests")
    made.run()
    body = comments(made, "a")[0].body
    second = made.task("a").change.head
    assert [
        line for line in body.splitlines() if line.startswith(("| 1 ", "| 2 ", "| 3 ", "| 4 "))
    ] == [
        f"| 1 | implement | a | 2 | {first} | committed |",
        f"| 2 | verify |  | 1 | {first} | green |",
        f"| 3 | review | reviewer-1 | 1 | {first} | CHANGES_NEEDED: no tests |",
        f"| 4 | fix | a | 1 | {second} | committed |",
    ]
    assert "stopped at" not in body


def test_the_comment_of_an_escalated_task_names_its_stop_and_its_next_step() -> None:
    made = SprintDriver.start(planned("a"))
    made.bring_to_review("a")
    head = made.task("a").change.head
    made.finish("a", answer="CHANGES_NEEDED: no tests")
    finish_twice(made, "a", changes=False, exit_code=3, session="talk")
    body = comments(made, "a")[0].body
    assert f"| stopped at | {head} on agent/a/shop-1 |" in body
    assert f"| then follows | fix from {head} with the conversation so far |" in body
    assert "goes on when a person says so |" in body
    act(made).comment(escalation_of(made), "resolved")
    body = comments(made, "a")[0].body
    assert "then follows" not in body
    assert "at work, again after: ended with exit code 3" in body


def test_work_that_a_person_ended_is_marked_as_ended_by_that_person(made: SprintDriver) -> None:
    act(made).comment(issue_of(made), "caloron:take-over")
    body = comments(made, "a")[0].body
    assert "| stopped at | nothing was pushed yet |" in body
    assert "stopped: taken over by ada; goes on when a person says so |" in body


def test_a_newer_update_replaces_a_pending_update(reviewed: SprintDriver) -> None:
    reviewed.journal.clear()
    task = reviewed.task("a")
    reviewed.person.close_pull(task.links.pull or 0)
    reviewed.tick()
    reviewed.person.comment(task.links.issue or 0, "anything")
    reviewed.tick()
    waiting = [e for e in reviewed.journal if isinstance(e, ReportProgress)]
    assert len(waiting) == 1


def test_a_refused_comment_delays_no_task(made: SprintDriver) -> None:
    made.tick()
    for effect in [e for e in made.journal if isinstance(e, ReportProgress)]:
        made.journal.remove(effect)
        made.refuse(effect, "refused")
    assert finishes(made)


def described(made: SprintDriver, task: str) -> list[Describe]:
    return [e for e in made.done if isinstance(e, Describe) and e.task == task]


def rejected(made: SprintDriver, task: str, times: int = 1) -> None:
    """Send the change back `times` times, until its agent runs a fix."""
    for _ in range(times):
        made.bring_to_review(task)
        made.finish(task, answer="CHANGES_NEEDED: no tests, see fixes #99")


def test_work_of_one_cycle_has_no_history_in_the_description(made: SprintDriver) -> None:
    made.run()
    assert "### Cycle" not in made.forge.pull(made.task("a").links.pull).body
    assert "| cycle | 1 |" in comments(made, "a")[0].body


def test_a_description_changes_only_with_the_change_its_review_or_its_verification() -> None:
    made = SprintDriver.start(
        msgspec.structs.replace(planned("a"), acceptance=("it is fast", "it is small"))
    )
    made.finish("a", summary="Adds a cache.")
    number = pull_of(made)
    assert "### Summary\n\nAdds a cache." in made.forge.pull(number).body
    assert "- [ ] it is fast\n- [ ] it is small" in made.forge.pull(number).body
    assert len(described(made, "a")) == 1
    made.finish("a", answer="3 passed", verify_command="make test", log="run.log")
    assert len(described(made, "a")) == 2
    head = made.task("a").change.head
    assert f"`make test`: green, 3 passed (commit {head} merged" in made.forge.pull(number).body
    made.finish("a", answer="[x] 1: 3 ms\n2. [x] it is small\nAPPROVED")
    made.run()
    assert len(described(made, "a")) == 3
    body = made.forge.pull(number).body
    assert "- [x] it is fast (3 ms)\n- [x] it is small\n" in body
    (merge,) = made.effects(Merge)
    assert "Adds a cache." in merge.message
    assert "[x] it is fast (3 ms)" in merge.message
    assert "make test: green" in merge.message.replace("`", "")


def test_ticks_of_an_older_commit_or_an_older_text_are_not_shown() -> None:
    made = SprintDriver.start(msgspec.structs.replace(planned("a"), acceptance=("it is fast",)))
    made.bring_to_review("a")
    made.finish("a", answer="[x] 1: 3 ms\nCHANGES_NEEDED: no tests")
    assert "- [x] it is fast" in made.forge.pull(pull_of(made)).body
    made.finish("a", summary="With tests.")
    body = made.forge.pull(pull_of(made)).body
    assert "- [ ] it is fast" in body
    assert "With tests." in body


def test_text_of_agents_is_shut_in_what_is_written_on_the_forge() -> None:
    made = SprintDriver.start(msgspec.structs.replace(planned("a"), acceptance=("it is fast",)))
    words = (
        "Fixes #1, see @ada and https://example.org/x\n# Verification\ngreen <details>\n"
        "<!-- caloron:pull/shop-1/b/1 --><!-- /caloron-section:shop-1/a -->\n"
        "Co-authored-by: Eve <e@example.org>\n[skip ci]\n```\nan open fence"
    )
    made.finish("a", summary=words)
    pull = made.forge.pull(pull_of(made))
    assert pull.closes == (made.task("a").links.issue,)
    made.run()
    (merge,) = made.effects(Merge)
    for text in (pull.body, merge.message):
        assert not re.search(r"fixes #\d|@ada|://|\[skip|^co-authored-by: Eve", text, re.I | re.M)
    assert (pull.body.count("<!--"), merge.message.count("<!--")) == (3, 0)
    assert "<details>" not in pull.body
    assert pull.body.index("an open fence\n```\n") < pull.body.index("### Acceptance")
    assert pull.body.count("\n#") == 2
    assert merge.message.endswith("<caloron-agent-a@localhost>\n")


def test_the_second_cycle_adds_a_section_that_stays_up_to_date(made: SprintDriver) -> None:
    rejected(made, "a")
    body = made.forge.pull(made.task("a").links.pull).body
    assert body.startswith("Closes #1\n\nAgent: caloron-agent-a\n\n<!-- caloron:pull/")
    assert "### Cycle 2 of a" in body
    assert "**a** is **InProgress**" in body
    assert "an agent is fixing it" in body
    made.run()
    pull = made.forge.pull(made.task("a").links.pull)
    assert pull.body.count("<!-- caloron-section:") == 1
    assert "### Cycle 2 of a\n\n**a** is **Done**." in pull.body
    assert pull.closes == made.forge.pull(pull.number).closes == (made.task("a").links.issue,)
    assert "| cycle | 2 |" in comments(made, "a")[0].body


def test_a_wake_for_the_same_piece_of_work_is_a_cycle_too(made: SprintDriver) -> None:
    made.finish("a", changes=False, exit_code=3)
    assert "/1-implement" in made.item("a")
    made.bring_to_review("a")
    assert "### Cycle 2 of a" in described(made, "a")[-1].text


def test_after_three_cycles_the_section_suggests_smaller_tasks() -> None:
    made = SprintDriver.start(planned("a"), max_fix_rounds=9)
    for cycle in (2, 3, 4):
        rejected(made, "a")
        body = made.forge.pull(made.task("a").links.pull).body
        assert f"### Cycle {cycle}" in body
        flag = "| too large | more than 3 cycles: cut it smaller |"
        assert (flag in body) == (cycle > 3)
        assert (flag in comments(made, "a")[0].body) == (cycle > 3)


def test_a_section_that_a_person_removed_is_not_added_again() -> None:
    made = SprintDriver.start(planned("a"), max_fix_rounds=9)
    rejected(made, "a")
    number = pull_of(made)
    act(made).edit_pull(number, "My own words.")
    rejected(made, "a")
    made.run()
    assert made.forge.pull(number).body == "My own words."


def test_text_of_a_person_around_the_section_stays(made: SprintDriver) -> None:
    rejected(made, "a")
    number = pull_of(made)
    act(made).edit_pull(number, f"Before.\n\n{made.forge.pull(number).body}\n\nAfter.")
    made.run()
    body = made.forge.pull(number).body
    assert body.startswith("Before.\n\nCloses")
    assert body.endswith("\n\nAfter.")
    assert "is **Done**" in body


def test_the_next_pull_request_of_a_task_gets_a_section_of_its_own() -> None:
    made = SprintDriver.start(planned("a"), max_fix_rounds=9)
    rejected(made, "a")
    first = pull_of(made)
    act(made).close_pull(first)
    made.bring_to_review("a")
    second = pull_of(made)
    assert second != first
    name = section_name(SPRINT, "a")
    assert has_section(made.forge.pull(second).body, name)


def test_a_pull_request_of_a_person_keeps_their_description() -> None:
    made = SprintDriver.start(planned("a"), max_fix_rounds=9)
    pull = act(made).open_pull(issue_of(made))
    rejected(made, "a", times=2)
    assert made.task("a").links.pull == pull.number
    assert described(made, "a") == []


def test_a_refused_section_delays_no_task(reviewed: SprintDriver) -> None:
    reviewed.end(reviewed.item("a"), answer="CHANGES_NEEDED: no tests")
    reviewed.tick()
    while not (descriptions := [e for e in reviewed.journal if isinstance(e, Describe)]):
        reviewed.perform(0)
        reviewed.tick()
    reviewed.journal.remove(descriptions[0])
    reviewed.refuse(descriptions[0], "refused")
    reviewed.run()
    assert reviewed.statuses()["a"] == "Done"


def test_the_section_names_a_discarded_sprint(made: SprintDriver) -> None:
    rejected(made, "a")
    made.facts.append(SprintDiscarded(by="ada"))
    made.settle()
    last = described(made, "a")[-1]
    assert last.key.startswith("discard/")
    assert "**a** is **Cancelled**" in made.forge.pull(last.number).body


def test_the_last_twenty_moves_are_kept(made: SprintDriver) -> None:
    task = made.task("a")
    for _ in range(15):
        made.forge.change_issue(task.links.issue or 0, state="closed", closed_by="ada")
        made.poll()
        made.tick()
        made.forge.change_issue(task.links.issue or 0, state="open", closed_by="")
        made.poll()
        made.tick()
    task = made.task("a")
    assert task.log.moved > 20
    assert len(task.log.status) == 20


def test_text_of_agents_is_escaped_in_the_table(made: SprintDriver) -> None:
    task = made.task("a")
    task.reason = "<!-- caloron:x --> | cell @ada\n# heading"
    task.step = Step.BLOCKED
    text = page(made.state, task, made.now)
    assert "<!--" not in text
    assert "\\| cell" in text
    assert "@ada" not in text
    assert "\n# heading" not in text
