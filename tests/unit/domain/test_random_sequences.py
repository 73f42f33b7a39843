"""Invariants that hold after every evaluation of random event sequences."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caloron.domain.model.effects import Merge
from caloron.domain.model.facts import Refusal
from caloron.domain.model.snapshots import PullSnapshot, ReviewSnapshot, marker_key
from caloron.domain.model.sprint import State
from caloron.domain.model.status import SETTLED, Status, Step
from caloron.domain.reporting.explain import why
from caloron.domain.rules.evaluation import Decision
from caloron.domain.rules.post_merge_check import is_stuck
from caloron.errors import ForgeError, NotFound
from caloron.testing import SprintDriver, new_state, planned
from tests.support.sprints import DIAMOND

PLANS = (
    DIAMOND,
    (planned("a"), planned("b"), planned("c", "a")),
    (planned("a"), planned("b", "a", kind="check")),
    tuple(planned(name) for name in "abcd"),
)
FIRST = ("implement", "check")
COMMANDS = ("caloron:take-over", "caloron:retry", "caloron:cancel", "caloron:approve")


class InvariantChecker:
    """Checks each decision against a separate record of the earlier effects."""

    def __init__(self, world: SprintDriver) -> None:
        self.world = world
        self.seen_effects: dict[str, object] = {}

    def tick(self) -> None:
        self.check(self.world.tick())

    def check(self, decision: Decision) -> None:
        state = decision.state
        self._every_waiting_task_says_why(state)
        self._nothing_starts_before_its_dependencies(state)
        self._slots_are_kept(state)
        self._an_effect_keeps_its_content(decision)
        self._only_what_is_approved_and_verified_is_merged(decision)
        self._one_merge_at_a_time(state)
        assert self.world.is_at_rest()

    def _every_waiting_task_says_why(self, state: State) -> None:
        for task in state.tasks.values():
            line = why(state, task)
            assert bool(line) == (task.status is not Status.DONE), (task.status, line)
            assert "\n" not in line

    def _nothing_starts_before_its_dependencies(self, state: State) -> None:
        for task in state.tasks.values():
            if task.work and task.work.role in FIRST:
                assert all(state.tasks[d].status is Status.DONE for d in task.plan.depends_on)
                assert task.links.issue is not None

    def _slots_are_kept(self, state: State) -> None:
        """Check that a task starts only into a free slot; the queue caps the running agents."""
        started = [
            t for t in state.tasks.values()
            if t.work and t.work.role in FIRST and not t.work.last_token and not t.escalation.number
        ]  # fmt: skip
        assert len(started) <= state.sprint.settings.parallel

    def _an_effect_keeps_its_content(self, decision: Decision) -> None:
        for action in decision.actions:
            key = getattr(action, "key", "")
            if key and not type(action).__name__.startswith("Retry"):
                assert self.seen_effects.setdefault(key, action) == action

    def _only_what_is_approved_and_verified_is_merged(self, decision: Decision) -> None:
        for merge in (a for a in decision.actions if isinstance(a, Merge)):
            task = decision.state.tasks[merge.task]
            assert task.merge.verified is not None
            assert task.merge.verified.ok
            if task.merge.revert:
                # A revert needs no review, because it only removes the change that turned main red.
                continue
            assert (task.merge.verified.head, task.merge.verified.base) == (merge.head, merge.base)
            reviewed_objects = [*decision.state.objects.values(), *task.review.approvals]
            reviews = [
                o for o in reviewed_objects
                if isinstance(o, ReviewSnapshot) and (o.pull, o.head) == (merge.pull, merge.head)
                and o.verdict != "commented"
                and marker_key(o.body) not in (task.review.voided or ("-",))
            ]  # fmt: skip
            assert max(reviews, key=lambda r: r.version).verdict == "approved"
            by_people = [r for r in reviews if not marker_key(r.body)]
            approved = any(r.verdict == "approved" for r in by_people)
            assert approved or not task.plan.require_human_review

    def _one_merge_at_a_time(self, state: State) -> None:
        assert sum(1 for t in state.tasks.values() if t.merge.merging) <= 1


def _steps(world: SprintDriver) -> list[Callable[[], object]]:
    """Return every event that can happen next in this world."""
    pick: list[Callable[..., object]] = [
        lambda p=p: world.perform(p) for p in range(len(world.journal))
    ]
    pick += [lambda p=p: _refuse(world, p) for p in range(min(1, len(world.journal)))]
    pick += _merges(world)
    for item in world.queue:
        pick += [
            lambda i=item: world.end(i),
            lambda i=item: world.end(i, answer="CHANGES_NEEDED: more", changes=False),
            lambda i=item: world.end(i, answer="hm", exit_code=1, changes=False),
            lambda i=item: world.end(i, exit_code=1),
            lambda i=item: world.end(i, conflicts=("x.py",)),
            lambda i=item: world.end(i, internal_error="no space"),
        ]
    for task in world.state.tasks.values():
        pick += _person_on(world, task.links.issue, task.escalation.issue, task.links.pull)
        pick.append(lambda b=task.change.branch: world.person.delete_branch(b))
    closed = [
        o
        for o in world.forge.objects.values()
        if isinstance(o, PullSnapshot) and o.state == "closed"
    ]
    pick += [lambda n=pull.number: world.person.reopen_pull(n) for pull in closed]
    if len(world.state.tasks) < 6:
        pick.append(lambda: world.person.open_issue("More", _text(world), "caloron:task"))
    if world.red_together or len(world.state.tasks) < 2:
        return [*pick, world.person.push_main, world.poll]
    return [*pick, world.person.push_main, world.poll, lambda: _break_together(world)]


def _text(world: SprintDriver) -> str:
    """Return a new body whose dependencies may or may not exist."""
    forge = world.forge
    return f"Text {forge.commits}\n\nDepends on: a, #{forge.number}, nobody\n- [ ] it works"


def _break_together(world: SprintDriver) -> None:
    """Make two green changes red in one tree, or make them conflict."""
    heads = [t.change.head for t in world.state.tasks.values() if t.change.head][:2]
    if len(heads) == 2:
        world.red_together.append(set(heads))
    heads = [t.change.head for t in world.state.tasks.values() if t.change.head][-2:]
    if len(heads) == 2:
        world.conflicting.append(set(heads))


def _refuse(world: SprintDriver, position: int, kind: Refusal = "refused") -> None:
    world.refuse(world.journal.pop(position), kind)


def _merges(world: SprintDriver) -> list[Callable[[], object]]:
    """Return other results of a merge: main moves just before it, or the CI decides."""
    positions = [p for p, effect in enumerate(world.journal) if isinstance(effect, Merge)]
    acts: list[Callable[[], object]] = []
    for position in positions:
        acts += [
            partial(_merge_too_late, world, position),
            partial(_refuse, world, position, "waiting"),
            partial(_refuse, world, position, "checks"),
        ]
    return acts


def _merge_too_late(world: SprintDriver, position: int) -> None:
    world.person.push_main()
    world.perform(position)


def _person_on(
    world: SprintDriver, issue: int | None, escalation: int | None, pull: int | None
) -> list[Callable[[], object]]:
    acts: list[Callable[[], object]] = []
    if issue is not None and world.forge.issue(issue).state == "open":
        acts += [
            lambda: world.person.close_issue(issue),
            lambda: world.person.comment(issue, "resolved"),
        ]
        acts += [
            lambda: world.person.edit_issue(issue, _text(world)),
            lambda: world.person.set_labels(issue),
        ]
        if pull is None:
            acts.append(lambda: world.person.open_pull(issue, f"ada/{world.forge.commits}"))
    if issue is not None and world.forge.issue(issue).state == "closed":
        acts.append(lambda: world.person.reopen_issue(issue))
    if issue is not None:
        acts += [partial(world.person.comment, issue, command) for command in COMMANDS]
    if escalation is not None:
        acts.append(lambda: world.person.comment(escalation, "resolved\nit works now"))
    if pull is not None and world.forge.pull(pull).state == "open":
        acts += [
            lambda: world.person.review(pull, "approved"),
            lambda: world.person.review(pull, "changes_requested", "not yet"),
            lambda: world.person.close_pull(pull),
            lambda: world.person.merge_pull(pull),
            lambda: world.person.push(pull),
            lambda: world.person.comment(pull, "caloron:approve\nfine"),
            lambda: world.person.comment(pull, "caloron:take-over"),
        ]
    return acts


LENGTH = 60


@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_no_sequence_of_events_breaks_an_invariant_or_stops_the_sprint(data: st.DataObject) -> None:
    """After random acts, agents and refusals all parties cooperate, and the sprint must end."""
    plan = data.draw(st.sampled_from(PLANS))
    parallel = data.draw(st.integers(1, 4))
    if data.draw(st.booleans(), label="a person approves each merge"):
        plan = tuple(msgspec.structs.replace(task, require_human_review=True) for task in plan)
    world = SprintDriver(new_state(*plan, parallel=parallel, max_fix_rounds=1))
    world.forge.ignores_base = data.draw(st.booleans())
    checker = InvariantChecker(world)
    checker.tick()
    for _ in range(data.draw(st.integers(0, LENGTH))):
        steps = _steps(world)
        # A forge refuses some acts of people, such as merging a branch that was deleted.
        with suppress(ForgeError, NotFound):
            steps[data.draw(st.integers(0, len(steps) - 1))]()
        if data.draw(st.booleans()):
            checker.tick()
    _behave(world, checker)


#: One release of a task must be enough; a few more follow from tasks that depend on each other.
MOST_RELEASES = 20


def _behave(world: SprintDriver, checker: InvariantChecker, releases: int = 0) -> None:
    """Let effects and agents succeed and people release every escalation."""
    assert releases < MOST_RELEASES, f"no release is enough: {_statuses(world)}"
    world.red_together.clear()
    world.conflicting.clear()
    for _ in range(400):
        world.poll()
        checker.tick()
        if world.journal:
            world.perform(0)
        elif world.queue:
            world.end(next(iter(world.queue)))
        elif not world.facts and world.state.sprint.phase == "ended":
            break
        elif not world.facts and world.tick().state.sprint.phase != "ended":
            raise AssertionError(f"no further event is possible: {_statuses(world)}")
    else:
        raise AssertionError(f"the sprint never ends: {_statuses(world)}")
    stuck = is_stuck(world.state)
    assert all(
        t.status in SETTLED
        or (stuck and t.status is Status.IN_REVIEW)
        or t.step in (Step.AWAITING_APPROVAL, Step.WAITING)
        for t in world.state.tasks.values()
    )
    _release_everything(world, checker, releases + 1)


def _release_everything(world: SprintDriver, checker: InvariantChecker, releases: int) -> None:
    """A task that waits for a person continues when the person acts: no status is final."""
    escalated = [t for t in world.state.tasks.values() if t.status is Status.ESCALATED]
    cancelled = [t for t in world.state.tasks.values() if t.status is Status.CANCELLED]
    issues = [
        t.links.issue if t.escalation.issue is None else t.escalation.issue for t in escalated
    ]
    if None in issues:
        return  # The forge refused both its issue and the escalation.
    waiting = [t for t in world.state.tasks.values() if t.step is Step.AWAITING_APPROVAL]
    if not escalated and not cancelled and not waiting:
        assert all(t.status is Status.DONE for t in world.state.tasks.values())
        return
    for task in cancelled:
        assert task.links.issue is not None
        world.person.comment(task.links.issue, "caloron:retry")
    for issue in issues:
        assert issue is not None
        world.person.comment(issue, "resolved")
    for task in waiting:
        assert task.links.pull is not None
        world.person.review(task.links.pull, "approved")
    _behave(world, checker, releases)


def _statuses(world: SprintDriver) -> dict[str, str]:
    return {i: f"{t.status}: {why(world.state, t)}" for i, t in world.state.tasks.items()}
