"""The decision itself: order and repetition do not matter, binding is by marker, rules hold."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from caloron.domain.model.effects import Action, CreateIssue, Merge, OpenPull, Push, StartWork
from caloron.domain.model.facts import EffectDone, EffectFailed, Fact, PlanApproved, WorkEnded
from caloron.domain.model.snapshots import (
    BranchSnapshot,
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    Snapshot,
    marker,
)
from caloron.domain.model.sprint import Sprint, State
from caloron.domain.model.status import Status
from caloron.domain.reporting.explain import why, why_sprint
from caloron.domain.rules.evaluate import evaluate
from caloron.testing import SprintDriver, new_state, planned
from tests.support.sprints import (
    CALORON,
    DIAMOND,
    PERSON,
    act,
    escalation_of,
    finish_twice,
    finishes,
)

_replace = msgspec.structs.replace


def unordered(actions: tuple[Action, ...]) -> set[str]:
    return {repr(a) for a in actions}


def busy_world(seed: int) -> SprintDriver:
    """Start a running sprint with facts that no tick has read yet."""
    chance = random.Random(seed)
    made = SprintDriver.start(*DIAMOND, parallel=2)
    for _ in range(chance.randrange(25)):
        made.settle()
        if not made.queue:
            break
        item = chance.choice(sorted(made.queue))
        answer = chance.choice(("APPROVED", "APPROVED", "CHANGES_NEEDED: more"))
        made.end(item, answer=answer)
    _stir(made, chance)
    return made


def _stir(made: SprintDriver, chance: random.Random) -> None:
    """Let people and agents act without a tick in between."""
    made.tick()
    while made.journal and chance.random() < 0.8:
        made.perform(0)
    for item in sorted(made.queue):
        if chance.random() < 0.5:
            made.end(item)
    for task in made.state.tasks.values():
        pull = made.forge.pull(task.links.pull) if task.links.pull is not None else None
        if pull and pull.state == "open" and chance.random() < 0.4:
            chance.choice((
                lambda n=pull.number: made.person.review(n, "approved"),
                lambda n=pull.number: made.person.review(n, "changes_requested", "no"),
                lambda n=pull.number: made.person.close_pull(n),
                lambda n=pull.number: made.person.merge_pull(n),
                lambda n=pull.number: made.person.push(n),
            ))()  # fmt: skip
        elif task.links.issue and task.status is not Status.DONE and chance.random() < 0.2:
            made.person.close_issue(task.links.issue)
    made.poll()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_order_and_repetition_of_one_set_of_facts_do_not_matter(
    seed: int, chance: random.Random
) -> None:
    made = busy_world(seed)
    facts = list(made.facts)
    expected = evaluate(made.state, facts, 5000.0)
    shuffled = facts + [f for f in facts if chance.random() < 0.5]
    chance.shuffle(shuffled)
    decision = evaluate(made.state, shuffled, 5000.0)
    assert decision.state == expected.state
    assert unordered(decision.actions) == unordered(expected.actions)


def _snapshots(facts: list[Fact]) -> list[Snapshot]:
    """Return the newest snapshot of each object among the facts."""
    kinds = (IssueSnapshot, PullSnapshot, ReviewSnapshot, CommentSnapshot, BranchSnapshot)
    newest: dict[str, Snapshot] = {}
    for fact in facts:
        if isinstance(fact, kinds):
            known = newest.get(fact.object)
            newest[fact.object] = fact if known is None or fact.version > known.version else known
    return list(newest.values())


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.randoms(use_true_random=False))
def test_snapshots_in_separate_ticks_end_in_the_same_statuses(
    seed: int, chance: random.Random
) -> None:
    made = busy_world(seed)
    snapshots = _snapshots(made.facts)
    at_once = evaluate(made.state, snapshots, 5000.0).state
    chance.shuffle(snapshots)
    state = made.state
    for snapshot in snapshots:
        state = evaluate(state, (snapshot,), 5000.0).state
    assert _statuses(state) == _statuses(at_once)
    assert state.objects == at_once.objects


def _statuses(state: State) -> dict[str, Status]:
    """Return the statuses of the tasks once every decided merge has its result.

    A merge of a closed issue is refused; a merge that a person made before is reported.
    """
    refused = [
        EffectFailed(
            key=f"merge/{task.links.pull}/{task.change.head}/x",
            task=task.id,
            kind="merge",
            refusal="stale_head",
            message="its issue was closed",
        )
        for task in state.tasks.values()
        if task.merge.merging
        and getattr(state.objects.get(f"issue:{task.links.issue}"), "state", "") == "closed"
    ]
    made = [
        EffectDone(
            key=f"merge/{task.links.pull}/{task.merge.merging}/{task.merge.verified.base}",
            task=task.id,
            kind="merge",
            by_us=False,
        )
        for task in state.tasks.values()
        if task.merge.merging
        and task.merge.verified
        and getattr(state.objects.get(f"pull:{task.links.pull}"), "state", "") == "merged"
    ]
    after = evaluate(state, (*made, *refused), 5000.0).state
    return {i: t.status for i, t in after.tasks.items()}


def test_evaluate_does_not_change_its_input() -> None:
    made = busy_world(7)
    before = msgspec.json.encode(made.state)
    evaluate(made.state, made.facts, 5000.0)
    assert msgspec.json.encode(made.state) == before


def test_an_older_version_that_arrives_later_is_ignored(reviewed: SprintDriver) -> None:
    task = reviewed.task("a")
    old = reviewed.forge.pull(task.links.pull)
    act(reviewed).merge_pull(old.number)
    assert reviewed.status("a") is Status.DONE
    reviewed.tick(old)
    assert reviewed.state.objects[old.object] != old
    assert reviewed.status("a") is Status.DONE


# Binding


def issue_with(body: str, number: int, author: str = CALORON) -> IssueSnapshot:
    return IssueSnapshot(
        version=number, number=number, title="t", body=body, state="open", author=author
    )


def test_issues_are_bound_by_marker_and_never_by_position() -> None:
    first = evaluate(new_state(planned("a"), planned("b")), (), 1.0)
    bodies = {a.task: a.body for a in first.actions if isinstance(a, CreateIssue)}
    seen = (issue_with(bodies["b"], 1), issue_with(bodies["a"], 2))
    state = evaluate(first.state, seen, 2.0).state
    assert {i: t.links.issue for i, t in state.tasks.items()} == {"a": 2, "b": 1}


def test_the_marker_of_an_untrusted_author_binds_nothing() -> None:
    first = evaluate(new_state(planned("a")), (), 1.0)
    fake = issue_with(marker("issue/shop-1/a"), 5, PERSON)
    state = evaluate(first.state, (fake,), 2.0).state
    assert state.tasks["a"].links.issue is None
    assert state.tasks["a"].status is Status.READY


def test_of_two_issues_with_one_marker_the_first_counts_in_any_order() -> None:
    first = evaluate(new_state(planned("a")), (), 1.0)
    twins = [issue_with(marker("issue/shop-1/a"), n) for n in (8, 3)]
    for order in (twins, twins[::-1]):
        assert evaluate(first.state, order, 2.0).state.tasks["a"].links.issue == 3


def test_an_issue_of_another_sprint_is_not_ours() -> None:
    first = evaluate(new_state(planned("a")), (), 1.0)
    other = issue_with(marker("issue/shop-10/a"), 3)
    assert evaluate(first.state, (other,), 2.0).state.tasks["a"].links.issue is None


def test_a_task_starts_only_with_its_issue_and_a_free_slot() -> None:
    made = SprintDriver(new_state(planned("a"), planned("b"), parallel=1))
    made.tick()
    assert made.queue == {}
    made.settle()
    assert made.statuses() == {"a": "InProgress", "b": "Ready"}
    assert why(made.state, made.task("b")) == "waiting for a free slot (1 of 1 busy)"


def test_the_task_with_the_longest_chain_behind_it_starts_first() -> None:
    plan = (planned("alone"), planned("first"), planned("then", "first"))
    made = SprintDriver.start(*plan, parallel=1)
    assert [owner for owner, _ in made.queue.values()] == ["first"]


# The loop


def test_a_sprint_whose_agents_do_well_ends_with_everything_merged() -> None:
    made = SprintDriver.start(*DIAMOND)
    assert finishes(made)
    assert made.state.sprint.phase == "ended"
    assert made.effects(Merge)[0].task == "a"
    assert len(made.effects(Merge)) == 4
    assert all(made.forge.issue(t.links.issue).state == "closed" for t in made.state.tasks.values())


def test_an_agent_that_fails_is_tried_once_more_then_a_person_is_asked(chain: SprintDriver) -> None:
    chain.finish("a", exit_code=3, changes=False, answer="boom")
    assert chain.role("a") == "implement"
    chain.finish("a", exit_code=3, changes=False, answer="boom")
    task = chain.task("a")
    assert task.status is Status.ESCALATED
    assert "exit code 3" in task.reason
    assert "boom" in task.reason
    assert chain.task("b").reason == "held by a"
    assert chain.state.sprint.phase == "ended"


def test_a_release_brings_the_task_and_its_dependents_back() -> None:
    made = SprintDriver.start(planned("a"), planned("b", "a"), planned("c", "b"))
    finish_twice(made, "a", exit_code=1, changes=False)
    assert made.statuses() == {"a": "Escalated", "b": "Blocked", "c": "Blocked"}
    escalation = escalation_of(made)
    act(made).comment(escalation, "resolved")
    assert made.statuses() == {"a": "InProgress", "b": "Pending", "c": "Pending"}
    assert made.forge.issue(escalation).state == "closed"
    assert finishes(made)


def test_an_exit_code_after_good_work_does_not_throw_the_work_away(made: SprintDriver) -> None:
    made.finish("a", exit_code=1)
    assert made.status("a") is Status.IN_REVIEW


def test_an_empty_change_is_done_only_when_a_reviewer_agrees(made: SprintDriver) -> None:
    made.finish("a", changes=False)
    assert (made.status("a"), made.role("a")) == (Status.IN_REVIEW, "review")
    made.finish("a", answer="CHANGES_NEEDED: there is something to do")
    assert made.role("a") == "fix"
    assert finishes(made)
    assert made.effects(Merge)

    agreed = SprintDriver.start(planned("a"))
    agreed.finish("a", changes=False)
    agreed.finish("a")
    assert agreed.task("a").reason == "nothing to do"
    assert not agreed.effects(OpenPull)


def test_an_unclear_verdict_is_asked_for_once_more_in_the_same_round(made: SprintDriver) -> None:
    made.bring_to_review("a")
    item, round = made.item("a"), made.work("a").round
    made.finish("a", answer="hm")
    assert (made.item("a"), made.work("a").round) == (item, round)
    made.finish("a", answer="dunno")
    assert made.status("a") is Status.ESCALATED
    assert "no clear verdict" in made.task("a").reason


def test_an_approval_after_rework_counts(reviewed: SprintDriver) -> None:
    reviewed.finish("a", answer="CHANGES_NEEDED: x")
    assert reviewed.work("a").reason == "x"
    reviewed.bring_to_review("a")
    assert reviewed.work("a").round == 2
    reviewed.finish("a")
    assert reviewed.status("a") is Status.DONE


def test_fix_rounds_are_capped_by_head_and_end_with_a_person() -> None:
    made = SprintDriver.start(planned("a"), max_fix_rounds=2)
    for _ in range(2):
        made.bring_to_review("a")
        made.finish("a", answer="CHANGES_NEEDED: x")
        assert made.role("a") == "fix"
    made.bring_to_review("a")
    made.finish("a", answer="CHANGES_NEEDED: x")
    task = made.task("a")
    assert task.status is Status.ESCALATED
    assert "not approved after 2 fix rounds: x" in task.reason


def test_a_round_of_resolving_makes_a_new_review_but_does_not_count_to_the_cap() -> None:
    made = SprintDriver.start(planned("a"), max_fix_rounds=1)
    for _ in range(4):
        made.settle()
        while made.role("a") != "verify":
            made.finish("a")
        made.finish("a", conflicts=("x.py",))
        assert made.role("a") == "resolve"
    made.bring_to_review("a")
    assert made.task("a").review.rejected == ()
    made.finish("a")
    assert made.status("a") is Status.DONE


def test_a_failed_verification_runs_again_and_then_returns_to_its_agent_with_the_log() -> None:
    made = SprintDriver.start(planned("a"))
    made.finish("a")
    made.red.add(made.task("a").change.head)
    made.finish("a")
    assert made.role("a") == "verify"
    made.finish("a")
    work = made.work("a")
    assert (work.role, work.onto_main) == ("fix", True)
    assert "verification of the merged result failed" in work.reason
    assert finishes(made)


def test_a_change_is_verified_again_when_main_moved_before_its_merge(made: SprintDriver) -> None:
    made.bring_to_review("a")
    made.person.push_main()
    made.finish("a")
    assert made.role("a") == "verify"
    made.finish("a")
    assert len(made.effects(Merge)) == 1
    assert made.status("a") is Status.DONE


def merge_is_due(made: SprintDriver) -> Merge:
    """Tick and execute effects until the next effect is a merge."""
    for _ in range(20):
        made.poll()
        made.tick()
        if made.journal and isinstance(made.journal[0], Merge):
            merge = made.journal.pop(0)
            assert isinstance(merge, Merge)
            return merge
        while made.journal:
            made.perform(0)
    raise AssertionError("no merge was planned")


def test_a_late_merge_is_verified_and_retried_up_to_a_limit(made: SprintDriver) -> None:
    made.bring_to_review("a")
    made.end(made.item("a"))
    refused = 0
    while made.status("a") is Status.IN_REVIEW:
        made.refuse(merge_is_due(made), "stale_base")
        refused += 1
        assert refused < 20, "the merge is retried without end"
        made.tick()
        if made.status("a") is Status.IN_REVIEW:
            assert made.role("a") == "verify"
            made.end(made.item("a"))
    assert refused > 2
    assert (made.status("a"), made.task("a").merge.merging) == (Status.ESCALATED, "")


def test_the_end_of_an_attempt_that_is_reported_twice_counts_once(made: SprintDriver) -> None:
    fact = made.finish("a", exit_code=1, changes=False)
    assert made.task("a").attempts.failures == 1
    made.tick(fact)
    assert made.task("a").attempts.failures == 1
    assert made.role("a") == "implement"


def test_a_check_ends_with_its_verdict() -> None:
    made = SprintDriver.start(planned("a", kind="check"))
    assert made.role("a") == "check"
    made.finish("a")
    assert made.task("a").reason == "check passed"
    assert not made.effects(Push)

    failed = SprintDriver.start(planned("a", kind="check"))
    failed.finish("a", answer="CHANGES_NEEDED: it is broken")
    assert failed.status("a") is Status.ESCALATED
    assert "it is broken" in failed.task("a").reason


# Planning


def planning_state() -> State:
    return State(sprint=Sprint(id="shop-1", number=1, goal="a shop"))


def plan_answer(answer: str, token: int, exit_code: int = 0) -> WorkEnded:
    return WorkEnded(
        item="shop-1/po/1-po", task="", role="po", token=token, answer=answer, exit_code=exit_code
    )


GOOD = '[{"id": "a", "title": "A", "agent_prompt": "do"}]'


def test_a_goal_without_a_plan_asks_the_planner_once() -> None:
    asked = evaluate(planning_state(), (), 1.0)
    assert [a.work.role for a in asked.actions if isinstance(a, StartWork)] == ["po"]
    assert evaluate(asked.state, (), 2.0).actions == ()
    assert why_sprint(asked.state.sprint) == "the planner is working"
    planned_ = evaluate(asked.state, (plan_answer(GOOD, 1),), 3.0)
    assert list(planned_.state.tasks) == ["a"]
    assert [type(a) for a in planned_.actions] == [CreateIssue]


def test_a_bad_plan_gets_one_round_of_repair_with_its_errors() -> None:
    asked = evaluate(planning_state(), (), 1.0).state
    bad = '[{"id": "a", "title": "A", "agent_prompt": "do", "depends_on": ["x"]}]'
    again = evaluate(asked, (plan_answer(bad, 1),), 2.0)
    assert again.state.sprint.planning.errors == ("task 'a' depends on unknown task 'x'",)
    assert len(again.actions) == 1
    given_up = evaluate(again.state, (plan_answer("no", 2),), 3.0)
    assert given_up.state.sprint.phase == "ended"
    assert "no JSON list" in why_sprint(given_up.state.sprint)
    assert evaluate(again.state, (plan_answer(GOOD, 2),), 3.0).state.sprint.phase == "running"


def test_a_planner_that_crashes_is_tried_once_more() -> None:
    state = evaluate(planning_state(), (), 1.0).state
    state = evaluate(state, (plan_answer("", 1, exit_code=9),), 2.0).state
    assert state.sprint.phase == "planning"
    state = evaluate(state, (plan_answer("", 2, exit_code=9),), 3.0).state
    assert state.sprint.phase == "ended"
    assert "exit code 9" in state.sprint.planning.failure


def test_no_issue_is_created_before_a_person_approves_the_plan() -> None:
    waiting = evaluate(new_state(planned("a"), ask=True), (), 1.0)
    assert (waiting.state.sprint.phase, waiting.actions) == ("approval", ())
    assert why(waiting.state, waiting.state.tasks["a"]) == "the plan waits for your approval"
    approved = evaluate(waiting.state, (PlanApproved(),), 2.0)
    assert [type(a) for a in approved.actions] == [CreateIssue]


def test_an_issue_that_the_forge_refuses_does_not_make_the_sprint_wait_forever() -> None:
    made = SprintDriver(new_state(planned("a"), planned("b", "a")))
    made.tick()
    for effect in list(made.journal):
        made.journal.remove(effect)
        made.refuse(effect, "refused", "issues are switched off")
    made.settle()
    assert made.status("a") is Status.ESCALATED
    assert "switched off" in made.task("a").reason
    assert made.state.sprint.phase == "ended"
