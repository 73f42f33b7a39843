"""Does the work of the queue: claims it, starts a shim for it, and collects its result.

The shim owns the lease and writes the outcome. So an agent lives on when this process dies, and
the next engine waits for its shim and collects the result in the same way.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any, Literal

import msgspec

from caloron.agents.supervise import launch
from caloron.agents.workspace.workspaces import remove_workspace
from caloron.domain.model.facts import RunInterrupted, WorkEnded
from caloron.domain.model.roles import AGENT_ROLES, WorkId
from caloron.domain.reporting.kpis import STOPPED
from caloron.durations import Backoff
from caloron.engine.runs.budget import BudgetGuard
from caloron.engine.runs.collect import AttemptCollector
from caloron.engine.runs.prepare import AttemptPreparer, PreparedProcess
from caloron.engine.runs.run_dirs import RunDirs, read_record
from caloron.engine.signals import LoopSignal
from caloron.errors import CaloronError, ForgePaused, ForgeUnavailable, SetupCancelled, StoreError
from caloron.git.command import GitError
from caloron.git.incoming import HandOverCancelled
from caloron.ledger.ledger import start_of
from caloron.ledger.projects import Project
from caloron.ledger.work_queue import INTERRUPTED, Claimed, WorkQueue, result_of
from caloron.store import log
from caloron.store import queue as store_queue
from caloron.store.files import is_disk_full
from caloron.store.redact import learned_secrets

#: After so many interruptions in a row, each restart of an item waits first.
_QUICK_RESTARTS = 3
_RESTARTS = Backoff(2.0, 30.0)
_POSTPONEMENTS = Backoff(1.0, 30.0)
#: After so many kills in a row, a killed git process counts as a failure.
_MAX_KILLED = 10
_TICK_S = 0.02
#: How long a stop waits for workspaces that are being prepared.
_PREPARING_S = 1.0

#: An item and its fencing token.
Key = tuple[str, int]
#: `running`: the shim owns the attempt, and only waiting is left for this process.
Stage = Literal["preparing", "running", "collecting"]


def _named(item: str) -> dict[str, str]:
    """The fields of a log record about a piece of work."""
    return {"item": item, "task": WorkId.parse(item).task}


@dataclass(kw_only=True)
class Workers:
    """One thread per piece of work in flight; each waits for its shim without using time."""

    project: Project
    queue: WorkQueue
    preparer: AttemptPreparer
    collector: AttemptCollector
    budget: BudgetGuard
    signal: LoopSignal
    runs: RunDirs
    #: Once set, no attempt starts and workspaces in preparation are given up.
    stopping: threading.Event
    _active: dict[Key, threading.Thread] = field(default_factory=dict)
    _stages: dict[Key, Stage] = field(default_factory=dict)
    #: How often in a row the attempts of an item were lost, or postponed.
    _lost: Counter[str] = field(default_factory=Counter)
    _postponed: Counter[str] = field(default_factory=Counter)
    #: Attempts whose shim is being ended.
    _ending: set[Key] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def dispatch(self, parallel: int, *, halted: bool = False) -> None:
        """Start what the queue offers, within the limits; no agent while the sprint is halted."""
        if self.stopping.is_set():
            return
        # A verification finishes a change, so it goes before work that begins one.
        for roles in (("verify",), AGENT_ROLES):
            while self.queue.has_pending(roles):
                allowance = self.budget.allowance()
                if roles is AGENT_ROLES and (halted or allowance == 0):
                    break
                claimed = self.queue.claim(roles, parallel)
                if claimed is None:
                    break
                if roles is AGENT_ROLES:
                    self.budget.reserve((claimed.item, claimed.token), allowance)
                self._begin(claimed.item, claimed.token, claimed)

    @property
    def idle(self) -> bool:
        """True if no attempt is in flight."""
        with self._lock:
            return not self._active

    @property
    def only_shims_work(self) -> bool:
        """True if this process can exit: every remaining attempt is owned by its shim."""
        with self._lock:
            return all(self._stages.get(key) == "running" for key in self._active)

    def adopt(self) -> None:
        """Take up the attempts of an earlier engine: wait for live shims, collect results."""
        self.end_orphans()
        for lease in sorted(self.queue.in_flight(), key=lambda lease: (lease.item, lease.token)):
            item, token = lease.item, lease.token
            self.budget.reserve((item, token), read_record(self.runs.of(item, token)).budget_usd)
            self._begin(item, token, None)

    def end_orphans(self) -> None:
        """Stop agents without a lease, and save their work.

        An engine that died right after it took a lease back did not stop the agent.
        """
        leased = {(lease.item, lease.token) for lease in self.queue.in_flight()}
        for item, token in self.runs.with_workspace(self.queue.sprint):
            if (item, token) not in leased:
                launch.stop(self.runs.of(item, token))
                try:
                    self._account(item, token)
                except CaloronError as error:
                    # The framework is no longer installed; no other program reads its output.
                    log.warning("the cost of an attempt is unknown", error=error, **_named(item))
                self.collector.save_and_remove(item, token)

    def reconcile(self, *, grace: bool) -> None:
        """Stop agents whose lease is gone; take back leases that were not renewed."""
        leases = {(lease.item, lease.token): lease for lease in self.queue.in_flight()}
        with self._lock:
            active, stages = set(self._active), dict(self._stages)
        for item, token in active - leases.keys():
            self._stop_later(item, token)
        for (item, token), lease in leases.items():
            if stages.get((item, token)) == "preparing":
                self._renew(item, token)
            elif grace or lease.result is not None or lease.expires_at >= lease.now_ms:
                continue
            elif self.queue.interrupt(item, token, "its lease was not renewed"):
                self._stop_later(item, token)

    def stop(self) -> None:
        """End all agents; their work is saved and their attempts count as interrupted."""
        self.stopping.set()
        for lease in self.queue.in_flight():
            if lease.result is None:
                try:
                    self.queue.interrupt(lease.item, lease.token, STOPPED)
                except StoreError as error:
                    # The agent ends nevertheless; the next engine gives its lease back.
                    self.signal.fail(error)
                self._stop_later(lease.item, lease.token)
        give_up = time.monotonic() + _PREPARING_S
        while True:
            late = time.monotonic() > give_up
            with self._lock:
                # A workspace in preparation has no agent yet, so nothing can be lost there.
                threads = [
                    thread
                    for key, thread in self._active.items()
                    if not (late and self._stages.get(key) == "preparing")
                ]
            if not threads:
                return
            threads[0].join(_TICK_S)

    def wait(self) -> None:
        """Wait until all running work has ended."""
        with self._lock:
            threads = list(self._active.values())
        for thread in threads:
            thread.join()

    def _begin(self, item: str, token: int, claimed: Claimed | None) -> None:
        key = (item, token)
        thread = threading.Thread(
            target=self._attend, args=(item, token, claimed), name=f"work {item}", daemon=True
        )
        with self._lock:
            self._active[key] = thread
            self._stages[key] = "preparing" if claimed else "collecting"
        thread.start()

    def _stop_later(self, item: str, token: int) -> None:
        with self._lock:
            if (item, token) in self._ending:
                return
            self._ending.add((item, token))
        name = f"stop {item}"
        threading.Thread(target=self._end, args=(item, token), name=name, daemon=True).start()

    def _end(self, item: str, token: int) -> None:
        try:
            launch.stop(self.runs.of(item, token))
        except Exception as error:  # noqa: BLE001 - handed to the loop, which stops with it
            with log.context(**_named(item)):
                self.signal.fail(error)
        finally:
            with self._lock:
                self._ending.discard((item, token))

    def _renew(self, item: str, token: int) -> None:
        """Renew the lease while a workspace is prepared: there is no shim yet that does it."""
        try:
            with self.queue.ledger.db.transaction("renew") as connection:
                store_queue.renew(connection, item, token, self.queue.lease_ms, active=False)
        except store_queue.LeaseLost as error:
            log.warning("a lease could not be renewed", error=error, **_named(item))

    def _attend(self, item: str, token: int, claimed: Claimed | None) -> None:
        with log.context(**_named(item)):
            try:
                self._finish(item, token, claimed)
            except BaseException as error:  # noqa: BLE001 - handed to the loop, which stops with it
                self.signal.fail(error)
            finally:
                with self._lock:
                    self._active.pop((item, token), None)
                    self._stages.pop((item, token), None)
                self.budget.release((item, token))
                self.signal.notify()

    def _finish(self, item: str, token: int, claimed: Claimed | None) -> None:
        try:
            shim = self._launch(claimed) if claimed else None
            if shim or not claimed:
                self._await_shim(item, token, shim)
                self._collect_again_if_killed(item, token)
        except SetupCancelled as error:
            log.debug("the setup of a workspace was cancelled", error=error)
            self.collector.remove(item, token)
        except HandOverCancelled as error:
            # The result is recorded and the workspace stays: the next engine collects both.
            log.debug("the work of an attempt is collected by the next engine", error=error)
        except StoreError:
            raise
        except CaloronError as error:
            if is_disk_full(error, self.project.path):
                # No task is to blame, and no retry helps.
                raise
            log.warning("work ended with an internal error", error=error)
            if isinstance(error, ForgeUnavailable) or self._was_killed(item, error):
                self._postpone(item, token, error)
            else:
                self._fault(item, token, error)

    def _await_shim(self, item: str, token: int, shim: Popen[bytes] | None) -> None:
        run_dir = self.runs.of(item, token)
        if shim is None and not launch.is_alive(run_dir):
            return
        self._enter((item, token), "running")
        self.signal.notify()
        if shim is not None:
            shim.wait()
        launch.wait_until_gone(run_dir)
        self._enter((item, token), "collecting")

    def _enter(self, key: Key, stage: Stage) -> None:
        with self._lock:
            self._stages[key] = stage

    def _launch(self, claimed: Claimed) -> Popen[bytes] | None:
        """Prepare and start the shim; None if the work needed none."""
        run_dir = self.runs.of(claimed.item, claimed.token)
        self._await_earlier_attempts(claimed.item, claimed.token)
        self._pause_after_losses(claimed.item)
        self._refuse_stopping()
        remove_workspace(run_dir / "workspace")
        state = self.queue.ledger.state(self.queue.sprint)
        budget = self.budget.reserved((claimed.item, claimed.token))
        prepared = self.preparer.assign(state, claimed.start, claimed.token, run_dir, budget)
        self._refuse_stopping()
        if isinstance(prepared, WorkEnded):
            self.queue.settle(prepared, claimed.token)
            self.collector.remove(claimed.item, claimed.token)
            return None
        # From now on these values are redacted from everything that is written.
        self.collector.secrets.update(prepared.secrets | learned_secrets())
        secrets = {"env": prepared.secrets, "redact": self.collector.secrets}
        self._postponed.pop(claimed.item, None)
        return launch.start(run_dir, self._spec(claimed, prepared, run_dir), secrets)

    def _await_earlier_attempts(self, item: str, token: int) -> None:
        """Wait until the work of earlier, interrupted attempts is saved."""
        with self._lock:
            earlier = [
                thread
                for (other, before), thread in self._active.items()
                if other == item and before < token
            ]
        for thread in earlier:
            thread.join()
        while self.queue.interruption_waits(item):
            # The next tick handles the interruption and tells which conversation continues.
            if self.stopping.wait(_TICK_S):
                return

    def _refuse_stopping(self) -> None:
        """Give up a preparation; `stop` gives its lease back."""
        if self.stopping.is_set():
            raise SetupCancelled("the sprint is being stopped")

    def _spec(self, claimed: Claimed, prepared: PreparedProcess, run_dir: Path) -> dict[str, Any]:
        """Return the spec that the shim reads, and later `read_record`."""
        stdin = ""
        if prepared.stdin:
            file = run_dir / "prompt.txt"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(prepared.stdin, "utf-8")
            stdin = str(file)
        return {
            "ledger": str(self.project.ledger),
            "item": claimed.item,
            "token": claimed.token,
            "lease_ms": self.queue.lease_ms,
            # A busy agent must not seem silent because its shim reports too rarely.
            "beat_s": self.project.config.stall_threshold_m * 60 / 4,
            "watch": prepared.watch,
            "interruptions": self.queue.interruptions(claimed.item),
            "stdin": stdin,
            "output_cap": self.project.config.output_cap_mb << 20,
            "limit_s": prepared.limit_s,
            "wake": str(self.project.wake),
            **msgspec.to_builtins(prepared.confined, str_keys=True, enc_hook=str),
            **msgspec.to_builtins(prepared.record),
        }

    def _pause_after_losses(self, item: str) -> None:
        losses = self._lost[item] - _QUICK_RESTARTS
        if losses > 0:
            self.stopping.wait(_RESTARTS.pause(losses))

    def _was_killed(self, item: str, error: CaloronError) -> bool:
        """True if a signal ended a git process of ours, unless that happens every time."""
        killed = isinstance(error, GitError) and error.returncode < 0
        return killed and self._postponed[item] < _MAX_KILLED

    def _collect_again_if_killed(self, item: str, token: int) -> None:
        """Collect again when a signal ended a git process of ours: the work is paid and there."""
        for last in (False, False, True):
            try:
                self._collect(item, token)
            except GitError as error:
                if error.returncode >= 0 or last:
                    raise
                log.warning("a git process was killed; the work is collected again", error=error)
            else:
                return

    def _collect(self, item: str, token: int) -> None:
        """Collect the result of an attempt, also of one that an earlier engine started."""
        run_dir = self.runs.of(item, token)
        launch.reap(run_dir)
        lease = self.queue.lease(item)
        if lease is None or lease.token != token:
            # Taken back, or cancelled: its cost and its conversation still count.
            if cut := self._cut_short(item, token):
                self.queue.ledger.append_facts(self.queue.sprint, [cut])
            return
        result = result_of(lease)
        start = start_of(lease.payload)
        if result is None:
            self._lost[item] += 1
            if words := self.collector.last_words(item, token):
                self.queue.note("attempt_lost", item, {"last_line": words})
            cut = self._cut_short(item, token)
            self.queue.interrupt(item, token, INTERRUPTED, cut)
            return
        self._lost.pop(item, None)
        fact = self.collector.ended(start.task, start.work, token, result, lease.started_at)
        if fact.usage:
            self.budget.settle((item, token), fact.usage.usd)
        if self.queue.settle(fact, token):
            self.collector.finish(fact)
        else:
            # Its lease was taken back meanwhile: its cost still counts.
            self._account(item, token)
            self.collector.save_and_remove(item, token)

    def _cut_short(self, item: str, token: int) -> RunInterrupted | None:
        """Save the work of an attempt that did not end, and return its cost if there is one."""
        cut = self.collector.interrupted(item, token)
        self.collector.save_and_remove(item, token)
        if cut:
            self.budget.settle((item, token), cut.usage.usd)
        return cut

    def _account(self, item: str, token: int) -> None:
        """Report the cost of an attempt whose end counts for nothing else."""
        if cut := self.collector.interrupted(item, token):
            self.queue.ledger.append_facts(self.queue.sprint, [cut])

    def _postpone(self, item: str, token: int, error: CaloronError) -> None:
        """Try again later: the forge does not answer, or a git process of ours was killed."""
        self._postponed[item] += 1
        pause = _POSTPONEMENTS.pause(self._postponed[item])
        until = error.until if isinstance(error, ForgePaused) else time.time() + pause
        cut = self._cut_short(item, token)
        self.queue.interrupt(item, token, str(error), cut, until=until)

    def _fault(self, item: str, token: int, error: CaloronError) -> None:
        """Report an internal error around the agent to the task, which tries once more."""
        lease = self.queue.lease(item)
        if lease is None or lease.token != token:
            return
        start = start_of(lease.payload)
        cut = self.collector.interrupted(item, token)
        if cut:
            self.budget.settle((item, token), cut.usage.usd)
        fact = WorkEnded(
            item=item,
            task=start.task,
            role=start.work.role,
            token=token,
            internal_error=str(error),
            usage=cut.usage if cut else None,
        )
        if not self.queue.settle(fact, token):
            self._account(item, token)
        try:
            self.collector.save_and_remove(item, token)
        except OSError as problem:
            self.signal.fail(problem)
