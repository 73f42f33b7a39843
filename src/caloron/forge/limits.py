"""How long a forge wants to be left alone, from what it says when it had enough."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

from caloron.forge.connection import Answer

_LONGEST_PAUSE_S = 24 * 3600.0
#: For a limit without a time, as GitHub asks for it.
_UNKNOWN_PAUSE_S = 60.0
_UNAVAILABLE = 503


def pause_s(answer: Answer) -> float:
    """How long the forge wants to be left alone; 0: not at all."""
    headers, limited = answer.headers, answer.status in (403, 429)
    if limited and "retry-after" in headers:
        return _retry_after_s(headers["retry-after"], answer.date_s)
    if headers.get("x-ratelimit-remaining") == "0" and (limited or answer.status < 400):
        reset = headers.get("x-ratelimit-reset", "")
        wait = float(reset) - answer.date_s if reset.isdecimal() else _UNKNOWN_PAUSE_S
        return min(max(wait, 1.0), _LONGEST_PAUSE_S)
    if answer.status == 429 or (limited and b"rate limit" in answer.body.lower()):
        return _UNKNOWN_PAUSE_S
    return 0.0


def rest_s(answer: Answer) -> float:
    """How long the forge cannot work, as it says; 0: it says nothing."""
    named = answer.status == _UNAVAILABLE and "retry-after" in answer.headers
    return _retry_after_s(answer.headers["retry-after"], answer.date_s) if named else 0.0


def _retry_after_s(value: str, date_s: int) -> float:
    if value.strip().isdecimal():
        wait = float(value)
    else:
        try:
            wait = parsedate_to_datetime(value).timestamp() - date_s
        except ValueError:
            wait = _UNKNOWN_PAUSE_S
    return min(max(wait, 1.0), _LONGEST_PAUSE_S)
