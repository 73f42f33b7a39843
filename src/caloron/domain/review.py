"""What a reviewer said: strictly one of two forms, on the last line that is not empty.

An answer that contains both forms contradicts itself and is unclear.
"""

from __future__ import annotations

import msgspec

_APPROVED = "APPROVED"
_CHANGES_NEEDED = "CHANGES_NEEDED"


class Approved(msgspec.Struct, frozen=True):
    pass


class ChangesNeeded(msgspec.Struct, frozen=True):
    reason: str


def holds_both(answer: str) -> bool:
    lines = [line.strip() for line in answer.splitlines()]
    return _APPROVED in lines and _CHANGES_NEEDED in answer


def parse_verdict(answer: str) -> Approved | ChangesNeeded | None:
    """The verdict, or None: an answer that is unclear or empty is never an approval."""
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if last == _APPROVED:
        # An approval is final, so the other word must stand nowhere, in no form.
        return None if _CHANGES_NEEDED in answer else Approved()
    head, colon, reason = last.partition(":")
    if head == _CHANGES_NEEDED and colon and reason.strip() and _APPROVED not in lines:
        return ChangesNeeded(reason.strip())
    return None
