"""Keeps the secrets of this process out of what graphs leave on the disk."""

from __future__ import annotations

import os
from functools import cached_property

import msgspec

from caloron.graph.runtime.protocols import CacheKey, JournalEntry
from caloron.graph.storage.cache import SqliteCache
from caloron.graph.storage.journal import SqliteJournal
from caloron.store.redact import Redactor, own_redactor


class RedactingCache(SqliteCache):
    """A cache that does not keep an answer that holds a secret."""

    @cached_property
    def _redactor(self) -> Redactor:
        return own_redactor(os.environ)

    def put(self, key: CacheKey, text: str) -> None:
        if not self._redactor.finds(text.encode("utf-8", "surrogatepass")):
            super().put(key, text)


class RedactingJournal(SqliteJournal):
    """A journal that records no secret: a call whose answer holds one is made again on resume.

    A redacted answer would be a wrong input for the next call.
    """

    @cached_property
    def _redactor(self) -> Redactor:
        return own_redactor(os.environ)

    def record(self, run_id: str, key: str, entry: JournalEntry) -> None:
        output = (entry.output or "").encode("utf-8", "surrogatepass")
        if self._redactor.finds(output):
            return
        if entry.failure is not None:
            name, reason = entry.failure
            entry = msgspec.structs.replace(entry, failure=(name, self._redactor.text(reason)))
        super().record(run_id, key, entry)
