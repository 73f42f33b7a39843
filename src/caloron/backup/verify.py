"""Verifies the state of a project: databases, repositories, and every exported file.

A repair writes exports and cached records again. Facts are never changed: a damaged ledger or forge
needs a backup.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from caloron.agentstate.dashboard import regenerate, wrong_in
from caloron.agentstate.database import MIGRATIONS as AGENT_MIGRATIONS
from caloron.agentstate.database import MIGRATIONS_TABLE
from caloron.domain.model.effects import Effect, Probe, StartWork
from caloron.domain.model.facts import Fact
from caloron.domain.model.snapshots import Snapshot
from caloron.domain.model.sprint import Sprint
from caloron.domain.model.task import Task
from caloron.engine.agent_dirs import differences, export, set_aside_database
from caloron.engine.agent_view import STATE
from caloron.engine.exports import Exports
from caloron.errors import CaloronError, StoreError
from caloron.forge.local.create import newest_version, record_mismatches
from caloron.git.packs import missing, refs_of
from caloron.ledger import reading
from caloron.ledger.exports import Export, digest, read, stored_digests, write
from caloron.ledger.ledger import MIGRATIONS, Ledger
from caloron.ledger.projects import Project
from caloron.ledger.run_history import forget_record, store_records, wrong_records
from caloron.store.database import applied_in, open_read_only
from caloron.store.files import read_plain
from caloron.store.health import damages

#: An engine stores the digest of a text shortly before it writes the text.
_WRITE_DELAY_S = 0.2


class _Table(NamedTuple):
    """A table with JSON in its rows."""

    #: The name of a row in messages.
    name: str
    record: Any
    #: Columns that repeat a field of the JSON.
    columns: tuple[str, ...] = ()
    #: The column of the JSON.
    data: str = "data"


_EFFECTS = ("key", "task", "kind")
_TABLES = {
    "sprints": _Table("sprints/{id}", Sprint, ("id", "number", "goal", "phase", "ended_at")),
    "tasks": _Table("tasks/{sprint}/{id}", Task, ("id", "status", "reason")),
    "observations": _Table("observations/{sprint}/{object}", Snapshot, ("object", "version")),
    "inbox": _Table("inbox/{id}", Fact),
    "cycle_actions": _Table("cycle_actions/{id} ({key})", Effect | Probe, _EFFECTS),
    "actions": _Table("actions/{id} ({key})", Effect | Probe, _EFFECTS),
    "work_items": _Table("work_items/{id}", StartWork, ("id",), data="payload"),
}
#: The tables that every state of a sprint is read from.
_OF_THE_STATE = ("sprints", "tasks", "observations", "inbox")

#: Repairs one issue, and returns a message.
Repair = Callable[[], str]


class Issue(msgspec.Struct, frozen=True):
    """One deviation from what is expected."""

    #: `export`, `record`, `ledger`, `forge`, `git`, `agent`.
    kind: str
    target: str
    expected: str
    found: str
    #: What the repair does; empty if there is none.
    repair: str = ""


class Report(msgspec.Struct):
    #: Errors, each with its repair.
    issues: dict[Issue, Repair | None] = msgspec.field(default_factory=dict)
    #: Deviations that go away by themselves, and edits that are read back.
    notes: list[Issue] = msgspec.field(default_factory=list)
    #: The number of things that were verified.
    checked: int = 0

    def add(self, kind: str, target: object, expected: str, found: object) -> None:
        """Add an error without a repair."""
        self.issues[Issue(kind, str(target), expected, str(found))] = None

    def add_note(self, kind: str, target: object, expected: str, found: str) -> None:
        self.notes.append(Issue(kind, str(target), expected, found))


@contextmanager
def verification(project: Project, *, busy: bool) -> Iterator[Callable[[], Report]]:
    """Return a function that verifies a project. `busy`: an engine is running meanwhile."""
    if not project.ledger.exists() or _verify_ledger_file(project.ledger, Report()):
        yield lambda: _verify(project, None, busy=busy)
        return
    with closing(Ledger(project.ledger)) as ledger:
        yield lambda: _verify(project, ledger, busy=busy)


def _verify(project: Project, ledger: Ledger | None, *, busy: bool) -> Report:
    """Verify everything; without a usable ledger, only what does not need it."""
    report = Report()
    if ledger is None and project.ledger.exists():
        _verify_ledger_file(project.ledger, report)
    if not project.is_remote:
        _verify_forge(project, report)
    _verify_mirror(project.mirror, report)
    if ledger is not None and _verify_rows(project, ledger, report):
        if not busy:
            _verify_cached_records(ledger, report)
        for exported in Exports(project, ledger).all():
            _verify_export(ledger, exported, report, busy=busy)
        if not busy:
            _verify_agent_dirs(project.agents, ledger, report)
    return report


def _verify_ledger_file(path: Path, report: Report) -> bool:
    """Look for damage in the ledger's file; True if the ledger cannot be opened as it is."""
    try:
        with closing(open_read_only(path)) as connection:
            damage = list(damages(connection, MIGRATIONS))
            applied = applied_in(connection)
    except (CaloronError, sqlite3.Error) as error:
        report.add("ledger", path, "a readable database", error)
        return True
    for part, expected, found in damage:
        report.add("ledger", part, expected, found)
    if is_older := not damage and any(m.name not in applied for m in MIGRATIONS):
        expected = f"migrations up to {MIGRATIONS[-1].name}"
        found = "an older form, which the next sprint upgrades"
        report.add_note("ledger", path, expected, found)
    return bool(damage) or is_older


def _verify_forge(project: Project, report: Report) -> None:
    records, repository = project.forge_sqlite, project.forge_git
    for path in (records, repository):
        if not path.exists():
            report.add("forge", path, "the forge of the project", "it does not exist")
            return
    report.checked += 1
    try:
        with closing(open_read_only(records)) as connection:
            # One transaction: git, which changes first, is read last.
            connection.execute("BEGIN")
            for target, expected, found, transient in record_mismatches(connection, repository):
                if transient:
                    now = f"{found}: the next poll records it"
                    report.add_note("forge", target, f"{expected} (recorded)", now)
                else:
                    report.add("forge", target, expected, found)
    except (CaloronError, sqlite3.Error) as error:
        report.add("forge", records, "a readable forge", error)


def _verify_mirror(mirror: Path, report: Report) -> None:
    if not (mirror / "config").exists():
        return
    report.checked += 1
    try:
        refs = refs_of(mirror)
        lost = missing(mirror, refs.values())
    except CaloronError as error:
        report.add("git", mirror, "a readable repository", error)
        return
    for name, commit in refs.items():
        if commit in lost:
            report.add("git", f"{mirror.name}, {name}", f"commit {commit}", "it is missing")


def _verify_rows(project: Project, ledger: Ledger, report: Report) -> bool:
    """Compare the rows of the ledger; return False if no state can be read from them."""
    report.checked += 1
    is_readable = True
    with ledger.db.snapshot() as connection:
        newest = reading.row(connection, "newest_observation")
        for name, table in _TABLES.items():
            decoder = msgspec.json.Decoder(table.record)
            for row in connection.execute(f"SELECT * FROM {name}"):
                target = table.name.format(**dict(row))
                try:
                    record = decoder.decode(row[table.data])
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    report.add("ledger", target, "a record of this Caloron", str(error)[:200])
                    is_readable = is_readable and name not in _OF_THE_STATE
                    continue
                for column in table.columns:
                    if (value := _field(record, column)) != row[column]:
                        report.add("ledger", f"{target}, {column}", repr(value), repr(row[column]))
        for row in reading.rows(connection, "wrong_references"):
            report.add("ledger", *row)
    if newest is None or project.is_remote or not project.forge_sqlite.exists():
        return is_readable
    try:
        with closing(open_read_only(project.forge_sqlite)) as connection:
            version = newest_version(connection)
    except (CaloronError, sqlite3.Error):
        # `_verify_forge` reports a damaged forge.
        return is_readable
    # The forge is read after the ledger, so no observation can be newer.
    if newest["version"] > version:
        target = f"observations/{newest['sprint']}/{newest['object']}, version"
        report.add("ledger", target, f"at most {version}, as in the forge", newest["version"])
    return is_readable


def _field(record: Any, column: str) -> Any:
    """Return the field of a record that a column repeats."""
    if column == "kind":
        return type(record).__struct_config__.tag
    value = record.work.item if isinstance(record, StartWork) else getattr(record, column)
    return str(value) if isinstance(value, str) else value


def _verify_cached_records(ledger: Ledger, report: Report) -> None:
    """Compare records that are stored to save time with computed ones."""

    def compute_again(sprint: str) -> str:
        forget_record(ledger, sprint)
        store_records(ledger)
        return f"the record of {sprint} is computed again"

    report.checked += 1
    with ledger.db.snapshot() as connection:
        wrong = wrong_records(connection)
    for sprint in wrong:
        expected, found = "the record that its facts give", "another record"
        issue = Issue("record", f"records/{sprint}", expected, found, "compute it again")
        report.issues[issue] = partial(compute_again, sprint)


def _verify_export(ledger: Ledger, exported: Export, report: Report, *, busy: bool) -> None:
    """Compare a file with the text that was written last."""
    report.checked += 1
    path, digests = str(exported.path), stored_digests(ledger, exported.name)
    try:
        content = read(ledger, exported.name, exported.path)
        if busy and content.author != "caloron":
            time.sleep(_WRITE_DELAY_S)
            content = read(ledger, exported.name, exported.path)
    except StoreError as error:
        report.add("export", path, "a file of Caloron", error)
        return
    edit = found = ""
    match content.author:
        case "none":
            found = "it does not exist" if digests else ""
        case "caloron":
            is_older = not busy and digest(content.text) != digests[-1]
            found = "an older text" if is_older else ""
        case "other":
            found = "a text of another program"
            try:
                edit = exported.describe_edit(content.text) if exported.describe_edit else ""
            except ValueError as error:
                found = f"corrupt: {error}"
            if not digests:
                edit = edit or "it was there before the first sprint"
    if edit:
        report.add_note("export", path, "a text of Caloron", edit)
    elif found:
        text = exported.text()
        expected = f"{len(text)} bytes with the digest {digest(text)[:12]}"
        repair = "keep a text of another program aside, and write the file again"
        issue = Issue("export", path, expected, found, repair)
        report.issues[issue] = lambda: (
            "; ".join(write(ledger, exported)) or f"{path} is written again"
        )


def _verify_agent_dirs(folder: Path, ledger: Ledger, report: Report) -> None:
    """Compare every agent's folder with the ledger; a missing or older one is no deviation."""
    for agent_dir in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not agent_dir.is_dir() or agent_dir.is_symlink() or agent_dir.name.startswith("."):
            continue
        report.checked += 1
        file, page = agent_dir / STATE, agent_dir / "dashboard.md"
        if damage := _damage_of(file):
            repair = f"set it aside as {STATE}.corrupt-…, and export it again"
            issue = Issue("agent", str(file), "a sound file", damage, repair)
            report.issues[issue] = partial(_export_again, agent_dir, ledger, damaged=True)
            continue
        with ledger.db.snapshot() as connection:
            for target, expected, found in differences(agent_dir, connection):
                place = f"{file}, {target}" if target != STATE else str(file)
                place = str(agent_dir / target) if target.startswith("cycle") else place
                issue = Issue("agent", place, expected, found, "export it again")
                report.issues[issue] = partial(_export_again, agent_dir, ledger)
        wrong = _wrong_page(file, page)
        if wrong.startswith("older"):
            report.add_note("agent", page, "the current state of its agent", wrong)
        elif wrong:
            expected, repair = "the page made from its queue", "write it again"
            issue = Issue("agent", str(page), expected, wrong, repair)
            report.issues[issue] = partial(_write_page, agent_dir)


def _export_again(agent_dir: Path, ledger: Ledger, *, damaged: bool = False) -> str:
    if damaged:
        set_aside_database(agent_dir / STATE, "corrupt")
    with closing(open_read_only(ledger.db.path)) as connection:
        export(agent_dir, connection, compare=True)
    if damaged:
        regenerate(agent_dir)
    return f"{agent_dir} is exported again"


def _write_page(agent_dir: Path) -> str:
    return f"{regenerate(agent_dir)} is written again"


def _damage_of(file: Path) -> str:
    if not file.exists():
        return ""
    try:
        with closing(open_read_only(file)) as connection:
            # agent-state and similar programs may have added tables.
            damage = damages(connection, AGENT_MIGRATIONS, MIGRATIONS_TABLE, shared=True)
            return next((f"{part}: {found}" for part, _, found in damage), "")
    except (CaloronError, sqlite3.Error) as error:
        return str(error)


def _wrong_page(file: Path, page: Path) -> str:
    """Return the fault of a dashboard, if there is one. A page that was never made is right."""
    if not file.exists():
        return ""
    try:
        text = read_plain(page)
    except FileNotFoundError:
        return ""
    except CaloronError as error:
        return str(error)
    with closing(open_read_only(file)) as connection:
        return wrong_in(connection, text)
