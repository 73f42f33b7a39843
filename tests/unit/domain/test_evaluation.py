"""A rule that fails for one task: that task waits for a person, and every other one continues.

A rule that fails and names no task: the sprint pauses as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caloron.domain.model.effects import CancelWork, PostComment
from caloron.domain.model.facts import EffectDone, EffectFailed, PlanApproved, Refusal, WorkEnded
from caloron.domain.model.merge import Verified
from caloron.domain.model.status import IllegalTransition, Status, Step
from caloron.domain.model.task import Task, Work
from caloron.domain.rules import evaluate as evaluation
from caloron.domain.rules import workflow
from caloron.domain.rules.evaluation import Evaluation, RuleFailed
from caloron.domain.rules.people.state_file_edit import FileEdit, apply_file_edit
from caloron.testing import SprintDriver, new_state, planned
from tests.support.sprints import SPRINT, finishes, issue_of
from tests.unit.domain.test_post_merge_check import merge_into_moved_main


def _first(patch: pytest.MonkeyPatch, rule: Callable[[Evaluation, Task], None]) -> None:
    """Put a rule at the head of the table."""

    def act(evaluation: Evaluation, task: Task, _matched: bool) -> None:
        evaluation.apply(task.id, rule, task)

    row = workflow.Rule(workflow.ALL, workflow.always, act)
    patch.setattr(workflow, "PEOPLE", (row, *workflow.PEOPLE))


def _for_all(rule: Callable[[Evaluation], None]) -> workflow.QueueRule:
    return workflow.QueueRule(workflow.ALL, rule, workflow.ALL)


PLAN = (planned("bad"), planned("a"), planned("b", "a"), planned("c"))
OTHERS = ("a", "b", "c")


def test_editing_a_task_to_done_while_its_merge_is_checked_blocks_no_other() -> None:
    """The file says Done; the forge refuses a merge step whose result is no longer needed."""
    made = merge_into_moved_main("b")
    decision, _ = apply_file_edit(
        made.state, FileEdit(statuses={"a": "Done"}, interventions={}), made.now
    )
    made.adopt(decision)
    merge = made.task("a").merge
    assert (merge.unverified, merge.merging, merge.revert, merge.waiting) == ("", "", None, None)
    for kind in ("merge", "revert", "open_pull"):
        made.facts.append(
            EffectFailed(key="old", task="a", kind=kind, refusal="refused", message="no")
        )
    made.run()
    assert (made.status("a"), made.status("b")) == (Status.DONE, Status.DONE)


def test_a_done_task_of_an_older_ledger_with_merge_state_blocks_no_task() -> None:
    made = SprintDriver.start(planned("a"), planned("b"))
    old = made.task("a")
    old.step, old.merge.unverified, old.merge.merging = Step.DONE, "c1", "c1"
    made.queue.pop(made.item("a"))
    old.work = None
    made.run()
    assert made.status("b") is Status.DONE


def test_an_illegal_move_escalates_only_its_task_and_undoes_the_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = SprintDriver.start(*PLAN)
    made.settle()

    def breaks(evaluation: Evaluation, task: Task) -> None:
        if task.id == "bad" and task.status is Status.IN_PROGRESS:
            task.change.head = "half-done"
            evaluation.sprint.main_health.red_summary = "half-done"
            evaluation.comment(task, "half", "done", "half-done")
            evaluation.state.tasks["c"].change.head = "half-done"
            evaluation.move(task, Step.BLOCKED, "half-done")

    _first(monkeypatch, breaks)
    decision = made.tick()
    bad = decision.state.tasks["bad"]
    assert bad.status is Status.ESCALATED
    assert bad.reason == "internal error in rule breaks: task bad: InProgress → Blocked"
    assert "half-done" not in repr(decision)
    started = [a for a in decision.actions if isinstance(a, PostComment)]
    assert started == []
    # The agent of the task is stopped, other agents run on.
    assert [a.item for a in decision.actions if isinstance(a, CancelWork)] == [
        f"{SPRINT}/bad/1-implement"
    ]


def test_a_released_task_continues_where_the_rule_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SprintDriver.start(*PLAN)
    with monkeypatch.context() as broken:

        def breaks(evaluation: Evaluation, task: Task) -> None:
            if task.id == "bad" and task.status is Status.IN_PROGRESS:
                raise KeyError("a defect")

        _first(broken, breaks)
        made.tick()
    made.run()
    assert {made.status(name) for name in OTHERS} == {Status.DONE}
    assert made.status("bad") is Status.ESCALATED
    assert made.state.sprint.phase == "ended"
    made.person.comment(issue_of(made, "bad"), "resolved")
    made.run()
    assert made.status("bad") is Status.DONE


def test_rules_that_never_settle_are_stopped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that changes a task on each pass, with an action and without one."""
    for act in (True, False):
        made = SprintDriver.start(*PLAN)
        made.settle()

        def restless(evaluation: Evaluation, act: bool = act) -> None:
            task = evaluation.state.tasks["bad"]
            if task.status is Status.IN_PROGRESS:
                task.merge.stale_merges += 1
                if act:
                    evaluation.comment(task, "again", str(task.merge.stale_merges), "again")

        with monkeypatch.context() as broken:
            broken.setattr(workflow, "QUEUES", (*workflow.QUEUES, _for_all(restless)))
            decision = made.tick()
        bad = decision.state.tasks["bad"]
        assert bad.status is Status.ESCALATED
        assert "rule restless" in bad.reason
        assert "does not come to rest" in bad.reason
        made.run()
        assert {made.status(name) for name in OTHERS} == {Status.DONE}


def test_a_change_of_state_without_an_action_is_followed_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The last rule of a pass changes something that the first one acts on."""
    made = SprintDriver.start(*PLAN)
    made.settle()

    def first(evaluation: Evaluation) -> None:
        task = evaluation.state.tasks["bad"]
        if task.merge.stale_merges == 1:
            task.merge.stale_merges = 2
            evaluation.note(task, "seen by the first rule")

    def last(evaluation: Evaluation) -> None:
        task = evaluation.state.tasks["bad"]
        if task.merge.stale_merges == 0:
            task.merge.stale_merges = 1

    rules = (_for_all(first), *workflow.QUEUES, _for_all(last))
    monkeypatch.setattr(workflow, "QUEUES", rules)
    assert made.tick().state.tasks["bad"].reason == "seen by the first rule"


def test_a_task_in_review_without_a_commit_waits_for_a_person_without_a_slot() -> None:
    made = SprintDriver.start(planned("bad"), planned("a"), parallel=1)
    made.end(made.item("bad"), changes=False)
    (ended,) = [fact for fact in made.facts if isinstance(fact, WorkEnded)]
    made.facts.remove(ended)
    made.tick(msgspec.structs.replace(ended, head="", base=""))
    made.run()
    assert (made.status("bad"), made.status("a")) == (Status.ESCALATED, Status.DONE)
    made.person.comment(issue_of(made, "bad"), "resolved")
    made.run()
    assert made.status("bad") is Status.DONE


# Rules that name no task

#: The rules of a sprint whose failure concerns no task, as `evaluate` calls them.
WIDE = (
    "workflow.pulls.bind",
    "workflow.queue.advance_merge_queue",
    "workflow.slots.start_ready",
    "add_tasks",
    "_plan_judged",
    "_account",
    "_end_or_go_on",
    "planning.advance",
    "_follow_plan_issue",
    "_conclude_plan_issue",
    "progress_page.report",
)


def _break(broken: pytest.MonkeyPatch, name: str) -> None:
    """Let a rule do its work, then something wrong, and then fail."""
    module = evaluation
    for part in name.split(".")[:-1]:
        module = getattr(module, part)
    name = name.rsplit(".", 1)[-1]
    real = getattr(module, name)

    def breaks(evaluation: Evaluation, *arguments: Any) -> None:
        real(evaluation, *arguments)
        evaluation.sprint.main_health.red_summary = "half-done"
        for task in evaluation.state.tasks.values():
            task.change.head = "half-done"
            evaluation.comment(task, "half", "done", "half-done")
        raise KeyError("a defect")

    breaks.__name__ = name
    broken.setattr(module, name, breaks)
    rules = workflow.QUEUES
    broken.setattr(
        workflow,
        "QUEUES",
        tuple(rule._replace(do=breaks) if rule.do is real else rule for rule in rules),
    )


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_a_failing_rule_of_the_sprint_pauses_it_without_loss(data: st.DataObject) -> None:
    """Whichever rule fails, at whatever moment: the version without the defect ends the sprint."""
    made = SprintDriver(new_state(*PLAN, parallel=data.draw(st.integers(1, 4), label="parallel")))
    for _ in range(data.draw(st.integers(0, 30), label="steps")):
        _one_step(made)
    before, facts = made.loaded(), list(made.facts)
    name = data.draw(st.sampled_from(WIDE))
    with pytest.MonkeyPatch.context() as broken:
        _break(broken, name)
        decision = made.tick()
        again = made.tick()
    if decision.state.facts_wait:
        rule = name.rsplit(".", 1)[-1]
        reason = f"internal error in rule {rule}: KeyError('a defect')"
        for paused in (decision, again):
            assert (paused.actions, paused.moves) == ((), ())
            assert paused.state.sprint.availability.pause_reason == reason
            assert paused.problems != ()
        sprint = decision.state.sprint.copy()
        sprint.availability.pause_reason = ""
        assert (sprint, decision.state.tasks) == (before.sprint, before.tasks)
        assert made.facts[: len(facts)] == facts
        made.state.sprint.availability.pause_reason = ""
    _finish(made)
    assert set(made.statuses().values()) == {"Done"}
    assert made.state.sprint.phase == "ended"


def _one_step(made: SprintDriver) -> None:
    """Execute an effect, end an agent, or run a tick."""
    if made.facts:
        made.tick()
    elif made.journal:
        made.perform(0)
    elif made.queue:
        made.end(next(iter(made.queue)))
    else:
        made.poll()
        made.tick()


@pytest.mark.parametrize("name", WIDE)
def test_each_rule_of_the_sprint_can_fail(name: str) -> None:
    """The property above breaks every rule that it names."""
    made = SprintDriver(new_state(*PLAN, ask=True))
    failed: list[RuleFailed] = []
    for _ in range(60):
        with pytest.MonkeyPatch.context() as broken:
            _break(broken, name)
            failed += made.tick().problems
        made.state.sprint.availability.pause_reason = ""
        if made.state.sprint.phase == "approval":
            made.facts.append(PlanApproved())
        made.tick()
        _one_step(made)
    assert {problem.rule for problem in failed} == {name.rsplit(".", 1)[-1]}


def test_a_rule_that_keeps_failing_for_one_task_pauses_the_sprint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Leaving out the task that it names does not help."""
    made = SprintDriver.start(*PLAN)

    def breaks(evaluation: Evaluation) -> None:
        raise IllegalTransition("bad", Status.DONE, Status.READY)

    with monkeypatch.context() as broken:
        broken.setattr(workflow, "QUEUES", (*workflow.QUEUES, _for_all(breaks)))
        paused = made.tick()
    assert paused.state.sprint.availability.pause_reason.startswith(
        "internal error in rule breaks: task bad: Done"
    )
    assert paused.state.tasks["bad"].status is Status.IN_PROGRESS
    made.state.sprint.availability.pause_reason = ""
    assert finishes(made)


# No rule makes such a state, but a defect, an edit or an older version may.

_COMMIT = st.sampled_from(["", "c1", "c2", "c9"])
_WORK = st.builds(
    Work,
    item=st.just(f"{SPRINT}/bad/1-implement"),
    role=st.sampled_from(["implement", "review", "fix", "resolve", "check", "verify"]),
    head=_COMMIT,
    batch=st.sampled_from([(), ("c1", "c9")]),
)
_VERIFIED = st.builds(Verified, head=_COMMIT, base=_COMMIT, ok=st.booleans(), log=st.just(""))
_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "step": st.sampled_from(list(Step)),
    "work": st.none(),
    "escalation.resume_work": st.none() | _WORK,
    "escalation.resume_as": st.sampled_from(list(Step)),
    "change.head": _COMMIT,
    "change.pushed": _COMMIT,
    "change.is_empty": st.booleans(),
    "review.posted_for": _COMMIT,
    "merge.merging": st.just(""),
    "merge.verified": st.none() | _VERIFIED,
    "links.pull": st.none(),
    "links.generation": st.integers(1, 3),
    "attempts.failures": st.integers(0, 3),
    "review.rejected": st.sampled_from([(), ("c1", "c2", "c9")]),
    "merge.stale_merges": st.integers(0, 6),
    "escalation.taken_over_by": st.sampled_from(["", "ada"]),
    "escalation.handback_by": st.sampled_from(["", "ada"]),
    "conversation.closed_by_person": st.booleans(),
    "conversation.closing_pulls": st.sampled_from([(), (1, 2, 3)]),
}


def _spoil(world: SprintDriver, data: st.DataObject) -> None:
    """Give some fields of one task values that do not belong together."""
    names = data.draw(st.lists(st.sampled_from(sorted(_FIELDS)), min_size=1, unique=True))
    bad = world.task("bad")
    world.checks_steps = False
    for name in names:
        group, _, field = name.rpartition(".")
        part = getattr(bad, group) if group else bad
        setattr(part, field, data.draw(_FIELDS[name], label=name))


def _stray_fact(world: SprintDriver, data: st.DataObject) -> None:
    bad = world.task("bad")
    item = bad.work.item if bad.work else f"{SPRINT}/bad/7-fix"
    token = world.tokens.get(item, 0) + 1
    kinds = st.sampled_from(["merge", "push", "open_pull", "revert", "reopen_issue", "see_branch"])
    key = data.draw(
        st.sampled_from(
            [
                f"merge/{bad.links.pull}/{bad.change.head}/c1",
                f"push/{bad.change.branch}/new/{bad.change.head}",
                f"review/{bad.links.pull}/{bad.change.head}/1/1-review-1",
                f"pull/{SPRINT}/bad/1",
                "unknown",
            ]
        )
    )
    refusals = st.sampled_from(get_args(Refusal))
    facts = st.one_of(
        st.builds(EffectDone, key=st.just(key), task=st.just("bad"), kind=kinds, commit=_COMMIT),
        st.builds(
            EffectFailed,
            key=st.just(key),
            task=st.just("bad"),
            kind=kinds,
            refusal=refusals,
            message=st.just("no"),
        ),
        st.builds(
            WorkEnded,
            item=st.just(item),
            task=st.just("bad"),
            role=st.just(bad.work.role if bad.work else "fix"),
            token=st.just(token),
            exit_code=st.integers(0, 1),
            head=_COMMIT,
            base=_COMMIT,
            answer=st.sampled_from(["", "APPROVED", "CHANGES_NEEDED: more"]),
        ),
    )
    fact = data.draw(facts)
    if isinstance(fact, WorkEnded):
        world.tokens[item] = token
        world.queue.pop(item, None)
    world.facts.append(fact)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_one_broken_task_does_not_stop_the_others_and_a_person_can_end_it(
    data: st.DataObject,
) -> None:
    made = SprintDriver(new_state(*PLAN, parallel=data.draw(st.integers(1, 4))))
    for _ in range(data.draw(st.integers(0, 12), label="steps")):
        made.settle()
        if made.queue:
            made.end(next(iter(made.queue)))
    made.settle()
    for _ in range(data.draw(st.integers(1, 3), label="times")):
        _spoil(made, data)
        if data.draw(st.booleans()):
            _stray_fact(made, data)
        made.tick()
    _finish(made)
    assert {name: made.status(name) for name in OTHERS} == dict.fromkeys(OTHERS, Status.DONE)
    bad = made.task("bad")
    if bad.status not in (Status.DONE, Status.CANCELLED) and bad.links.issue is not None:
        made.person.close_issue(bad.links.issue)
        _finish(made)
    assert made.status("bad") in (Status.DONE, Status.CANCELLED), made.task("bad")
    assert made.state.sprint.phase == "ended"


def _finish(made: SprintDriver) -> None:
    """Let effects and agents succeed until the sprint is idle."""
    for _ in range(200):
        made.settle()
        if not made.queue:
            return
        made.end(next(iter(made.queue)))
    raise AssertionError("the sprint never becomes idle")
