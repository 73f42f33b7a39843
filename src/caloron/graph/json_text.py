"""Reads JSON strictly, and writes the two forms that are hashed."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, TypeAlias

import msgspec

from caloron.graph.errors import ParseError


class InProcessValue:
    """A value of any kind where a type is `Any`; converted to JSON on demand.

    All stages get the same object, so none of them may change it.
    """

    __slots__ = ("_as_json", "_json", "value")

    def __init__(self, value: Any, as_json: Callable[[Any], Json]) -> None:
        self.value = value
        self._as_json = as_json
        self._json: Json = self

    @property
    def json(self) -> Json:
        """The value as a stage in another process gets it."""
        if self._json is self:
            self._json = self._as_json(self.value)
        return self._json


def unwrap(value: Json) -> Json:
    """Return the JSON of an in-process value; its members may be in-process values, too."""
    return value.json if isinstance(value, InProcessValue) else value


#: None, bool, int, float, str, list of the same, dict of the same with text keys.
Json: TypeAlias = Any

#: The limit of Noether's own reader, so that no graph that it can read is refused. Functions over
#: graphs may be recursive.
MAX_NESTING = 127

_INTEGERS = range(-(2**63), 2**64)
_EXACT_IN_A_FLOAT = 2**53
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_EXPONENT = re.compile(r"\de[-+]?\d")
_LONG_DIGITS = re.compile(r"\d{19}")
_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*\Z")


def _unwrap(value: Any) -> Json:
    if isinstance(value, InProcessValue):
        return value.json
    raise TypeError(f"a {type(value).__name__} is no JSON value")


_compact_text = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_unwrap
).encode
_scalar_text = json.JSONEncoder(ensure_ascii=False).encode


class DuplicateKeys(dict[str, Json]):
    """An object with repeated keys in its text; the last value counts."""

    duplicates: tuple[str, ...] = ()


def member(path: str, key: str) -> str:
    """Return the JSON path of a member of an object."""
    return f"{path}.{key}" if _PLAIN_KEY.match(key) else f"{path}[{json.dumps(key)}]"


def decode(text: str | bytes, *, allow_bigint: bool = False, what: str = "the text") -> Json:
    """Parse a JSON text; an integer beyond 64 bits is refused, or read as a float."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ParseError(f"{what} is not UTF-8: {error.reason}") from error
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_wide if allow_bigint else _integer,
            parse_float=_float,
            parse_constant=_no_number,
        )
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise ParseError(f"{what} is not JSON: {error.msg} at {place}") from error
    except RecursionError as error:
        raise ParseError(_too_deep(what)) from error
    except ValueError as error:
        raise ParseError(f"{what} is not JSON that can be taken: {error}") from error
    _refuse_depth(value, what)
    if _SURROGATE.search(text):
        _refuse_half_characters(value, what)
    return value


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    repeated = DuplicateKeys(members)
    times = Counter(key for key, _ in pairs)
    repeated.duplicates = tuple(sorted(key for key, count in times.items() if count > 1))
    return repeated


def _integer(digits: str) -> Json:
    number = _wide(digits)
    if isinstance(number, float) and number:
        raise ValueError(f"the integer {_short(digits)} does not fit into 64 bits")
    return number


def _wide(digits: str) -> int | float:
    if digits == "-0":
        return -0.0
    if len(digits) < 19:
        return int(digits)
    number = int(digits) if len(digits) < 25 else None
    return number if number is not None and number in _INTEGERS else _float(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {_short(digits)} is out of range")
    return number


def _no_number(word: str) -> Json:
    raise ValueError(f"{word} is no JSON number")


def _short(digits: str) -> str:
    return digits if len(digits) <= 30 else f"{digits[:20]}… ({len(digits)} digits)"


def _too_deep(what: str) -> str:
    return f"{what} is nested more than {MAX_NESTING} deep"


def _refuse_depth(value: Json, what: str) -> None:
    level: list[Json] = [value] if isinstance(value, dict | list) else []
    depth = 0
    while level:
        depth += 1
        if depth > MAX_NESTING:
            raise ParseError(_too_deep(what))
        level = [
            child
            for container in level
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, dict | list)
        ]


def _refuse_half_characters(value: Json, what: str) -> None:
    for path, part in walk_json(value):
        for text in part if isinstance(part, dict) else (part,):
            if isinstance(text, str) and _LONE_SURROGATE.search(text):
                raise ParseError(f"{what} holds half of a surrogate pair", path=path)


def walk_json(value: Json, path: str = "$") -> Iterator[tuple[str, Json]]:
    """A value and all values within it, with their paths."""
    yield path, value
    if isinstance(value, dict):
        for key, child in value.items():
            yield from walk_json(child, member(path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from walk_json(child, f"{path}[{index}]")


def compact(value: Json) -> str:
    """Return the form that traces and caches hash: no spaces, keys sorted, floats stay floats."""
    text = _compact_text(value)
    if _EXPONENT.search(text):
        # Python writes floats with an exponent otherwise than Noether; msgspec writes them alike.
        return msgspec.json.encode(json.loads(text), order="sorted").decode()
    return text


def canonical(value: Json) -> str:
    """Return the form that ids hash (RFC 8785): numbers as ECMAScript writes them."""
    return "".join(_canonical_parts(value))


def _canonical_parts(value: Json) -> Iterator[str]:
    value = unwrap(value)
    if isinstance(value, dict):
        separator = "{"
        for key in sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass")):
            yield f"{separator}{_scalar_text(key)}:"
            yield from _canonical_parts(value[key])
            separator = ","
        yield "}" if value else "{}"
    elif isinstance(value, list | tuple):
        separator = "["
        for item in value:
            yield separator
            yield from _canonical_parts(item)
            separator = ","
        yield "]" if value else "[]"
    elif isinstance(value, bool) or value is None or isinstance(value, str):
        yield _scalar_text(value)
    elif isinstance(value, int | float):
        yield _canonical_number(value)
    else:
        raise TypeError(f"a {type(value).__name__} is no JSON value")


def _canonical_number(number: int | float) -> str:
    if isinstance(number, int):
        if abs(number) <= _EXACT_IN_A_FLOAT:
            return str(number)
        number = float(number)
    if number == 0:
        return "0"
    if not math.isfinite(number):
        raise ValueError(f"{number} is no JSON number")
    decimal = Decimal(repr(number)).normalize()
    # The position of the first digit: 0 for units.
    exponent = decimal.adjusted()
    if -7 < exponent < 21:
        return f"{decimal:f}"
    mantissa = decimal.scaleb(-exponent)
    return f"{mantissa:f}e{'+' if exponent > 0 else ''}{exponent}"


def may_have_bigint(text: str) -> bool:
    """True if a compact text may have an integer beyond 64 bits."""
    return _LONG_DIGITS.search(text) is not None


def sha256(text: str | bytes) -> str:
    """Return the hash of ids and traces in lower-case hex."""
    return hashlib.sha256(text.encode("utf-8") if isinstance(text, str) else text).hexdigest()
