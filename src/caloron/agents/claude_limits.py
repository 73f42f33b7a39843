"""Why a model's provider refused Claude Code, and until when.

With a subscription the stream carries the time of the reset; with a key it carries how long the CLI
waits before it tries again, and nothing at all when that is longer than it is willing to wait: a
minute.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, tzinfo
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from caloron.ports import Trouble

_EPOCH = re.compile(r"\|\s*(\d{10})\b")
_CLOCK = re.compile(
    r"resets?(?: at)? (?:(?P<month>[A-Z][a-z]{2}) (?P<day>\d{1,2})(?:,| at)? )?"
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d\d))?\s*(?P<half>[ap]m)(?: \((?P<zone>[\w/+-]+)\))?"
)
_QUOTA = re.compile(r"hit your \S*\s?\S*limit|usage limit|limit reached|out of .*usage", re.I)
_OVERFLOW = re.compile(r"prompt is too long|context (window|limit)|context_length", re.I)
_AUTH = re.compile(
    r"invalid (api|bearer)|not logged in|please run /login|failed to authenticate"
    r"|oauth token (has )?(expired|been revoked)|organization has been disabled",
    re.I,
)
_BILLING = re.compile(r"credit balance is too low", re.I)
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"


class Refusal:
    """What the stream said about answers that the provider did not give."""

    def __init__(self) -> None:
        #: The class that the CLI itself gave the last error, such as `rate_limit`.
        self.kind = ""
        #: The HTTP status of the last refusal, 0 if there was none.
        self.status = 0
        self._delay_s = 0.0
        self._resets_at: float | None = None
        self._limit = False

    def take_retry(self, status: int, delay_s: float) -> None:
        self.status, self._delay_s = status, delay_s

    def forget_retries(self) -> None:
        self.status, self._delay_s = 0, 0.0

    def take_limit(self, told: dict[str, Any]) -> None:
        """A subscription's limits; only a rejection is one."""
        self._limit = told.get("status") == "rejected"
        at = told.get("resetsAt")
        self._resets_at = float(at) if self._limit and isinstance(at, int | float) else None

    @property
    def is_quota(self) -> bool:
        return self._limit

    def over_at(self, text: str, ended_at: float) -> float | None:
        """When it is worth asking again, if anybody said so."""
        if self._resets_at is not None:
            return self._resets_at
        told = _reset_in(text, ended_at)
        if told is None and self._delay_s:
            return ended_at + self._delay_s
        return told


def trouble_of(refusal: Refusal, text: str, ended_at: float) -> tuple[Trouble, float | None]:
    """The class of an error, and until when it lasts if that was said."""
    if refusal.is_quota or _QUOTA.search(text):
        return "quota", refusal.over_at(text, ended_at)
    if refusal.status in (401, 403) or refusal.kind == "authentication_failed":
        return "auth", None
    if refusal.kind == "billing_error" or _BILLING.search(text) or _AUTH.search(text):
        # No waiting helps: somebody has to see to the account.
        return "auth", None
    if refusal.status in (429, 529) or refusal.kind in ("rate_limit", "overloaded"):
        return "rate_limit", refusal.over_at(text, ended_at)
    if _OVERFLOW.search(text):
        return "overflow", None
    return "crash", None


def _reset_in(text: str, ended_at: float) -> float | None:
    """The time that a message names: `…limit reached|1794808229`, `resets 5:50am (UTC)`."""
    if epoch := _EPOCH.search(text):
        return float(epoch[1])
    named = _CLOCK.search(text)
    if named is None:
        return None
    hour = int(named["hour"]) % 12 + (12 if named["half"] == "pm" else 0)
    minute = int(named["minute"] or 0)
    if minute > 59:
        return None
    now = datetime.fromtimestamp(ended_at, _zone(named["zone"]))
    at = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    if named["month"] is None:
        return (at if at > now else at + timedelta(days=1)).timestamp()
    try:
        at = at.replace(month=_MONTHS.index(named["month"]) // 3 + 1, day=int(named["day"]))
        return (at if at > now else at.replace(year=at.year + 1)).timestamp()
    except ValueError:
        return None


def _zone(name: str | None) -> tzinfo | None:
    """A time zone by its name; None: that of this machine, which `astimezone` finds."""
    try:
        return ZoneInfo(name) if name else datetime.now().astimezone().tzinfo
    except (ZoneInfoNotFoundError, ValueError):
        return datetime.now().astimezone().tzinfo
