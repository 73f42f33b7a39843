"""Data of the kernel about a process: its memory, its processor time, its children."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def resident_mb(pid: int, field: str = "VmRSS") -> float:
    """Resident memory in MB (10⁶ bytes); field `VmHWM` gives the most it ever was."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"process {pid} has no {field}")


def cpu_seconds(pid: int) -> float:
    """Time that the process itself was on a processor, without its children."""
    user, system = _stat(pid)[11:13]
    return (int(user) + int(system)) / _TICKS_PER_S


def children(pid: int, program: str) -> list[int]:
    """The children of a process that run this program."""
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parent = int(_stat(int(entry.name))[1])
            command = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == pid and program in command:
            pids.append(int(entry.name))
    return pids


def _stat(pid: int) -> list[str]:
    """The fields after the name, which may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
