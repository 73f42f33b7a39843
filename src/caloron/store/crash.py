"""Crash points: named points at which a test stops or kills the real process.

Nothing happens here unless one of two variables is set:

`CALORON_CRASH_AT`   `process|name|k|file`: SIGKILL at the k-th time this process reaches the
                     point, once: the file is created first, and a point whose file exists is past.
                     Several are separated by `;`. `name/of` counts one kind of thing alone.
`CALORON_CRASH_LOG`  a file to which each point reached is appended; the process then stops itself
                     (SIGSTOP) until the reader of the log lets it go on.
"""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter

_LOCK = threading.Lock()
_COUNTS: Counter[str] = Counter()
_AT = os.environ.get("CALORON_CRASH_AT", "")
_LOG = os.environ.get("CALORON_CRASH_LOG", "")
_process = "engine"


def this_process_is(name: str) -> None:
    """Name the process in crash points; the engine is the default."""
    global _process
    _process = name


def crashpoint(name: str, of: str = "") -> None:
    """Mark a point at which a crash must neither lose work nor do it twice.

    `of`: the kind of thing that is done, so that a test can count one kind alone.
    """
    if not (_AT or _LOG):
        return
    with _LOCK:
        names = (name, f"{name}/{of}") if of else (name,)
        _COUNTS.update(names)
        if _LOG:
            _record(name, _COUNTS[name])
        if _AT:
            for counted in names:
                _kill_if_here(counted, _COUNTS[counted])


def _record(name: str, count: int) -> None:
    line = f"{os.getpid()}|{_process}|{name}|{count}\n".encode()
    log = os.open(_LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(log, line)
    os.close(log)
    # A signal to the process might stop it only after this thread has continued.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _kill_if_here(name: str, count: int) -> None:
    for point in _AT.split(";"):
        process, wanted, k, once = point.split("|")
        if (process, wanted, int(k)) != (_process, name, count):
            continue
        try:
            os.close(os.open(once, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)
