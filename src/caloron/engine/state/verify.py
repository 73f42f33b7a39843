"""Compares everything that is kept of a project with its ledger, and puts projections right.

Facts are never changed: a ledger or a forge that is damaged is put right by a backup.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from caloron.engine.state.expected import Expectations, Expected
from caloron.engine.state.finding import Finding, Looked, Mend
from caloron.engine.state.verify_homes import HomesCheck
from caloron.errors import CaloronError, StoreError
from caloron.forge.local_check import forge_findings
from caloron.git.packs import missing, refs_of
from caloron.ledger.history import changed_entries, put_entries
from caloron.ledger.ledger import MIGRATIONS, Ledger, remember_since
from caloron.ledger.projected import digest, look, set_aside, write
from caloron.ledger.projects import Project
from caloron.ledger.records import forget_records, keep_records, wrong_records
from caloron.ledger.rows import OF_THE_STATE, UNREADABLE, disagreements
from caloron.store.database import open_read_only
from caloron.store.health import applied_in, damages

_A_MOMENT_S = 0.2


class Verification:
    """One look at the state of a project; the ledger stays as it is."""

    def __init__(self, project: Project, ledger: Ledger | None, *, busy: bool) -> None:
        self._project, self._ledger = project, ledger
        #: An engine writes the files meanwhile: one that is a text behind is not wrong.
        self._busy = busy

    def look(self) -> Looked:
        """Everything that is not as the ledger has it."""
        looked = Looked()
        if not self._project.is_remote:
            self._look_at_forge(looked)
        self._look_at_mirror(looked)
        if self._ledger is not None and self._look_at_rows(looked, self._ledger):
            if not self._busy:
                self._look_at_shortcuts(looked, self._ledger)
            self._look_at_files(looked, self._ledger)
            if not self._busy:
                HomesCheck(self._project.agents, self._ledger).look(looked)
        return looked

    def _look_at_forge(self, looked: Looked) -> None:
        records, repository = self._project.forge_sqlite, self._project.forge_git
        for place in (records, repository):
            if not place.exists():
                looked.add(_forge(str(place), "the forge of the project", "it is not there"))
                return
        looked.checked += 1
        try:
            with closing(open_read_only(records)) as connection, _one_moment(connection):
                # Git is asked last: whatever the records know of was in it before.
                for target, expected, found, passing in forge_findings(connection, repository):
                    looked.add(_forge(target, expected, found, passing=passing))
        except (CaloronError, sqlite3.Error) as error:
            looked.add(_forge(str(records), "a forge that can be read", str(error)))

    def _look_at_mirror(self, looked: Looked) -> None:
        mirror = self._project.mirror
        if not (mirror / "config").exists():
            return
        looked.checked += 1
        try:
            refs = refs_of(mirror)
            gone = missing(mirror, refs.values())
        except CaloronError as error:
            found = Finding(kind="git", target=str(mirror), expected="readable", found=str(error))
            looked.add(found)
            return
        for name in (name for name, value in refs.items() if value in gone):
            finding = Finding(kind="git", target=f"{mirror.name}, {name}", found="it is not there",
                              expected=f"commit {refs[name]}")  # fmt: skip
            looked.add(finding)

    def _look_at_rows(self, looked: Looked, ledger: Ledger) -> bool:
        """Whether a state can be made of the rows at all."""
        with ledger.db.snapshot() as connection:
            found = list(disagreements(connection))
            looked.checked += 1
        for row, expected, said in found:
            looked.add(Finding(kind="ledger", target=row, expected=expected, found=said))
        if not self._project.is_remote and self._project.forge_sqlite.exists():
            self._look_at_versions(looked, ledger)
        return not any(
            expected == UNREADABLE and row.startswith(OF_THE_STATE) for row, expected, _ in found
        )

    def _look_at_versions(self, looked: Looked, ledger: Ledger) -> None:
        """Nobody can have seen what the forge did not show yet."""
        query = "SELECT sprint, object, version FROM observations ORDER BY version DESC LIMIT 1"
        seen = ledger.db.row(query)
        try:
            with closing(open_read_only(self._project.forge_sqlite)) as connection:
                newest = int(connection.execute("SELECT version FROM counter").fetchone()[0])
        except (CaloronError, sqlite3.Error):
            # What is wrong with the forge itself is told already.
            return
        if seen is not None and seen["version"] > newest:
            target = f"observations/{seen['sprint']}/{seen['object']}, version"
            expected = f"at most {newest}, the newest of the forge"
            found = str(seen["version"])
            looked.add(Finding(kind="ledger", target=target, expected=expected, found=found))

    def _look_at_shortcuts(self, looked: Looked, ledger: Ledger) -> None:
        """What is kept in the ledger only so that nobody has to work it out again."""
        with ledger.db.snapshot() as connection:
            wrong = wrong_records(connection)
        for sprint in wrong:
            finding = Finding(
                kind="record",
                target=f"records/{sprint}",
                expected="what its facts come to",
                found="another record",
                repair="work it out anew",
            )
            looked.add(finding, lambda name=sprint: _work_out(ledger, name))  # type: ignore[misc]
        for entry, text in changed_entries(ledger):
            finding = Finding(
                kind="record",
                target=f"entries/{entry['file']}/{entry['key']}",
                expected=f"a record with the digest {digest(entry['text'].encode())[:12]}",
                found=f"the digest {digest(text.encode())[:12]}" if text else "none",
                repair="work it out anew",
            )
            looked.add(finding, lambda e=entry: _put_entry(ledger, e))  # type: ignore[misc]
        looked.checked += 2

    def _look_at_files(self, looked: Looked, ledger: Ledger) -> None:
        expectations = Expectations(self._project, ledger)
        for expected in expectations.all():
            looked.checked += 1
            remembered = expectations.remembered(expected.file.name)
            try:
                self._look_at_file(looked, ledger, expected, remembered)
            except StoreError as error:
                path = str(expected.file.path)
                looked.add(Finding(kind="projection", target=path, expected="a file of ours",
                                   found=str(error)))  # fmt: skip

    def _look_at_file(
        self, looked: Looked, ledger: Ledger, expected: Expected, remembered: list[str]
    ) -> None:
        seen = look(ledger, expected.file)
        if self._busy and seen.whose != "ours":
            # Between its digest and its text there is a moment, which is over now.
            time.sleep(_A_MOMENT_S)
            seen = look(ledger, expected.file)
        if not remembered and seen.whose == "nobody":
            return
        if seen.whose == "foreign":
            self._somebody_elses(looked, ledger, expected, seen.text, known=bool(remembered))
            return
        if seen.whose == "ours":
            if self._busy or (expected.as_written and digest(seen.text) == remembered[-1]):
                return
            text = _with_moment(expected, ledger, seen.text)
            if seen.text == text:
                return
            found = "an older text of ours"
        else:
            found = "it is not there"
        self._wrong(looked, ledger, expected, found, "write it anew")

    def _somebody_elses(
        self, looked: Looked, ledger: Ledger, expected: Expected, text: bytes, *, known: bool
    ) -> None:
        path = str(expected.file.path)
        kind, why = expected.judge(text)
        if kind == "theirs" or not known:
            why = why if known else f"it was there before: {why}"
            looked.add(Finding(kind="projection", target=path, expected="a text of ours",
                               found=why, passing=True))  # fmt: skip
            return
        aside = f"keep it beside as {expected.file.path.name}.{kind}-…, and write it anew"
        said = f"{kind}: {why}" if kind == "corrupt" else f"somebody else's text: {why}"
        self._wrong(looked, ledger, expected, said, aside, aside=kind)

    def _wrong(
        self,
        looked: Looked,
        ledger: Ledger,
        expected: Expected,
        found: str,
        repair: str,
        *,
        aside: str = "",
    ) -> None:
        text = expected.text()
        finding = Finding(
            kind="projection",
            target=str(expected.file.path),
            expected=f"{len(text)} bytes with the digest {digest(text)[:12]}",
            found=found,
            repair=repair,
        )
        looked.add(finding, _rewrite(ledger, expected, aside))


def _rewrite(ledger: Ledger, expected: Expected, aside: str) -> Mend:
    def mend() -> str:
        path = expected.file.path
        line = f"{path} is written anew"
        if aside:
            kept = set_aside(ledger, path, "corrupt" if aside == "corrupt" else "foreign")
            line += f"; what stood there is kept as {kept}"
        if expected.sprint and not ledger.get(f"since/{expected.sprint}"):
            with ledger.db.transaction("since") as connection:
                remember_since(connection, expected.sprint, time.time())
        write(ledger, (expected.file, expected.text()))
        return line

    return mend


def _with_moment(expected: Expected, ledger: Ledger, found: bytes) -> bytes:
    """What should stand there; of a file from before its moment was kept, that is believed."""
    if expected.sprint and not ledger.get(f"since/{expected.sprint}"):
        return found
    return expected.text()


def _work_out(ledger: Ledger, sprint: str) -> str:
    forget_records(ledger, [sprint])
    keep_records(ledger)
    return f"the record of {sprint} is worked out anew"


def _put_entry(ledger: Ledger, entry: dict[str, object]) -> str:
    put_entries(ledger, [entry])
    return f"the entry of {entry['key']} in {entry['file']} is worked out anew"


def _forge(target: str, expected: str, found: str, *, passing: bool = False) -> Finding:
    if passing:
        expected, found = f"{expected} (recorded)", f"{found}: the next look writes it down"
    return Finding(kind="forge", target=target, expected=expected, found=found, passing=passing)


@contextmanager
def _one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.rollback()


@contextmanager
def verification(project: Project, *, busy: bool) -> Iterator[tuple[Verification, list[Finding]]]:
    """A look at a project whose ledger is sound; else what is wrong with it, and the rest."""
    wrong = _damages(project) if project.ledger.exists() else []
    usable = project.ledger.exists() and not wrong
    ledger = Ledger(project.ledger) if usable else None
    try:
        yield Verification(project, ledger, busy=busy), wrong
    finally:
        if ledger is not None:
            ledger.close()


def _damages(project: Project) -> list[Finding]:
    """What is wrong with the database itself; an older form is brought up to date by a sprint."""
    try:
        with closing(open_read_only(project.ledger)) as connection:
            found = [
                Finding(kind="ledger", target=what, expected=expected, found=said)
                for what, expected, said in damages(connection, MIGRATIONS)
            ]
            applied = [name for name, _ in applied_in(connection)]
    except (CaloronError, sqlite3.Error) as error:
        return [
            Finding(kind="ledger", target=str(project.ledger), expected="a database that can be"
                    " read", found=str(error))
        ]  # fmt: skip
    missing_now = [m.name for m in MIGRATIONS if m.name not in applied]
    if not found and missing_now:
        found.append(
            Finding(kind="ledger", target=str(project.ledger), passing=True,
                    expected=f"migrations up to {MIGRATIONS[-1].name}",
                    found="an older form, which the next sprint brings up to date")
        )  # fmt: skip
    return found
