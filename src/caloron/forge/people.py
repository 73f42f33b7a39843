"""Who has a say on a forge where everybody may write."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_REMEMBERED_S = 300.0


class People:
    """The owner, our own accounts, and either a list of names or all who may write."""

    def __init__(
        self, owner: str, listed: tuple[str, ...], may_write: Callable[[str], bool]
    ) -> None:
        self._owner = owner.casefold()
        self._listed = frozenset(name.casefold() for name in listed)
        self._may_write = may_write
        self._asked: dict[str, tuple[float, bool]] = {}
        self._lock = threading.Lock()

    def known(self, author: str, ours: tuple[str, ...]) -> bool:
        """Whether one has a say without the forge being asked."""
        return author in ours or author.casefold() in {self._owner, *self._listed}

    def trusted(self, author: str, ours: tuple[str, ...]) -> bool:
        """Whether one has a say; the forge is asked now and then."""
        if self.known(author, ours):
            return True
        if self._listed:
            return False
        name = author.casefold()
        with self._lock:
            at, said = self._asked.get(name, (0.0, False))
        if time.monotonic() - at < _REMEMBERED_S and at:
            return said
        said = self._may_write(author)
        with self._lock:
            self._asked[name] = (time.monotonic(), said)
        return said
