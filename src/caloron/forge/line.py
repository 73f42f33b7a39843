"""One host as all its users share it: the breaker, the pause of a quota, and the count of requests.

A host that does not answer is left alone for a while instead of being asked by every thread, and a
host that says how long to wait is not asked before.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from caloron.errors import ForgePaused, ForgeUnavailable

#: So many failures in a row open the breaker, for a time that doubles up to the longest.
_FAILURES = 5
_FIRST_REST_S = 2.0
_LONGEST_REST_S = 30.0
#: Clocks that are less apart are taken for the same: an answer may have been on its way so long.
_APART_MS = 900_000


class Line:
    """Whether a host may be asked now, and how often it was."""

    def __init__(self, host: str, now: Callable[[], float] = time.time) -> None:
        self.host = host
        self.now = now
        #: Requests that were sent, by method.
        self.requests: Counter[str] = Counter()
        #: In seconds since 1970; nothing is sent before.
        self.paused_until = 0.0
        #: It says itself that it cannot answer before.
        self._rests_until = 0.0
        self._failures = 0
        self._rest_s = _FIRST_REST_S
        self._closed_until = 0.0
        self._probing = False
        self._last_ms = 0
        #: How far its clock is ahead of ours, if that is far.
        self._ahead_ms = 0
        self._lock = threading.Lock()

    def enter(self) -> None:
        """Raise if nothing may be sent now; else the caller must tell `worked` or `failed`."""
        with self._lock:
            now = self.now()
            if now < self.paused_until:
                raise self.pause_error()
            if now < self._rests_until:
                raise self._resting()
            if self._failures < _FAILURES:
                return
            if now < self._closed_until or self._probing:
                raise ForgeUnavailable(
                    f"{self.host} has not answered {self._failures} times in a row",
                    hint="it is asked again in a moment; is it running, and reachable from here?",
                )
            self._probing = True

    def worked(self) -> None:
        with self._lock:
            self._failures, self._rest_s, self._probing = 0, _FIRST_REST_S, False

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            self._probing = False
            if self._failures >= _FAILURES:
                self._closed_until = self.now() + self._rest_s
                self._rest_s = min(self._rest_s * 2, _LONGEST_REST_S)

    def pause(self, until: float) -> None:
        with self._lock:
            self.paused_until = max(self.paused_until, until)

    def pause_error(self) -> ForgePaused:
        return ForgePaused(
            f"{self.host} takes no more requests of ours until {_clock(self.paused_until)}",
            self.paused_until,
            hint="its quota for our account is used up; everything goes on then by itself",
        )

    def rest(self, seconds: float) -> ForgeUnavailable:
        """The host cannot work for so long, as it says: no quota of ours, and no mystery."""
        with self._lock:
            self._rests_until = max(self._rests_until, self.now() + seconds)
            return self._resting()

    def _resting(self) -> ForgeUnavailable:
        return ForgeUnavailable(
            f"{self.host} is not available until {_clock(self._rests_until)}, as it says",
            hint="it is asked again then by itself",
        )

    def count(self, method: str) -> int:
        """Count one request; the moment it began, in milliseconds, different for each."""
        with self._lock:
            self.requests[method] += 1
            return self._moment()

    def now_there_ms(self) -> int:
        """What time it is on the host, as far as we know; later with each call."""
        with self._lock:
            return self._moment() + self._ahead_ms

    def on_its_clock(self, began_ms: int, date_s: int) -> int:
        """The moment a request began by the host's clock, from what the answer says of the time.

        Whatever a forge tells carries its times; a clock of ours that is hours off could not tell
        which of two looks within a second was the later one.
        """
        with self._lock:
            ahead = date_s * 1000 - began_ms
            if abs(ahead - self._ahead_ms) > _APART_MS:
                self._ahead_ms = ahead if abs(ahead) > _APART_MS else 0
            return began_ms + self._ahead_ms

    def _moment(self) -> int:
        self._last_ms = max(self._last_ms + 1, int(self.now() * 1000))
        return self._last_ms


def _clock(moment: float) -> str:
    return time.strftime("%H:%M UTC", time.gmtime(moment))
