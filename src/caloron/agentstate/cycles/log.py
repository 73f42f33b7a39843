"""The log of an agent's cycles: one line of JSON for each thing that happened, never changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from caloron.errors import StoreError
from caloron.store.crash import crashpoint
from caloron.store.files import append_line, read_plain

#: A log that is longer is put aside when the next cycle begins.
ROTATE_BYTES = 1 << 20
KEPT = 9
_CHUNK = 64 * 1024
#: In this order in each line, so that people can read it.
_FIRST = ("at", "cycle", "event")
_UNSAID = (*_FIRST, "seq", "holder", "state", "follows")

Entry = dict[str, Any]


class Log:
    """The log of one agent and the older files beside it."""

    def __init__(self, path: Path, *, rotate_bytes: int = ROTATE_BYTES) -> None:
        self.path = path
        self._rotate_bytes = rotate_bytes
        #: Lines that wait for `flush`; None: every line is written at once.
        self._waiting: list[bytes] | None = None

    def append(self, entry: Entry) -> None:
        ordered = {name: entry[name] for name in _FIRST} | entry
        line = json.dumps(ordered, ensure_ascii=False).encode("utf-8", "replace")
        if self._waiting is None:
            append_line(self.path, line)
        else:
            self._waiting.append(line)

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Write the lines of the block together at its end; an error in it drops them."""
        self._waiting = []
        try:
            yield
            self._flush()
        finally:
            self._waiting = None

    def _flush(self) -> None:
        if self._waiting:
            append_line(self.path, b"\n".join(self._waiting))
            self._waiting.clear()

    @property
    def has_lines(self) -> bool:
        """Whether the current file holds, or is about to hold, a line."""
        return bool(self._waiting) or self.path.exists()

    def last(self) -> Entry | None:
        """The last whole line, found from the end."""
        if self._waiting:
            return dict(json.loads(self._waiting[-1]))
        for file in (self.path, self._older(1)):
            # The second look is for a line that is longer than the first, or damage up to there.
            for content in (_tail, _content):
                found = next(_entries(content(file), newest_first=True), None)
                if found is not None:
                    return found
        return None

    def entries(self) -> Iterator[Entry]:
        """Every whole line of the current file, or of the one before it if there is none."""
        file = self.path if self.path.exists() else self._older(1)
        return _entries(_content(file))

    def newest(self, count: int) -> list[Entry]:
        """The newest lines, the oldest of them first, also from older files."""
        found: list[Entry] = []
        for number in range(KEPT + 1):
            file = self.path if number == 0 else self._older(number)
            if not file.exists() and number:
                break
            found = [*_entries(_content(file)), *found]
            if len(found) >= count:
                break
        return found[-count:] if count else []

    def rotate(self) -> bool:
        """Put a long log aside; the next line begins a new one."""
        size = self.path.stat().st_size if self.path.exists() else 0
        size += sum(map(len, self._waiting or ()))
        if not size or size < self._rotate_bytes:
            return False
        self._flush()
        try:
            for number in range(KEPT - 1, 0, -1):
                if self._older(number).exists():
                    self._older(number).replace(self._older(number + 1))
            self.path.replace(self._older(1))
        except OSError as error:
            raise StoreError(
                f"cannot put {self.path} aside: {error.strerror}",
                hint="make its folder writable for you; nothing is lost",
            ) from error
        crashpoint("log.rotate")
        return True

    def _older(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


def _content(file: Path) -> bytes:
    try:
        return read_plain(file)
    except FileNotFoundError:
        return b""


def _tail(file: Path) -> bytes:
    try:
        found = read_plain(file, _CHUNK)
    except FileNotFoundError:
        return b""
    return found if len(found) < _CHUNK else found.partition(b"\n")[2]


def _entries(content: bytes, *, newest_first: bool = False) -> Iterator[Entry]:
    """The lines that are whole; what a crash cut off is passed over."""
    lines = content.split(b"\n")
    for line in reversed(lines) if newest_first else lines:
        if not line:
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(entry, dict) and _is_entry(entry):
            yield entry


def _is_entry(entry: Entry) -> bool:
    numbers = (entry.get("seq"), entry.get("cycle"))
    words = (entry.get("at"), entry.get("event"))
    return all(type(n) is int and n >= 0 for n in numbers) and all(
        isinstance(word, str) for word in words
    )


def shown(entry: Entry) -> str:
    """One line for people."""
    rest = {k: v for k, v in entry.items() if k not in _UNSAID}
    said = "; ".join(f"{name}: {_said(value)}" for name, value in rest.items() if value)
    return f"{entry['at']}  #{entry['cycle']:<4} {entry['event']:9} {said}".rstrip()


def _said(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else " ".join(str(value).split())
