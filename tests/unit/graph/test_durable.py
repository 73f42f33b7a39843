"""Durable runs repeat no recorded call and end like an uninterrupted run."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import msgspec
import pytest

from caloron.graph.errors import (
    BudgetExceeded,
    ExecutionError,
    JournalError,
    RunConflict,
    RunTimedOut,
    StageFailed,
    StageTimedOut,
)
from caloron.graph.prepare import Permissions
from caloron.graph.runtime.run import RunLimits, RunResult
from caloron.graph.stage import NETWORK, Effect
from caloron.graph.storage.journal import SqliteJournal
from tests.support.bench import Bench, parallel, retry, sequence, stage


class _Durable(Bench):
    """Runs every graph as the durable run `r` of one journal."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = SqliteJournal(Path(mkdtemp()))

    def run(self, root: Any, value: Any = 1, **options: Any) -> RunResult:
        return super().run(root, value, **{"journal": self.journal, "run_id": "r", **options})


class _Power:
    """Ends the run after a number of calls."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    def use(self) -> None:
        self.calls -= 1
        if self.calls < 0:
            raise KeyboardInterrupt


# tests/acceptance/test_graph_kills.py kills real processes at every moment of a durable run.


def test_a_repeated_call_knows_that_it_was_interrupted():
    bench, interrupted, power = _Durable(), [], _Power(0)

    def act(value: Any, call: Any) -> Any:
        interrupted.append(call.interrupted)
        power.use()
        return value

    bench.add("act", act, NETWORK)
    root = sequence(stage("act"), stage("act"))
    with pytest.raises(KeyboardInterrupt):
        bench.run(root)
    power.calls = 1000
    bench.run(root)
    assert interrupted == [False, True, False]


def test_a_failed_run_fails_the_same_way_until_failures_are_retried():
    bench, broken = _Durable(), [True]

    def repair(value: Any) -> Any:
        if broken:
            raise ValueError("broken")
        return value

    bench.add("before", lambda value: value, NETWORK)
    bench.add("mend", repair, NETWORK)
    root = sequence(stage("before"), stage("mend"))
    for _ in range(2):
        with pytest.raises(StageFailed, match=r"\$\.root\.stages\[1\]: broken"):
            bench.run(root, 1)
    assert bench.calls == {"before": 1, "mend": 1}
    broken.clear()
    assert bench.run(root, 1, retry_failed=True).output == 1
    assert bench.calls == {"before": 1, "mend": 2}


def test_a_run_id_is_required_and_belongs_to_one_graph_and_one_input():
    bench = _Durable()
    bench.add("act", lambda value: value, NETWORK)
    bench.run(stage("act"))
    with pytest.raises(RunConflict, match="was begun with another input"):
        bench.run(stage("act"), 2)
    with pytest.raises(RunConflict, match="was begun with another graph"):
        bench.run(sequence(stage("act"), stage("act")))
    with pytest.raises(RunConflict, match="needs a run id"):
        bench.run(stage("act"), run_id="")


def test_an_impure_stage_that_declares_pure_is_detected():
    bench, answers = _Durable(), iter([1, 2])
    bench.add("liar", lambda _given: next(answers))
    bench.add("act", lambda value: value, NETWORK)
    root = sequence(stage("liar"), stage("act"))
    bench.run(root, 0)
    recorded = bench.journal.recorded("r", "$.root.stages[1]")
    assert recorded is not None
    other = msgspec.structs.replace(recorded, input_hash="of another answer")
    bench.journal.record("r", "$.root.stages[1]", other)
    with pytest.raises(RunConflict, match="gave another answer than"):
        bench.run(root, 0)


def test_money_spent_before_a_restart_counts():
    bench = _Durable()
    power = _Power(1)

    def pay(value: Any) -> Any:
        power.use()
        return value

    bench.add("pay", pay, Effect("Cost", 4), NETWORK)
    root = retry(sequence(stage("pay"), stage("pay")), 1)
    allowed = Permissions(budget_cents=8)
    with pytest.raises(KeyboardInterrupt):
        bench.run(root, 1, permissions=allowed)
    power.calls = 9
    assert bench.run(root, 1, permissions=allowed).spent_cents == 8
    assert bench.calls == {"pay": 3}


def test_an_error_of_the_run_is_not_recorded_for_the_call():
    bench = _Durable()
    bench.add("pay", lambda value: value, Effect("Cost", 4), NETWORK)
    root = {"op": "Branch", "predicate": {"op": "Const", "value": True}}
    root |= {"if_true": retry(stage("pay"), 3), "if_false": stage("pay")}
    clock = iter([0.0, 0.0, 0.0, 9.0, 9.0, 9.0, 9.0])
    with pytest.raises(RunTimedOut):
        bench.run(root, 1, limits=RunLimits(run_seconds=5), clock=lambda: next(clock))
    assert bench.journal.recorded("r", "$.root.if_true.stage#1") is None
    assert bench.run(root, 1).output == 1


@pytest.mark.parametrize("kind", [StageFailed, StageTimedOut])
def test_a_recorded_failure_keeps_its_kind(kind):
    bench = _Durable()
    bench.add("act", lambda value: value, NETWORK)
    bench.run(stage("act"), 1)
    entry = bench.journal.recorded("r", "$.root")
    assert entry is not None
    failed = msgspec.structs.replace(entry, output=None, failure=(kind.__name__, "as it was"))
    bench.journal.record("r", "$.root", failed)
    with pytest.raises(kind, match=r"\$\.root: as it was"):
        bench.run(stage("act"), 1)


def test_a_journal_in_a_file_keeps_every_kind_of_end(tmp_path):
    journal = SqliteJournal(tmp_path)
    bench = Bench()
    bench.add("act", lambda value: value, NETWORK)
    bench.add("boom", lambda value: value["nope"], NETWORK)
    root = parallel(a=stage("act"), b=retry(stage("boom"), 2))
    for _ in range(2):
        with pytest.raises(ExecutionError, match="nope"):
            bench.run(root, {}, journal=journal, run_id="a/b é", limits=RunLimits(threads=0))
    assert bench.calls == {"act": 1, "boom": 2}
    journal.close()
    reopened = SqliteJournal(tmp_path)
    entry = reopened.recorded("a/b é", "$.root.branches.b.stage#2")
    assert entry is not None
    assert entry.failure == ("StageFailed", "'nope' is missing")
    assert reopened.recorded("a/b é", "$.root.branches.b.stage#3") is None
    reopened.forget("a/b é")
    assert reopened.recorded("a/b é", "$.root.branches.a") is None


def test_two_processes_cannot_run_the_same_run_at_once(tmp_path):
    journal, other_journal = SqliteJournal(tmp_path), SqliteJournal(tmp_path)
    bench = Bench()

    def run_again(value: Any) -> Any:
        with pytest.raises(RunConflict, match="another process runs 'r' at this moment"):
            bench.run(stage("act"), 1, journal=other_journal, run_id="r")
        return value

    bench.add("act", run_again, NETWORK)
    assert bench.run(stage("act"), 1, journal=journal, run_id="r").output == 1
    assert bench.run(stage("act"), 1, journal=other_journal, run_id="r").output == 1


def test_a_larger_budget_resumes_a_run_that_had_too_little():
    bench = _Durable()
    bench.add("pay", lambda value: value, Effect("Cost", 4), NETWORK)
    bench.add("boom", lambda value: value["nope"], Effect("Cost", 4), NETWORK)
    root = sequence(stage("pay"), retry(stage("boom"), 5))
    with pytest.raises(BudgetExceeded):
        bench.run(root, 1, permissions=Permissions(budget_cents=9))
    assert bench.calls == {"pay": 1, "boom": 1}
    with pytest.raises(StageFailed):
        bench.run(root, 1, permissions=Permissions(budget_cents=99))
    assert bench.calls == {"pay": 1, "boom": 5}


def test_only_the_last_attempt_is_made_again():
    """The retry is nested and has several stages in its body."""
    bench, broken = _Durable(), [True]
    seen: list[str] = []

    def second(value: Any, call: Any) -> Any:
        seen.append(call.key)
        if broken:
            raise ValueError("broken")
        return value

    def first(value: Any, call: Any) -> Any:
        seen.append(call.key)
        if "#2" in call.key and broken:
            raise ValueError("broken")
        return value

    bench.add("first", first, NETWORK)
    bench.add("second", second, NETWORK)
    root = retry(sequence(stage("first"), retry(stage("second"), 2)), 2)
    with pytest.raises(StageFailed, match="broken"):
        bench.run(root, 1, retry_failed=True)
    assert seen == [
        "$.root.stage#1.stages[0]",
        "$.root.stage#1.stages[1].stage#1",
        "$.root.stage#1.stages[1].stage#2",
        "$.root.stage#2.stages[0]",
    ]
    seen.clear()
    broken.clear()
    assert bench.run(root, 1, retry_failed=True).output == 1
    assert seen == ["$.root.stage#2.stages[0]", "$.root.stage#2.stages[1].stage#1"]


def test_an_inner_call_that_succeeded_after_a_failed_one_is_not_repeated():
    bench, paid = _Durable(), []

    def pay(value: Any) -> Any:
        paid.append(value)
        if len(paid) == 1:
            raise ValueError("no answer")
        return "receipt"

    def twice(value: Any, call: Any) -> Any:
        try:
            return call.stage("pay", value)
        except ExecutionError:
            answer = call.stage("pay", value)
        if len(paid) == 2:
            paid.append("crash")
            raise SystemExit
        return answer

    bench.add("pay", pay, NETWORK)
    bench.add("twice", twice, NETWORK)
    with pytest.raises(SystemExit):
        bench.run(stage("twice"), 1, retry_failed=True)
    assert bench.run(stage("twice"), 1, retry_failed=True).output == "receipt"
    assert bench.calls["pay"] == 2


def test_runs_that_were_unused_for_a_month_are_deleted(tmp_path):
    bench, day = Bench(), 24 * 3600
    bench.add("act", lambda value: value, NETWORK)
    now = [1_000_000_000.0]
    for run_id in ("old", "older"):
        journal = SqliteJournal(tmp_path, now=lambda: now[0])
        bench.run(stage("act"), 1, journal=journal, run_id=run_id)
        journal.close()
        now[0] += 20 * day
    journal = SqliteJournal(tmp_path, now=lambda: now[0])
    bench.run(stage("act"), 1, journal=journal, run_id="older")
    assert bench.calls == {"act": 2}, "what is younger is still there"
    bench.run(stage("act"), 2, journal=journal, run_id="old")
    assert bench.calls == {"act": 3}, "the name is free again"


def test_a_full_disk_inside_an_inner_call_is_no_failure_of_the_stage(tmp_path):
    bench = _Durable()
    bench.add("big", lambda _value: "x" * 100_000, NETWORK)
    bench.add("twice", lambda value, call: [call.stage("big", value) for _ in range(2)])
    bench.journal._database._connection.execute("PRAGMA max_page_count = 8")
    with pytest.raises(JournalError, match="is full"):
        bench.run(stage("twice"))
