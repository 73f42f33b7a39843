"""Projects: load, create and delete them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import yaml

from caloron.errors import AlreadyExists, PreconditionFailed, StoreError
from caloron.ledger.locate import (
    ProjectPaths,
    find_project,
    home,
    project_names,
    project_path,
    projects_directory,
    require_id,
)
from caloron.ledger.settings import RENAMED, ProjectConfig, read_settings, typed
from caloron.store.files import staging, sync_directory, sync_tree, write_atomic

_FORGE_NAME = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Project(ProjectPaths):
    """A project of this home: its files and its configuration."""

    config: ProjectConfig

    @property
    def workspace(self) -> Path:
        """The folder of exported files: `work_dir`, or one beside the ledger."""
        chosen = self.config.work_dir
        if not chosen or self.lost_work_dir:
            return self.path / "workspace"
        return Path(chosen).expanduser()

    @property
    def lost_work_dir(self) -> str:
        """A `work_dir` that does not exist while its files are beside the ledger; else empty.

        The older program wrote the absolute path of its home, which is wrong after a move.
        """
        chosen = self.config.work_dir
        if not chosen or _is_folder(Path(chosen).expanduser()):
            return ""
        usual = Path(chosen).parts[-3:] == ("projects", self.name, "workspace")
        return chosen if usual or _is_folder(self.path / "workspace") else ""

    @property
    def is_remote(self) -> bool:
        """True if the forge is reached over the network."""
        return self.config.forge != "local"

    @property
    def git_here(self) -> Path:
        """The repository on this disk with the commits of the forge: the forge's, or our mirror."""
        return self.mirror if self.is_remote else self.forge_git

    @property
    def repository(self) -> Path | None:
        """The user's own repository; None if there is none on this disk.

        The older program stored the name of the repository on a forge in this setting.
        """
        if self.is_remote:
            return Path(self.config.checkout).expanduser() if self.config.checkout else None
        named = self.config.repo
        if not named:
            return None
        place = Path(named).expanduser()
        is_name = not place.is_absolute() and _FORGE_NAME.fullmatch(named) is not None
        return None if is_name and not place.is_dir() else place


def _is_folder(place: Path) -> bool:
    try:
        return place.is_dir()
    except OSError:
        # No folder can have this name.
        return False


def create_project(config: ProjectConfig, furnish: Callable[[Path], None] | None = None) -> Project:
    """Create a project, whole or not at all; `furnish` adds the files of other packages.

    It is built beside its place and renamed in one step, so a crash leaves no half project.
    """
    place = project_path(config.name)
    if place.exists():
        raise _taken(config.name, place)
    config.created_at = config.created_at or datetime.now(UTC).isoformat(timespec="seconds")
    try:
        # Goals, prompts and logs are private.
        home().mkdir(mode=0o700, parents=True, exist_ok=True)
        projects_directory().mkdir(exist_ok=True)
        with staging(projects_directory(), f".init-{config.name}", mode=0o777) as scaffold:
            if furnish is not None:
                furnish(scaffold)
            save_config(Project(config.name, scaffold, config))
            sync_tree(scaffold)
            scaffold.rename(place)
            sync_directory(place.parent)
    except OSError as error:
        if place.exists():
            raise _taken(config.name, place) from error
        raise StoreError(
            f"cannot create project {config.name!r} in {place}: {error.strerror}",
            hint="make that place writable for you, or choose another with CALORON_HOME",
        ) from error
    return Project(config.name, place, config)


def _taken(name: str, place: Path) -> Exception:
    if (place / "config.yml").is_file():
        return AlreadyExists(
            f"project {name!r} exists already in {place}",
            hint=f"use it with --project {name}, or choose another name",
        )
    return PreconditionFailed(
        f"{place} exists but has no config.yml",
        hint="move that directory aside, then try again; nothing was changed",
    )


def load_project(name: str | None = None, *, need_ledger: bool = True) -> Project:
    """Load the named project, or the active one."""
    paths = find_project(name, need_ledger=need_ledger)
    raw = read_settings(paths.config_file)
    raw.setdefault("name", paths.name)
    return Project(paths.name, paths.path, typed(raw, paths.config_file))


def list_projects() -> list[Project]:
    return [load_project(name) for name in project_names()]


def set_active(name: str) -> None:
    """Let commands use this project when none is named."""
    paths = find_project(require_id(name, "project name"), need_ledger=False)
    write_atomic(home() / "active", f"{paths.name}\n".encode())


def save_config(project: Project) -> None:
    """Write the settings; keys that are not known stay in the file."""
    raw = read_settings(project.config_file) if project.config_file.exists() else {}
    config = msgspec.structs.asdict(project.config)
    typed(config, project.config_file)
    raw.update(config)
    for earlier in RENAMED:
        raw.pop(earlier, None)
    text = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True, width=10_000)
    write_atomic(project.config_file, text.encode())
