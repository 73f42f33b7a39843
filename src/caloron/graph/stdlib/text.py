"""Texts: case, parts, templates."""

from __future__ import annotations

from caloron.graph.errors import StageFailed
from caloron.graph.json_text import Json, sha256
from caloron.graph.stdlib.input_fields import items, mapping, optional, text

#: Unicode's white space, which is a little less than what Python strips.
_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def upper(given: Json) -> Json:
    return text(given).upper()


def lower(given: Json) -> Json:
    return text(given).lower()


def trim(given: Json) -> Json:
    return text(given).strip(_SPACE)


def length(given: Json) -> Json:
    return float(len(text(given)))


def reverse(given: Json) -> Json:
    return text(given)[::-1]


def contains(given: Json) -> Json:
    return text(given, "substring") in text(given, "text")


def split(given: Json) -> Json:
    whole, delimiter = text(given, "text"), text(given, "delimiter")
    return whole.split(delimiter) if delimiter else ["", *whole, ""]


def join(given: Json) -> Json:
    return text(given, "delimiter").join(text(one) for one in items(given, "items"))


def replace(given: Json) -> Json:
    whole, old = text(given, "text"), text(given, "from")
    return whole.replace(old, text(given, "to")) if old else whole


def template(given: Json) -> Json:
    """Names in double braces without spaces; unknown ones stay as they are."""
    filled = text(given, "template")
    for name, value in mapping(given, "variables").items():
        filled = filled.replace("{{" + name + "}}", value if isinstance(value, str) else "")
    return filled


def hashed(given: Json) -> Json:
    algorithm = optional(given, "algorithm") or "sha256"
    if algorithm != "sha256":
        raise StageFailed(f"only sha256 is known, not {algorithm!r}")
    return {"algorithm": "sha256", "hash": sha256(text(given, "text"))}
