"""The cycles of an agent one by one, as its log tells of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from caloron.agentstate.cycles.log import Entry


class Past(NamedTuple):
    """One cycle; what it came to is empty while it is open, and if it crashed."""

    number: int
    status: str
    result: str
    started_at: str
    ended_at: str
    work: str
    steps: int
    last_action: str
    reason: str


def cycles_of(entries: Iterable[Entry], count: int) -> list[Past]:
    """The last cycles that begin in these lines, the newest first."""
    found: dict[int, Past] = {}
    work, number = "", 0
    for entry in entries:
        told = {name: str(entry.get(name) or "") for name in ("at", "action", "result", "reason")}
        work = str(entry["work"]) if "work" in entry else work
        if entry["event"] == "begin":
            number = entry["cycle"]
            found[number] = Past(number, "open", "", told["at"], "", work, 0, "", "")
        past = found.get(number)
        if past is None:
            continue
        past = past._replace(work=work or past.work)
        match entry["event"]:
            case "act":
                past = past._replace(steps=past.steps + 1, last_action=told["action"])
            case "end":
                past = past._replace(status="ended", result=told["result"], ended_at=told["at"],
                                     reason=told["reason"])  # fmt: skip
            case "crashed":
                past = past._replace(status="crashed", ended_at=told["at"], reason=told["reason"])
        found[number] = past
    return list(reversed(found.values()))[:count]
