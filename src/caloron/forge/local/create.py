"""Creates the repository of a local forge, and checks it against the records.

The creation goes step by step: after a crash, a second call does the missing steps.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from caloron.errors import PreconditionFailed, UsageError
from caloron.forge.local.records import MIGRATIONS
from caloron.forge.local.refs import MAIN, ForgeRepository
from caloron.git.command import git_process, refuse_newer_format
from caloron.git.packs import missing
from caloron.store.health import damages

_SETTINGS = {
    # A ref that survives a power cut must not point to objects that did not.
    "core.fsync": "committed",
    # The heads of closed pull requests hang on no ref any more, and stay readable all the same.
    "gc.auto": "0",
    "receive.autogc": "false",
}


def create_repository(path: Path, source: Path | None, name: str) -> None:
    """Make the bare repository and its branch main, or finish what an earlier call began."""
    repository = ForgeRepository(path)
    if repository.tip(MAIN) is not None:
        return
    start = _commit_checked_out(source) if source else ""
    object_format = _object_format(source) if source else "sha1"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PreconditionFailed(
            f"cannot create {path}: {error.strerror}", hint="make the directory above it writable"
        ) from error
    init_repository(repository, object_format)
    commit = (
        _import(repository, source, start) if source else repository.commit_readme(f"# {name}\n")
    )
    # Another process may have created main in the meantime: then that main stays.
    repository.move(MAIN, commit, "")


def init_repository(repository: ForgeRepository, object_format: str) -> None:
    """Create the repository of a forge, without a commit."""
    repository.git("init", "--bare", "--quiet", "--template=", f"--object-format={object_format}")
    for setting, value in _SETTINGS.items():
        repository.git("config", setting, value)


def fast_forward_from(repository: ForgeRepository, source: Path) -> bool:
    """Fast-forward main to the commit checked out in `source`; False if the two diverged."""
    start = _commit_checked_out(source)
    main = repository.tip(MAIN) or ""
    if start == main:
        return True
    theirs = _import(repository, source, start)
    if repository.contains(main, theirs):
        return True
    if not repository.contains(theirs, main):
        return False
    return repository.move(MAIN, theirs, main)


def _commit_checked_out(source: Path) -> str:
    """The commit of HEAD, if this directory itself is a repository and has one."""
    if not source.is_dir():
        raise UsageError(f"{source} is not a directory", hint="name a git repository on this disk")
    top = git_process(source, "rev-parse", "--show-toplevel")
    if top.returncode != 0:
        top = git_process(source, "rev-parse", "--absolute-git-dir")
    if top.returncode != 0:
        reason = top.stderr.decode("utf-8", "replace").strip()
        refuse_newer_format(source, reason)
        raise UsageError(
            f"{source} is not a git repository: {reason}", hint="run `git init` and commit there"
        )
    repository = Path(os.fsdecode(top.stdout.rstrip(b"\n")))
    if source.resolve() != repository.resolve():
        raise UsageError(
            f"{source} is not a git repository, only a directory inside {repository}",
            hint="name the repository itself",
        )
    head = git_process(source, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if head.returncode != 0:
        raise UsageError(
            f"{source} has no commit yet", hint="commit something there first, then try again"
        )
    return head.stdout.decode().strip()


def _object_format(source: Path) -> str:
    return git_process(source, "rev-parse", "--show-object-format").stdout.decode().strip()


def _import(repository: ForgeRepository, source: Path, commit: str) -> str:
    repository.git(
        "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--update-shallow",
        str(source.resolve()), "HEAD",
    )  # fmt: skip
    # HEAD may have moved since it was read; what was fetched contains it unless it was rewritten.
    return repository.git("rev-parse", "--verify", f"{commit}^{{commit}}")


class RecordMismatch(NamedTuple):
    """A difference between the records and the refs of a forge."""

    target: str
    expected: str
    actual: str
    #: Git went on; the next call of the forge records that by itself.
    transient: bool = False


def record_mismatches(connection: sqlite3.Connection, repository: Path) -> Iterator[RecordMismatch]:
    """Everything in which the records of a forge and its repository disagree."""
    damaged = [RecordMismatch(*damage) for damage in damages(connection, MIGRATIONS)]
    yield from damaged
    if damaged:
        return
    yield from _counts(connection)
    pulls = connection.execute("SELECT * FROM pulls ORDER BY number").fetchall()
    main = connection.execute("SELECT tip FROM branches WHERE name = ?", (MAIN,)).fetchone()
    # Before the tips: git refuses to read a branch whose commit is lost.
    yield from _lost(repository, pulls, main["tip"] if main else "")
    open_pulls = [pull for pull in pulls if pull["state"] == "open"]
    tips = ForgeRepository(repository).tips((MAIN, *(pull["branch"] for pull in open_pulls)))
    if MAIN not in tips:
        yield RecordMismatch(f"{repository.name}, branch {MAIN}", "a commit", "none")
    elif main is not None and main["tip"] != tips[MAIN]:
        yield RecordMismatch(f"branch {MAIN}", main["tip"], tips[MAIN], transient=True)
    for pull in open_pulls:
        if (tip := tips.get(pull["branch"], pull["head"])) != pull["head"]:
            target = f"pull request #{pull['number']}, branch {pull['branch']}"
            yield RecordMismatch(target, pull["head"], tip, transient=True)


def _lost(repository: Path, pulls: list[sqlite3.Row], main: str) -> Iterator[RecordMismatch]:
    commits = {pull["head"]: f"pull request #{pull['number']}, head" for pull in pulls}
    commits |= {p["merge_commit"]: f"pull request #{p['number']}, merge" for p in pulls}
    commits |= {main: f"branch {MAIN}"}
    commits.pop("", None)
    for commit in sorted(missing(repository, commits)):
        yield RecordMismatch(commits[commit], f"commit {commit}", "it is not in the repository")


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


def newest_version(connection: sqlite3.Connection) -> int:
    """Return the version of the forge's last change."""
    return int(connection.execute("SELECT version FROM counter").fetchone()[0])


def _counts(connection: sqlite3.Connection) -> Iterator[RecordMismatch]:
    counter = connection.execute("SELECT version, number FROM counter").fetchone()
    used = connection.execute(_COUNTS).fetchone()
    for name in ("number", "version"):
        if (used[name] or 0) > counter[name]:
            yield RecordMismatch(f"counter, {name}", f"{used[name]} or more", str(counter[name]))
    for row in connection.execute(_ABOUT_NOTHING):
        yield RecordMismatch(f"comment {row['id']}", f"an issue #{row['issue']}", "none")
