"""Polls the forge, and reports each new snapshot of an object to the ledger once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

import msgspec

from caloron.domain.model.facts import Fact
from caloron.domain.model.snapshots import Snapshot
from caloron.domain.reporting.waiting import Outage, outage_after
from caloron.domain.rules.people.labelled_issues import LABEL
from caloron.durations import Backoff
from caloron.engine.signals import LoopSignal
from caloron.errors import ForgeError, ForgePaused, ForgeUnavailable
from caloron.ledger.ledger import SQL, Ledger, append_facts
from caloron.ledger.reading import read_outage
from caloron.ports import Forge
from caloron.store import log
from caloron.store.files import is_disk_full


class SnapshotFilter:
    """Keeps the same snapshot from being reported twice; the poller and the executor share it.

    A forge with one-second timestamps gives an unchanged object a newer version at each poll.
    """

    def __init__(self) -> None:
        self._last: dict[str, Snapshot] = {}
        self._lock = threading.Lock()

    def new_ones(self, seen: Iterable[Snapshot]) -> tuple[Snapshot, ...]:
        """Return the snapshots that differ from the last reported ones, and record them."""
        with self._lock:
            new = []
            for snapshot in seen:
                last = self._last.get(snapshot.object)
                if last is None or _without_version(last) != _without_version(snapshot):
                    new.append(snapshot)
                if last is None or snapshot.version > last.version:
                    self._last[snapshot.object] = snapshot
            return tuple(new)

    def reset(self) -> None:
        """Forget everything after an outage: a change undone meanwhile must be reported."""
        with self._lock:
            self._last.clear()

    def record(self, facts: Iterable[Fact]) -> None:
        """Record snapshots that another part has reported."""
        with self._lock:
            for fact in facts:
                if not isinstance(fact, Snapshot):
                    continue
                last = self._last.get(fact.object)
                if last is None or fact.version > last.version:
                    self._last[fact.object] = fact
                elif _without_version(last) != _without_version(fact):
                    # An older snapshot was reported after a newer one: report the next one again.
                    del self._last[fact.object]


def _without_version(snapshot: Snapshot) -> Snapshot:
    return msgspec.structs.replace(snapshot, version=0)


_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0
#: No effect is performed before a poll, so the return of the forge must be noticed soon.
_LONGEST_SILENCE_S = 5.0
_BURST_S = 0.05
_STOP_S = 1.0
#: A cursor that moved without news is saved this often: an old one makes the next poll longer.
_KEEP_CURSOR_S = 60.0


class Poller:
    """Polls in a thread; a failed poll means: wait and poll again."""

    def __init__(
        self,
        ledger: Ledger,
        sprint: str,
        forge: Forge,
        signal: LoopSignal,
        interval_s: float,
        reported: SnapshotFilter | None = None,
    ) -> None:
        self._ledger = ledger
        self._sprint = sprint
        self._forge = forge
        self._signal = signal
        self._interval_s = interval_s
        self._reported = reported or SnapshotFilter()
        self._key = f"forge_cursor/{sprint}"
        self._cursor = ""
        self._kept_at = 0.0
        with ledger.db.snapshot() as connection:
            #: Why nothing can be asked of the forge now, and since when.
            self.outage: Outage | None = read_outage(connection, sprint)
        #: How many requests failed, and how many of these failures a later poll has made good.
        self._losses = self._made_good = 0
        self._counting = threading.Lock()
        #: When the last poll ended, and how long it took.
        self._polled_at = self._poll_took_s = 0.0
        self._end = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._wake.set()
        if self._thread.is_alive():
            # A forge that does not answer must not hold up a stop; a poll changes nothing there.
            self._thread.join(_STOP_S)

    def wake_up(self) -> None:
        """Poll at once; many calls in a short time cause one poll."""
        self._wake.set()

    def report_unreachable(self) -> None:
        """Report an outage that another part met; the next poll shows what changed meanwhile."""
        self._count_loss()
        self._wake.set()

    @property
    def epoch(self) -> int | None:
        """A number that changes with each outage; None until the next poll after it."""
        with self._counting:
            return self._losses if self._losses == self._made_good else None

    def poll_once(self) -> None:
        """Poll once without the thread; record a failure as an outage."""
        try:
            self.poll()
        except ForgeError as error:
            self._on_failure(error)

    def poll(self) -> bool:
        """Poll once; return True if there was anything new."""
        losses = self._losses
        new = self._read_news()
        if self._made_good != losses:
            self._made_good = losses
            self._signal.notify()
        self._on_success()
        return new

    def _read_news(self) -> bool:
        cursor = self._cursor or self._ledger.get(self._key)
        seen = self._forge.poll(cursor)
        news = self._reported.new_ones(seen.snapshots)
        self._cursor = seen.cursor
        if not news and (seen.cursor == cursor or time.monotonic() < self._kept_at):
            return False
        with self._ledger.db.transaction("poll") as connection:
            appended = append_facts(connection, self._sprint, news)
            connection.execute(SQL["put_kv"], {"key": self._key, "value": seen.cursor})
        self._kept_at = time.monotonic() + _KEEP_CURSOR_S
        return appended > 0

    def begin(self) -> None:
        """Set the cursor of a new sprint to now: earlier events do not concern it.

        Exceptions are main and the open issues that people labelled for a sprint to come.
        """
        main = self._forge.branch(self._forge.main)
        cursor = self._forge.poll("").cursor
        labelled = self._forge.issues("open", LABEL)
        with self._ledger.db.transaction("poll") as connection:
            append_facts(connection, self._sprint, [*([main] if main else []), *labelled])
            connection.execute(SQL["put_kv"], {"key": self._key, "value": cursor})

    def _run(self) -> None:
        try:
            self._poll_repeatedly()
        except Exception as error:  # noqa: BLE001 - the loop stops with it, whatever it is
            # Without a poller the sprint would go on without seeing the forge.
            self._signal.fail(error)

    def _poll_repeatedly(self) -> None:
        pause, misses = self._interval_s, 0
        while True:
            self._sleep(pause)
            if self._end.is_set():
                return
            began = time.monotonic()
            try:
                if self.poll():
                    self._signal.notify()
                self._polled_at = time.monotonic()
                self._poll_took_s = self._polled_at - began
                pause, misses = self._interval_s, 0
            except ForgeError as error:
                if is_disk_full(error, self._ledger.db.path.parent):
                    raise
                self._on_failure(error)
                pause, misses = pause_after(error, misses, self._interval_s), misses + 1
                if isinstance(error, ForgePaused):
                    pause, misses = max(error.until - time.time(), self._interval_s), misses - 1

    def _sleep(self, seconds: float) -> None:
        if self._wake.wait(seconds):
            # One poll covers a burst. After a poll comes a pause of the same length, so that polls
            # take at most half of the time.
            rest = self._polled_at + self._poll_took_s - time.monotonic()
            self._end.wait(max(_BURST_S, rest))
        self._wake.clear()

    def _count_loss(self) -> None:
        with self._counting:
            self._losses += 1

    def _on_failure(self, error: ForgeError) -> None:
        log.warning("a poll of the forge failed; it is repeated", error=error)
        self._count_loss()
        self._reported.reset()
        until = error.until if isinstance(error, ForgePaused) else None
        outage = outage_after(self.outage, str(error), until, time.time())
        if outage != self.outage:
            self._ledger.store_outage(self._sprint, outage)
            self.outage = outage
            self._signal.notify()

    def _on_success(self) -> None:
        if self.outage is not None:
            self._ledger.end_outage(self._sprint)
            self.outage = None
            self._signal.notify()


def pause_after(error: ForgeError, misses: int, interval_s: float) -> float:
    """Return the pause after a failed poll that `misses` failed polls came before."""
    longest = _LONGEST_SILENCE_S if isinstance(error, ForgeUnavailable) else _LONGEST_PAUSE_S
    return Backoff(min(interval_s, _FIRST_PAUSE_S), longest).pause(misses + 1)
