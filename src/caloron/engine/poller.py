"""Looks at the forge at intervals and tells the ledger what is new; it never acts."""

from __future__ import annotations

import threading
import time

from caloron.domain.joining import LABEL
from caloron.domain.outages import Outage, outage_after
from caloron.engine.bell import Bell
from caloron.engine.told import Told
from caloron.errors import ForgeError, ForgePaused, ForgeUnavailable
from caloron.ledger.ledger import SQL, Ledger, tell
from caloron.ledger.outages import clear_outage, keep_outage, read_outage
from caloron.ports import Forge
from caloron.store import log
from caloron.store.files import is_disk_full

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0
#: Nothing is done before a look, so a forge that is back must soon be noticed.
_LONGEST_SILENCE_S = 5.0
_BURST_S = 0.05
_STOP_S = 1.0
#: A cursor that moved without news is written down this often: an old one costs a longer look.
_KEEP_CURSOR_S = 60.0


class Poller:
    """A thread that polls; a failed look means: wait and look again."""

    def __init__(
        self,
        ledger: Ledger,
        sprint: str,
        forge: Forge,
        bell: Bell,
        interval_s: float,
        told: Told | None = None,
    ) -> None:
        self._ledger = ledger
        self._sprint = sprint
        self._forge = forge
        self._bell = bell
        self._interval_s = interval_s
        self._told = told or Told()
        self._key = f"forge_cursor/{sprint}"
        self._cursor = ""
        self._kept_at = 0.0
        with ledger.db.snapshot() as connection:
            #: Why nothing can be asked of the forge now, and since when.
            self.outage: Outage | None = read_outage(connection, sprint)
        #: How often it did not answer anybody, and how many of these are made good by a look.
        self._losses = self._made_good = 0
        self._counting = threading.Lock()
        #: When the last look ended, and how long it took.
        self._looked_at = self._look_s = 0.0
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

    def look_now(self) -> None:
        """Somebody says that there is news: look at once. Many such calls are one look."""
        self._wake.set()

    def lost(self) -> None:
        """Somebody else got no answer: what people did meanwhile is not known before a look."""
        self._count_loss()
        self._wake.set()

    @property
    def sees(self) -> bool:
        """Whether there was a look since the forge last did not answer."""
        return self.sight is not None

    @property
    def sight(self) -> int | None:
        """A number that changes when the forge does not answer; None before the next look."""
        with self._counting:
            return self._losses if self._losses == self._made_good else None

    def glance(self) -> None:
        """Look once, without anybody who would look again: a look that fails is written down."""
        try:
            self.poll()
        except ForgeError as error:
            self._missed(error)

    def poll(self) -> bool:
        """Look once; whether there was anything new."""
        losses = self._losses
        new = self._look()
        if self._made_good != losses:
            self._made_good = losses
            self._bell.ring()
        self._reached()
        return new

    def _look(self) -> bool:
        cursor = self._cursor or self._ledger.get(self._key)
        seen = self._forge.poll(cursor)
        news = self._told.news(seen.snapshots)
        self._cursor = seen.cursor
        if not news and (seen.cursor == cursor or time.monotonic() < self._kept_at):
            return False
        with self._ledger.db.transaction("poll") as connection:
            told = tell(connection, self._sprint, news)
            connection.execute(SQL["put_kv"], {"key": self._key, "value": seen.cursor})
        self._kept_at = time.monotonic() + _KEEP_CURSOR_S
        return told > 0

    def begin(self) -> None:
        """Start a new sprint's watch from now: what happened before it is not its business.

        Main is, and the open issues that people labelled for a sprint to come.
        """
        main = self._forge.branch(self._forge.main)
        cursor = self._forge.poll("").cursor
        labelled = self._forge.issues("open", LABEL)
        with self._ledger.db.transaction("poll") as connection:
            tell(connection, self._sprint, [*([main] if main else []), *labelled])
            connection.execute(SQL["put_kv"], {"key": self._key, "value": cursor})

    def _run(self) -> None:
        try:
            self._look_again_and_again()
        except Exception as error:  # noqa: BLE001 - the loop stops with it, whatever it is
            # Without a poller the sprint would go on blind, and nobody would know.
            self._bell.fault(error)

    def _look_again_and_again(self) -> None:
        pause, misses = self._interval_s, 0
        while True:
            self._sleep(pause)
            if self._end.is_set():
                return
            began = time.monotonic()
            try:
                if self.poll():
                    self._bell.ring()
                self._looked_at = time.monotonic()
                self._look_s = self._looked_at - began
                pause, misses = self._interval_s, 0
            except ForgeError as error:
                if is_disk_full(error, self._ledger.db.path.parent):
                    raise
                self._missed(error)
                pause, misses = pause_after(error, misses, self._interval_s), misses + 1
                if isinstance(error, ForgePaused):
                    pause, misses = max(error.until - time.time(), self._interval_s), misses - 1

    def _sleep(self, seconds: float) -> None:
        if self._wake.wait(seconds):
            # What comes in a burst is seen in one look, and however much comes, the forge is asked
            # for half of the time at most: a look rests as long as it took, from its end on.
            rest = self._looked_at + self._look_s - time.monotonic()
            self._end.wait(max(_BURST_S, rest))
        self._wake.clear()

    def _count_loss(self) -> None:
        with self._counting:
            self._losses += 1

    def _missed(self, error: ForgeError) -> None:
        log.warning("a look at the forge failed; it is repeated", error=error)
        self._count_loss()
        self._told.forget()
        until = error.until if isinstance(error, ForgePaused) else None
        outage = outage_after(self.outage, str(error), until, time.time())
        if outage != self.outage:
            keep_outage(self._ledger, self._sprint, outage)
            self.outage = outage
            self._bell.ring()

    def _reached(self) -> None:
        if self.outage is not None:
            clear_outage(self._ledger, self._sprint)
            self.outage = None
            self._bell.ring()


def pause_after(error: ForgeError, misses: int, interval_s: float) -> float:
    """How long to wait after a look that failed, and `misses` others before it."""
    longest = _LONGEST_SILENCE_S if isinstance(error, ForgeUnavailable) else _LONGEST_PAUSE_S
    return min(min(interval_s, _FIRST_PAUSE_S) * 2.0 ** min(misses, 10), longest)
