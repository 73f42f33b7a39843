"""Polls a forge for everything that changed, with three requests when nothing did.

Issues and pull requests come in one list, comments in another, and the commits of all branches in
the third. Only a pull request that changed is read by itself, with its reviews.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import msgspec

from caloron.domain.model.snapshots import Snapshot, marker_key
from caloron.errors import NotFound, UsageError
from caloron.forge.api import types
from caloron.forge.remote import snapshots
from caloron.forge.remote.reader import Reader
from caloron.ports import Poll
from caloron.store import log

#: A second change within one second does not show: changes of the last two are read again.
_YOUNG_S = 2
_REMEMBERED = 20_000


class _Cursor(msgspec.Struct, frozen=True, kw_only=True):
    #: Changes from then on are asked for, in seconds since 1970 by the forge's clock.
    since: int
    #: The time of the newest change.
    newest: int
    #: The number of reported snapshots: the cursor differs whenever there are new ones.
    reported: int = 0

    def __str__(self) -> str:
        return f"{self.since}/{self.newest}/{self.reported}"


class _Known(msgspec.Struct, kw_only=True):
    """A pull request as it was when it was last read."""

    issue: types.Issue
    branch: str = ""
    #: The commit of its branch then; empty: not in this repository.
    tip: str = ""
    #: Whether nothing can have changed within the second of that read.
    settled: bool = False


class Poller:
    """Remembers what was reported, so that the same snapshot is reported once."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._reported: dict[str, Snapshot] = {}
        self._pulls: dict[int, _Known] = {}
        #: The cursor of the last poll.
        self._last = ""
        self._lock = threading.Lock()

    def poll(self, cursor: str) -> Poll:
        """The changes since a cursor; an empty cursor begins now and reports nothing."""
        with self._lock:
            if not cursor or cursor != self._last or len(self._reported) > _REMEMBERED:
                # The last result did not arrive, another caller asks, or the memory is full.
                self._reported.clear()
                self._pulls.clear()
            # After a poll that fails, the next one reports everything again.
            self._last = ""
            began = _parsed(cursor) if cursor else self._from_now()
            changed, after = self._read_changes(began)
            self._last = str(after)
            return Poll(tuple(changed) if cursor else (), self._last)

    def _from_now(self) -> _Cursor:
        now = self._reader.http.get("").date_s
        return _Cursor(since=now - self._reader.api.overlap_s, newest=now)

    def _read_changes(self, cursor: _Cursor) -> tuple[list[Snapshot], _Cursor]:
        reader = self._reader
        changes: list[Snapshot] = []
        newest, comments_clock, clock = cursor.newest, 0, 0
        pulls: list[types.Issue] = []
        params: dict[str, str | int] = {"since": _iso(cursor.since), **reader.api.page}
        # Read comments before issue bodies: a body read later can only be newer than the comment.
        for response, comments in reader.http.pages(
            "issues/comments", params, types.Comment, polled=True
        ):
            comments_clock = comments_clock or response.date_s
            newest = max((newest, *(snapshots.seconds(c.updated_at) for c in comments)))
            changes += [reader.comment_snapshot(c, response.began_ms) for c in comments]
        for response, issues in reader.http.pages(
            "issues", {"state": "all", **params}, types.Issue, polled=True
        ):
            clock = clock or response.date_s
            newest = max((newest, *(snapshots.seconds(issue.updated_at) for issue in issues)))
            for issue in issues:
                if issue.pull_request is not None:
                    pulls.append(issue)
                else:
                    changes.append(reader.issue_snapshot(issue, response.began_ms))
        heads, began = reader.heads()
        read: dict[int, _Known] = {}
        for number in self._pulls_to_read(pulls, heads):
            changes += self._read_pull(number, pulls, heads, clock, read)
        main = reader.main
        if heads and main not in heads:
            main = reader.refresh_main()
        if main in heads:
            changes.append(snapshots.branch_snapshot(main, heads[main], began))
        # Only now: a poll that fails half-way has reported nothing.
        self._pulls.update(read)
        new = [snapshot for snapshot in changes if self._is_new(snapshot)]
        # By the forge's clock alone: one that was set back begins again where it is now. The next
        # poll asks only for later changes, however many came in one second; while nothing changes,
        # the question stays the same, so that the forge answers from its cache.
        since = min(newest + 1, min(comments_clock, clock) - reader.api.overlap_s)
        return new, _Cursor(since=since, newest=newest, reported=cursor.reported + len(new))

    def _pulls_to_read(self, changed: list[types.Issue], heads: dict[str, str]) -> list[int]:
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

    def _read_pull(
        self,
        number: int,
        changed: list[types.Issue],
        heads: dict[str, str],
        clock: int,
        read: dict[int, _Known],
    ) -> list[Snapshot]:
        """A pull request and its reviews.

        One that is not for main has ended for us; it is reported if a sprint can know it.
        """
        reader = self._reader
        listed = {issue.number: issue for issue in changed}
        try:
            json, began = reader.pull_json(number)
        except NotFound as error:
            log.info("a pull request is gone", error=error, pull=number)
            # An administrator deleted it.
            self._pulls.pop(number, None)
            return []
        pull = reader.pull_snapshot(json, began)
        wanted = reader.is_for_main(json)
        known_here = wanted or pull.object in self._reported or bool(pull.closes)
        ours = pull.author in reader.ours and bool(marker_key(pull.body))
        issue = listed.get(number) or self._pulls[number].issue
        known = _Known(
            issue=issue,
            branch="" if ":" in pull.branch or not wanted else pull.branch,
            tip=heads.get(pull.branch, ""),
            settled=clock >= snapshots.seconds(issue.updated_at) + _YOUNG_S,
        )
        if json.state != "open" and issue.state == "open":
            # It ended since the list was read; the next list shows that.
            known.settled = False
        reviews = reader.real_reviews(number) if wanted else []
        read[number] = known
        return [pull, *reviews] if known_here or ours else []

    def _is_new(self, snapshot: Snapshot) -> bool:
        """True if a snapshot differs from the last reported one in more than its version."""
        before = self._reported.get(snapshot.object)
        if before is not None and _same(before, snapshot):
            return False
        self._reported[snapshot.object] = snapshot
        return True


def _same(a: Snapshot, b: Snapshot) -> bool:
    return msgspec.structs.replace(a, version=0) == msgspec.structs.replace(b, version=0)


def _iso(moment_s: int) -> str:
    return datetime.fromtimestamp(moment_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _parsed(cursor: str) -> _Cursor:
    parts = cursor.split("/")
    if len(parts) == 3 and all(part.isdecimal() for part in parts):
        since, newest, reported = map(int, parts)
        return _Cursor(since=since, newest=newest, reported=reported)
    try:
        moment = datetime.fromisoformat(cursor)
    except ValueError:
        raise UsageError(
            f"{cursor!r} is no cursor of this forge", hint="begin with an empty one, or with a time"
        ) from None
    began = snapshots.seconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    return _Cursor(since=began, newest=began)
