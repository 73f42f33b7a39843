"""Texts: case, parts, templates."""

from __future__ import annotations

from caloron.graph.errors import StageFailed
from caloron.graph.json_text import Json, sha256
from caloron.graph.stdlib.input_fields import items, mapping, optional, text

#: The white space of Unicode; Python strips a little more.
_SPACE = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)


def text_upper(input: Json) -> Json:
    return text(input).upper()


def text_lower(input: Json) -> Json:
    return text(input).lower()


def text_trim(input: Json) -> Json:
    return text(input).strip(_SPACE)


def text_length(input: Json) -> Json:
    return float(len(text(input)))


def text_reverse(input: Json) -> Json:
    return text(input)[::-1]


def text_contains(input: Json) -> Json:
    return text(input, "substring") in text(input, "text")


def text_split(input: Json) -> Json:
    whole, delimiter = text(input, "text"), text(input, "delimiter")
    return whole.split(delimiter) if delimiter else ["", *whole, ""]


def text_join(input: Json) -> Json:
    return text(input, "delimiter").join(text(one) for one in items(input, "items"))


def text_replace(input: Json) -> Json:
    whole, old = text(input, "text"), text(input, "from")
    return whole.replace(old, text(input, "to")) if old else whole


def text_template(input: Json) -> Json:
    """Fill in names in double braces without spaces; unknown names stay as they are."""
    filled = text(input, "template")
    for name, value in mapping(input, "variables").items():
        filled = filled.replace("{{" + name + "}}", value if isinstance(value, str) else "")
    return filled


def text_hash(input: Json) -> Json:
    algorithm = optional(input, "algorithm") or "sha256"
    if algorithm != "sha256":
        raise StageFailed(f"only sha256 is known, not {algorithm!r}")
    return {"algorithm": "sha256", "hash": sha256(text(input, "text"))}
