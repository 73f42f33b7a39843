"""A copy of a project while it works: one that a crash at this moment could have left.

Every effect is written into the ledger before it is done, and git changes before the records of a
forge do. So the ledger is held still for as long as it takes to open a view of it, of the mirror's
refs, of the forge's records and of its refs, in this order: each of them may be newer than the one
before, which is how a crash leaves them, and never older. The copying itself is done from those
views, with nobody waiting.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from caloron import __version__
from caloron.engine.state.archive import (
    FORMAT,
    Manifest,
    Part,
    Repository,
    digest_of,
    is_part,
    write_archive,
)
from caloron.engine.state.files import LEFT_OUT, Kept, Texts, kept_files
from caloron.engine.state.homes import STATE, homes_in, sorted_out, sound_copy
from caloron.engine.workshop import known_secrets
from caloron.errors import AlreadyExists, NotFound, PreconditionFailed, StoreError, UsageError
from caloron.forge.local_records import MIGRATIONS as FORGE_MIGRATIONS
from caloron.git.command import GitError
from caloron.git.packs import object_format, objects_of, refs_of, shallow_of, write_pack
from caloron.ledger.ledger import MIGRATIONS
from caloron.ledger.projects import Project
from caloron.store.crash import crashpoint
from caloron.store.database import open_read_only, store_error
from caloron.store.health import applied_in, copy_of, damages, open_copy
from caloron.store.redact import Redactor

_BUSY_S = 10.0
_STAGE = ".caloron-backup-"


class View(msgspec.Struct, kw_only=True):
    """What everything looked like at one moment."""

    ledger: sqlite3.Connection | None = None
    forge: sqlite3.Connection | None = None
    repositories: dict[str, Repository] = {}
    #: The file of each home, by its name in the backup.
    homes: dict[str, sqlite3.Connection] = {}
    texts: dict[Kept, bytes] = {}
    #: What of the homes cannot be kept, with the reason.
    left_out: list[str] = []
    sprints: dict[str, str] = {}


class Backup(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup came to."""

    path: Path
    bytes: int
    manifest: Manifest


def place_for(project: Project, given: Path | None) -> Path:
    """The file to write: the given one, or one with a name of its own in the given folder."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = f"caloron-{project.name}-{stamp}.tar"
    try:
        place = (given or Path.cwd()).absolute()
        target = place / name if place.is_dir() else place
        if not target.parent.is_dir():
            raise NotFound(f"there is no folder {target.parent}", hint="make it first")
        if target.exists() or target.is_symlink():
            raise AlreadyExists(f"{target} is there already", hint="name another file")
    except (OSError, ValueError) as error:
        raise UsageError(f"{str(given)[:200]!r} cannot be written: {error}") from error
    if target.is_relative_to(project.path):
        raise UsageError(
            f"{target} lies in the project itself", hint="a backup belongs somewhere else"
        )
    return target


def back_up(project: Project, target: Path, tell: Callable[[str], None]) -> Backup:
    """Write a backup, whole or not at all; whoever works on the project is not disturbed."""
    _remove_remains(target.parent)
    stage = target.parent / f"{_STAGE}{os.getpid()}"
    try:
        stage.mkdir(mode=0o700)
        with view_of(project) as view:
            crashpoint("backup.view")
            manifest = _stage(project, view, stage, tell)
        crashpoint("backup.staged")
        write_archive(target, manifest, stage)
    except (sqlite3.Error, GitError) as error:
        raise PreconditionFailed(
            f"project {project.name} cannot be backed up: {error}",
            hint=f"see what is wrong with it: caloron state verify --project {project.name}",
        ) from error
    except OSError as error:
        raise StoreError(
            f"cannot write the backup {target}: {error.strerror}",
            hint="free some space or choose another folder; the project is as it was",
        ) from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    return Backup(path=target, bytes=target.stat().st_size, manifest=manifest)


@contextmanager
def view_of(project: Project) -> Iterator[View]:
    """Everything as it is at one moment; the ledger waits only while the views are opened."""
    texts, places = Texts(), {"mirror": project.mirror, "forge": project.forge_git}
    there = {name: place for name, place in places.items() if (place / "config").exists()}
    formats = {name: object_format(place) for name, place in there.items()}
    if not project.is_remote and "forge" not in formats:
        raise NotFound(
            f"{project.forge_git} is not there",
            hint=f"see what is missing: caloron state verify --project {project.name}",
        )
    with ExitStack() as open_views:
        view = View()
        still = open_views.enter_context(ExitStack())
        if project.ledger.exists():
            names = list(_sprints(project))
            texts.read(kept_files(project, names))
            still.enter_context(_held_still(project.ledger))
            view.ledger = open_views.enter_context(closing(_view(project.ledger)))
            view.sprints = _sprints(project, view.ledger)
        # A home follows what is committed: with the ledger still it is never ahead of it.
        for home in homes_in(project.agents):
            _open_home(home, view, open_views)
        # What the files say is what the ledger says, or one text behind it: nobody commits now.
        view.texts = texts.read(kept_files(project, list(view.sprints)))
        if "mirror" in formats:
            view.repositories["mirror"] = _repository(project.mirror, formats["mirror"])
        if not project.is_remote:
            view.forge = open_views.enter_context(closing(_view(project.forge_sqlite)))
            view.repositories["forge"] = _repository(project.forge_git, formats["forge"])
        still.close()
        yield view


def _open_home(home: Path, view: View, open_views: ExitStack) -> None:
    _, left_out = sorted_out(home)
    view.left_out += left_out
    file, name = home / STATE, f"agents/{home.name}/{STATE}"
    if not is_part(name) or not file.exists():
        return
    try:
        view.homes[name] = open_views.enter_context(closing(_view(file)))
    except (StoreError, sqlite3.Error) as error:
        # It is made anew from the ledger; nothing else is held up by it.
        view.left_out.append(f"{name}: it cannot be read ({error})")


def _stage_homes(view: View, stage: Path) -> dict[str, list[tuple[str, str]]]:
    """The files of the homes, as they were at that moment; gives their migrations."""
    migrations = {}
    for name, connection in view.homes.items():
        copy = stage / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            copy_of(connection, copy)
            applied, damage = sound_copy(copy)
        except sqlite3.Error as error:
            applied, damage = [], str(error)
        if damage:
            copy.unlink(missing_ok=True)
            view.left_out.append(f"{name}: it is damaged ({damage})")
        else:
            migrations[name] = applied
    return migrations


def _sprints(project: Project, connection: sqlite3.Connection | None = None) -> dict[str, str]:
    if connection is None:
        with closing(open_read_only(project.ledger)) as opened:
            return _sprints(project, opened)
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'sprints'").fetchone():
        return {}
    rows = connection.execute("SELECT id, phase FROM sprints ORDER BY number")
    return {row["id"]: row["phase"] for row in rows}


@contextmanager
def _held_still(ledger: Path) -> Iterator[None]:
    """Nobody commits to the ledger meanwhile; readers go on."""
    try:
        with closing(sqlite3.connect(ledger, isolation_level=None, timeout=_BUSY_S)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                connection.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise store_error(ledger, error) from error


def _view(database: Path) -> sqlite3.Connection:
    """A connection that goes on seeing what is committed now."""
    connection = open_read_only(database)
    connection.isolation_level = None
    connection.execute("BEGIN")
    # A transaction begins with its first read.
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return connection


def _repository(path: Path, kind: str) -> Repository:
    return Repository(refs=refs_of(path), object_format=kind, shallow=shallow_of(path))


def _stage(project: Project, view: View, stage: Path, tell: Callable[[str], None]) -> Manifest:
    migrations: dict[str, list[tuple[str, str]]] = {}
    for name, connection in (("ledger.sqlite", view.ledger), ("forge.sqlite", view.forge)):
        if connection is not None:
            copy_of(connection, stage / name)
            migrations[name] = _sound(stage / name)
            tell(f"{name}: {(stage / name).stat().st_size} bytes")
    migrations |= _stage_homes(view, stage)
    _stage_objects(project, view, stage, tell)
    _keep_secrets_out(project, view)
    for kept, text in view.texts.items():
        place = stage / kept.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text)
    files = sorted(f for f in stage.rglob("*") if f.is_file())
    left_out = [f"{name}: {what}" for name, what in LEFT_OUT.items() if _is_there(project, name)]
    left_out += view.left_out
    if project.is_remote:
        left_out.append(f"the forge {project.config.host or project.config.forge} itself")
    return Manifest(
        format=FORMAT,
        caloron=__version__,
        project=project.name,
        created_at=datetime.now(UTC).isoformat(timespec="seconds"),
        forge=project.config.forge,
        path=str(project.path),
        workspace=str(project.workspace),
        migrations=migrations,
        repositories=view.repositories,
        sprints=view.sprints,
        parts=[
            Part(name=str(f.relative_to(stage)), bytes=f.stat().st_size, sha256=digest_of(f))
            for f in files
        ],
        left_out=left_out,
    )


def _sound(copy: Path) -> list[tuple[str, str]]:
    """The migrations of a copy that can be restored; what could not be is no backup."""
    known = MIGRATIONS if copy.name == "ledger.sqlite" else FORGE_MIGRATIONS
    with closing(open_copy(copy)) as connection:
        if damage := next(damages(connection, known), None):
            raise sqlite3.DatabaseError(f"{copy.name}, {damage.what}: {damage.found}")
        return applied_in(connection)


def _is_there(project: Project, name: str) -> bool:
    return (project.path / name).exists()


def _stage_objects(project: Project, view: View, stage: Path, tell: Callable[[str], None]) -> None:
    """All objects of the forge, and of the mirror those that the forge does not have."""
    known: set[bytes] = set()
    for name, path in (("forge", project.forge_git), ("mirror", project.mirror)):
        if name in view.repositories:
            objects = objects_of(path) - known
            known |= objects
            if objects:
                write_pack(path, objects, stage / f"{name}.pack")
                tell(f"{path.name}: {len(objects)} objects")


def _keep_secrets_out(project: Project, view: View) -> None:
    """Settings name variables and files, never what is in them: a backup is carried around."""
    redactor = Redactor(known_secrets(project.config))
    for kept, content in list(view.texts.items()):
        text = content.decode("utf-8", "replace")
        if not kept.name.startswith(("config.yml", "agents/")) or redactor.text(text) == text:
            continue
        if kept.name.startswith("agents/"):
            view.left_out.append(f"{kept.name}: it holds a secret")
            del view.texts[kept]
        else:
            raise PreconditionFailed(
                f"{kept.path} holds a secret, and a backup must hold none",
                hint="put it into a variable or a file of its own, and name that there",
            )


def _remove_remains(folder: Path) -> None:
    """What a backup that was killed left behind."""
    for remains in (*folder.glob(f"{_STAGE}*"), *folder.glob(".caloron-*.tar.*.tmp")):
        pid = remains.name.removesuffix(".tmp").rpartition("-" if remains.is_dir() else ".")[2]
        if pid.isdigit() and not Path("/proc", pid).exists():
            if remains.is_dir():
                shutil.rmtree(remains, ignore_errors=True)
            else:
                remains.unlink(missing_ok=True)
