"""The ledger with real SQLite: one transaction per tick, each fact once, the journal in order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import msgspec
import pytest

from caloron.domain.model.effects import CancelWork, CreateIssue, RetryEffect, StartWork
from caloron.domain.model.facts import EffectFailed, WorkEnded
from caloron.domain.model.roles import AGENT_ROLES
from caloron.domain.model.snapshots import BranchSnapshot, IssueSnapshot
from caloron.domain.model.sprint import Sprint, State
from caloron.domain.model.status import Status, Step
from caloron.domain.model.task import Task, Work
from caloron.errors import NotFound, StoreError
from caloron.ledger import ledger as ledger_module
from caloron.ledger.journal import Entry
from caloron.ledger.ledger import StaleTick
from caloron.ledger.work_queue import WorkQueue
from caloron.store import queue
from tests.integration.ledger.conftest import Book


def issue_of(effect: CreateIssue, number: int, version: int = 1) -> IssueSnapshot:
    return IssueSnapshot(
        version=version, number=number, title="t", body=effect.body, state="open", author="caloron"
    )


def open_issues(book: Book) -> list[CreateIssue]:
    """Open the issues of the first tick on a forge and append their snapshots."""
    decision = book.tick()
    issues = [a for a in decision.actions if isinstance(a, CreateIssue)]
    for number, (entry, effect) in enumerate(zip(book.journal.due(), issues, strict=True), 1):
        book.journal.intend(entry)
        book.journal.record(entry, [issue_of(effect, number)])
    return issues


def test_a_sprint_is_loaded_as_it_was_recorded(book: Book) -> None:
    decision = book.tick()
    committed = msgspec.structs.replace(decision.state, open_effects=frozenset({"a", "b"}))
    assert book.load().state == committed


def test_sprints_are_numbered_from_one_without_numbers_that_are_in_use_elsewhere(
    book: Book,
) -> None:
    sprint = Sprint(id="shop", number=0, goal="more")
    second = book.ledger.create_sprint(sprint, {})
    assert (book.sprint, second.id, second.number) == ("shop-1", "shop-2", 2)
    assert book.ledger.create_sprint(sprint, {}, after=6).id == "shop-7"
    assert book.ledger.create_sprint(sprint, {}, after=3).id == "shop-8"
    assert book.ledger.last_sprint() == "shop-8"


def test_an_unknown_sprint_is_not_found(book: Book) -> None:
    with pytest.raises(NotFound, match="shop-9"):
        book.ledger.load("shop-9")


def test_of_two_ticks_on_one_state_the_second_writes_nothing(book: Book) -> None:
    loaded = book.load()
    decision = book.decide(loaded)
    book.commit(loaded, decision)
    before = book.everything()
    with pytest.raises(StaleTick):
        book.commit(loaded, decision)
    assert book.everything() == before


@pytest.mark.parametrize("step", ["put_task", "forget_facts", "plan_action", "put_observation"])
def test_a_tick_that_fails_in_the_middle_leaves_nothing(
    book: Book, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    book.append_facts(BranchSnapshot(version=1, name="main", commit="c1"))
    loaded = book.load()
    decision = book.decide(loaded)
    before = book.everything()
    monkeypatch.setitem(ledger_module.SQL, step, "INSERT INTO nowhere VALUES (1)")
    with pytest.raises(StoreError, match="nowhere"):
        book.commit(loaded, decision)
    monkeypatch.undo()
    assert book.everything() == before
    book.commit(loaded, decision)
    assert book.load().facts == ()


def test_a_tick_deletes_only_the_facts_that_it_read(book: Book) -> None:
    book.append_facts(BranchSnapshot(version=1, name="main", commit="c1"))
    loaded = book.load()
    book.append_facts(BranchSnapshot(version=2, name="main", commit="c2"))
    book.commit(loaded, book.decide(loaded))
    (left,) = book.load().facts
    assert isinstance(left, BranchSnapshot)
    assert left.commit == "c2"


def test_a_waiting_fact_is_not_appended_twice(book: Book) -> None:
    seen = BranchSnapshot(version=1, name="main", commit="c1")
    assert (book.append_facts(seen, seen), book.append_facts(seen)) == (1, 0)
    ended = WorkEnded(item="x", task="a", role="review", token=3)
    assert (book.append_facts(ended), book.append_facts(ended)) == (1, 0)
    assert len(book.load().facts) == 2


def test_an_older_snapshot_never_replaces_a_newer_one(book: Book) -> None:
    for version, commit in ((5, "new"), (3, "old")):
        book.append_facts(BranchSnapshot(version=version, name="main", commit=commit))
        book.tick()
    seen = book.load().state.objects["branch:main"]
    assert isinstance(seen, BranchSnapshot)
    assert seen.commit == "new"


def test_more_facts_than_one_tick_takes_wait_for_the_next(
    book: Book, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "_FACTS_PER_TICK", 2)
    book.append_facts(*(BranchSnapshot(version=1, name=f"b{n}", commit="c") for n in range(5)))
    for expected in (2, 2, 1, 0):
        loaded = book.load()
        assert len(loaded.facts) == expected
        book.commit(loaded, book.decide(loaded))


def test_moves_and_phases_are_events_of_the_same_commit(book: Book) -> None:
    book.tick()
    assert book.events("task_moved") == 1
    assert book.events("sprint_phase") == 1


def test_effects_of_one_task_are_due_one_after_the_other(book: Book) -> None:
    open_issues(book)
    book.tick()
    loaded = book.load()
    ended = WorkEnded(
        item="shop-1/a/1-implement", task="a", role="implement", token=1, head="c2", base="c1"
    )
    book.append_facts(ended)
    book.tick()
    order = []
    while due := [e for e in book.journal.due() if e.kind != "progress"]:
        assert len({e.effect.task for e in due}) == len(due)
        order.append(due[0].kind)
        book.journal.intend(due[0])
        book.journal.record(due[0], [])
    assert order == ["label", "push", "open_pull"]
    assert loaded.state.tasks["a"].status is Status.IN_PROGRESS


def test_an_effect_moves_from_planned_through_intended_to_done(book: Book) -> None:
    book.tick()
    entry = book.journal.due()[0]
    assert not entry.intended
    book.journal.intend(entry)
    again = _due(book, entry)
    assert again.intended
    book.journal.record(entry, [BranchSnapshot(version=1, name="main", commit="c")])
    assert entry.id not in {e.id for e in book.journal.due()}
    assert len(book.load().facts) == 1
    assert book.events("effect_done") == 1


def test_a_repeatedly_reported_effect_is_recorded_once(book: Book) -> None:
    book.tick()
    entry = book.journal.due()[0]
    book.journal.intend(entry)
    for _ in range(2):
        book.journal.record(entry, [])
    book.journal.refuse(entry, _failure(entry))
    assert book.events("effect_done") == 1
    assert book.load().facts == ()


def _due(book: Book, entry: Entry) -> Entry:
    (again,) = [e for e in book.journal.due() if e.id == entry.id]
    return again


def _failure(entry: Entry) -> EffectFailed:
    return EffectFailed(
        key=entry.effect.key, task=entry.effect.task, kind=entry.kind, refusal="refused",
        message="issues are switched off",
    )  # fmt: skip


def test_a_refused_effect_escalates_and_is_retried_only_when_released(book: Book) -> None:
    book.tick()
    entry = book.journal.due()[0]
    book.journal.intend(entry)
    book.journal.refuse(entry, _failure(entry))
    book.tick()
    assert entry.id not in {e.id for e in book.journal.due()}
    state = book.load().state
    assert state.tasks["a"].status is Status.ESCALATED
    assert "switched off" in state.tasks["a"].reason
    book.commit_state(state, RetryEffect(key=entry.effect.key, task=entry.effect.task))
    # The next attempt searches first: the refusal may be out of date.
    assert _due(book, entry).intended


def test_an_effect_without_an_answer_waits_and_stays_intended(book: Book) -> None:
    book.tick()
    entry = book.journal.due()[0]
    book.journal.intend(entry)
    book.journal.postpone(entry, 500.0, "the forge does not answer")
    again = _due(book, entry)
    assert again.intended
    assert again.not_before == 500.0
    assert book.journal.waiting() == [(entry.effect.task, "the forge does not answer")]
    assert book.load().state.open_effects == {"a", "b"}


def test_the_same_effect_planned_again_is_one_effect(book: Book) -> None:
    decision = book.tick()
    for _ in range(2):
        book.commit_state(book.load().state, decision.actions[0])
    assert book.count("actions") == 2


def test_a_refused_effect_that_is_planned_again_is_last_in_the_journal(
    book: Book,
) -> None:
    issues = [a for a in book.tick().actions if isinstance(a, CreateIssue) and a.task == "a"]
    entry = book.journal.due()[0]
    book.journal.intend(entry)
    book.journal.refuse(entry, _failure(entry))
    later = msgspec.structs.replace(issues[0], key="another")
    book.commit_state(book.load().state, later, *issues)
    order = []
    while due := [e for e in book.journal.due() if e.effect.task == "a"]:
        assert not due[0].intended
        order.append(due[0].effect.key)
        book.journal.intend(due[0])
        book.journal.record(due[0], [])
    assert order == ["another", issues[0].key]


def test_starting_known_work_again_fences_off_its_holder(book: Book) -> None:
    open_issues(book)
    decision = book.tick()
    start = next(a for a in decision.actions if isinstance(a, StartWork))
    old = book.do(queue.claim, ["implement"], holder="x", lease_ms=1000, cap=9)
    assert old is not None
    book.commit_state(book.load().state, start)
    with pytest.raises(queue.LeaseLost):
        book.do(queue.renew, old.item, old.token, 1000, active=True)


def test_cancelled_work_leaves_the_queue(book: Book) -> None:
    open_issues(book)
    book.tick()
    (item,) = [r["id"] for r in book.ledger.db.rows("SELECT id FROM work_items")]
    book.commit_state(book.load().state, CancelWork(item=item, reason="closed by a person"))
    assert book.do(queue.claim, ["implement"], holder="x", lease_ms=1, cap=9) is None


def test_a_task_of_an_older_version_gets_defaults_for_new_fields(book: Book) -> None:
    book.tick()
    (raw,) = book.ledger.db.rows("SELECT data FROM tasks WHERE id = 'a'")
    small = {"plan": msgspec.json.decode(raw["data"])["plan"], "step": "ready"}
    book.ledger.db.rows("UPDATE tasks SET data = ? WHERE id = 'a'", (msgspec.json.encode(small),))
    task = book.load().state.tasks["a"]
    assert task == Task(plan=task.plan, step=Step.READY)


def test_two_threads_that_tick_at_once_both_succeed(book: Book) -> None:
    """The loser of the race runs again from `load`, as the engine does."""

    def tick() -> None:
        for _ in range(50):
            with suppress(StaleTick):
                book.tick()
                return

    with ThreadPoolExecutor(4) as threads:
        for worker in [threads.submit(tick) for _ in range(4)]:
            worker.result()
    assert book.count("actions") == 2


def test_the_state_of_another_sprint_is_not_touched(book: Book) -> None:
    other = book.ledger.create_sprint(Sprint(id="shop", number=0, goal="other"), {}).id
    before = book.ledger.load(other)
    book.append_facts(BranchSnapshot(version=1, name="main", commit="c1"))
    book.tick()
    assert book.ledger.load(other) == before
    assert isinstance(before.state, State)


def test_pending_work_is_counted_for_one_sprint_and_some_roles(book: Book) -> None:
    """A verification costs nothing, so it is no reason to say that the budget is used up."""
    queue = WorkQueue(book.ledger, book.sprint, holder="engine-1", lease_ms=1000)
    other = WorkQueue(book.ledger, "shop-2", holder="engine-1", lease_ms=1000)
    verify = Work(item=f"{book.sprint}/a/1-verify", role="verify")
    book.commit_state(book.load().state, StartWork(task="a", work=verify))
    assert queue.has_pending(("implement", "verify"))
    assert not queue.has_pending(AGENT_ROLES)
    assert not other.has_pending(("implement", "verify"))
