"""Restores a project from a backup: built beside its place, checked, then renamed in one step.

Afterwards the project is as if the machine had lost power when the backup was made, and
`caloron resume` continues its sprint.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from caloron.backup.archive import DATABASES, Archive, Repository, refused, refused_newer
from caloron.errors import AlreadyExists, PreconditionFailed, StoreError, store_errors
from caloron.forge.local.create import init_repository
from caloron.forge.local.refs import ForgeRepository
from caloron.git.command import GitError
from caloron.git.mirror import Mirror
from caloron.git.packs import add_pack, check_connectivity, set_refs
from caloron.ids import is_valid_id
from caloron.ledger.journal import LOOK_FIRST
from caloron.ledger.ledger import SQL, Ledger
from caloron.ledger.locate import ProjectPaths, home, project_names, project_path
from caloron.ledger.projects import Project, save_config, set_active
from caloron.ledger.run_history import sprint_phases
from caloron.ledger.settings import read_settings, typed
from caloron.ledger.state_file import kv_path
from caloron.ports import Remote
from caloron.store import log, queue
from caloron.store.crash import crashpoint
from caloron.store.database import open_copy, open_read_only
from caloron.store.files import (
    move_aside,
    staging,
    swap,
    sync_directory,
    sync_tree,
    write_atomic,
)
from caloron.store.health import damages
from caloron.store.lock import ProcessLock

_REF = re.compile(r"refs/[^\s\x00-\x20\x7f~^:?*\[\\]{1,500}")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class Restored(msgspec.Struct, kw_only=True):
    name: str
    path: Path
    sprints: list[str]
    #: Work items that were in progress, and start again.
    reopened: list[str]
    #: The folder of the project that was replaced.
    kept: str = ""
    #: Files outside of the project that were renamed.
    aside: list[str] = []


class Restore:
    """Builds a project of this home from a backup."""

    def __init__(self, archive: Archive, name: str) -> None:
        self._archive, self.name = archive, name
        self.place = project_path(name)

    def refuse_conflicts(self, *, force: bool) -> None:
        """Refuse to overwrite another project, or the state files of its sprints."""
        if self.place.exists() and not force:
            raise AlreadyExists(
                f"there is a project {self.name!r} in {home()} already",
                hint="use --force to replace it (it is kept aside), or"
                " --as NAME in another CALORON_HOME",
            )
        if self.place.is_symlink():
            raise PreconditionFailed(
                f"{self.place} is a link", hint="remove the link; nothing was changed"
            )
        sprints = set(self._archive.manifest.sprints)
        for other in project_names():
            if other != self.name and (same := sprints & _sprints_of(other)):
                raise AlreadyExists(
                    f"project {other!r} also has the sprint {min(same)}, and both would write"
                    f" {kv_path(min(same))}",
                    hint="restore it into another home: CALORON_HOME=… caloron state restore …",
                )

    def prepare(self, stage: Path) -> Restored:
        """Build the project in a folder, and check its databases and repositories."""
        try:
            elsewhere = ["config.yml", "kv/"]
            if self._write_settings(stage).workspace != stage / "workspace":
                elsewhere.append("workspace/")
            for part in self._archive.manifest.parts:
                if not part.name.startswith(tuple(elsewhere)):
                    self._archive.unpack(part.name, stage / part.name)
            self._check_databases(stage)
            self._fill_repositories(stage)
            return self._reset_ledger(stage)
        except (GitError, sqlite3.Error) as error:
            raise refused(self._archive.path, str(error)) from error

    def _write_settings(self, stage: Path) -> Project:
        if "config.yml" not in self._archive:
            raise self._refused("it has no settings")
        file, manifest = stage / "config.yml", self._archive.manifest
        self._archive.unpack("config.yml", file)
        config = typed(read_settings(file) | {"name": self.name}, file)
        if config.work_dir and Path(config.work_dir).is_relative_to(manifest.path):
            # The workspace was in the project's folder, which may have another path now.
            config.work_dir = ""
        if config.forge != manifest.forge:
            raise self._refused("its settings name another forge than its manifest")
        project = Project(self.name, stage, config)
        save_config(project)
        return project

    def _check_databases(self, stage: Path) -> None:
        manifest = self._archive.manifest
        if manifest.forge == "local" and "forge.sqlite" not in self._archive:
            raise self._refused("it has no forge")
        for name, migrations in DATABASES.items():
            if name not in self._archive:
                continue
            known = {migration.name for migration in migrations}
            if {applied for applied, _ in manifest.migrations.get(name, [])} - known:
                raise refused_newer(self._archive.path, manifest.caloron)
            with closing(open_copy(stage / name)) as connection:
                if damage := next(damages(connection, migrations), None):
                    details = f"{damage.what}: {damage.found}, not {damage.expected}"
                    raise self._refused(f"{name}: {details}")

    def _fill_repositories(self, stage: Path) -> None:
        repositories = self._archive.manifest.repositories
        forge, mirror = stage / "forge.git", stage / "mirror.git"
        if "forge" in repositories:
            forge.mkdir()
            is_sha256 = repositories["forge"].object_format == "sha256"
            init_repository(ForgeRepository(forge), "sha256" if is_sha256 else "sha1")
            self._fill(forge, repositories["forge"], stage / "forge.pack")
        if "mirror" in repositories:
            Mirror(mirror, Remote(url=str(forge))).ensure()
            # The mirror shares the objects of the forge.
            for pack in sorted((forge / "objects" / "pack").glob("pack-*")):
                os.link(pack, mirror / "objects" / "pack" / pack.name)
            self._fill(mirror, repositories["mirror"], stage / "mirror.pack")

    def _fill(self, path: Path, repository: Repository, pack: Path) -> None:
        if pack.exists():
            add_pack(path, pack)
            pack.unlink()
        for id in (*repository.refs.values(), *repository.shallow):
            if not _COMMIT.fullmatch(id):
                raise self._refused(f"{id[:80]!r} is not a commit")
        for name in repository.refs:
            if not _REF.fullmatch(name):
                raise self._refused(f"{name[:80]!r} is not a ref")
        if repository.shallow:
            text = "".join(f"{id}\n" for id in repository.shallow)
            (path / "shallow").write_text(text, "ascii")
        set_refs(path, repository.refs)
        check_connectivity(path)

    def _reset_ledger(self, stage: Path) -> Restored:
        """Reopen work that was in progress, and let the executor check each effect first."""
        restored = Restored(name=self.name, path=self.place, sprints=[], reopened=[])
        if not (stage / "ledger.sqlite").exists():
            return restored
        with closing(Ledger(stage / "ledger.sqlite")) as ledger:
            with ledger.db.transaction("restore") as connection:
                restored.sprints = list(sprint_phases(connection))
                for lease in queue.in_flight(connection):
                    queue.reopen(connection, lease.item, "it was in progress in the backup")
                    restored.reopened.append(lease.item)
                for sprint in restored.sprints:
                    key = LOOK_FIRST.format(sprint)
                    connection.execute(SQL["put_kv"], {"key": key, "value": "1"})
                of, was = self._archive.manifest.created_at, self._archive.manifest.path
                payload = {"backup": str(self._archive.path), "of": of, "was": was}
                queue.append_event(connection, "state_restored", payload)
            ledger.db.rows("PRAGMA wal_checkpoint(TRUNCATE)")
        for name in restored.sprints:
            if not is_valid_id(name):
                raise self._refused(f"{name!r} is not the id of a sprint")
        return restored

    def publish(self, stage: Path, restored: Restored) -> None:
        """Rename the prepared folder into its place; keep aside the project that is there."""
        sync_tree(stage)
        crashpoint("restore.prepared")
        outside = self._files_outside(stage, restored)
        for path, text in outside.items():
            # A newer text would be read back as a person's edit.
            if path.is_symlink() or (path.is_file() and path.read_bytes() != text):
                restored.aside.append(str(move_aside(path, "foreign")))
        crashpoint("restore.aside")
        # No sprint may start before the last file is written.
        with ProcessLock(stage / "engine.lock"):
            restored.kept = self._rename(stage)
            if not (home() / "active").exists():
                set_active(self.name)
            crashpoint("restore.renamed")
            for path, text in outside.items():
                if text is not None:
                    write_atomic(path, text)

    def _files_outside(self, stage: Path, restored: Restored) -> dict[Path, bytes | None]:
        """Return the texts of files outside of the project; None: the backup has no such file."""
        files: dict[Path, bytes | None] = {}
        for sprint in restored.sprints:
            path = kv_path(sprint)
            files[path] = None
            for name in self._archive.names(f"kv/{sprint}.json"):
                files[path.parent / Path(name).name] = self._archive.text(name)
        config = typed(read_settings(stage / "config.yml"), stage / "config.yml")
        workspace = Project(self.name, stage, config).workspace
        if workspace != stage / "workspace":
            for name in self._archive.names("workspace/"):
                files[workspace / name.removeprefix("workspace/")] = self._archive.text(name)
        return files

    def _rename(self, stage: Path) -> str:
        hint = "make that folder writable for you; the project is unchanged"
        with store_errors(f"cannot rename the project to {self.place}", hint=hint):
            if not self.place.exists():
                stage.rename(self.place)
                sync_directory(self.place.parent)
                return ""
            stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
            kept = self.place.with_name(f".replaced-{self.name}-{stamp}")
            # Renamed first, because leftovers of a killed restore are deleted: after the swap this
            # folder is the old project.
            stage.rename(kept)
            if not swap(kept, self.place):
                kept.rename(stage)
                self.place.rename(kept)
                stage.rename(self.place)
            sync_directory(self.place.parent)
        return str(kept)

    def _refused(self, reason: str) -> PreconditionFailed:
        return refused(self._archive.path, reason)


def _sprints_of(name: str) -> set[str]:
    ledger = ProjectPaths(name, project_path(name)).ledger
    if not ledger.exists():
        return set()
    try:
        with closing(open_read_only(ledger)) as connection:
            return set(sprint_phases(connection))
    except (StoreError, sqlite3.Error) as error:
        # A project with a damaged ledger cannot write state files.
        log.warning("cannot read the sprints of a project", error=error, project=name)
        return set()


@contextmanager
def stage_for(name: str) -> Iterator[Path]:
    """Create a folder beside the projects; delete it afterwards if it was not renamed."""
    folder = project_path(name).parent
    with store_errors(
        f"cannot restore project {name} in {folder}",
        hint="free some space, make that folder writable for you, or choose another with"
        " CALORON_HOME; a project that was there is unchanged",
    ):
        home().mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        with staging(folder, ".restore") as stage:
            yield stage
