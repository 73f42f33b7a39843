"""The notes of an errand: one cell that people, hosts and resolutions share, and nobody empties."""

from __future__ import annotations

import json
from typing import Any

_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
#: What stood there before anybody annotated it.
TEXT = "text"
#: What was said at the end, beside what stands there already.
RESOLUTION = "resolution"


def encode(value: Any) -> str:
    """JSON as agent-state writes it: nothing between the parts, and letters as they are."""
    text = _encode(value)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            # Half a character, which JSON can escape but no file can hold.
            return json.dumps(value, separators=(",", ":"))
    return text


def base_of(notes: str | None) -> dict[str, Any]:
    """What an annotation is added to."""
    if not notes:
        return {}
    try:
        found = json.loads(notes)
    except (ValueError, RecursionError):
        return {TEXT: notes}
    return found if isinstance(found, dict) else {TEXT: notes}


def annotated(notes: str | None, patch: dict[str, Any]) -> str:
    """The notes with these keys; a key that is there already gets the new value."""
    return encode(base_of(notes) | patch)


def resolved(notes: str | None, said: str) -> str | None:
    """The notes after the errand ended with these words; None: they stay as they are."""
    if not said or said == notes:
        return None
    return annotated(notes, {RESOLUTION: said}) if notes else said
