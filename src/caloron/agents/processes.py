"""Processes as /proc shows them: who they are, what they use, and how to end a whole family.

Standard library only, because the shim runs on it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_DEAD = "ZX"
#: The proxy that this machine has to use; an address may hold a password, so it is never written.
PROXY_VARIABLES = tuple(
    form(name)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
    for form in (str.upper, str.lower)
)


def sidecar_environment() -> dict[str, str]:
    """The environment of the filtering proxy that runs beside a sandbox."""
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


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def look(pid: int) -> Process | None:
    """The process with this id, dead ones included until somebody has waited for them."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 (a hot path: no Path objects)
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may itself hold spaces and parentheses.
    fields = line[line.rindex(b")") + 2 :].split()
    ticks = sum(int(field) for field in fields[11:15])
    return Process(pid, fields[0].decode(), int(fields[1]), int(fields[3]), ticks, int(fields[19]))


def descendants(ancestor: int) -> dict[int, Process]:
    """The living children of a process, their children, and so on; not the process itself."""
    found: dict[int, Process] = {}
    unseen = children(ancestor)
    while unseen:
        pid = unseen.pop()
        process = look(pid)
        if pid not in found and process is not None:
            found[pid] = process
            unseen += children(pid)
    return {pid: process for pid, process in found.items() if process.state not in _DEAD}


def children(pid: int) -> list[int]:
    """The children of a process, dead ones included until their parent has waited for them."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                found += map(int, file.read().split())
    except (FileNotFoundError, ProcessLookupError):
        # It ended meanwhile; its children have another parent now and are found there.
        return found
    return found


def family(leader: int) -> dict[int, Process]:
    """The living processes of a session, and the descendants of its leader in other sessions."""
    everyone = {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        process = look(int(name)) if name.isdigit() else None
        if process is not None:
            everyone[process.pid] = process
    members = {pid for pid, p in everyone.items() if leader in (p.session, pid)}
    grown = True
    while grown:
        children = {pid for pid, p in everyone.items() if p.parent in members}
        grown = not children <= members
        members |= children
    return {pid: everyone[pid] for pid in members if everyone[pid].state not in _DEAD}


def started_as(argv: list[str]) -> list[Process]:
    """The living processes that have exactly this command line."""
    line = b"".join(os.fsencode(word) + b"\0" for word in argv)
    found = []
    for name in os.listdir("/proc"):  # noqa: PTH208
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:  # noqa: PTH123
                same = file.read() == line
        except (FileNotFoundError, ProcessLookupError):
            continue
        process = look(int(name)) if same else None
        if process is not None and process.state not in _DEAD:
            found.append(process)
    return found


def send(process: Process, number: int) -> None:
    """Signal exactly this process, never another one that got its id since."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        now = look(process.pid)
        if now is not None and now.started == process.started:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return
    finally:
        os.close(handle)


def living(processes: Iterable[Process]) -> list[Process]:
    """Those of the processes that are still there, and still the same."""
    now = ((process, look(process.pid)) for process in processes)
    return [
        process
        for process, seen in now
        if seen is not None and seen.started == process.started and seen.state not in _DEAD
    ]


def end_family(leader: int, others: Iterable[Process] = (), patience_s: float = 5.0) -> bool:
    """Kill a family, and others known to belong to it, until nobody is left; True if so."""
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
