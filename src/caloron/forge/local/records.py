"""The record half of the local forge: issues, pull requests, comments and reviews in SQLite.

Every change raises one global version and writes it into the changed object, so that a caller that
knows a version can ask for everything that happened since.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from sqlite3 import Row
from typing import Any

import msgspec

from caloron.domain.model.snapshots import (
    BranchSnapshot,
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
    Snapshot,
    issues_closed_by,
    marker_key,
)
from caloron.errors import ForgeError, ForgeUnavailable, NotFound, StoreError
from caloron.store.database import Database, load_statements, migrations_in

_HERE = Path(__file__).parent
_SQL = load_statements(_HERE / "sql" / "local.sql")
MIGRATIONS = migrations_in(_HERE / "migrations", "forge")

#: SQLite holds no larger integer.
_LARGEST = 2**63 - 1
_TRANSIENT = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
}


@dataclass(frozen=True)
class TrackedPull:
    """An open pull request whose branch may move outside our calls."""

    number: int
    branch: str
    head: str
    base: str


@dataclass(frozen=True)
class Tracked:
    """The newest version, and the refs as they were last seen."""

    version: int
    main: str
    pulls: tuple[TrackedPull, ...]


@dataclass(frozen=True)
class MergeRecord:
    """A pull request that main contains now: by which commit, and by whom."""

    number: int
    head: str
    commit: str
    by: str


class Change:
    """One transaction on the records; each change of an object takes the next version."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def row(self, statement: str, **values: Any) -> Row | None:
        row = self._connection.execute(_SQL[statement], values).fetchone()
        return row if isinstance(row, Row) else None

    def write(self, statement: str, **values: Any) -> Row | None:
        """Run a statement with the next version; `key` is the marker of a body."""
        version = self._connection.execute(_SQL["next_version"]).fetchone()[0]
        if "body" in values:
            values["key"] = marker_key(values["body"])
        return self.row(statement, version=version, **values)

    def next_number(self) -> int:
        return int(self._connection.execute(_SQL["next_number"]).fetchone()[0])

    def record_tip(self, branch: str, tip: str) -> None:
        """Record the commit of a branch, and with it the head of its open pull request."""
        known = self.row("branch", name=branch)
        if known is None or known["tip"] != tip:
            self.write("see_branch", name=branch, tip=tip)
        pull = self.row("pull_open", branch=branch)
        if pull is not None and pull["head"] != tip:
            self.write("move_pull", number=pull["number"], head=tip)

    def record_merged(self, merged: MergeRecord) -> None:
        """End a pull request as merged and close the issues it closes."""
        row = self.row("pull", number=merged.number)
        if row is None or row["state"] != "open":
            return
        self.write("end_pull", state="merged", **asdict(merged))
        for number in issues_closed_by(row["body"]):
            self.close_issue(number, merged.by)

    def close_issue(self, number: int, by: str) -> None:
        issue = self.row("issue", number=number)
        if issue is not None and issue["state"] == "open":
            self.write("close_issue", number=number, by=by)


class Records:
    """The database of one local forge, shared by the threads of a process."""

    def __init__(self, path: Path) -> None:
        with _forge_errors():
            self._database = Database(path, MIGRATIONS)

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def change(self, name: str) -> Iterator[Change]:
        with _forge_errors(), self._database.transaction(f"forge.{name}") as connection:
            yield Change(connection)

    def rows(self, statement: str, **values: Any) -> list[Row]:
        with _forge_errors():
            return self._database.rows(_SQL[statement], values)

    def row(self, statement: str, **values: Any) -> Row | None:
        rows = self.rows(statement, **values)
        return rows[0] if rows else None

    def tracked(self) -> Tracked:
        first, *pulls = self.rows("tracked")
        return Tracked(
            first["version"],
            first["head"],
            tuple(TrackedPull(p["number"], p["branch"], p["head"], p["base"]) for p in pulls),
        )

    def changed(self, since: int, upto: int) -> tuple[Snapshot, ...]:
        """The newest snapshot of everything that changed, oldest change first."""
        span = {"since": since, "upto": upto}
        snapshots: list[Snapshot] = [
            *map(issue_snapshot, self.rows("issues_changed", **span)),
            *map(pull_snapshot, self.rows("pulls_changed", **span)),
            *map(review_snapshot, self.rows("reviews_changed", **span)),
            *map(comment_snapshot, self.rows("comments_changed", **span)),
            *map(branch_snapshot, self.rows("branches_changed", **span)),
        ]
        return tuple(sorted(snapshots, key=lambda snapshot: snapshot.version))

    def issue(self, number: int) -> IssueSnapshot:
        return issue_snapshot(self._numbered("issue", number, "issue"))

    def pull(self, number: int) -> PullSnapshot:
        return pull_snapshot(self._numbered("pull", number, "pull request", command="pr"))

    def _numbered(self, statement: str, number: int, kind: str, command: str = "issue") -> Row:
        row = self.row(statement, number=number) if 0 < number <= _LARGEST else None
        if row is None:
            raise NotFound(
                f"there is no {kind} #{number}",
                hint=f"`caloron {command} list` shows what there is",
            )
        return row

    def require(self, number: int) -> None:
        """Refuse a number that is neither an issue nor a pull request."""
        if not (0 < number <= _LARGEST and self.rows("numbered", number=number)):
            raise NotFound(f"there is no issue or pull request #{number}")


def issue_snapshot(row: Row) -> IssueSnapshot:
    return msgspec.convert(dict(row) | {"labels": json.loads(row["labels"])}, IssueSnapshot)


def pull_snapshot(row: Row) -> PullSnapshot:
    # Its column `base` is a commit of main, the field is the branch that a forge calls so.
    values = dict(row) | {"closes": issues_closed_by(row["body"]), "base": ""}
    return msgspec.convert(values, PullSnapshot)


def review_snapshot(row: Row) -> ReviewSnapshot:
    return msgspec.convert(dict(row), ReviewSnapshot)


def comment_snapshot(row: Row) -> CommentSnapshot:
    return msgspec.convert(dict(row), CommentSnapshot)


def branch_snapshot(row: Row) -> BranchSnapshot:
    return BranchSnapshot(version=row["version"], name=row["name"], commit=row["tip"])


@contextmanager
def _forge_errors() -> Iterator[None]:
    """Translate errors of SQLite; an error about a database that is not ours stays as it is."""
    try:
        yield
    except StoreError as error:
        cause = error.__cause__
        if not isinstance(cause, sqlite3.Error):
            raise
        transient = getattr(cause, "sqlite_errorcode", 0) & 0xFF in _TRANSIENT
        kind = ForgeUnavailable if transient else ForgeError
        raise kind(str(error), hint=error.hint) from cause
