"""A circuit breaker per host, shared by all users of the host, with its rate limit and its clock.

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
_FIRST_DELAY_S = 2.0
_LONGEST_DELAY_S = 30.0
#: A smaller difference of the clocks is ignored: an answer may take so long to arrive.
_APART_MS = 900_000


class HostBreaker:
    """Decides whether a host may be asked now, and counts its requests."""

    def __init__(self, host: str, now: Callable[[], float] = time.time) -> None:
        self.host = host
        self.now = now
        #: Requests that were sent, by method.
        self.requests: Counter[str] = Counter()
        #: In seconds since 1970; nothing is sent before.
        self.rate_limited_until = 0.0
        #: The host itself says that it cannot answer before.
        self._unavailable_until = 0.0
        self._failures = 0
        self._delay_s = _FIRST_DELAY_S
        self._open_until = 0.0
        self._probing = False
        self._last_ms = 0
        #: How far its clock is ahead of ours, if that is far.
        self._ahead_ms = 0
        self._lock = threading.Lock()

    def before_request(self) -> None:
        """Raise if nothing may be sent now; else the caller must record a success or a failure."""
        with self._lock:
            now = self.now()
            if now < self.rate_limited_until:
                raise self.rate_limit_error()
            if now < self._unavailable_until:
                raise self._unavailable_error()
            if self._failures < _FAILURES:
                return
            if now < self._open_until or self._probing:
                raise ForgeUnavailable(
                    f"{self.host} has not answered {self._failures} times in a row",
                    hint="it is asked again in a moment; is it running, and reachable from here?",
                )
            self._probing = True

    def record_success(self) -> None:
        with self._lock:
            self._failures, self._delay_s, self._probing = 0, _FIRST_DELAY_S, False

    def record_failure(self) -> None:
        with self._lock:
            self._failures += 1
            self._probing = False
            if self._failures >= _FAILURES:
                self._open_until = self.now() + self._delay_s
                self._delay_s = min(self._delay_s * 2, _LONGEST_DELAY_S)

    def limit_rate(self, until: float) -> None:
        with self._lock:
            self.rate_limited_until = max(self.rate_limited_until, until)

    def rate_limit_error(self) -> ForgePaused:
        return ForgePaused(
            f"{self.host} takes no more requests of ours until {_clock(self.rate_limited_until)}",
            self.rate_limited_until,
            hint="its quota for our account is used up; everything goes on then by itself",
        )

    def mark_unavailable(self, seconds: float) -> ForgeUnavailable:
        """Record that the host cannot work for so long; this is not a quota of ours."""
        with self._lock:
            self._unavailable_until = max(self._unavailable_until, self.now() + seconds)
            return self._unavailable_error()

    def _unavailable_error(self) -> ForgeUnavailable:
        return ForgeUnavailable(
            f"{self.host} is not available until {_clock(self._unavailable_until)}, as it says",
            hint="it is asked again then by itself",
        )

    def count_request(self, method: str) -> int:
        """Count one request; return the moment it began, in milliseconds, different for each."""
        with self._lock:
            self.requests[method] += 1
            return self._moment()

    def server_time_ms(self) -> int:
        """The time on the host as far as we know; later with each call."""
        with self._lock:
            return self._moment() + self._ahead_ms

    def to_server_clock(self, began_ms: int, date_s: int) -> int:
        """The moment a request began by the host's clock, which the date of the answer shows.

        Snapshots carry the forge's times. A clock of ours that is hours off could not order two
        snapshots within a second.
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
