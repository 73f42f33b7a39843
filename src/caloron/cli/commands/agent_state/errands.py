"""`caloron agent-state errands`: the queue of an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from caloron.cli.commands.agent_state.place import Given, file, look, require_file, row
from caloron.errors import NotFound

if TYPE_CHECKING:
    from caloron.agentstate.records import ClaimedItem
    from caloron.agentstate.work_items import WorkItems

Say = Callable[[str], None]


def _list(given: Given) -> Iterator[Given]:
    values = {name: given.get(name) for name in ("kind", "status", "owner")}
    return look("list", values | {"limit": given.get("limit", 200)})


def _pending(given: Given) -> Iterator[Given]:
    return look("pending", {"kind": given.get("kind")})


def _get(given: Given) -> Iterator[Given]:
    found = next(look("get", {"item": given["id"]}), None)
    if found is None:
        raise NotFound(f"there is no work item {given['id']}", hint="errands list shows them")
    yield found


def _errands(*, make: bool = False) -> WorkItems:
    """The queue of the agent; only what is handed in may make the file."""
    from caloron.agentstate.database import open_database
    from caloron.agentstate.work_items import WorkItems

    return WorkItems(open_database(file() if make else require_file()))


def _with_lease(held: ClaimedItem) -> Given:
    return {"row": row(held.item), "lease": row(held.lease)}


def _lease_of(given: Given) -> Given:
    return {"lease_ms": given["lease-s"]} if "lease-s" in given else {}


def _enqueue(given: Given, complain: Say) -> Given:
    done = _errands(make=True).enqueue(
        given["id"],
        given["kind"],
        given["payload"],
        owner=given.get("owner"),
        notes=given.get("notes"),
        status=given.get("status", "pending"),
        priority=given.get("priority", 0),
        delay_ms=given.get("delay-s", 0),
    )
    told: Given = {"inserted": done.inserted, "row": row(done.item)}
    if done.differs:
        told["differs"] = list(done.differs)
        complain(f"warning: {given['id']} is known with another {' and '.join(done.differs)}")
    return told


def _claim(given: Given, _complain: Say) -> Given:
    held = _errands().claim(given["id"], given["owner"], **_lease_of(given))
    return _with_lease(held) if given.get("show-lease") else row(held.item)


def _next(given: Given, _complain: Say) -> Given | None:
    held = _errands().claim_next(
        given["owner"],
        kinds=[kind for kind in given.get("kind", "").split(",") if kind],
        max_attempts=given.get("max-attempts", 0),
        **_lease_of(given),
    )
    return _with_lease(held) if held else None


def _renew(given: Given, _complain: Say) -> Given:
    return row(_errands().renew(given["id"], given["token"], **_lease_of(given)))


def _release(given: Given, _complain: Say) -> Given:
    token, reason = given.get("token"), given.get("reason", "")
    return row(_errands().release(given["id"], token=token, reason=reason))


def _resolve(given: Given, _complain: Say) -> Given:
    return row(
        _errands().resolve(
            given["id"],
            given["status"],
            notes=given.get("notes", ""),
            token=given.get("token"),
            owner=given.get("owner"),
        )
    )


def _park(given: Given, _complain: Say) -> Given:
    return row(_errands().park(given["id"], given["question"], token=given.get("token")))


def _answer(given: Given, _complain: Say) -> Given:
    return row(_errands().answer(given["id"], given["answer"]))


def _reopen(given: Given, _complain: Say) -> Given:
    return row(_errands().reopen(given["id"], given.get("reason", "")))


def _retry(given: Given, _complain: Say) -> Given:
    most, delay = given.get("max-attempts", 3), given.get("delay-s", 0)
    reason = given.get("reason", "")
    return row(_errands().retry(given["id"], max_attempts=most, delay_ms=delay, reason=reason))


def _annotate(given: Given, _complain: Say) -> Given:
    return row(_errands().annotate(given["id"], given["notes-json"]))


def _replay(given: Given) -> Iterator[Given]:
    if not file().exists():
        return
    found = _errands().replay(
        threshold_ms=given.get("threshold-s", 0), kind=given.get("kind"), owner=given.get("owner")
    )
    for one in found:
        yield {"row": row(one.item), "why": one.why, "attempt": one.attempt}


def _notes(given: Given) -> Iterator[Given]:
    for at, notes in _errands().earlier_notes(given["id"]):
        yield {"at": at, "notes": notes}


READING: dict[str, Callable[[Given], Iterator[Given]]] = {
    "list": _list, "pending": _pending, "get": _get, "replay": _replay, "notes": _notes,
}  # fmt: skip
CHANGING: dict[str, Callable[[Given, Say], Given | None]] = {
    "enqueue": _enqueue, "claim": _claim, "next": _next, "renew": _renew, "release": _release,
    "resolve": _resolve, "park": _park, "answer": _answer, "reopen": _reopen, "retry": _retry,
    "annotate": _annotate,
}  # fmt: skip


def do_errands(sub: str, given: Given, complain: Say) -> Iterator[Given]:
    if sub in READING:
        yield from READING[sub](given)
        return
    told = CHANGING[sub](given, complain)
    if told is not None:
        yield told
