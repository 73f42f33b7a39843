"""Values that stages of one process hand on as they are, without writing and reading them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caloron.graph.jsontext import Json


class Held:
    """A value of any kind at a place where a type says `Any`; JSON only when somebody asks.

    Nobody changes it: it is the same object for every stage that gets it.
    """

    __slots__ = ("_as_json", "_json", "value")

    def __init__(self, value: Any, as_json: Callable[[Any], Json]) -> None:
        self.value = value
        self._as_json = as_json
        self._json: Json = self

    @property
    def json(self) -> Json:
        """What a stage elsewhere would see."""
        if self._json is self:
            self._json = self._as_json(self.value)
        return self._json


def opened(value: Json) -> Json:
    """The JSON of a value, if it is held; what is within it may be held all the same."""
    return value.json if isinstance(value, Held) else value
