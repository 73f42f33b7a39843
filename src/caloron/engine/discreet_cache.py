"""Keeps secrets out of remembered answers: they would lie on the disk long after the run."""

from __future__ import annotations

import os
from functools import cached_property

from caloron.graph.cache import SqliteCache
from caloron.graph.protocols import CacheKey
from caloron.store.redact import Redactor, secrets_in

#: Named by us, and so a secret whatever its value looks like.
_ALWAYS = ("CALORON_SHELL_TOKEN",)


class DiscreetCache:
    """A cache that forgets at once what holds a secret of this process' environment."""

    def __init__(self, cache: SqliteCache) -> None:
        self._cache = cache

    @cached_property
    def _redactor(self) -> Redactor:
        ours = {name: os.environ[name] for name in _ALWAYS if os.environ.get(name)}
        return Redactor(secrets_in(os.environ) | ours)

    def get(self, key: CacheKey) -> str | None:
        return self._cache.get(key)

    def put(self, key: CacheKey, text: str) -> None:
        if not self._redactor.finds(text.encode("utf-8", "surrogatepass")):
            self._cache.put(key, text)
