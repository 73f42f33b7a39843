"""The log file: JSON lines without secrets, readable by its owner only, of bounded size."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import traceback
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from caloron.store import log
from caloron.store.redact import Redactor, secrets_in

#: One file and its predecessors take at most this much each.
MAX_BYTES = 2 << 20
#: How many rotated files are kept: caloron.log.1 is the newest.
KEPT = 3
_MAX_TEXT = 8000


def write(level: str, message: str, fields: dict[str, Any], frames: int) -> None:
    """Add one line about an event to the file, which several processes may share."""
    entry = _entry(level, message, fields, sys._getframe(frames))
    path = log.log_path()
    if path is not None:
        # A full disk or a deleted project must not end the work that is logged.
        with suppress(OSError):
            append(path, json.dumps(entry, ensure_ascii=False, default=str) + "\n")
    if log.is_verbose():
        with suppress(OSError, ValueError):
            # A closed terminal must not end the work that is logged.
            sys.stderr.write(_line(entry) + "\n")


def _entry(level: str, message: str, fields: dict[str, Any], caller: FrameType) -> dict[str, Any]:
    # Not cached: secrets that this process learns later must be redacted as well.
    clean = Redactor(secrets_in(os.environ)).text
    fields = dict(fields)
    error = fields.pop("error", None)
    entry: dict[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "level": level,
        "message": _short(clean(message)),
        "where": f"{Path(caller.f_code.co_filename).stem}:{caller.f_lineno}",
        "thread": threading.current_thread().name,
        "pid": os.getpid(),
    }
    entry |= {name: _clean_value(value, clean) for name, value in fields.items()}
    if isinstance(error, BaseException):
        entry["error"] = _short(clean(f"{type(error).__name__}: {error}"))
        if level == "error":
            entry["traceback"] = _short(clean("".join(traceback.format_exception(error))))
    elif error is not None:
        entry["error"] = _clean_value(error, clean)
    return entry


def _clean_value(value: Any, clean: Any) -> Any:
    return value if isinstance(value, bool | int | float) else _short(clean(str(value)))


def _short(text: str) -> str:
    """Shorten a text, and escape bytes of paths that are not UTF-8."""
    if len(text) > _MAX_TEXT:
        half = _MAX_TEXT // 2
        text = f"{text[:half]} … {text[-half:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def _line(entry: dict[str, Any]) -> str:
    shown = {k: v for k, v in entry.items() if k not in ("time", "level", "message", "pid")}
    details = " ".join(f"{name}={value}" for name, value in shown.items() if name != "traceback")
    text = f"{entry['time'][11:23]} {entry['level']} {entry['message']} ({details})"
    return "".join(c if c.isprintable() else "�" for c in text)


def append(path: Path, line: str) -> None:
    """Add a line to a file that only its owner reads; rotate the file when it is full."""
    data = line.encode()
    # The folder of the project is not created: a deleted project has no log.
    path.parent.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    for _ in range(KEPT + 1):
        handle = os.open(path, flags, 0o600)
        try:
            status = os.fstat(handle)
            if status.st_size + len(data) <= MAX_BYTES or not _rotated(path, handle):
                if status.st_mode & 0o077:
                    os.fchmod(handle, 0o600)
                os.write(handle, data)
                return
        finally:
            os.close(handle)


def _rotated(path: Path, handle: int) -> bool:
    """Move the full file away; False if another process is doing that now."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # Another process may have moved the file since it was opened: then its successor is opened.
    if os.path.samestat(os.fstat(handle), path.stat()):
        for number in range(KEPT, 0, -1):
            older = path.with_name(f"{path.name}.{number}")
            newer = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
            if newer.exists():
                newer.replace(older)
    return True
