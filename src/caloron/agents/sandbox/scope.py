"""Limits that the kernel keeps for all processes of a sandbox together: a scope of systemd.

A scope is a cgroup (version 2) for one command. Where systemd makes none, the shim's watch remains.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

#: Variables that only systemd-run needs, or that it adds to the environment.
_OURS = ("XDG_RUNTIME_DIR", "INVOCATION_ID")
_TRY_S = 20
_TRIED_MB, _TRIED_TASKS = 256, 64
_READ = 'IFS=: read -r _ _ own </proc/self/cgroup; cd "/sys/fs/cgroup$own"; cat memory.max pids.max'


@cache
def options() -> tuple[str, ...] | None:
    """Return the options with which systemd-run limits a command and changes nothing else in it.

    None: it sets no limits here. Each is tried, once: from version 254 on, systemd-run may replace
    `$name` in a command unless an option forbids that, which older versions refuse. The command of
    the try has such a name.
    """
    if shutil.which("systemd-run") is None:
        return None
    return next(filter(_is_good, (("--expand-environment=no",), ())), None)


def _is_good(more: tuple[str, ...]) -> bool:
    try:
        tried = subprocess.run(
            (*_command(_TRIED_MB, _TRIED_TASKS, more), "/bin/sh", "-c", _READ),
            env=environment(), stdin=subprocess.DEVNULL, capture_output=True, check=False,
            timeout=_TRY_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        # It does not work here.
        return False
    limits = [b"%d" % (_TRIED_MB << 20), b"%d" % _TRIED_TASKS]
    # A warning would be in the output of each agent.
    return tried.stdout.split() == limits and not tried.stderr


def prefix(memory_mb: int, tasks: int) -> tuple[str, ...]:
    """Return the prefix of a command that sets these limits; empty: no scope can be made."""
    more = options()
    return () if more is None else _command(memory_mb, tasks, more)


def _command(memory_mb: int, tasks: int, more: tuple[str, ...]) -> tuple[str, ...]:
    limits = (f"MemoryMax={memory_mb}M", "MemorySwapMax=0", f"TasksMax={tasks}")
    return (
        shutil.which("systemd-run") or "systemd-run",
        *(() if os.geteuid() == 0 else ("--user",)),
        *("--scope", "--quiet", "--collect", *more),
        *(word for limit in limits for word in ("-p", limit)),
        "--",
    )


def environment() -> dict[str, str]:
    """Return the environment in which an ordinary user's systemd is reached."""
    if os.geteuid() == 0:
        return {}
    return {"XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}")}


def arguments() -> tuple[str, ...]:
    """Return the arguments with which bubblewrap removes these variables again."""
    return tuple(word for name in _OURS for word in ("--unsetenv", name))
