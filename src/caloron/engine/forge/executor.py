"""Performs effects on the forge: intend, do, record; after a crash it first looks for traces."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from caloron.agents.supervise import launch
from caloron.domain.model.effects import Effect, Probe
from caloron.domain.model.facts import EffectFailed, Fact
from caloron.engine.forge.operations import ForgeOperations
from caloron.engine.forge.poller import Poller, SnapshotFilter
from caloron.engine.runs.run_dirs import RunDirs
from caloron.engine.signals import LoopSignal
from caloron.errors import (
    ForgeError,
    ForgePaused,
    ForgeUnavailable,
    NotFound,
    NotYet,
)
from caloron.git.command import GitError
from caloron.ledger.journal import Entry, Journal
from caloron.ports import Clock
from caloron.store import log
from caloron.store.crash import crashpoint
from caloron.store.files import is_disk_full

_THREADS = 4
#: Short, because an unreachable forge gets no effect before a poll succeeds again.
_PAUSE_S = 1.0
#: How often a merge is retried that the forge calls a conflict, although git can merge it.
_CONFLICT_TRIES = 6


@dataclass
class EffectExecutor:
    """Drains the journal with a few threads; effects of one task keep their order."""

    journal: Journal
    operations: ForgeOperations
    runs: RunDirs
    clock: Clock
    signal: LoopSignal
    reported: SnapshotFilter = field(default_factory=SnapshotFilter)
    #: With a poller, no effect is performed between an outage and the next poll.
    poller: Poller | None = None
    #: Performs only effects whose keys begin with this text, for a sprint that was discarded. Of
    #: other effects only the traces of those that already happened are recorded.
    only: str = ""
    #: How often the forge reported a conflict of an effect that git does not find.
    _doubts: Counter[int] = field(default_factory=Counter)
    _running: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="effect")

    def dispatch(self, epoch: int | None = 0) -> float | None:
        """Start the effects that are due; return when the next postponed effect is due, if any.

        `epoch` is that of the poll on which these effects were decided. After an outage since then
        effects wait for the next poll: the acts of people in between are unknown.
        """
        next_due: float | None = None
        for entry in self.journal.due():
            if not self._decided_on_current_poll(entry, epoch):
                continue
            if entry.not_before > self.clock.now():
                next_due = min(next_due or entry.not_before, entry.not_before)
                continue
            with self._lock:
                if entry.id in self._running:
                    continue
                self._running.add(entry.id)
            self._pool.submit(self._run, entry, epoch)
        return next_due

    def _decided_on_current_poll(self, entry: Entry, epoch: int | None) -> bool:
        if isinstance(entry.effect, Probe):
            return True
        current = self.poller.epoch if self.poller else 0
        return epoch is not None and current == epoch

    @property
    def idle(self) -> bool:
        """True if no effect is being performed."""
        with self._lock:
            return not self._running

    def close(self) -> None:
        """Finish the effects that were begun, and begin no more."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, entry: Entry, epoch: int | None) -> None:
        try:
            if self._decided_on_current_poll(entry, epoch):
                self.perform(entry)
        except BaseException as error:  # noqa: BLE001 - handed to the loop, which stops with it
            self.signal.fail(error)
        finally:
            with self._lock:
                self._running.discard(entry.id)
            self.signal.notify()

    def perform(self, entry: Entry) -> None:
        """Perform one effect and record the outcome."""
        try:
            if isinstance(entry.effect, Probe):
                self._probe(entry, entry.effect)
            else:
                facts = execute(self.journal, self.operations, entry, entry.effect, only=self.only)
                self.reported.record(facts)
        except ForgePaused as error:
            _log(entry, "an effect is retried later", error)
            self.journal.postpone(entry, error.until, str(error))
        except ForgeUnavailable as error:
            self._refuse_full_disk(error)
            _log(entry, "an effect is retried later", error)
            if self.poller and not isinstance(error, NotYet):
                self.poller.report_unreachable()
            self.journal.postpone(entry, self.clock.now() + _PAUSE_S, str(error))
        except (ForgeError, NotFound, GitError) as error:
            self._refuse_full_disk(error)
            _log(entry, "the forge refused an effect", error)
            self._refused(entry, error)

    def _refuse_full_disk(self, error: Exception) -> None:
        """Raise for a full disk: no task is to blame, and no retry helps."""
        if is_disk_full(error, self.runs.root.parent):
            raise error

    def _refused(self, entry: Entry, error: Exception) -> None:
        doubts = self._doubts[entry.id]
        if doubts < _CONFLICT_TRIES and self.operations.is_doubtful(entry.effect, error):
            self._doubts[entry.id] += 1
            pause = _PAUSE_S * 2**doubts
            self.journal.postpone(entry, self.clock.now() + pause, str(error))
            return
        self.journal.refuse(
            entry,
            EffectFailed(
                key=entry.effect.key,
                task=entry.effect.task,
                kind=entry.kind,
                refusal=self.operations.refusal(entry.effect, error),
                message=" ".join(str(error).split()),
            ),
            self.operations.after_refusal(entry.effect, error),
        )

    def _probe(self, entry: Entry, probe: Probe) -> None:
        """Inspect the process of a silent agent and record what it does."""
        run_dir = self.runs.newest(probe.item)
        finding = launch.probe(run_dir) if run_dir else "no process was started"
        if not entry.intended:
            self.journal.intend(entry)
        self.journal.record(entry, (), finding)


def execute(
    journal: Journal, operations: ForgeOperations, entry: Entry, effect: Effect, *, only: str = ""
) -> tuple[Fact, ...]:
    """Look for traces of an interrupted effect, perform it if there are none, and record it."""
    facts: tuple[Fact, ...] | None = None
    of = f"{entry.kind}/{effect.task}"
    if not entry.intended:
        if not journal.intend(entry):
            return ()
        crashpoint("effect.intend", of)
    if entry.intended or journal.looks_first:
        facts = operations.find(effect)
    if facts is None and not effect.key.startswith(only):
        journal.drop(entry, "the sprint was discarded")
        return ()
    if facts is None:
        facts = operations.do(effect)
        crashpoint("effect.do", of)
    journal.record(entry, facts)
    crashpoint("effect.record", of)
    return facts


def _log(entry: Entry, message: str, error: Exception) -> None:
    log.warning(message, error=error, effect=entry.effect.key, task=entry.effect.task)
