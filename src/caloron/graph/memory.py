"""Remembers what pure stages answered, for as long as the process lives."""

from __future__ import annotations

import threading
from collections import OrderedDict

from caloron.graph.protocols import CacheKey


class MemoryCache:
    """The most recently used answers."""

    def __init__(self, most_entries: int = 10_000, most_characters: int = 64 * 1024 * 1024) -> None:
        self._most_entries = most_entries
        self._most_characters = most_characters
        self._entries: OrderedDict[CacheKey, str] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: CacheKey) -> str | None:
        with self._lock:
            found = self._entries.get(key)
            if found is not None:
                self._entries.move_to_end(key)
            return found

    def put(self, key: CacheKey, text: str) -> None:
        if len(text) > self._most_characters:
            return
        with self._lock:
            self._characters += len(text) - len(self._entries.pop(key, ""))
            self._entries[key] = text
            while len(self._entries) > self._most_entries or (
                self._characters > self._most_characters
            ):
                _, oldest = self._entries.popitem(last=False)
                self._characters -= len(oldest)
