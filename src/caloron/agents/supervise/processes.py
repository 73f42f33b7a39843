"""Processes as /proc shows them: their identity, their use of the machine, and how to end them.

Standard library only, because the shim runs on it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from caloron.store.lock import signal_exactly, stat_fields

_DEAD = "ZX"
#: The proxy that this machine has to use; an address may hold a password, so it is never written.
PROXY_VARIABLES = tuple(
    form(name)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
    for form in (str.upper, str.lower)
)


def sidecar_environment() -> dict[str, str]:
    """Return the environment of the filtering proxy that runs beside a sandbox."""
    known = {name: os.environ[name] for name in PROXY_VARIABLES if name in os.environ}
    return {"LC_ALL": "C.UTF-8"} | known


class Process(NamedTuple):
    """One line of /proc/PID/stat; pid and start time together never mean another process."""

    pid: int
    state: str
    parent: int
    session: int
    #: CPU time of the process and of its children that ended, in clock ticks.
    ticks: int
    started: int


def read_process(pid: int) -> Process | None:
    """Return the process with this id; a dead one too, until its parent has waited for it."""
    fields = stat_fields(pid)
    if not fields:
        return None
    ticks = sum(int(field) for field in fields[11:15])
    return Process(pid, fields[0].decode(), int(fields[1]), int(fields[3]), ticks, int(fields[19]))


def descendants(ancestor: int) -> dict[int, Process]:
    """Return the living children of a process, their children, and so on, without itself."""
    family: dict[int, Process] = {}
    unseen = children(ancestor)
    while unseen:
        pid = unseen.pop()
        process = read_process(pid)
        if pid not in family and process is not None:
            family[pid] = process
            unseen += children(pid)
    return {pid: process for pid, process in family.items() if process.state not in _DEAD}


def children(pid: int) -> list[int]:
    """Return the children of a process; dead ones too, until their parent has waited for them."""
    pids: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                pids += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        # It ended meanwhile; its children have another parent now and are there.
        return pids
    return pids


def family(leader: int) -> dict[int, Process]:
    """Return the living processes of a session, and its leader's descendants in other sessions."""
    everyone = {pid: process for pid in _pids() if (process := read_process(pid)) is not None}
    members = {pid for pid, p in everyone.items() if leader in (p.session, pid)}
    grown = True
    while grown:
        children = {pid for pid, p in everyone.items() if p.parent in members}
        grown = not children <= members
        members |= children
    return {pid: everyone[pid] for pid in members if everyone[pid].state not in _DEAD}


def sandbox_processes(argv: Sequence[str]) -> list[Process]:
    """Return the living processes of a sandbox by its command line, which names its folders.

    A sandbox whose outer process died while it was being set up outlives that process.
    """
    words = list(argv)
    if words and words[0].endswith("/systemd-run"):
        # It becomes the command that follows.
        words = words[words.index("--") + 1 :]
    line = b"".join(os.fsencode(word) + b"\0" for word in words)
    same = (read_process(pid) for pid in _pids() if line and _command_line(pid) == line)
    return [process for process in same if process is not None and process.state not in _DEAD]


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208


def _command_line(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        # It ended meanwhile.
        return b""


def send(process: Process, number: int) -> None:
    """Signal exactly this process, never another one that got its id since."""
    signal_exactly(process.pid, number, lambda: bool(living([process])))


def living(processes: Iterable[Process]) -> list[Process]:
    """Return those of the processes that still live."""
    return [
        process
        for process in processes
        if (now := read_process(process.pid)) is not None
        and now.started == process.started
        and now.state not in _DEAD
    ]


def end_family(leader: int, others: Iterable[Process] = (), patience_s: float = 5.0) -> bool:
    """Kill a family, and others known to belong to it, until none is left; True if so."""
    known = {process.pid: process for process in others}
    give_up = time.monotonic() + patience_s
    while True:
        known |= family(leader)
        left = living(known.values())
        if not left:
            return True
        if time.monotonic() > give_up:
            return False
        for process in left:
            send(process, signal.SIGKILL)
        time.sleep(0.01)
