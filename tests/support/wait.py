"""Waiting in tests for what other processes and threads do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from caloron.agents.supervise.processes import read_process


def until(condition: Callable[[], Any], what: str, patience_s: float = 60) -> Any:
    """Wait until a condition returns something true, and return that; `what` names it."""
    give_up = time.monotonic() + patience_s
    while time.monotonic() < give_up:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError(f"waited {patience_s} s in vain until {what}")


def lives(pid: int) -> bool:
    process = read_process(pid)
    return process is not None and process.state not in "ZX"
