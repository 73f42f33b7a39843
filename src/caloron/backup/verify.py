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

import msgspec

from caloron.engine.exports import Exports
from caloron.errors import CaloronError, StoreError
from caloron.forge.local.create import record_mismatches
from caloron.git.packs import missing, refs_of
from caloron.ledger.exports import Export, digest, read, stored_digests, write
from caloron.ledger.ledger import MIGRATIONS, Ledger
from caloron.ledger.projects import Project
from caloron.ledger.rows import OF_THE_STATE, UNREADABLE, disagreements
from caloron.ledger.run_history import forget_record, store_records, wrong_records
from caloron.ledger.workspace_files import put_entries, wrong_entries
from caloron.store.database import open_read_only
from caloron.store.health import applied_in, damages

#: An engine stores the digest of a text shortly before it writes the text.
_WRITE_DELAY_S = 0.2

#: Repairs one issue, and returns a message.
Repair = Callable[[], str]


class Issue(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not as it should be."""

    #: `export`, `record`, `ledger`, `forge`, `git`, `agent`.
    kind: str
    target: str
    expected: str
    found: str
    #: What the repair does; empty if there is none.
    repair: str = ""
    #: Not an error: it goes away by itself, or a person's edit is read back.
    informational: bool = False


class Report(msgspec.Struct, kw_only=True):
    """The result of a verification."""

    #: Errors, each with its repair.
    issues: list[tuple[Issue, Repair | None]] = msgspec.field(default_factory=list)
    notes: list[Issue] = msgspec.field(default_factory=list)
    #: The number of things that were verified.
    checked: int = 0

    def add(self, issue: Issue, repair: Repair | None = None) -> None:
        if issue.informational:
            self.notes.append(issue)
        else:
            self.issues.append((issue, repair))


@contextmanager
def verification(project: Project, *, busy: bool) -> Iterator[Callable[[], Report]]:
    """Return a function that verifies a project. `busy`: an engine is running meanwhile."""
    damage = list(_ledger_damage(project)) if project.ledger.exists() else []
    if damage or not project.ledger.exists():
        yield lambda: _Verification(project, None, busy=busy).run(damage)
        return
    with closing(Ledger(project.ledger)) as ledger:
        yield lambda: _Verification(project, ledger, busy=busy).run([])


def _ledger_damage(project: Project) -> Iterator[Issue]:
    issue = partial(Issue, kind="ledger")
    ledger = str(project.ledger)
    try:
        with closing(open_read_only(project.ledger)) as connection:
            found = list(damages(connection, MIGRATIONS))
            applied = {name for name, _ in applied_in(connection)}
    except (CaloronError, sqlite3.Error) as error:
        yield issue(target=ledger, expected="a readable database", found=str(error))
        return
    for damage in found:
        yield issue(target=damage.what, expected=damage.expected, found=damage.found)
    if not found and any(m.name not in applied for m in MIGRATIONS):
        yield issue(
            target=ledger,
            expected=f"migrations up to {MIGRATIONS[-1].name}",
            found="an older form, which the next sprint upgrades",
            informational=True,
        )


class _Verification:
    """One verification; nothing is changed."""

    def __init__(self, project: Project, ledger: Ledger | None, *, busy: bool) -> None:
        self._project, self._ledger, self._busy = project, ledger, busy
        self._report = Report()

    def run(self, damage: list[Issue]) -> Report:
        for issue in damage:
            self._report.add(issue)
        if not self._project.is_remote:
            self._verify_forge()
        self._verify_mirror()
        if self._ledger is not None and self._verify_rows(self._ledger):
            if not self._busy:
                self._verify_cached_records(self._ledger)
            for export in Exports(self._project, self._ledger).all():
                self._verify_export(self._ledger, export)
            if not self._busy:
                from caloron.backup.agent_dirs import verify_agent_dirs

                verify_agent_dirs(self._project.agents, self._ledger, self._report)
        return self._report

    def _add(self, kind: str, target: str, expected: str, found: str) -> None:
        self._report.add(Issue(kind=kind, target=target, expected=expected, found=found))

    def _verify_forge(self) -> None:
        records, repository = self._project.forge_sqlite, self._project.forge_git
        for path in (records, repository):
            if not path.exists():
                self._add("forge", str(path), "the forge of the project", "it does not exist")
                return
        self._report.checked += 1
        try:
            with closing(open_read_only(records)) as connection:
                # One transaction: git, which changes first, is read last.
                connection.execute("BEGIN")
                for target, expected, found, passing in record_mismatches(connection, repository):
                    issue = Issue(
                        kind="forge",
                        target=target,
                        expected=f"{expected} (recorded)" if passing else expected,
                        found=f"{found}: the next poll records it" if passing else found,
                        informational=passing,
                    )
                    self._report.add(issue)
        except (CaloronError, sqlite3.Error) as error:
            self._add("forge", str(records), "a readable forge", str(error))

    def _verify_mirror(self) -> None:
        mirror = self._project.mirror
        if not (mirror / "config").exists():
            return
        self._report.checked += 1
        try:
            refs = refs_of(mirror)
            lost = missing(mirror, refs.values())
        except CaloronError as error:
            self._add("git", str(mirror), "a readable repository", str(error))
            return
        for name, commit in refs.items():
            if commit in lost:
                self._add("git", f"{mirror.name}, {name}", f"commit {commit}", "it is missing")

    def _verify_rows(self, ledger: Ledger) -> bool:
        """Compare the rows of the ledger; return False if no state can be read from them."""
        with ledger.db.snapshot() as connection:
            found = list(disagreements(connection))
        self._report.checked += 1
        for row, expected, actual in found:
            self._add("ledger", row, expected, actual)
        self._verify_observed_versions(ledger)
        return not any(
            expected == UNREADABLE and row.startswith(OF_THE_STATE) for row, expected, _ in found
        )

    def _verify_observed_versions(self, ledger: Ledger) -> None:
        """Observations cannot be newer than the local forge itself."""
        query = "SELECT sprint, object, version FROM observations ORDER BY version DESC LIMIT 1"
        newest = ledger.db.row(query)
        if newest is None or self._project.is_remote or not self._project.forge_sqlite.exists():
            return
        try:
            with closing(open_read_only(self._project.forge_sqlite)) as connection:
                version = int(connection.execute("SELECT version FROM counter").fetchone()[0])
        except (CaloronError, sqlite3.Error):
            # `_verify_forge` reports a damaged forge.
            return
        if newest["version"] > version:
            target = f"observations/{newest['sprint']}/{newest['object']}, version"
            self._add("ledger", target, f"at most {version}, as in the forge", newest["version"])

    def _verify_cached_records(self, ledger: Ledger) -> None:
        """Compare records that are stored to save time with computed ones."""
        with ledger.db.snapshot() as connection:
            wrong = wrong_records(connection)
        repairs = {
            f"records/{sprint}": partial(_compute_record, ledger, sprint) for sprint in wrong
        }
        for entry in wrong_entries(ledger):
            target = f"entries/{entry['file']}/{entry['key']}"
            repairs[target] = partial(_compute_entry, ledger, entry)
        for target, repair in repairs.items():
            issue = Issue(
                kind="record", target=target, expected="the record that its facts give",
                found="another record", repair="compute it again",
            )  # fmt: skip
            self._report.add(issue, repair)
        self._report.checked += 2

    def _verify_export(self, ledger: Ledger, export: Export) -> None:
        """Compare a file with the text that was written last."""
        self._report.checked += 1
        digests = stored_digests(ledger, export.name)
        try:
            content = read(ledger, export.name, export.path)
            if self._busy and content.author != "caloron":
                time.sleep(_WRITE_DELAY_S)
                content = read(ledger, export.name, export.path)
        except StoreError as error:
            self._add("export", str(export.path), "a file of Caloron", str(error))
            return
        if content.author == "none":
            if digests:
                self._add_difference(ledger, export, "it does not exist")
        elif content.author == "other":
            self._verify_foreign_text(ledger, export, content.text, written=bool(digests))
        elif not self._busy and digest(content.text) != digests[-1]:
            self._add_difference(ledger, export, "an older text")

    def _verify_foreign_text(
        self, ledger: Ledger, export: Export, text: bytes, *, written: bool
    ) -> None:
        edit, found = "", "a text of another program"
        if export.describe_edit is not None:
            try:
                edit = export.describe_edit(text)
            except ValueError as error:
                found = f"corrupt: {error}"
        if edit or not written:
            issue = Issue(
                kind="export",
                target=str(export.path),
                expected="a text of Caloron",
                found=edit or "it was there before the first sprint",
                informational=True,
            )
            self._report.add(issue)
        else:
            self._add_difference(ledger, export, found)

    def _add_difference(self, ledger: Ledger, export: Export, found: str) -> None:
        def repair() -> str:
            return "; ".join(write(ledger, export)) or f"{export.path} is written again"

        text = export.text()
        issue = Issue(
            kind="export",
            target=str(export.path),
            expected=f"{len(text)} bytes with the digest {digest(text)[:12]}",
            found=found,
            repair="keep a text of another program aside, and write the file again",
        )
        self._report.add(issue, repair)


def _compute_record(ledger: Ledger, sprint: str) -> str:
    forget_record(ledger, sprint)
    store_records(ledger)
    return f"the record of {sprint} is computed again"


def _compute_entry(ledger: Ledger, entry: dict[str, object]) -> str:
    put_entries(ledger, [entry])
    return f"the entry of {entry['key']} in {entry['file']} is computed again"
