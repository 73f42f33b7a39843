"""Commands that run for long, each once at a time: who is second is told who is first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from caloron.errors import HeldByAnother
from caloron.ledger.lock import EngineLock, holder


@contextmanager
def only_one(path: Path, what: str) -> Iterator[None]:
    """Hold a lock that dies with this process, or say which process has it."""
    lock = EngineLock(path)
    try:
        lock.acquire(what)
    except HeldByAnother as error:
        who = holder(path) or {}
        raise HeldByAnother(
            f"{what} runs already: process {who.get('pid', '?')} on"
            f" {who.get('host', 'this machine')}, since {who.get('started_at', 'just now')}",
            hint=f"use that one, or end it: kill {who.get('pid', 'PID')}",
        ) from error
    try:
        yield
    finally:
        lock.release()
