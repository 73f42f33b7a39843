"""What graphs write on a forge: under a key, so that the same call made twice writes it once."""

from __future__ import annotations

import os
from collections.abc import Callable

from caloron.domain.texts import comment_body
from caloron.graph.jsontext import Json, compact, sha256
from caloron.store.redact import Redactor, secrets_in

#: No key of a sprint begins so: what a graph wrote is never taken for an object of a task.
_OURS = "graph"
_DIGITS = 32


def key_of(kind: str, given: Json, *fields: str) -> str:
    """The key of what is to be written: the caller's own, or one made of all that it says."""
    told = given.get("key") or compact([given.get(field) for field in fields])
    return f"{_OURS}/{kind}/{sha256(str(told))[:_DIGITS]}"


def cleaner() -> Callable[[str], str]:
    """Takes out what must not leave the machine: the secrets of this process' environment."""
    return Redactor(secrets_in(os.environ)).text


def text_under(key: str, text: str) -> str:
    """A text as it goes to the forge: without secrets, with the mark that it is found by."""
    return comment_body(cleaner()(text), key)
