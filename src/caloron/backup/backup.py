"""Makes a backup of a project, also while a sprint runs: one that a crash could have left.

Every effect is recorded in the ledger before it is done, and git changes before the records of the
local forge do. So no process may commit to the ledger while views are opened of the ledger, the
refs of the mirror, the records of the forge and its refs, in this order: each view may be newer
than the one before, as after a crash, and never older. The views are copied afterwards.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from caloron import __version__
from caloron.backup.archive import (
    DATABASES,
    FORMAT,
    Manifest,
    Part,
    Repository,
    is_part,
    write_archive,
)
from caloron.engine.exports import exported_files
from caloron.engine.runs.runtime import known_secrets
from caloron.errors import AlreadyExists, NotFound, PreconditionFailed, StoreError, UsageError
from caloron.git.command import GitError
from caloron.git.packs import object_format, objects_of, refs_of, shallow_of, write_pack
from caloron.ledger.projects import Project
from caloron.ledger.run_history import sprint_phases
from caloron.store.crash import crashpoint
from caloron.store.database import applied_in, open_copy, open_read_only, store_error
from caloron.store.files import remove_leftovers, staging
from caloron.store.health import damages
from caloron.store.redact import Redactor

_BUSY_S = 10.0
#: The largest file of an agent's folder that is backed up.
_MAX_AGENT_FILE = 16 << 20
#: Folders that are not needed to resume a sprint.
LEFT_OUT = {
    "runs": "prompts and output of agents",
    "seeds": "installed dependencies",
    "pool": "prepared workspaces",
    "trash": "workspaces to be deleted",
    "logs": "the log of Caloron itself",
}


def target_for(project: Project, path: Path | None) -> Path:
    """Return the file to write: `path`, or a new file in it if it is a folder."""
    name = f"caloron-{project.name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.tar"
    try:
        folder = (path or Path.cwd()).absolute()
        target = folder / name if folder.is_dir() else folder
        if not target.parent.is_dir():
            raise NotFound(f"there is no folder {target.parent}", hint="create it first")
        if target.exists() or target.is_symlink():
            raise AlreadyExists(f"{target} exists already", hint="name another file")
    except (OSError, ValueError) as error:
        raise UsageError(f"{str(path)[:200]!r} cannot be written: {error}") from error
    if target.is_relative_to(project.path):
        raise UsageError(
            f"{target} is in the folder of the project itself", hint="name another folder"
        )
    return target


def back_up(project: Project, target: Path, notify: Callable[[str], None]) -> Manifest:
    """Write a backup, whole or not at all, without disturbing a running sprint."""
    remove_leftovers(target.parent, ".caloron-*.tar.*.tmp")
    try:
        with staging(target.parent, ".caloron-backup") as stage:
            manifest = _Writer(project, stage, notify).write()
            crashpoint("backup.staged")
            write_archive(target, manifest, stage)
    except (sqlite3.Error, GitError) as error:
        raise PreconditionFailed(
            f"project {project.name} cannot be backed up: {error}",
            hint=f"find the damage: caloron state verify --project {project.name}",
        ) from error
    except OSError as error:
        raise StoreError(
            f"cannot write the backup {target}: {error.strerror}",
            hint="free some space or choose another folder; the project is unchanged",
        ) from error
    return manifest


class _Writer:
    """Collects the parts of one backup in a folder."""

    def __init__(self, project: Project, stage: Path, notify: Callable[[str], None]) -> None:
        self._project, self._stage, self._notify = project, stage, notify
        self._databases: dict[str, sqlite3.Connection] = {}
        self._repositories: dict[str, Repository] = {}
        self._sprints: dict[str, str] = {}
        self._texts: dict[str, bytes] = {}
        folders = LEFT_OUT.items()
        self._left_out = [f"{n}: {what}" for n, what in folders if (project.path / n).exists()]

    def write(self) -> Manifest:
        with ExitStack() as views:
            self._open_views(views)
            crashpoint("backup.view")
            migrations = {name: self._copy(name) for name in self._databases}
        self._write_packs()
        self._leave_out_secrets()
        for name, text in self._texts.items():
            self._staged(name).write_bytes(text)
        return self._manifest({name: m for name, m in migrations.items() if m is not None})

    def _open_views(self, views: ExitStack) -> None:
        project = self._project
        if not project.is_remote and not (project.forge_git / "config").exists():
            raise NotFound(
                f"{project.forge_git} does not exist",
                hint=f"find the damage: caloron state verify --project {project.name}",
            )
        repositories = {"mirror": project.mirror}
        if not project.is_remote:
            repositories["forge"] = project.forge_git
        # The format of a repository never changes; the refs are read below.
        formats = {n: object_format(p) for n, p in repositories.items() if (p / "config").exists()}
        with ExitStack() as no_commits:
            if project.ledger.exists():
                no_commits.enter_context(_without_commits(project.ledger))
                ledger = self._open_view("ledger.sqlite", project.ledger, views)
                self._sprints = sprint_phases(ledger)
            self._read_files(views)
            for name, kind in formats.items():
                path = repositories[name]
                if name == "forge":
                    self._open_view("forge.sqlite", project.forge_sqlite, views)
                self._repositories[name] = Repository(
                    refs=refs_of(path), object_format=kind, shallow=shallow_of(path)
                )

    def _open_view(self, name: str, path: Path, views: ExitStack) -> sqlite3.Connection:
        """Open a connection that keeps seeing the database as it is now."""
        connection = views.enter_context(closing(open_read_only(path)))
        connection.isolation_level = None
        connection.execute("BEGIN")
        # A transaction begins with its first read.
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        self._databases[name] = connection
        return connection

    def _read_files(self, views: ExitStack) -> None:
        """Read settings, edits of plans, exported files and the folders of the agents."""
        project = self._project
        files = {"config.yml": project.config_file}
        files |= {f"edits/{p.name}": p for p in sorted((project.path / "edits").glob("*.yml"))}
        files |= exported_files(project, self._sprints)
        files |= {str(p.relative_to(project.path)): p for p in agent_files(project.agents)}
        for name, path in files.items():
            try:
                if not is_part(name):
                    self._leave_out(name, "its name cannot be stored")
                elif name.startswith("agents/") and path.stat().st_size > _MAX_AGENT_FILE:
                    self._leave_out(name, f"it has more than {_MAX_AGENT_FILE >> 20} MB")
                elif path.suffix == ".sqlite":
                    self._open_view(name, path, views)
                else:
                    self._texts[name] = path.read_bytes()
            except FileNotFoundError:
                # It was deleted since it was listed.
                continue
            except (StoreError, sqlite3.Error) as error:
                self._leave_out(name, f"it cannot be read ({error})")

    def _staged(self, name: str) -> Path:
        path = self._stage / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _leave_out(self, name: str, reason: str) -> None:
        printable = name.encode("utf-8", "backslashreplace").decode()
        self._left_out.append(f"{printable}: {reason}")

    def _copy(self, name: str) -> list[tuple[str, str]] | None:
        """Copy a database, and return its migrations. Leave out a damaged one of an agent."""
        path = self._staged(name)
        try:
            with closing(sqlite3.connect(path)) as copy:
                self._databases[name].backup(copy)
            applied = _check_copy(path, name)
        except sqlite3.Error as error:
            if not name.startswith("agents/"):
                raise
            path.unlink(missing_ok=True)
            self._leave_out(name, f"it is damaged ({error})")
            return None
        if not name.startswith("agents/"):
            self._notify(f"{name}: {path.stat().st_size} bytes")
        return applied

    def _write_packs(self) -> None:
        """Write all objects of the forge, and those of the mirror that the forge does not have.

        `git bundle --all` would read the refs again, later than the ledger, and would miss the
        heads of closed pull requests, to which no ref points.
        """
        known: set[bytes] = set()
        project = self._project
        for name, path in (("forge", project.forge_git), ("mirror", project.mirror)):
            if name not in self._repositories:
                continue
            if objects := objects_of(path) - known:
                write_pack(path, objects, self._stage / f"{name}.pack")
                self._notify(f"{path.name}: {len(objects)} objects")
            known |= objects

    def _leave_out_secrets(self) -> None:
        redactor = Redactor(known_secrets(self._project.config))
        for name, content in list(self._texts.items()):
            text = content.decode("utf-8", "replace")
            if not name.startswith(("config.yml", "agents/")) or redactor.text(text) == text:
                continue
            if name == "config.yml":
                raise PreconditionFailed(
                    f"{self._project.config_file} contains a secret, and a backup must not",
                    hint="move it to a variable or a file, and name that in the settings",
                )
            self._leave_out(name, "it contains a secret")
            del self._texts[name]

    def _manifest(self, migrations: dict[str, list[tuple[str, str]]]) -> Manifest:
        project = self._project
        if project.is_remote:
            self._left_out.append(f"the forge {project.config.host or project.config.forge} itself")
        files = sorted(path for path in self._stage.rglob("*") if path.is_file())
        return Manifest(
            format=FORMAT,
            caloron=__version__,
            project=project.name,
            created_at=datetime.now(UTC).isoformat(timespec="seconds"),
            forge=project.config.forge,
            path=str(project.path),
            workspace=str(project.workspace),
            migrations=migrations,
            repositories=self._repositories,
            sprints=self._sprints,
            parts=[_part(path, str(path.relative_to(self._stage))) for path in files],
            left_out=self._left_out,
        )


def _part(path: Path, name: str) -> Part:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Part(name=name, bytes=path.stat().st_size, sha256=digest)


def _check_copy(path: Path, name: str) -> list[tuple[str, str]]:
    """Return the migrations of a copy; raise if it could not be restored."""
    with closing(open_copy(path)) as connection:
        if name.startswith("agents/"):
            (result,) = connection.execute("PRAGMA quick_check(1)").fetchone()
            if result != "ok":
                raise sqlite3.DatabaseError(result)
            return []
        if damage := next(damages(connection, DATABASES[name]), None):
            raise sqlite3.DatabaseError(f"{name}, {damage.what}: {damage.found}")
        return list(applied_in(connection).items())


def agent_files(folder: Path) -> Iterator[Path]:
    """Return the plain files in the folders of agents; hidden files and links are left out."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(place, name)
            hidden = name.startswith(".") or name.endswith(("-wal", "-shm"))
            if not hidden and path.is_file() and not path.is_symlink() and path.parent != folder:
                yield path


@contextmanager
def _without_commits(ledger: Path) -> Iterator[None]:
    """Keep every process from committing to the ledger; readers are not blocked."""
    try:
        with closing(sqlite3.connect(ledger, isolation_level=None, timeout=_BUSY_S)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise store_error(ledger, error) from error
