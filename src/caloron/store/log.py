"""The log: `log.warning("cannot read the queue", error=error, task="login")`.

Commands that only read must start fast, so the code that writes a record is imported with the first
record, and no file is created before.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from caloron.errors import UsageError

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}
_VARIABLE = "CALORON_LOG_LEVEL"


class _Settings:
    """The log file and the level of this process."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.pinned = False
        #: Records are also printed on stderr.
        self.verbose = False
        self.fields: dict[str, Any] = {}


_settings = _Settings()
_context: ContextVar[dict[str, Any] | None] = ContextVar("log_context", default=None)


def log_of(project: Path) -> Path:
    return project / "logs" / "caloron.log"


def write_to(path: Path) -> None:
    """Send records to this file, unless an engine has pinned its own."""
    if not _settings.pinned:
        _settings.path = path


def pin(path: Path, **fields: Any) -> None:
    """Send every record to this file until `unpin`, with these fields in each of them."""
    _settings.path, _settings.pinned, _settings.fields = path, True, fields


def unpin() -> None:
    _settings.pinned, _settings.fields = False, {}


def log_path() -> Path | None:
    return _settings.path


def set_verbose(verbose: bool) -> None:
    """Log everything, and print it on stderr as well."""
    _settings.verbose = verbose


def is_verbose() -> bool:
    return _settings.verbose


def level() -> int:
    """Return the lowest level that is logged: `--verbose`, the environment, or `info`."""
    if _settings.verbose:
        return LEVELS["debug"]
    return LEVELS.get(os.environ.get(_VARIABLE, "").strip().lower(), LEVELS["info"])


def check_level() -> None:
    """Refuse a level that does not exist."""
    named = os.environ.get(_VARIABLE, "").strip()
    if named and named.lower() not in LEVELS:
        raise UsageError(f"{_VARIABLE} is {named!r}", hint=f"use one of {', '.join(LEVELS)}")


@contextmanager
def context(**fields: Any) -> Iterator[None]:
    """Add fields, such as the task, to every record of this thread within the block."""
    token = _context.set((_context.get() or {}) | fields)
    try:
        yield
    finally:
        _context.reset(token)


@contextmanager
def ignored(*errors: type[BaseException], message: str, **fields: Any) -> Iterator[None]:
    """Continue after these errors, and log them: `suppress` for errors that matter."""
    try:
        yield
    except errors as error:
        _record("warning", message, {"error": error, **fields}, frames=4)


def debug(message: str, **fields: Any) -> None:
    _record("debug", message, fields)


def info(message: str, **fields: Any) -> None:
    _record("info", message, fields)


def warning(message: str, **fields: Any) -> None:
    """Log an error that is ignored or retried; `error` is the exception."""
    _record("warning", message, fields)


def error(message: str, **fields: Any) -> None:
    """Log an error that ends something; the traceback of `error` is kept."""
    _record("error", message, fields)


def _record(name: str, message: str, fields: dict[str, Any], frames: int = 3) -> None:
    """Log a record; `frames` counts from `write` to the caller that is named in it."""
    if LEVELS[name] < level():
        return
    from caloron.store.log_file import write

    write(name, message, _settings.fields | (_context.get() or {}) | fields, frames)
