"""What a reviewer said: strictly one of two forms, on the last line that is not empty."""

from __future__ import annotations

import msgspec


class Approved(msgspec.Struct, frozen=True):
    pass


class ChangesNeeded(msgspec.Struct, frozen=True):
    reason: str


def parse_verdict(answer: str) -> Approved | ChangesNeeded | None:
    """The verdict, or None: an answer that is unclear or empty is never an approval."""
    lines = [line.strip() for line in answer.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if last == "APPROVED":
        return Approved()
    head, colon, reason = last.partition(":")
    if head == "CHANGES_NEEDED" and colon and reason.strip():
        return ChangesNeeded(reason.strip())
    return None
