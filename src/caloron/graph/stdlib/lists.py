"""Lists and numbers: order, groups, sums, and stages applied to every item.

A function has the name of its stage, so some builtins are shadowed here.
"""

from __future__ import annotations

import builtins
from functools import cmp_to_key

from caloron.graph.errors import StageFailed
from caloron.graph.json_text import Json, compact
from caloron.graph.runtime.protocols import Call
from caloron.graph.stdlib.input_fields import field, items, number, optional, text
from caloron.graph.types import json_kind


def map(input: Json, call: Call) -> Json:
    stage = text(input, "stage_id")
    return [call.stage(stage, item) for item in items(input, "items")]


def filter(input: Json, call: Call) -> Json:
    stage = text(input, "stage_id")
    return [item for item in items(input, "items") if call.stage(stage, item) is True]


def reduce(input: Json, call: Call) -> Json:
    stage, result = text(input, "stage_id"), optional(input, "initial")
    for item in items(input, "items"):
        result = call.stage(stage, {"accumulator": result, "item": item})
    return result


def sort(input: Json) -> Json:
    if isinstance(input, list):
        return sorted(input, key=cmp_to_key(_compare))
    key, descending = optional(input, "key"), optional(input, "descending") is True

    def of(item: Json) -> Json:
        by_key = isinstance(key, str) and isinstance(item, dict) and key in item
        return item[key] if by_key else item

    sign = -1 if descending else 1
    order = cmp_to_key(lambda one, other: sign * _compare(of(one), of(other)))
    return sorted(items(input, "items"), key=order)


def _compare(one: Json, other: Json) -> int:
    """Compare numbers, texts or booleans; values of other or of different kinds count as equal."""
    kind = json_kind(one)
    if kind not in ("a number", "a text", "a boolean") or kind != json_kind(other):
        return 0
    return int(one > other) - int(one < other)


def group_by(input: Json) -> Json:
    key = text(input, "key")
    groups: dict[str, list[Json]] = {}
    for item in items(input, "items"):
        name = optional(item, key)
        groups.setdefault(name if isinstance(name, str) else "", []).append(item)
    return groups


def flatten(input: Json) -> Json:
    flat: list[Json] = []
    for item in items(input):
        flat.extend(item if isinstance(item, list) else [item])
    return flat


def zip(input: Json) -> Json:
    pairs = builtins.zip(items(input, "left"), items(input, "right"), strict=False)
    return [{"left": left, "right": right} for left, right in pairs]


def take(input: Json) -> Json:
    count = field(input, "count")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise StageFailed("`count` must be a whole number from 0 up")
    return items(input, "items")[:count]


def list_dedup(input: Json) -> Json:
    seen: dict[str, Json] = {}
    for item in items(input):
        seen.setdefault(compact(item), item)
    return list(seen.values())


def list_length(input: Json) -> Json:
    return float(len(items(input)))


def head(input: Json) -> Json:
    if not items(input):
        raise StageFailed("an empty list has no first item")
    return items(input)[0]


def tail(input: Json) -> Json:
    return items(input)[1:]


def num_sum(input: Json) -> Json:
    return float(sum(_numbers(input)))


def num_avg(input: Json) -> Json:
    numbers = _some(input)
    return sum(numbers) / len(numbers)


def num_min(input: Json) -> Json:
    return min(_some(input))


def num_max(input: Json) -> Json:
    return max(_some(input))


def _numbers(input: Json) -> list[float]:
    return [float(number(one)) for one in items(input)]


def _some(input: Json) -> list[float]:
    numbers = _numbers(input)
    if not numbers:
        raise StageFailed("an empty list has no such number")
    return numbers
