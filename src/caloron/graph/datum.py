"""A value on its way through a graph: as a value and as the text that is hashed, each once."""

from __future__ import annotations

import json

from caloron.graph.held import opened
from caloron.graph.jsontext import Json, compact, decode, has_wide_integers, sha256

_UNKNOWN = object()


class Datum:
    """A JSON value that nobody changes; its members may be held as they are until they are read.

    Stages that could change it get its text.
    """

    __slots__ = ("_hash", "_text", "_value")

    def __init__(self, value: Json = _UNKNOWN, text: str | None = None) -> None:
        self._value = value
        self._text = text
        self._hash = ""

    @classmethod
    def answered(cls, value: Json, *, wide_integers: bool) -> Datum:
        """What a stage answered; raises a ValueError or TypeError if it is no JSON value."""
        text = compact(value)
        if has_wide_integers(text):
            text = compact(decode(text, wide_integers=wide_integers, what="the answer"))
        return cls(text=text)

    @property
    def value(self) -> Json:
        if self._value is _UNKNOWN:
            self._value = json.loads(self._text or "null")
        return opened(self._value)

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = compact(self._value)
        return self._text

    @property
    def hash(self) -> str:
        if not self._hash:
            self._hash = sha256(self.text)
        return self._hash
