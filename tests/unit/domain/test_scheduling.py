"""Work that finishes a started change has priority over work that starts another change."""

from __future__ import annotations

import random
from itertools import pairwise, permutations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caloron.domain.model.effects import CreateIssue, Merge, PostComment, StartWork
from caloron.domain.model.roles import Role
from caloron.domain.model.status import Status, Step
from caloron.domain.reporting.explain import why
from caloron.domain.reporting.waiting import busy_slots
from caloron.domain.rules.evaluation import Evaluation
from caloron.testing import SprintDriver, new_state, planned
from tests.support.sprints import issue_of

FIRST: tuple[Role, ...] = ("implement", "check")


class Slots:
    """A queue as the store keeps it: two kinds of slots, the highest priority first."""

    def __init__(self, world: SprintDriver, parallel: int) -> None:
        self.world = world
        self.parallel = parallel
        self.running: set[str] = set()
        self.priority: dict[str, int] = {}

    def tick(self) -> None:
        decision = self.world.tick()
        for action in decision.actions:
            if isinstance(action, StartWork):
                self.priority[action.work.item] = action.priority
        self.running &= self.world.queue.keys()

    def role(self, item: str) -> str:
        return self.world.queue[item][1].role

    def claim(self) -> None:
        """Fill the free slots; assert that no task starts while other work could be finished."""
        for verify in (True, False):
            while True:
                kind = [i for i in self.world.queue if (self.role(i) == "verify") is verify]
                waiting = [item for item in kind if item not in self.running]
                if not waiting or len(kind) - len(waiting) >= self.parallel:
                    break
                item = max(waiting, key=lambda i: self.priority[i])
                if self.role(item) in FIRST:
                    assert all(self.role(other) in FIRST for other in waiting)
                self.running.add(item)
        self.world.unclaimed = self.world.queue.keys() - self.running

    def settle(self) -> None:
        for _ in range(100):
            self.world.poll()
            self.tick()
            self.claim()
            if not self.world.journal and not self.world.facts:
                return
            while self.world.journal:
                self.world.perform(0)
        raise AssertionError("the effects never end")


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_no_change_starts_while_another_could_be_finished(seed: int, parallel: int) -> None:
    chance = random.Random(seed)
    names = [f"t{n}" for n in range(12)]
    # Long chains have the highest priority among starting tasks.
    needs = [chance.sample(names[:n], min(n, chance.randrange(2))) for n in range(12)]
    plan = [planned(name, *after) for name, after in zip(names, needs, strict=True)]
    world = SprintDriver(new_state(*plan, parallel=parallel))
    slots = Slots(world, parallel)
    for _ in range(400):
        slots.settle()
        world.state.queued = frozenset(world.unclaimed)
        busy = busy_slots(world.state)
        agents = [i for i in slots.running if slots.role(i) != "verify"]
        assert busy == len(agents) <= parallel
        for task in world.state.tasks.values():
            if task.status is Status.READY:
                assert "about to start" not in why(world.state, task)
        if not slots.running:
            break
        again = chance.random() < 0.2
        answer = "CHANGES_NEEDED: more" if again else "APPROVED"
        item = chance.choice(sorted(slots.running))
        slots.running.discard(item)
        world.end(item, answer=answer)
    open_tasks = {n: t.status for n, t in world.state.tasks.items() if t.status is not Status.DONE}
    assert set(open_tasks.values()) <= {Status.ESCALATED, Status.BLOCKED}


@pytest.mark.parametrize("parallel", [1, 4])
def test_thirty_tasks_with_slow_agents_never_have_many_open_branches(parallel: int) -> None:
    """End all running agents at once and claim the next items, as if all took the same time."""
    world = SprintDriver(new_state(*(planned(f"t{n}") for n in range(30)), parallel=parallel))
    slots = Slots(world, parallel)
    most_open = most_unapproved = 0
    for _ in range(400):
        slots.settle()
        begun = [
            t for t in world.state.tasks.values() if t.status is not Status.DONE and t.change.head
        ]
        most_open = max(most_open, len(begun))
        most_unapproved = max(
            most_unapproved, sum(t.review.posted_for != t.change.head for t in begun)
        )
        if not slots.running:
            break
        for item in sorted(slots.running):
            slots.running.discard(item)
            world.end(item)
    assert {t.status for t in world.state.tasks.values()} == {Status.DONE}
    assert most_unapproved <= parallel
    assert most_open <= 2 * parallel


def _forget_its_work(made: SprintDriver, name: str) -> None:
    """Leave a task that no rule moves, as after a defect or in an older ledger."""
    made.queue.pop(made.item(name))
    made.task(name).work = None


def test_whether_a_task_holds_its_slot_depends_on_no_other_task() -> None:
    """An idle task has no slot, independent of decisions for other tasks."""
    made = SprintDriver.start(planned("still"), planned("other"), planned("next"), parallel=2)
    made.end(made.item("other"))
    made.settle()
    assert made.role("other") == "verify"
    _forget_its_work(made, "still")
    made.end(made.item("other"))
    made.tick()
    assert made.role("other") == "review"
    assert made.status("next") is Status.IN_PROGRESS
    assert made.is_at_rest()


def test_a_task_in_review_whose_verdict_is_lost_holds_no_slot() -> None:
    made = SprintDriver.start(planned("still"), planned("next"), parallel=1)
    made.end(made.item("still"))
    made.settle()
    made.end(made.item("still"))
    made.settle()
    assert made.role("still") == "review"
    _forget_its_work(made, "still")
    made.task("still").review.posted_for = made.task("still").change.head
    made.tick()
    assert made.status("next") is Status.IN_PROGRESS
    assert made.is_at_rest()


def test_a_task_with_pending_effects_keeps_its_slot() -> None:
    """During the push of its change the task starts no other work."""
    made = SprintDriver.start(planned("a"), planned("b"), parallel=1)
    made.end(made.item("a"))
    made.tick()
    assert {effect.task for effect in made.journal} == {"a"}
    for _ in range(3):
        made.tick()
        assert made.status("b") is Status.READY


def test_the_effects_of_another_task_keep_no_slot() -> None:
    made = SprintDriver.start(planned("still"), planned("other"), planned("next"), parallel=2)
    _forget_its_work(made, "still")
    comment = PostComment(key="k", task="other", issue=issue_of(made, "other"), body="")
    made.journal.append(comment)
    made.known[comment.key] = comment
    made.tick()
    assert made.status("next") is Status.IN_PROGRESS


@pytest.mark.parametrize("order", [*permutations(("a", "b", "c"))])
def test_the_longest_chain_starts_first_in_any_order_of_issues(order: tuple[str, ...]) -> None:
    made = SprintDriver(new_state(planned("c"), planned("a"), planned("b", "a"), parallel=1))
    made.tick()
    for name in order:
        (position,) = [n for n, effect in enumerate(made.journal) if effect.task == name]
        made.perform(position)
        made.tick()
        begun = [task.id for task in made.state.tasks.values() if task.times.started_at is not None]
        assert begun in ([], ["a"])
    made.settle()
    assert made.status("a") is Status.IN_PROGRESS


def test_a_task_whose_issue_was_refused_holds_no_slot() -> None:
    made = SprintDriver(new_state(planned("c"), planned("a"), planned("b", "a"), parallel=1))
    made.tick()
    (refused,) = [e for e in made.journal if isinstance(e, CreateIssue) and e.task == "a"]
    made.journal.remove(refused)
    made.refuse(refused, "refused")
    made.settle()
    assert (made.status("a"), made.status("c")) == (Status.ESCALATED, Status.IN_PROGRESS)


def test_a_ready_task_without_an_issue_that_nothing_creates_holds_no_slot() -> None:
    made = SprintDriver(new_state(planned("c"), planned("a"), planned("b", "a"), parallel=1))
    made.tick()
    made.journal = [effect for effect in made.journal if effect.task != "a"]
    made.settle()
    assert (made.status("a"), made.status("c")) == (Status.READY, Status.IN_PROGRESS)


_STAGES: tuple[tuple[Role, ...], ...] = (("verify", "review"), ("fix", "resolve"), FIRST)


@given(st.tuples(*(st.integers(0, 500) for _ in range(3))))
def test_reviews_precede_fixes_and_fixes_precede_new_changes(chains: tuple[int, ...]) -> None:
    """The length of the waiting chain does not change this order."""

    def priority(role: Role, chain: int) -> int:
        evaluation = Evaluation(SprintDriver.start(planned("a")).state, 0.0)
        task = evaluation.state.tasks["a"]
        vars(evaluation)["critical_path"] = lambda _: chain
        evaluation.start(task, evaluation.new_work(task, role))
        (action,) = evaluation.actions
        assert isinstance(action, StartWork)
        return action.priority

    stages = [
        [priority(role, chain) for role in roles]
        for roles, chain in zip(_STAGES, chains, strict=True)
    ]
    for earlier, later in pairwise(stages):
        assert min(earlier) > max(later)


def test_changes_that_wait_for_a_person_hold_no_slot_and_let_the_sprint_end() -> None:
    plans = [planned("a"), planned("b"), planned("c", "b")]
    ask = [msgspec.structs.replace(plan, require_human_review=True) for plan in plans]
    made = SprintDriver.start(*ask, parallel=1)
    made.run()
    assert {name: task.step for name, task in made.state.tasks.items()} == {
        "a": Step.AWAITING_APPROVAL,
        "b": Step.AWAITING_APPROVAL,
        "c": Step.WAITING,
    }
    assert made.state.sprint.phase == "ended"
    assert not made.effects(Merge)
    for name in "bca":
        made.person.review(made.task(name).links.pull or 0, "approved")
        made.run()
        assert made.status(name) is Status.DONE
    assert made.state.sprint.phase == "ended"
