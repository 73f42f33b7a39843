"""Sees everything that changed on a forge, with three requests when nothing did.

Both kinds of issues come in one list, comments in another, and the commits of all branches in the
third. Only a pull request that changed is looked at by itself, with its reviews.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from datetime import UTC, datetime

import msgspec

from caloron.domain.observations import Snapshot, marker_key
from caloron.errors import NotFound, UsageError
from caloron.forge import answers, seen
from caloron.forge.remote_read import Reader
from caloron.ports import Poll
from caloron.store import log

#: Within a second a second change does not show: what changed in this one is looked at again.
_YOUNG_S = 2
_REMEMBERED = 20_000


class _Cursor(msgspec.Struct, frozen=True, kw_only=True):
    #: Changes from then on are asked for, in seconds since 1970 by the forge's clock.
    since: int
    #: The newest change that was seen.
    newest: int
    #: How many snapshots were told: a cursor differs whenever something was.
    told: int = 0

    def __str__(self) -> str:
        return f"{self.since}/{self.newest}/{self.told}"


class _Known(msgspec.Struct, kw_only=True):
    """A pull request as it was when it was last looked at."""

    issue: answers.Issue
    branch: str = ""
    #: Where its branch was then; empty: not in this repository.
    tip: str = ""
    #: Whether nothing can have changed within the second of that look.
    settled: bool = False


class Watch:
    """Remembers what was told, so that the same picture is told once."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._told: OrderedDict[str, Snapshot] = OrderedDict()
        self._pulls: OrderedDict[int, _Known] = OrderedDict()
        #: The cursor of the last answer.
        self._last = ""
        self._lock = threading.Lock()

    def poll(self, cursor: str) -> Poll:
        """What changed since a cursor; an empty one begins now and tells nothing."""
        with self._lock:
            if not cursor or cursor != self._last:
                # What was answered last did not arrive, or somebody else asks.
                self._told.clear()
                self._pulls.clear()
            # A look that fails is as good as none: what follows it is told anew.
            self._last = ""
            began = _parsed(cursor) if cursor else self._from_now()
            told, after = self._look(began)
            self._last = str(after)
            return Poll(tuple(told) if cursor else (), self._last)

    def _from_now(self) -> _Cursor:
        now = self._reader.http.get("").date_s
        return _Cursor(since=now - self._reader.dialect.overlap_s, newest=now)

    def _look(self, cursor: _Cursor) -> tuple[list[Snapshot], _Cursor]:
        reader = self._reader
        found: list[Snapshot] = []
        newest, spoken, clock = cursor.newest, 0, 0
        pulls: list[answers.Issue] = []
        asked: dict[str, str | int] = {"since": _iso(cursor.since), **reader.dialect.page}
        # Words before texts: a text that is newer than a word on it is never taken for the old one.
        for remarks, talk in reader.http.pages(
            "issues/comments", asked, answers.Comment, polled=True
        ):
            spoken = spoken or remarks.date_s
            newest = max((newest, *(seen.seconds(one.updated_at) for one in talk)))
            found += [reader.comment_seen(one, remarks.began_ms) for one in talk]
        for answer, page in reader.http.pages(
            "issues", {"state": "all", **asked}, answers.Issue, polled=True
        ):
            clock = clock or answer.date_s
            newest = max((newest, *(seen.seconds(one.updated_at) for one in page)))
            pulls += [one for one in page if one.pull_request is not None]
            found += [
                reader.issue_seen(one, answer.began_ms) for one in page if one.pull_request is None
            ]
        heads, began = reader.heads()
        looked: dict[int, _Known] = {}
        for number in self._to_look_at(pulls, heads):
            found += self._pull(number, pulls, heads, clock, looked)
        main = reader.repository.default_branch
        if heads and main not in heads:
            main = reader.look_for_main()
        if main in heads:
            found.append(seen.branch_seen(main, heads[main], began))
        # Only now: a look that fails half-way has told nothing.
        self._pulls.update(looked)
        _forget_oldest(self._pulls)
        told = [one for one in found if self._is_new(one)]
        # By its clock alone: one that was set back begins again where it is now.
        # What was seen is not asked for again, however much of it came in one second; and while
        # nothing comes, the same is asked, which a forge answers from its cache.
        since = min(newest + 1, min(spoken, clock) - reader.dialect.overlap_s)
        return told, _Cursor(since=since, newest=newest, told=cursor.told + len(told))

    def _to_look_at(self, changed: list[answers.Issue], heads: dict[str, str]) -> list[int]:
        numbers = [
            issue.number
            for issue in changed
            if not (known := self._pulls.get(issue.number))
            or not known.settled
            or known.issue != issue
        ]
        # A push shows at the branch at once, at the pull request only after a while.
        numbers += [
            number
            for number, known in self._pulls.items()
            if known.issue.state == "open"
            and known.branch
            and heads.get(known.branch, "") != known.tip
        ]
        return sorted(set(numbers))

    def _pull(
        self,
        number: int,
        changed: list[answers.Issue],
        heads: dict[str, str],
        clock: int,
        looked: dict[int, _Known],
    ) -> list[Snapshot]:
        """A pull request and its reviews.

        One that is not for main has ended for us; it is told if it can be known to anybody here.
        """
        reader = self._reader
        listed = {issue.number: issue for issue in changed}
        try:
            json, began = reader.pull_json(number)
        except NotFound as error:
            log.info("a pull request is gone", error=error, pull=number)
            # Deleted by an administrator.
            self._pulls.pop(number, None)
            return []
        pull = reader.pull_seen(json, began)
        wanted = reader.is_for_main(json)
        known_here = wanted or pull.object in self._told or bool(pull.closes)
        ours = pull.author in reader.ours and bool(marker_key(pull.body))
        issue = listed.get(number) or self._pulls[number].issue
        known = _Known(
            issue=issue,
            branch="" if ":" in pull.branch or not wanted else pull.branch,
            tip=heads.get(pull.branch, ""),
            settled=clock >= seen.seconds(issue.updated_at) + _YOUNG_S,
        )
        if json.state != "open" and issue.state == "open":
            # It ended since the list was read; the next list shows that.
            known.settled = False
        reviews = reader.real_reviews(number) if wanted else []
        looked[number] = known
        return [pull, *reviews] if known_here or ours else []

    def _is_new(self, one: Snapshot) -> bool:
        """Whether it shows anything that was not told yet; a new version alone is not news."""
        before = self._told.get(one.object)
        if before is not None and _same(before, one):
            return False
        self._told[one.object] = one
        self._told.move_to_end(one.object)
        _forget_oldest(self._told)
        return True


def _same(a: Snapshot, b: Snapshot) -> bool:
    return msgspec.structs.replace(a, version=0) == msgspec.structs.replace(b, version=0)


def _forget_oldest(memory: OrderedDict[str, Snapshot] | OrderedDict[int, _Known]) -> None:
    while len(memory) > _REMEMBERED:
        memory.popitem(last=False)


def _iso(moment_s: int) -> str:
    return datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _parsed(cursor: str) -> _Cursor:
    parts = cursor.split("/")
    if len(parts) == 3 and all(part.isdecimal() for part in parts):
        since, newest, told = map(int, parts)
        return _Cursor(since=since, newest=newest, told=told)
    try:
        moment = datetime.fromisoformat(cursor)
    except ValueError:
        raise UsageError(
            f"{cursor!r} is no cursor of this forge", hint="begin with an empty one, or with a time"
        ) from None
    began = seen.seconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    return _Cursor(since=began, newest=began)
