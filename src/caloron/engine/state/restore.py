"""Puts a project back as a backup has it: made beside its place, checked, then there in one step.

Afterwards it is as if the machine had lost its power at the moment of the backup: `resume` goes on.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from caloron.agentstate.file import MIGRATIONS as HOME_MIGRATIONS
from caloron.engine.home_view import numbers_in
from caloron.engine.state.archive import Archive, Repository
from caloron.engine.state.homes import sound_copy
from caloron.errors import AlreadyExists, PreconditionFailed, StoreError
from caloron.forge.local_create import set_up
from caloron.forge.local_git import BareRepository
from caloron.forge.local_records import MIGRATIONS as FORGE_MIGRATIONS
from caloron.git.command import GitError
from caloron.git.mirror import Mirror
from caloron.git.packs import add_pack, refuse_gaps, set_refs
from caloron.ids import is_valid_id
from caloron.ledger.journal import LOOK_FIRST
from caloron.ledger.ledger import MIGRATIONS, SQL, Ledger
from caloron.ledger.locate import ProjectPaths, home, project_names, project_path
from caloron.ledger.projections import kv_path
from caloron.ledger.projects import Project, save_config, set_active
from caloron.ledger.settings import read_settings, typed
from caloron.ports import Remote
from caloron.store import log, queue
from caloron.store.crash import crashpoint
from caloron.store.database import Migration, open_read_only
from caloron.store.files import swap, sync_directory, sync_tree, write_atomic
from caloron.store.health import damages, open_copy
from caloron.store.lock import ProcessLock

_REF = re.compile(r"refs/[^\s\x00-\x20\x7f~^:?*\[\\]{1,500}")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_HOME_FILE = re.compile(r"agents/[^/]+/state\.sqlite")
_WHY = "it was at work when the backup was taken"


class Restored(msgspec.Struct, kw_only=True):
    """What a restore came to."""

    name: str
    path: Path
    sprints: list[str]
    #: Items that were being worked on, which begin anew.
    reopened: list[str]
    #: Where the project is that stood there before.
    kept: str = ""
    #: Files outside of it that were moved aside.
    aside: list[str] = []


class Restore:
    """One backup on its way to becoming a project of this home."""

    def __init__(self, archive: Archive, name: str) -> None:
        self._archive, self.name = archive, name
        self.place = project_path(name)

    def refuse_taken(self, *, force: bool) -> None:
        """Neither another project nor the files of its sprints are overwritten by mistake."""
        if self.place.exists() and not force:
            raise AlreadyExists(
                f"there is a project {self.name!r} in {home()} already",
                hint="use --force to keep it beside and put the backup in its place, or"
                " --as NAME in another CALORON_HOME",
            )
        if self.place.is_symlink():
            raise PreconditionFailed(
                f"{self.place} is a link", hint="remove the link; nothing was changed"
            )
        for other in project_names():
            known = set(self._archive.manifest.sprints)
            if other != self.name and (same := known & _sprints_of(other)):
                raise AlreadyExists(
                    f"project {other!r} has the sprint {min(same)} too, and both would write"
                    f" {kv_path(min(same))}",
                    hint="restore it into another home: CALORON_HOME=… caloron state restore …",
                )

    def prepare(self, stage: Path) -> Restored:
        """Make the project in a folder, and check everything that can be checked."""
        try:
            project = self._settings(stage)
            self._databases(stage)
            self._repositories(stage)
            self._files_inside(stage, project)
            return self._wake_up(stage)
        except (GitError, sqlite3.Error) as error:
            raise PreconditionFailed(
                f"{self._archive.path} cannot be restored: {error}",
                hint="take another backup; nothing was changed",
            ) from error

    def _settings(self, stage: Path) -> Project:
        if not self._archive.has("config.yml"):
            raise self._damaged("it has no settings")
        file = stage / "config.yml"
        self._archive.unpack("config.yml", file)
        config = typed(read_settings(file) | {"name": self.name}, file)
        manifest = self._archive.manifest
        if config.work_dir and Path(config.work_dir).is_relative_to(manifest.path):
            # It was in the project itself, which may be somewhere else now.
            config.work_dir = ""
        if config.forge != manifest.forge:
            raise self._damaged("its settings name another forge than its manifest")
        project = Project(self.name, stage, config)
        save_config(project)
        return project

    def _databases(self, stage: Path) -> None:
        wanted: dict[str, tuple[Migration, ...]] = {"ledger.sqlite": MIGRATIONS}
        if self._archive.manifest.forge == "local":
            wanted["forge.sqlite"] = FORGE_MIGRATIONS
            if not self._archive.has("forge.sqlite"):
                raise self._damaged("it has no forge")
        for name, migrations in wanted.items():
            if not self._archive.has(name):
                continue
            self._refuse_newer(name, migrations)
            self._archive.unpack(name, stage / name)
            with closing(open_copy(stage / name)) as connection:
                if damage := next(damages(connection, migrations), None):
                    words = f"{name}: {damage.what}: {damage.found}, not {damage.expected}"
                    raise self._damaged(words)

        for name in self._archive.names(lambda name: _HOME_FILE.fullmatch(name) is not None):
            self._refuse_newer(name, HOME_MIGRATIONS)
            self._archive.unpack(name, stage / name)
            if wrong := sound_copy(stage / name)[1]:
                raise self._damaged(f"{name}: {wrong}")

    def _refuse_newer(self, name: str, migrations: tuple[Migration, ...]) -> None:
        told = self._archive.manifest.migrations.get(name, [])
        newer = sorted({applied for applied, _ in told} - {m.name for m in migrations})
        if newer:
            raise PreconditionFailed(
                f"{self._archive.path} was written by a newer Caloron"
                f" ({self._archive.manifest.caloron}; {name} has {', '.join(newer)})",
                hint="upgrade Caloron; nothing was changed",
            )

    def _repositories(self, stage: Path) -> None:
        told = self._archive.manifest.repositories
        forge, mirror = stage / "forge.git", stage / "mirror.git"
        if "forge" in told:
            forge.mkdir()
            set_up(BareRepository(forge), _checked_format(told["forge"]))
            self._fill(forge, told["forge"], "forge.pack")
        if "mirror" in told:
            Mirror(mirror, Remote(url=str(forge))).ensure()
            # Of what the forge has too there is one copy.
            for pack in sorted((forge / "objects" / "pack").glob("pack-*")):
                os.link(pack, mirror / "objects" / "pack" / pack.name)
            self._fill(mirror, told["mirror"], "mirror.pack")

    def _fill(self, repository: Path, told: Repository, part: str) -> None:
        if self._archive.has(part):
            pack = repository / "restored.pack"
            self._archive.unpack(part, pack)
            add_pack(repository, pack)
            pack.unlink()
        ids = [*told.refs.values(), *told.shallow]
        if bad := [i for i in ids if not _COMMIT.fullmatch(i)]:
            raise self._damaged(f"{bad[0][:80]!r} is no commit")
        if bad := [name for name in told.refs if not _REF.fullmatch(name)]:
            raise self._damaged(f"{bad[0][:80]!r} is no ref")
        if told.shallow:
            (repository / "shallow").write_text("".join(f"{i}\n" for i in told.shallow), "ascii")
        set_refs(repository, told.refs)
        refuse_gaps(repository)

    def _files_inside(self, stage: Path, project: Project) -> None:
        inside = project.workspace == stage / "workspace"
        for name in self._archive.names(lambda name: name.startswith(("edits/", "sprints.json"))):
            self._archive.unpack(name, stage / name)
        for name in self._archive.names(lambda name: inside and name.startswith("workspace/")):
            self._archive.unpack(name, stage / name)
        for name in self._archive.names(lambda name: name.startswith("agents/")):
            if not _HOME_FILE.fullmatch(name):
                try:
                    self._archive.unpack(name, stage / name)
                except (FileExistsError, NotADirectoryError) as error:
                    raise self._damaged(f"{name} in it is a file and a folder") from error

    def _wake_up(self, stage: Path) -> Restored:
        """What somebody worked on begins anew, and whatever is done next is looked for first."""
        restored = Restored(name=self.name, path=self.place, sprints=[], reopened=[])
        if not (stage / "ledger.sqlite").exists():
            return restored
        with closing(Ledger(stage / "ledger.sqlite")) as ledger:
            with ledger.db.transaction("restore") as connection:
                restored.sprints = [
                    row["id"] for row in connection.execute("SELECT id FROM sprints")
                ]
                for lease in queue.in_flight(connection):
                    queue.reopen(connection, lease.item, _WHY)
                    restored.reopened.append(lease.item)
                for sprint in restored.sprints:
                    key = LOOK_FIRST.format(sprint)
                    connection.execute(SQL["put_kv"], {"key": key, "value": "1"})
                manifest = self._archive.manifest
                payload = {"backup": str(self._archive.path), "of": manifest.created_at}
                payload["was"] = manifest.path
                # Numbers that were given stay given, also of cycles that the backup knows not of.
                cycles = {"cycles": numbers_in(self.place / "agents")}
                queue.append_event(connection, "state_restored", payload | cycles)
            ledger.db.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        if bad := [name for name in restored.sprints if not is_valid_id(name)]:
            raise self._damaged(f"{bad[0]!r} is no sprint")
        return restored

    def publish(self, stage: Path, restored: Restored) -> None:
        """Put the prepared project into its place; what stands there is kept beside."""
        sync_tree(stage)
        crashpoint("restore.prepared")
        outside = self._outside(stage, restored)
        # A newer text in the place of an old one would be taken for a person's edit.
        restored.aside = [str(_moved_aside(file)) for file in outside if _differs(file, outside)]
        crashpoint("restore.aside")
        # Held until the last file is written: nobody begins with half of them.
        with ProcessLock(stage / "engine.lock"):
            restored.kept = self._into_place(stage)
            if not (home() / "active").exists():
                set_active(self.name)
            crashpoint("restore.renamed")
            for file, text in outside.items():
                if text is not None:
                    write_atomic(file, text)

    def _outside(self, stage: Path, restored: Restored) -> dict[Path, bytes | None]:
        """The files that a project has outside of its folder, with what shall stand in them."""
        found: dict[Path, bytes | None] = {}
        for sprint in restored.sprints:
            place = kv_path(sprint)
            # The one that stands there tells of another state, whether or not the backup has one.
            found[place] = None
            for name in self._archive.names(lambda n, s=sprint: n.startswith(f"kv/{s}.json")):  # type: ignore[misc]
                found[place.parent / Path(name).name] = self._archive.text(name)
        config = typed(read_settings(stage / "config.yml"), stage / "config.yml")
        workspace = Project(self.name, stage, config).workspace
        if workspace != stage / "workspace":
            for name in self._archive.names(lambda n: n.startswith("workspace/")):
                place = workspace / name.removeprefix("workspace/")
                found[place] = self._archive.text(name)
        return found

    def _into_place(self, stage: Path) -> str:
        try:
            if not self.place.exists():
                stage.rename(self.place)
                sync_directory(self.place.parent)
                return ""
            stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
            kept = self.place.with_name(f".replaced-{self.name}-{stamp}")
            # Under a name that nobody clears away: from the swap on, the old project stands there.
            stage.rename(kept)
            if not swap(kept, self.place):
                kept.rename(stage)
                self.place.rename(kept)
                stage.rename(self.place)
            sync_directory(self.place.parent)
        except OSError as error:
            raise StoreError(
                f"cannot put the project into {self.place}: {error.strerror}",
                hint="make that place writable for you; the project is as it was",
            ) from error
        return str(kept)

    def _damaged(self, why: str) -> PreconditionFailed:
        return PreconditionFailed(
            f"{self._archive.path} cannot be restored: {why}",
            hint="take another backup; nothing was changed",
        )


def _checked_format(told: Repository) -> str:
    return told.object_format if told.object_format in ("sha1", "sha256") else "sha1"


def _sprints_of(name: str) -> set[str]:
    ledger = ProjectPaths(name, project_path(name)).ledger
    if not ledger.exists():
        return set()
    try:
        with closing(open_read_only(ledger)) as connection:
            return {row["id"] for row in connection.execute("SELECT id FROM sprints")}
    except (StoreError, sqlite3.Error) as error:
        log.warning("cannot read the sprints of a project", error=error, project=name)
        # A ledger that cannot be read writes no files.
        return set()


def _differs(file: Path, outside: dict[Path, bytes | None]) -> bool:
    return file.is_symlink() or (file.is_file() and file.read_bytes() != outside[file])


def _moved_aside(file: Path) -> Path:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
    kept = file.with_name(f"{file.name}.foreign-{stamp}")
    file.rename(kept)
    return kept


@contextmanager
def stage_for(name: str) -> Iterator[Path]:
    """A folder beside the projects, gone afterwards unless it became one."""
    place = project_path(name)
    try:
        home().mkdir(mode=0o700, parents=True, exist_ok=True)
        place.parent.mkdir(exist_ok=True)
        for remains in place.parent.glob(".restore-*"):
            pid = remains.name.rpartition("-")[2]
            if pid.isdigit() and not Path("/proc", pid).exists():
                shutil.rmtree(remains, ignore_errors=True)
        stage = place.with_name(f".restore-{name}-{os.getpid()}")
        stage.mkdir(mode=0o700)
    except OSError as error:
        raise StoreError(
            f"cannot make a folder in {place.parent}: {error.strerror}",
            hint="make that place writable for you, or choose another with CALORON_HOME",
        ) from error
    try:
        yield stage
    finally:
        if stage.exists():
            shutil.rmtree(stage, ignore_errors=True)
