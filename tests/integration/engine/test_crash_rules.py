"""The nine rules that make crashes harmless, one by one, on the engine's own parts."""

from __future__ import annotations

import ast
import json
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from caloron.agents.supervise import attempt, launch
from caloron.agents.workspace.workspaces import create_workspace
from caloron.domain.model.effects import (
    AddLabel,
    CloseIssue,
    CreateIssue,
    Effect,
    Merge,
    OpenPull,
    PostComment,
    PostReview,
    Push,
    StartWork,
)
from caloron.domain.model.facts import EffectDone, EffectFailed, WorkEnded
from caloron.domain.model.snapshots import (
    BranchSnapshot,
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    Verdict,
)
from caloron.domain.model.task import Work
from caloron.domain.rules.supervisor import Limits
from caloron.engine import loop as engine_module
from caloron.engine.forge import executor as effects_module
from caloron.errors import ApprovalMissing, ForgeError, ForgeUnavailable, NotYet
from caloron.git.command import git
from caloron.ledger.tick_context import TickContext
from caloron.ledger.work_queue import INTERRUPTED, WorkQueue
from caloron.ports import Clock, Merged, Poll
from caloron.stages.tick import load_tick_state
from caloron.store import database, files
from caloron.store import queue as store
from tests.integration.engine.conftest import ITEM, Engine, ScriptedForge
from tests.integration.engine.parts import FixedClock
from tests.support.wait import process_lives, wait_for

ISSUE = IssueSnapshot(version=1, number=7, title="t", body="b", state="open", author="caloron")
PULL = PullSnapshot(
    version=1, number=9, title="t", body="b", state="open", author="caloron", branch="x", head="h"
)
MAIN = BranchSnapshot(version=1, name="main", commit="m")
COMMENT = CommentSnapshot(version=1, id=1, issue=7, author="caloron", body="b")
REVIEW = ReviewSnapshot(version=1, id=2, pull=9, head="h", verdict="approved", author="caloron")

CREATE = CreateIssue(key="issue/x", task="a", title="t", body="b", labels=())
LABEL = AddLabel(key="label/x", task="a", issue=7, label="caloron:done")
CLOSE = CloseIssue(key="close/x", task="a", issue=7)
PUSH = Push(key="push/x/new/h", task="a", branch="x", old="", new="h")
MERGE = Merge(key="merge/9/h/m", task="a", pull=9, head="h", base="m", message="m")


def test_rule_1_a_later_claim_fences_off_every_write_of_an_earlier_claim(engine: Engine) -> None:
    old = engine.start_work()
    assert engine.queue.interrupt(old.item, old.token, "taken over")
    new = engine.queue.claim(("implement",), cap=9)
    assert new is not None
    assert new.token > old.token
    ended = WorkEnded(item=old.item, task="a", role="implement", token=old.token)
    assert not engine.queue.settle(ended, old.token)
    assert not engine.queue.interrupt(old.item, old.token, "again")
    assert engine.facts() == ()
    assert engine.queue.settle(ended, new.token)


def test_interruptions_of_work_are_counted_whichever_engine_ran_it(engine: Engine) -> None:
    for reason in (INTERRUPTED, INTERRUPTED, "the sprint was stopped", INTERRUPTED):
        claimed = engine.start_work()
        engine.queue.interrupt(claimed.item, claimed.token, reason)
    next_engine = WorkQueue(engine.ledger, engine.sprint, holder="next", lease_ms=1000)
    assert next_engine.interruptions(ITEM) == 3
    assert next_engine.interruptions("shop-1/b/1-implement") == 0


def test_rule_1_the_attempt_rises_only_when_an_agent_is_started(engine: Engine) -> None:
    for _ in range(3):
        claimed = engine.start_work()
        assert claimed.attempt == 0
        engine.queue.interrupt(claimed.item, claimed.token, "the engine died while preparing")
    claimed = engine.start_work()
    engine.shim(claimed, "true")
    launch.wait_until_gone(engine.runs.of(ITEM, claimed.token))
    lease = engine.queue.lease(ITEM)
    assert lease is not None
    assert lease.attempt == 1


def test_rule_2_a_free_lock_proves_death_and_is_taken_over_at_once(engine: Engine) -> None:
    claimed = engine.start_work()
    run_dir = engine.shim(claimed, "sleep", "1000")
    agent = int(wait_for(lambda: _identity(run_dir).get("agent_pid"), "the agent is started"))
    lease = engine.queue.lease(ITEM)
    assert lease is not None
    os.kill(_identity(run_dir)["pid"], signal.SIGKILL)
    engine.process.wait()
    engine.workers().adopt()
    wait_for(lambda: engine.status() == "pending", "the item is back in the queue")
    assert lease.expires_at > lease.now_ms + 3_000_000, "the lease had an hour to run"
    assert not process_lives(agent)
    assert engine.facts() == (), "interrupted is not failed"


def test_rule_2_a_live_agent_outlives_its_engine_and_is_collected_by_the_next(
    engine: Engine,
) -> None:
    claimed = engine.start_work("shop-1/a/1-review", "review")
    run_dir = engine.shim(
        claimed, "sh", "-c", "until test -e go; do sleep 0.02; done; echo APPROVED"
    )
    wait_for(lambda: _identity(run_dir).get("agent_pid"), "the agent is started")
    engine.workers().adopt()
    assert engine.status(claimed.item) == "in_flight"
    (run_dir / "workspace" / "go").touch()
    wait_for(lambda: engine.status(claimed.item) == "done", "the result is collected")
    (fact,) = engine.facts()
    assert isinstance(fact, WorkEnded)
    assert fact.answer == "APPROVED\n"
    assert engine.process.wait() == 0


def _identity(run_dir: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((run_dir / "shim.json").read_bytes()))
    except FileNotFoundError:
        return {}


def test_rule_3_after_a_gap_in_the_loop_nothing_is_reaped_or_counted_as_a_stall(
    engine: Engine,
) -> None:
    claimed = engine.start_work()
    with engine.ledger.db.transaction("test") as connection:
        store.begin_attempt(connection, ITEM, claimed.token, 1000)
        connection.execute("UPDATE clock_offset SET ms = 7200000")
    context = TickContext(
        ledger=engine.ledger, clock=cast(Clock, FixedClock()), limits=Limits(), grace=True
    )
    workers = engine.workers()
    tick_state = load_tick_state({"sprint_id": engine.sprint}, context)
    assert tick_state["agents"].value == ()
    workers.reconcile(grace=True)
    assert engine.status() == "in_flight"
    workers.reconcile(grace=False)
    assert engine.status() == "pending"


def test_rule_3_leases_know_only_the_databases_clock(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.start_work()
    monkeypatch.setattr(time, "time", lambda: 9e12)
    engine.workers().reconcile(grace=False)
    assert engine.status() == "in_flight"


def test_rule_4_the_cap_is_exact_with_many_workers_at_once(engine: Engine) -> None:
    items = [f"shop-1/a/{n}-fix" for n in range(20)]
    engine.plan(*(StartWork(task="a", work=Work(item=i, role="fix")) for i in items))
    claims: list[object] = []

    def worker() -> None:
        while (claim := engine.queue.claim(("fix", "review"), cap=3)) is not None:
            claims.append(claim)

    threads = [threading.Thread(target=worker) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claims) == 3


EXISTING: list[tuple[Effect, dict[str, Any], str]] = [
    (CREATE, {"find_issue": ISSUE}, "create_issue"),
    (
        PostComment(key="comment/x", task="a", issue=7, body="b"),
        {"find_comment": COMMENT},
        "comment",
    ),
    (
        OpenPull(key="pull/x", task="a", title="t", body="b", branch="x"),
        {"find_pull": PULL},
        "open_pull",
    ),
    (
        PostReview(key="r/x", task="a", pull=9, head="h", verdict="approved", body="b"),
        {"find_review": REVIEW},
        "review",
    ),
    (PUSH, {"branch": BranchSnapshot(version=1, name="x", commit="h")}, "push"),
    (
        MERGE,
        {"pull": PullSnapshot(
            version=2, number=9, title="t", body="b", state="merged", author="caloron",
            branch="x", head="h",
        ), "branch": MAIN},
        "merge",
    ),
]  # fmt: skip


MADE: dict[str, Any] = {
    "create_issue": ISSUE, "comment": COMMENT, "open_pull": PULL, "review": REVIEW, "pull": PULL,
    "reviews": [REVIEW], "merge": Merged(PULL, did_it=True),
}  # fmt: skip


@pytest.mark.parametrize("is_there", [True, False], ids=["there", "absent"])
@pytest.mark.parametrize(("effect", "existing", "call"), EXISTING, ids=[d for _, _, d in EXISTING])
def test_rule_5_an_intended_effect_is_searched_and_done_only_if_it_is_absent(
    engine: Engine, effect: Effect, existing: dict[str, Any], call: str, is_there: bool
) -> None:
    engine.mirror  # noqa: B018 (a merge is searched there, and a push names it)
    engine.plan(effect)
    engine.journal.intend(engine.entry())
    forge = ScriptedForge(**(existing if is_there else MADE))
    engine.effects(forge).perform(engine.entry())
    assert forge.calls.count(call) == (0 if is_there else 1)
    assert engine.journal.due() == []
    assert engine.facts() != ()


def test_rule_5_the_intention_is_on_disk_before_the_effect_is_done(engine: Engine) -> None:
    engine.plan(CREATE)
    states: list[str] = []

    class RecordingForge(ScriptedForge):
        def create_issue(self, *args: Any) -> IssueSnapshot:
            row = engine.ledger.db.row("SELECT state FROM actions")
            states.append(row["state"] if row else "")
            return ISSUE

    engine.effects(RecordingForge()).perform(engine.entry())
    assert states == ["intended"]


def test_rule_5_a_push_reports_its_commit_and_a_refusal_its_reason(
    engine: Engine,
) -> None:
    engine.mirror  # noqa: B018
    engine.plan(PUSH)
    engine.effects(ScriptedForge()).perform(engine.entry())
    (done,) = engine.facts()
    assert isinstance(done, EffectDone)
    assert done.commit == "h"
    engine.plan(CREATE)
    engine.effects(ScriptedForge(create_issue=ForgeError("switched off"))).perform(engine.entry())
    failed = [f for f in engine.facts() if isinstance(f, EffectFailed)]
    assert [f.message for f in failed] == ["switched off"]


def test_rule_6_uncommitted_work_is_saved_before_its_workspace_is_removed(engine: Engine) -> None:
    claimed = engine.start_work()
    run_dir = engine.runs.of(ITEM, claimed.token)
    base = engine.mirror.fetch_main()
    workspace = run_dir / "workspace"
    create_workspace(
        engine.mirror, workspace, start=base, branch="agent/a/shop-1", identity=("a", "a@b")
    )
    (workspace / "half.py").write_text("x = 1\n")
    (run_dir / "spec.json").write_text(json.dumps({"base": base}))
    engine.workers().adopt()
    wait_for(lambda: engine.status() == "pending", "the attempt returns to the queue")
    assert not workspace.exists()
    (saved,) = engine.events("work_salvaged")
    assert git(engine.mirror.path, "show", f"{saved['ref']}:half.py") == "x = 1"


def test_rule_6_a_workspace_that_cannot_be_saved_is_kept(engine: Engine) -> None:
    claimed = engine.start_work()
    run_dir = engine.runs.of(ITEM, claimed.token)
    workspace = run_dir / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "half.py").write_text("x = 1\n")
    (run_dir / "spec.json").write_text(json.dumps({"base": engine.mirror.fetch_main()}))
    engine.workers().adopt()
    wait_for(lambda: engine.status() == "pending", "the attempt returns to the queue")
    assert (workspace / "half.py").exists()
    (noted,) = engine.events("salvage_failed")
    assert noted["kept"] == str(workspace)


def test_rule_7_a_failed_read_means_wait_and_read_again_never_act(engine: Engine) -> None:
    engine.plan(CREATE)
    engine.journal.intend(engine.entry())
    forge = ScriptedForge(find_issue=ForgeUnavailable("no answer"))
    engine.effects(forge).perform(engine.entry())
    assert forge.calls == ["find_issue"]
    waiting = engine.entry()
    assert waiting.intended
    assert waiting.not_before > FixedClock().now()
    assert engine.effects(forge).dispatch() == waiting.not_before
    assert engine.facts() == ()


def test_rule_7_an_effect_with_a_lost_answer_is_searched_before_it_is_retried(
    engine: Engine,
) -> None:
    engine.plan(CREATE)
    forge = ScriptedForge(create_issue=ForgeUnavailable("the line broke"))
    engine.effects(forge).perform(engine.entry())
    assert engine.entry().intended
    forge.answers = {"find_issue": ISSUE}
    engine.effects(forge).perform(engine.entry())
    assert forge.calls == ["create_issue", "find_issue"]


@pytest.mark.parametrize(
    ("effect", "seen", "calls"),
    [
        (LABEL, {"labels": ("caloron:done",)}, ["issue"]),
        (LABEL, {"labels": ()}, ["issue", "label"]),
        (CLOSE, {"state": "closed", "closed_by": "ada"}, ["issue"]),
        (CLOSE, {"state": "open"}, ["issue", "close_issue"]),
    ],
)
def test_rule_7_the_object_is_read_again_before_it_is_labelled_or_closed(
    engine: Engine, effect: Effect, seen: dict[str, Any], calls: list[str]
) -> None:
    current = msgspec.structs.replace(ISSUE, **seen)
    engine.plan(effect)
    forge = ScriptedForge(issue=current, label=current, close_issue=current)
    engine.effects(forge).perform(engine.entry())
    assert forge.calls == calls
    assert engine.journal.due() == []


@pytest.mark.parametrize(
    ("later", "merged"), [("changes_requested", False), ("commented", True), ("approved", True)]
)
def test_rule_7_a_persons_objection_before_the_merge_stops_it(
    engine: Engine, later: Verdict, merged: bool
) -> None:
    engine.mirror  # noqa: B018
    engine.plan(MERGE)
    word = msgspec.structs.replace(REVIEW, id=3, version=2, verdict=later, author="ada")
    done = Merged(PULL, did_it=True)
    forge = ScriptedForge(reviews=[word, REVIEW], pull=PULL, branch=MAIN, merge=done)
    engine.effects(forge).perform(engine.entry())
    assert ("merge" in forge.calls) == merged
    refused = [f.refusal for f in engine.facts() if isinstance(f, EffectFailed)]
    assert refused == ([] if merged else ["stale_head"])


def test_a_merge_that_lacks_an_approval_waits_without_an_event(engine: Engine) -> None:
    engine.plan(MERGE)
    missing = ApprovalMissing("waits for 1 more approval by people")
    effects = engine.effects(ScriptedForge(reviews=[], pull=PULL, branch=MAIN, merge=missing))
    effects.perform(engine.entry())
    (failure,) = engine.facts()
    assert isinstance(failure, EffectFailed)
    assert (failure.refusal, failure.message) == ("waiting", "waits for 1 more approval by people")
    assert engine.events("effect_failed") == []


def test_rule_7_a_failed_poll_reports_no_facts_and_is_repeated(
    engine: Engine,
) -> None:
    forge = ScriptedForge(poll=ForgeUnavailable("no answer"))
    poller = engine.poller_of(forge, 0.01)
    poller.start()
    wait_for(lambda: forge.calls.count("poll") >= 2, "the poller polls again")
    assert engine.facts() == ()
    forge.answers = {"poll": Poll((MAIN,), "5")}
    wait_for(lambda: engine.facts() == (MAIN,), "the new snapshot is a fact")
    poller.stop()
    assert engine.signal.errors == []
    assert engine.ledger.get(f"forge_cursor/{engine.sprint}") == "5"


def test_no_effect_runs_after_an_outage_before_the_next_poll(
    engine: Engine,
) -> None:
    """A person may have objected during the outage, so a poll comes first."""
    forge = ScriptedForge(find_issue=None, create_issue=ForgeUnavailable("no answer"))
    poller = engine.poller_of(forge)
    effects = engine.effects(forge, poller)
    engine.plan(CREATE)
    effects.perform(engine.entry())
    assert poller.epoch is None
    engine.ledger.db.rows("UPDATE actions SET not_before = 0")
    forge.calls.clear()
    effects.dispatch(poller.epoch)
    effects.close()
    assert forge.calls == []
    forge.answers["create_issue"] = ISSUE
    effects = engine.effects(forge)
    effects.dispatch()
    effects.close()
    assert forge.calls == ["find_issue", "create_issue"]


def test_a_forge_that_answers_not_yet_is_not_unreachable(engine: Engine) -> None:
    forge = ScriptedForge(create_issue=NotYet("soon"))
    poller = engine.poller_of(forge)
    engine.plan(CREATE)
    engine.effects(forge, poller).perform(engine.entry())
    assert poller.epoch is not None


def test_after_an_outage_the_loop_polls_before_it_acts_or_ends() -> None:
    """The tick after a poll decides on its snapshots before any effect is executed."""
    ticks = ["ended", "running", "ended"]
    calls: list[str] = []
    epochs = iter((None, 1, 1))

    class EpochPoller:
        outage = None

        @property
        def epoch(self) -> int | None:
            return next(epochs)

    def tick(*, grace: bool) -> object:
        phase = ticks.pop(0)
        calls.append(f"tick: {phase}")
        sprint = SimpleNamespace(phase=phase, availability=SimpleNamespace(pause_reason=""))
        return SimpleNamespace(state=SimpleNamespace(sprint=sprint), moves=())

    def act(_state: object, *, epoch: int | None, grace: bool) -> None:
        calls.append(f"act: {epoch}")

    loop = cast(engine_module.Engine, SimpleNamespace(
        _sleep_detector=SimpleNamespace(in_grace=lambda: False), tick=tick, _report=lambda _: None,
        act=act, wait_s=lambda _: 0.0, poller=EpochPoller(), _stop_requested=threading.Event(),
        signal=SimpleNamespace(errors=[]), workers=SimpleNamespace(idle=False),
        wake=SimpleNamespace(wait=lambda _: None),
    ))  # fmt: skip
    until_end = partial(engine_module.Engine._until_end, loop)
    engine_module.Engine.drive(loop, until_end)
    assert calls == ["tick: ended", "act: None", "tick: running", "act: 1", "tick: ended"]


def test_rule_8_large_outputs_are_files_and_the_ledger_keeps_a_reference(engine: Engine) -> None:
    collector = engine.runtime().collector
    run_dir = engine.runs.of("i", 1)
    run_dir.mkdir(parents=True)
    (run_dir / "spec.json").write_text('{"framework": "stub"}')
    (run_dir / "output.log").write_text("x" * 1_000_000 + "\nAPPROVED\n")
    facts = [
        collector.ended("a", Work(item="i", role=role), 1, {"exit_code": 0}, None)
        for role in ("review", "verify")
    ]  # fmt: skip
    assert facts[0].answer.endswith("APPROVED\n")
    assert all(len(fact.answer) < 20_000 for fact in facts)
    assert facts[1].log == str(run_dir / "output.log")


def test_rule_9_every_boundary_of_a_commit_an_effect_and_a_file_is_a_crash_point(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[str] = []
    kinds: set[str] = set()
    for module in (database, files):
        monkeypatch.setattr(module, "crashpoint", reached.append)

    def reach(name: str, of: str) -> None:
        reached.append(name)
        kinds.add(of)

    monkeypatch.setattr(effects_module, "crashpoint", reach)
    engine.plan(CREATE)
    assert reached == ["tick.before_commit", "tick.after_commit"]
    reached.clear()
    engine.effects(ScriptedForge(create_issue=ISSUE)).perform(engine.entry())
    assert reached == [
        "effect.intend.before_commit",
        "effect.intend.after_commit",
        "effect.intend",
        "effect.do",
        "effect.record.before_commit",
        "effect.record.after_commit",
        "effect.record",
    ]
    assert kinds == {"create_issue/a"}
    reached.clear()
    files.write_atomic(engine.home / "file", b"x")
    assert reached == ["file.temp", "file.fsync", "file.rename"]


def test_rule_9_the_shim_has_its_crash_points_in_the_order_of_an_attempt() -> None:
    source = ast.parse(Path(attempt.__file__).read_text("utf-8"))
    points = {
        node.args[0].value
        for node in ast.walk(source)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "crashpoint"
        and isinstance(node.args[0], ast.Constant)
    }
    assert points == {"shim.lock", "shim.spawn", "shim.exit", "shim.result"}
