"""Whether the two halves of the local forge agree: its records and the refs of its repository."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from caloron.forge.local_git import MAIN, BareRepository
from caloron.forge.local_records import MIGRATIONS
from caloron.git.packs import missing
from caloron.store.health import damages


class ForgeFinding(NamedTuple):
    """One thing in which records and refs differ."""

    target: str
    expected: str
    found: str
    #: Git went on, which the next look at the forge writes down by itself.
    passing: bool = False


def forge_findings(connection: sqlite3.Connection, repository: Path) -> Iterator[ForgeFinding]:
    """Everything in which the records of a forge and its repository disagree."""
    damaged = [ForgeFinding(*damage) for damage in damages(connection, MIGRATIONS)]
    yield from damaged
    if damaged:
        return
    yield from _counts(connection)
    pulls = connection.execute("SELECT * FROM pulls ORDER BY number").fetchall()
    main = connection.execute("SELECT tip FROM branches WHERE name = ?", (MAIN,)).fetchone()
    git = BareRepository(repository)
    open_pulls = [pull for pull in pulls if pull["state"] == "open"]
    tips = git.tips((MAIN, *(pull["branch"] for pull in open_pulls)))
    if MAIN not in tips:
        yield ForgeFinding(f"{repository.name}, branch {MAIN}", "a commit", "none")
    elif main is not None and main["tip"] != tips[MAIN]:
        yield ForgeFinding(f"branch {MAIN}", main["tip"], tips[MAIN], passing=True)
    for pull in open_pulls:
        if (tip := tips.get(pull["branch"], pull["head"])) != pull["head"]:
            target = f"pull request #{pull['number']}, branch {pull['branch']}"
            yield ForgeFinding(target, pull["head"], tip, passing=True)
    yield from _lost(repository, pulls, main["tip"] if main else "")


def _lost(repository: Path, pulls: list[sqlite3.Row], main: str) -> Iterator[ForgeFinding]:
    told = {pull["head"]: f"pull request #{pull['number']}, head" for pull in pulls}
    told |= {p["merge_commit"]: f"pull request #{p['number']}, merge" for p in pulls}
    told |= {main: f"branch {MAIN}"}
    told.pop("", None)
    for commit in sorted(missing(repository, told)):
        yield ForgeFinding(told[commit], f"commit {commit}", "it is not in the repository")


_COUNTS = """
SELECT (SELECT max(number) FROM (SELECT number FROM issues
                                 UNION ALL SELECT number FROM pulls)) AS number,
       (SELECT max(version) FROM (SELECT version FROM issues UNION ALL SELECT version FROM pulls
                                  UNION ALL SELECT version FROM comments
                                  UNION ALL SELECT version FROM reviews
                                  UNION ALL SELECT version FROM branches)) AS version
"""
_ABOUT_NOTHING = """
SELECT id, issue FROM comments
WHERE issue NOT IN (SELECT number FROM issues UNION ALL SELECT number FROM pulls)
"""


def _counts(connection: sqlite3.Connection) -> Iterator[ForgeFinding]:
    counter = connection.execute("SELECT version, number FROM counter").fetchone()
    given = connection.execute(_COUNTS).fetchone()
    for name in ("number", "version"):
        if (given[name] or 0) > counter[name]:
            yield ForgeFinding(f"counter, {name}", f"{given[name]} or more", str(counter[name]))
    for row in connection.execute(_ABOUT_NOTHING):
        yield ForgeFinding(f"comment {row['id']}", f"an issue #{row['issue']}", "none")
