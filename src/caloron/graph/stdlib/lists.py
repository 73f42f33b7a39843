"""Lists and numbers: order, groups, sums, and stages applied to every item."""

from __future__ import annotations

from functools import cmp_to_key

from caloron.graph.errors import StageFailed
from caloron.graph.json_text import Json, compact
from caloron.graph.runtime.protocols import Call
from caloron.graph.stdlib.input_fields import field, items, number, optional, text


def apply(given: Json, call: Call) -> Json:
    stage = text(given, "stage_id")
    return [call.stage(stage, item) for item in items(given, "items")]


def keep(given: Json, call: Call) -> Json:
    stage = text(given, "stage_id")
    return [item for item in items(given, "items") if call.stage(stage, item) is True]


def fold(given: Json, call: Call) -> Json:
    stage, result = text(given, "stage_id"), optional(given, "initial")
    for item in items(given, "items"):
        result = call.stage(stage, {"accumulator": result, "item": item})
    return result


def sort(given: Json) -> Json:
    if isinstance(given, list):
        return sorted(given, key=cmp_to_key(_compare))
    key, descending = optional(given, "key"), optional(given, "descending") is True

    def of(item: Json) -> Json:
        by_key = isinstance(key, str) and isinstance(item, dict) and key in item
        return item[key] if by_key else item

    sign = -1 if descending else 1
    order = cmp_to_key(lambda one, other: sign * _compare(of(one), of(other)))
    return sorted(items(given, "items"), key=order)


def _compare(one: Json, other: Json) -> int:
    """Numbers, texts and booleans among themselves; everything else counts as equal."""
    if _sort_of(one) is None or _sort_of(one) != _sort_of(other):
        return 0
    return int(one > other) - int(one < other)


def _sort_of(value: Json) -> str | None:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else None


def group_by(given: Json) -> Json:
    key = text(given, "key")
    groups: dict[str, list[Json]] = {}
    for item in items(given, "items"):
        name = optional(item, key)
        groups.setdefault(name if isinstance(name, str) else "", []).append(item)
    return groups


def flatten(given: Json) -> Json:
    flat: list[Json] = []
    for item in items(given):
        flat.extend(item if isinstance(item, list) else [item])
    return flat


def pairs(given: Json) -> Json:
    both = zip(items(given, "left"), items(given, "right"), strict=False)
    return [{"left": left, "right": right} for left, right in both]


def take(given: Json) -> Json:
    count = field(given, "count")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise StageFailed("`count` must be a whole number from 0 up")
    return items(given, "items")[:count]


def distinct(given: Json) -> Json:
    seen: dict[str, Json] = {}
    for item in items(given):
        seen.setdefault(compact(item), item)
    return list(seen.values())


def length(given: Json) -> Json:
    return float(len(items(given)))


def head(given: Json) -> Json:
    if not items(given):
        raise StageFailed("an empty list has no first item")
    return items(given)[0]


def tail(given: Json) -> Json:
    return items(given)[1:]


def total(given: Json) -> Json:
    return float(sum(_numbers(given)))


def mean(given: Json) -> Json:
    numbers = _some(given)
    return sum(numbers) / len(numbers)


def least(given: Json) -> Json:
    return min(_some(given))


def most(given: Json) -> Json:
    return max(_some(given))


def _numbers(given: Json) -> list[float]:
    return [float(number(one)) for one in items(given)]


def _some(given: Json) -> list[float]:
    numbers = _numbers(given)
    if not numbers:
        raise StageFailed("an empty list has no such number")
    return numbers
