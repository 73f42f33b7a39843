"""What the tick was told last of each object, so that the same picture is not told twice."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import msgspec

from caloron.domain.facts import Fact
from caloron.domain.observations import Snapshot


class Told:
    """Shared by those who tell: the poller, and the executor of effects.

    A forge whose times have only seconds gives the same picture a newer version at each look.
    """

    def __init__(self) -> None:
        self._last: dict[str, Snapshot] = {}
        self._lock = threading.Lock()

    def news(self, seen: Iterable[Snapshot]) -> tuple[Snapshot, ...]:
        """What differs from what was told last; it counts as told from now on."""
        with self._lock:
            new = []
            for snapshot in seen:
                last = self._last.get(snapshot.object)
                if last is None or _picture(last) != _picture(snapshot):
                    new.append(snapshot)
                if last is None or snapshot.version > last.version:
                    self._last[snapshot.object] = snapshot
            return tuple(new)

    def forget(self) -> None:
        """Nobody could look for a while: what changed and changed back in between is news, too."""
        with self._lock:
            self._last.clear()

    def note(self, facts: Iterable[Fact]) -> None:
        """Somebody else told these."""
        with self._lock:
            for fact in facts:
                if not isinstance(fact, Snapshot):
                    continue
                last = self._last.get(fact.object)
                if last is None or fact.version > last.version:
                    self._last[fact.object] = fact
                elif _picture(last) != _picture(fact):
                    # An older picture was told after a newer one that was not: the next look tells.
                    del self._last[fact.object]


def _picture(snapshot: Snapshot) -> Snapshot:
    return msgspec.structs.replace(snapshot, version=0)
