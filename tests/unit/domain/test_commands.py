"""Commands of people to a task, in each state of the task."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from caloron.domain.model.effects import (
    CancelWork,
    Merge,
    OpenPull,
    Push,
    ReopenIssue,
    ReportProgress,
)
from caloron.domain.model.snapshots import CommentSnapshot, PullSnapshot, marker, marker_key
from caloron.domain.model.status import Status
from caloron.domain.reporting.explain import why
from caloron.domain.rules.people.commands import command_in, for_prompt
from caloron.testing import SprintDriver, planned
from tests.support.sprints import (
    CALORON,
    PERSON,
    act,
    configure,
    finish_twice,
    finishes,
    issue_of,
    phase,
    pull_of,
)

TAKE_OVER, RETRY = "caloron:take-over", "caloron:retry"
CANCEL, APPROVE = "caloron:cancel", "caloron:approve"


def made_world() -> SprintDriver:
    return SprintDriver.start(planned("a"), planned("b", "a"))


def in_review() -> SprintDriver:
    made = made_world()
    made.bring_to_review("a")
    return made


def say(made: SprintDriver, command: str, number: int | None = None) -> Any:
    return act(made).comment(number or issue_of(made), command)


def answers(made: SprintDriver) -> list[str]:
    comments = [o for o in made.forge.objects.values() if isinstance(o, CommentSnapshot)]
    return [o.body.split("\n\n<!--")[0] for o in comments if "/answer/" in o.body]


def test_a_comment_without_our_marker_is_a_persons_from_any_account(chain: SprintDriver) -> None:
    act(chain, CALORON).comment(issue_of(chain), TAKE_OVER)
    assert chain.status("a") is Status.ESCALATED


def test_a_comment_with_a_marker_is_never_a_command(chain: SprintDriver) -> None:
    act(chain).comment(issue_of(chain), f"{CANCEL}\n{marker('comment/x')}")
    assert chain.role("a") == "implement"


@pytest.mark.parametrize("command", ["resolved", TAKE_OVER, RETRY, CANCEL, APPROVE])
def test_a_command_of_an_untrusted_author_is_ignored(reviewed: SprintDriver, command: str) -> None:
    """Such accounts get one note in each conversation, and no agent reads their comments."""
    n = issue_of(reviewed)
    for _ in range(2):
        seen = reviewed.person.comment(n, command)
        reviewed.forget_news()
        reviewed.tick(msgspec.structs.replace(seen, trusted=False))
        reviewed.settle()
    assert reviewed.role("a") == "review"
    assert reviewed.task("a").conversation.unread == ()
    assert len([c for c in reviewed.forge.comments(n) if "/untrusted/" in c.body]) == 1


def test_a_verdict_of_an_untrusted_author_neither_approves_nor_rejects(
    reviewed: SprintDriver,
) -> None:
    for verdict in ("approved", "changes_requested"):
        seen = reviewed.person.review(pull_of(reviewed), verdict)
        reviewed.forget_news()
        assert reviewed.tick(msgspec.structs.replace(seen, trusted=False)).actions == ()
    assert reviewed.role("a") == "review"


def test_a_review_of_our_account_without_our_marker_is_a_persons(reviewed: SprintDriver) -> None:
    reviewed.user(CALORON).review(pull_of(reviewed), "approved", "fine")
    assert CancelWork in [type(a) for a in reviewed.tick().actions]
    reviewed.settle()
    assert reviewed.status("a") is Status.DONE


def test_a_review_with_our_marker_by_the_reviewing_account_is_ours(reviewed: SprintDriver) -> None:
    configure(reviewed.state, reviewer="caloron-reviewer")
    reviewed.user("caloron-reviewer").review(pull_of(reviewed), "approved", marker("review/x"))
    reviewed.tick()
    assert reviewed.role("a") == "review"


# take-over


def test_taking_over_stops_the_agent_and_blocks_the_dependents_without_a_new_issue() -> None:
    made = made_world()
    say(made, TAKE_OVER)
    assert made.queue == {}
    assert made.statuses() == {"a": "Escalated", "b": "Blocked"}
    assert made.task("a").reason == "taken over by ada"
    assert made.task("a").escalation.issue is None
    assert f"issue #{issue_of(made)}" in why(made.state, made.task("a"))


@pytest.mark.parametrize("word", ["resolved", RETRY])
def test_a_task_handed_back_unchanged_resumes_its_agent(word: str) -> None:
    made = made_world()
    item = made.item("a")
    say(made, TAKE_OVER)
    say(made, word)
    assert made.item("a") == item
    assert finishes(made)


def test_a_task_handed_back_with_a_branch_takes_its_commit_as_the_change(
    chain: SprintDriver,
) -> None:
    say(chain, TAKE_OVER)
    chain.forge.branches["agent/a/shop-1"] = "commit-of-ada"
    say(chain, "resolved")
    assert chain.task("a").change.head == "commit-of-ada"
    assert chain.role("a") == "verify"
    assert chain.forge.pull(chain.task("a").links.pull).head == "commit-of-ada"
    assert finishes(chain)
    assert not [e for e in chain.effects(Push) if e.task == "a"]


def test_a_task_handed_back_after_a_push_takes_that_commit_as_the_change() -> None:
    made = in_review()
    say(made, TAKE_OVER)
    commit = act(made).push(pull_of(made))
    assert made.status("a") is Status.ESCALATED
    say(made, "resolved", pull_of(made))
    assert (made.task("a").change.head, made.role("a")) == (commit, "verify")


def test_a_task_handed_back_with_a_persons_pull_request_takes_it_as_the_change() -> None:
    made = made_world()
    say(made, TAKE_OVER)
    pull = act(made).open_pull(issue_of(made))
    say(made, "resolved")
    assert made.task("a").links.pull == pull.number
    assert made.role("a") == "verify"


def test_a_task_that_has_not_begun_can_be_taken_over_and_merged_by_hand() -> None:
    made = made_world()
    say(made, TAKE_OVER, issue_of(made, "b"))
    assert made.status("b") is Status.ESCALATED
    pull = act(made).open_pull(issue_of(made, "b"))
    act(made).merge_pull(pull.number)
    assert made.status("b") is Status.DONE


def test_taking_over_during_a_merge_cancels_the_merge(reviewed: SprintDriver) -> None:
    reviewed.person.review(pull_of(reviewed), "approved")
    reviewed.tick()
    assert reviewed.task("a").merge.merging
    act(reviewed).comment(issue_of(reviewed), TAKE_OVER)
    assert reviewed.status("a") is Status.ESCALATED
    assert not reviewed.effects(Merge)
    say(reviewed, "resolved")
    assert finishes(reviewed)


# retry


def test_retry_restarts_the_running_attempt_without_its_conversation(chain: SprintDriver) -> None:
    item = chain.item("a")
    chain.task("a").attempts.session = "talk"
    say(chain, RETRY)
    assert chain.item("a") != item
    assert chain.role("a") == "implement"
    assert chain.task("a").attempts.session == ""
    assert [m.reason for m in chain.moves if m.old == m.new] == [
        "ada said caloron:retry: begun again"
    ]


def test_retry_in_review_verifies_and_reviews_again_after_any_verdict() -> None:
    made = in_review()
    made.end(made.item("a"))
    made.tick()
    made.perform(0)
    act(made).comment(pull_of(made), RETRY)
    assert not made.effects(Merge)
    assert made.role("a") == "verify"
    made.finish("a")
    assert made.role("a") == "review"
    assert finishes(made)


def test_retry_releases_an_escalated_task(chain: SprintDriver) -> None:
    finish_twice(chain, "a", exit_code=1, changes=False)
    assert chain.status("a") is Status.ESCALATED
    say(chain, RETRY)
    assert chain.role("a") == "implement"


# cancel


def test_cancel_closes_issue_and_pull_request_and_blocks_the_dependents() -> None:
    made = in_review()
    number = pull_of(made)
    say(made, CANCEL)
    assert made.statuses() == {"a": "Cancelled", "b": "Blocked"}
    assert made.forge.issue(issue_of(made)).state == "closed"
    assert made.forge.pull(number).state == "closed"
    assert made.queue == {}
    assert made.task("a").reason == "cancelled by ada"


@pytest.mark.parametrize("how", ["word", "reopen"])
def test_a_reopened_cancelled_task_keeps_the_commits_of_its_branch(how: str) -> None:
    made = in_review()
    head = made.task("a").change.head
    say(made, CANCEL)
    if how == "word":
        say(made, RETRY)
    else:
        act(made).reopen_issue(issue_of(made))
    assert made.forge.issue(issue_of(made)).state == "open"
    assert made.task("a").change.head == head
    assert made.role("a") == "review"
    assert len(made.effects(OpenPull)) == 2
    assert finishes(made)


def test_cancel_and_retry_in_one_tick_leave_a_running_task(reviewed: SprintDriver) -> None:
    reviewed.person.comment(issue_of(reviewed), CANCEL)
    reviewed.person.comment(issue_of(reviewed), RETRY)
    assert finishes(reviewed)


def test_a_pull_request_that_opens_after_the_cancel_is_closed(chain: SprintDriver) -> None:
    chain.end(chain.item("a"))
    chain.tick()
    act(chain).comment(issue_of(chain), CANCEL)
    pulls = [o for o in chain.forge.objects.values() if isinstance(o, PullSnapshot)]
    assert [p.state for p in pulls] == ["closed"]
    assert chain.status("a") is Status.CANCELLED


def test_closing_the_pull_request_with_its_task_is_no_rejection(reviewed: SprintDriver) -> None:
    for _ in range(3):
        say(reviewed, CANCEL)
        say(reviewed, RETRY)
        reviewed.bring_to_review("a")
    act(reviewed).close_pull(pull_of(reviewed))
    assert reviewed.role("a") == "fix"


# after the end


@pytest.mark.parametrize("word", ["resolved", RETRY])
def test_a_taken_over_task_continues_after_the_end_of_its_sprint(word: str) -> None:
    made = made_world()
    say(made, TAKE_OVER)
    assert phase(made) == "ended"
    made.person.comment(issue_of(made), word)
    made.poll()
    made.tick()
    # The caller stops at the end of a sprint, so the planned effects must come first.
    assert made.journal
    assert phase(made) == "running"
    assert finishes(made)


def test_a_cancelled_task_can_be_reopened_after_the_end_of_its_sprint(chain: SprintDriver) -> None:
    say(chain, CANCEL)
    assert phase(chain) == "ended"
    chain.person.comment(issue_of(chain), RETRY)
    chain.poll()
    chain.tick()
    assert [type(e) for e in chain.journal if not isinstance(e, ReportProgress)] == [ReopenIssue]
    assert phase(chain) == "running"
    assert finishes(chain)


def test_an_answer_after_the_end_of_the_sprint_starts_no_second_retro(chain: SprintDriver) -> None:
    sprint = chain.state.sprint
    sprint.settings = msgspec.structs.replace(sprint.settings, retro_by="model")
    sprint.retro.asked = True
    say(chain, CANCEL)
    ended_at = chain.state.sprint.ended_at
    chain.person.comment(issue_of(chain), APPROVE)
    chain.poll()
    chain.tick()
    assert phase(chain) == "running"
    chain.settle()
    sprint = chain.state.sprint
    assert (sprint.phase, sprint.ended_at, chain.queue) == ("ended", ended_at, {})


# approve


@pytest.mark.parametrize("where", ["issue", "pull"])
def test_an_approve_command_counts_as_an_approving_review(where: str) -> None:
    made = in_review()
    say(made, APPROVE, issue_of(made) if where == "issue" else pull_of(made))
    assert made.status("a") is Status.DONE


def test_an_approve_command_approves_only_the_head_of_that_moment(reviewed: SprintDriver) -> None:
    reviewed.person.comment(pull_of(reviewed), APPROVE)
    reviewed.tick()
    act(reviewed).push(pull_of(reviewed))
    assert reviewed.role("a") == "verify"
    reviewed.finish("a")
    assert reviewed.role("a") == "review"


def test_an_approve_command_does_not_approve_a_later_head(reviewed: SprintDriver) -> None:
    """One poll reads the comment and the push, so its snapshot shows a later head."""
    approval = reviewed.person.comment(pull_of(reviewed), APPROVE)
    act(reviewed).push(pull_of(reviewed))
    assert reviewed.role("a") == "verify"
    assert reviewed.task("a").review.approvals == ()
    head = reviewed.task("a").change.head
    (answer,) = answers(reviewed)
    assert answer.endswith(f"the branch moved since, to {head}; look at that and say it again.")
    assert approval.object in reviewed.task("a").conversation.handled
    say(reviewed, APPROVE)
    reviewed.finish("a")
    assert reviewed.status("a") is Status.DONE


def test_an_approve_command_that_is_read_late_does_not_approve_a_newer_head() -> None:
    made = in_review()
    approval = made.person.comment(pull_of(made), APPROVE)
    made.forget_news()
    act(made).push(pull_of(made))
    assert made.role("a") == "verify"
    made.tick(approval)
    assert made.task("a").review.approvals == ()


def test_an_approve_command_counts_after_a_later_snapshot_of_the_same_head() -> None:
    made = in_review()
    number = pull_of(made)
    made.person.comment(number, APPROVE)
    seen = msgspec.structs.replace(
        made.forge.pull(number), title="better", version=made.forge.version + 9
    )
    made.tick(seen)
    assert made.task("a").review.approvals


@pytest.mark.parametrize("first_read", ["review", "comment"])
def test_of_a_request_and_an_approval_in_one_second_the_request_counts(first_read: str) -> None:
    """With versions of one-second resolution, the snapshot read later has the higher version."""
    made = in_review()
    second = 1_800_000_000 << 24
    review, comment = (5, 9) if first_read == "review" else (9, 5)
    request = made.person.review(pull_of(made), "changes_requested", "no globals")
    approval = made.person.comment(pull_of(made), APPROVE)
    made.forget_news()
    made.tick(
        msgspec.structs.replace(request, version=second + review),
        msgspec.structs.replace(approval, version=second + comment),
    )
    assert made.work("a").reason == "no globals"


def test_a_later_review_replaces_an_approve_command(reviewed: SprintDriver) -> None:
    reviewed.person.comment(pull_of(reviewed), APPROVE)
    reviewed.tick()
    act(reviewed).review(pull_of(reviewed), "changes_requested", "after all no")
    assert reviewed.work("a").reason == "after all no"


def test_an_approve_command_releases_an_escalated_change(reviewed: SprintDriver) -> None:
    finish_twice(reviewed, "a", answer="hm")
    assert reviewed.status("a") is Status.ESCALATED
    say(reviewed, APPROVE)
    assert reviewed.status("a") is Status.DONE


def test_a_person_may_confirm_an_empty_change(chain: SprintDriver) -> None:
    chain.finish("a", changes=False)
    say(chain, APPROVE)
    assert chain.task("a").reason == "nothing to do, as ada agrees"


# Commands that do not apply


def test_a_command_that_does_not_apply_is_answered_once(chain: SprintDriver) -> None:
    say(chain, APPROVE)
    assert answers(chain) == [
        "`caloron:approve` changes nothing: task `a` has no open pull request to approve."
    ]
    chain.settle()
    assert len(answers(chain)) == 1
    say(chain, APPROVE)
    assert len(answers(chain)) == 2


@pytest.mark.parametrize("command", ["resolved", TAKE_OVER, RETRY, CANCEL, APPROVE])
def test_a_command_to_a_done_task_is_answered_with_its_state(
    reviewed: SprintDriver, command: str
) -> None:
    act(reviewed).merge_pull(pull_of(reviewed))
    say(reviewed, command)
    assert answers(reviewed) == [f"`{command}` changes nothing: task `a` is done."]
    assert reviewed.status("a") is Status.DONE


@pytest.mark.parametrize("command", [TAKE_OVER, CANCEL, APPROVE, "resolved"])
def test_a_command_to_a_cancelled_task_is_answered_with_the_way_to_reopen_it(
    chain: SprintDriver, command: str
) -> None:
    act(chain).close_issue(issue_of(chain))
    say(chain, command)
    assert "brings it back" in answers(chain)[0]
    assert chain.status("a") is Status.CANCELLED


def test_a_command_is_obeyed_once_in_repeated_snapshots(chain: SprintDriver) -> None:
    seen = say(chain, RETRY)
    item = chain.item("a")
    chain.tick(msgspec.structs.replace(seen, version=seen.version + 100))
    assert chain.item("a") == item


def test_a_comment_before_an_escalation_does_not_release_it(chain: SprintDriver) -> None:
    say(chain, "resolved")
    finish_twice(chain, "a", exit_code=1, changes=False)
    chain.settle()
    assert chain.status("a") is Status.ESCALATED
    assert PERSON in {
        o.author for o in chain.forge.objects.values() if isinstance(o, CommentSnapshot)
    }


def test_a_comment_on_a_pull_request_before_the_task_adopted_it_is_no_command() -> None:
    made = made_world()
    pull = made.person.open_pull(issue_of(made))
    act(made).comment(pull.number, CANCEL)
    assert made.role("a") == "verify"
    say(made, CANCEL, pull.number)
    assert made.status("a") is Status.CANCELLED
    assert made.forge.pull(pull.number).state == "open"


@pytest.mark.parametrize(
    "body", ["resolved", "Resolved\nthanks", "caloron:retry", "caloron:take-over\n"]
)
def test_a_whole_first_line_may_be_a_command(body: str) -> None:
    assert command_in(body)


@pytest.mark.parametrize(
    "body",
    ["", "it is resolved", "resolved?", "> resolved", "\nresolved", f"resolved\n{marker('x')}"],
)
def test_other_text_and_our_own_comments_are_no_commands(body: str) -> None:
    assert not command_in(body)


# Text that resembles a command


COMMANDS = ("resolved", "caloron:take-over", "caloron:retry", "caloron:cancel", "caloron:approve")


def correction_comments(made: SprintDriver, n: int) -> list[str]:
    return [c.body for c in made.forge.comments(n) if "is no command" in c.body]


@pytest.mark.parametrize("body", ["caloron:stop", "caloron:cancel please", "Caloron:Retry!\nnow"])
def test_an_unknown_command_is_answered_once_with_the_known_commands(body: str) -> None:
    made = SprintDriver.start(planned("a"))
    n = issue_of(made)
    act(made).comment(n, body)
    act(made).comment(n, "just talk: caloron:stop")
    (answer,) = correction_comments(made, n)
    assert all(f"`{name}`" in answer for name in COMMANDS)
    assert made.role("a") == "implement"


def test_untrusted_authors_and_our_own_comments_get_no_answer(made: SprintDriver) -> None:
    n = issue_of(made)
    made.user("caloron").comment(n, f"caloron:stop\n{marker('comment/x')}")
    comment = made.user("eve").comment(n, "caloron:stop")
    made.forge.objects[comment.object] = msgspec.structs.replace(comment, trusted=False)
    made.facts.clear()
    made.settle()
    assert correction_comments(made, n) == []


def test_a_misspelt_command_that_an_edit_corrects_is_obeyed(made: SprintDriver) -> None:
    n = issue_of(made)
    comment = act(made).comment(n, "caloron:cancle")
    made.tick(msgspec.structs.replace(comment, version=10**6, body="caloron:cancel"))
    assert made.status("a") is Status.CANCELLED


def answers_to_comments(made: SprintDriver, n: int) -> list[str]:
    return [c.body for c in made.forge.comments(n) if "/read/" in marker_key(c.body)]


def prompt_of(made: SprintDriver) -> str:
    return for_prompt(made.state, made.task("a"))[0]


def test_a_comment_is_in_each_prompt_until_an_agent_has_ended_with_it(made: SprintDriver) -> None:
    n = issue_of(made)
    act(made).comment(n, "use tabs")
    assert prompt_of(made) == "ada:\nuse tabs"
    made.finish("a", changes=False, exit_code=137)
    assert prompt_of(made) == "ada:\nuse tabs"
    made.finish("a")
    assert prompt_of(made) == ""
    (answer,) = answers_to_comments(made, n)
    assert "reads this" in answer
    assert finishes(made)
    assert answers_to_comments(made, n) == [answer]


def test_text_below_a_command_and_remarks_in_reviews_are_read_too(reviewed: SprintDriver) -> None:
    reviewed.person.review(pull_of(reviewed), "commented", "name it b")
    act(reviewed).comment(pull_of(reviewed), "caloron:retry\nand look at the tests")
    act(reviewed).comment(issue_of(reviewed), "caloron:approve\nI will mention it elsewhere")
    act(reviewed).comment(issue_of(reviewed), "   ")
    assert prompt_of(reviewed) == "ada:\nname it b\n\nada:\nand look at the tests"
    assert len(answers_to_comments(reviewed, pull_of(reviewed))) == 2


def test_a_comment_on_a_task_that_is_done_is_answered_and_not_kept(reviewed: SprintDriver) -> None:
    n = issue_of(reviewed)
    act(reviewed).review(pull_of(reviewed), "approved")
    assert reviewed.status("a") is Status.DONE
    act(reviewed).comment(n, "much too late")
    (answer,) = answers_to_comments(reviewed, n)
    assert "is done" in answer
    assert reviewed.task("a").conversation.unread == ()


def test_a_comment_that_no_agent_read_before_the_merge_is_named_at_the_end(
    reviewed: SprintDriver,
) -> None:
    n = issue_of(reviewed)
    act(reviewed).comment(n, "one more thing")
    reviewed.person.merge_pull(pull_of(reviewed))
    reviewed.settle()
    (completed,) = [c.body for c in reviewed.forge.comments(n) if "Completed via" in c.body]
    assert "No agent read the last comments of ada." in completed
    assert len(answers_to_comments(reviewed, n)) == 1


def test_a_comment_on_a_cancelled_task_is_read_when_it_is_restored(made: SprintDriver) -> None:
    n = issue_of(made)
    act(made).comment(n, "caloron:cancel")
    act(made).comment(n, "a pity, because x")
    assert "is cancelled" in answers_to_comments(made, n)[-1]
    act(made).comment(n, "caloron:retry")
    assert prompt_of(made) == "ada:\na pity, because x"


def test_an_escalated_task_keeps_what_people_say_for_its_next_prompt(made: SprintDriver) -> None:
    n = issue_of(made)
    finish_twice(made, "a", changes=False, exit_code=3)
    assert made.status("a") is Status.ESCALATED
    act(made).comment(n, "the key is in the vault")
    assert "`resolved`" in answers_to_comments(made, n)[-1]
    act(made).comment(n, "resolved\nmind the vault")
    assert prompt_of(made) == "ada:\nthe key is in the vault\n\nada:\nmind the vault"


def test_two_programs_do_not_answer_each_other_for_ever(made: SprintDriver) -> None:
    n = issue_of(made)
    for count in range(50):
        act(made).comment(n, f"you said {len(made.forge.comments(n))} things; {count}")
    assert len(answers_to_comments(made, n)) == 20
    other = act(made).comment(n, f"progress\n\n{marker('comment/other-1/a/progress')}")
    assert other.object not in made.task("a").conversation.unread
    assert len(made.task("a").conversation.unread) == 50
    assert len(for_prompt(made.state, made.task("a"))[1]) == 50


def test_what_does_not_fit_into_a_prompt_is_for_the_next(made: SprintDriver) -> None:
    for letter in "xyzw":
        act(made).comment(issue_of(made), letter * 9000)
    text, objects = for_prompt(made.state, made.task("a"))
    assert (len(objects), len(text) <= 12_000, "w" in text) == (2, True, False)
    made.finish("a")
    assert len(made.task("a").conversation.unread) == 2


def test_a_request_that_was_dismissed_is_no_remark(reviewed: SprintDriver) -> None:
    review = reviewed.person.review(pull_of(reviewed), "changes_requested", "rewrite it")
    reviewed.settle()
    assert reviewed.role("a") == "fix"
    reviewed.tick(msgspec.structs.replace(review, version=10**6, verdict="commented"))
    assert reviewed.task("a").conversation.unread == ()
