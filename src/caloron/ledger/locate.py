"""Where things are kept: the home, its projects and the files of one. Standard library only.

Commands that only look, such as `caloron status`, need nothing heavier than this to start.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from caloron.errors import CaloronError, NotFound, UsageError
from caloron.ids import ID_WORDS, is_valid_id


def require_id(value: str, what: str) -> str:
    """The name itself, or a `UsageError` that says which one is bad and what is allowed."""
    if not is_valid_id(value):
        raise UsageError(
            f"{what} {value!r} cannot be used",
            hint=f"take {ID_WORDS}",
        )
    return value


def home() -> Path:
    """`$CALORON_HOME`, or `~/.caloron`."""
    return Path(os.environ.get("CALORON_HOME") or "~/.caloron").expanduser().absolute()


def projects_directory() -> Path:
    return home() / "projects"


def project_path(name: str) -> Path:
    """The directory of a project, whether or not it exists yet."""
    return projects_directory() / require_id(name, "project name")


def active_project_name() -> str:
    """The project that commands act on when none is named."""
    file = home() / "active"
    try:
        name = file.read_text("utf-8").strip()
    except FileNotFoundError:
        if project_names():
            raise NotFound(
                f"no project is active in {home()}",
                hint=f"caloron projects switch NAME, or use --project NAME ({_known()})",
            ) from None
        raise NotFound(
            f"no project yet in {home()}",
            hint='in a git repository, `caloron sprint "<goal>"` makes one; '
            "elsewhere: caloron init NAME",
        ) from None
    if not is_valid_id(name):
        raise UsageError(
            f"{file} holds {name!r}, which is no project name",
            hint=f"write the name of a project into it ({_known()}), or use --project NAME",
        )
    return name


@dataclass(frozen=True)
class ProjectPaths:
    """The files of one project."""

    name: str
    path: Path

    @property
    def config_file(self) -> Path:
        return self.path / "config.yml"

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.sqlite"

    @property
    def forge_git(self) -> Path:
        return self.path / "forge.git"

    @property
    def forge_sqlite(self) -> Path:
        return self.path / "forge.sqlite"

    @property
    def sprints_json(self) -> Path:
        return self.path / "sprints.json"

    @property
    def runs(self) -> Path:
        """One directory per attempt: prompt, transcript, result."""
        return self.path / "runs"

    @property
    def mirror(self) -> Path:
        """Our own clean repository, from which workspaces are cloned."""
        return self.path / "mirror.git"

    @property
    def engine_lock(self) -> Path:
        return self.path / "engine.lock"

    @property
    def wake(self) -> Path:
        """The FIFO by which anybody wakes the engine."""
        return self.path / "wake"


def repository_here() -> Path | None:
    """The git repository around the current folder, found without running git."""
    try:
        here = Path.cwd()
    except OSError:
        return None
    return next((folder for folder in (here, *here.parents) if (folder / ".git").exists()), None)


def projects_for(repository: Path) -> list[str]:
    """The projects that were made from a repository, in alphabetical order.

    Refused if none is known and a project cannot say which repository is its: it may be this one,
    and whoever acts on another project instead changes what nobody meant.
    """
    wanted = os.path.realpath(repository)
    found: list[str] = []
    damaged: UsageError | None = None
    for name in project_names():
        try:
            repo = _repo_setting(project_path(name) / "config.yml")
            place = os.path.realpath(Path(repo).expanduser()) if repo else ""
        except RuntimeError:
            # `~nobody`: whoever that is, it is not here.
            continue
        except UsageError as error:
            damaged = damaged or error
            continue
        if place == wanted:
            found.append(name)
    if damaged is not None and not found:
        raise UsageError(
            f"{damaged}; it may be the project of {repository}",
            hint="correct that file (it was not touched), or say which project with --project NAME",
        )
    return found


_REPO = re.compile(r"^repo: *(.+)$", re.MULTILINE)


def _repo_setting(config_file: Path) -> str:
    """The setting `repo` of a config file, empty if it has none; a `UsageError` if it is damaged.

    The YAML library is loaded only for a file that this Caloron did not write like this.
    """
    try:
        text = config_file.read_text("utf-8")
        if (found := _REPO.search(text)) is not None:
            value = found[1].strip()
            if value[:1] == "'" and value[1:].endswith("'"):
                return value[1:-1].replace("''", "'")
            if value[:1] == '"':
                return str(json.loads(value))
            if _PLAIN.fullmatch(value):
                return value
        elif plain_settings(config_file):
            return ""
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, RecursionError):
        # The real parser says it in words.
        pass
    from caloron.ledger.projects import read_settings

    try:
        settings = read_settings(config_file)
    except CaloronError as error:
        raise UsageError(str(error)) from error
    repo = settings.get("repo") or ""
    if not settings or not isinstance(repo, str):
        what = "has no settings" if not settings else f"has the repository {repo!r}"
        raise UsageError(f"{config_file} {what}")
    return repo


def current_project_name() -> str:
    """The project that commands act on when none is named.

    That of the repository one stands in; elsewhere the active one.
    """
    repository = repository_here()
    own = projects_for(repository) if repository else []
    if len(own) == 1:
        return own[0]
    active = active_project_name() if not own or (home() / "active").exists() else ""
    if own and active not in own:
        raise UsageError(
            f"{repository} has several projects: {', '.join(own)}",
            hint="say which one with --project NAME, or caloron projects switch NAME",
        )
    return active


def has_current_project() -> bool:
    """Whether `current_project_name` has anything to go by."""
    repository = repository_here()
    return (home() / "active").exists() or bool(repository and projects_for(repository))


def find_project(name: str | None = None) -> ProjectPaths:
    """The named project, else that of the repository here, else the active one."""
    found = name if name is not None else current_project_name()
    paths = ProjectPaths(found, project_path(found))
    if not paths.config_file.is_file():
        raise NotFound(f"there is no project {found!r} in {home()}", hint=_known())
    return paths


def project_names() -> list[str]:
    """Every project of this home, in alphabetical order."""
    directory = projects_directory()
    if not directory.is_dir():
        return []
    return sorted(
        entry.name
        for entry in directory.iterdir()
        if is_valid_id(entry.name) and (entry / "config.yml").is_file()
    )


def unusable_project_names() -> list[str]:
    """Folders with a project whose name no command takes; an older Caloron took any."""
    directory = projects_directory()
    if not directory.is_dir():
        return []
    return sorted(
        entry.name
        for entry in directory.iterdir()
        if not entry.name.startswith(".")
        and not is_valid_id(entry.name)
        and (entry / "config.yml").is_file()
    )


def _known() -> str:
    names = project_names()
    return f"known projects: {', '.join(names)}" if names else "make one: caloron init NAME"


_ENTRY = re.compile(r"([a-z_]+):(?: (.*))?")
_LIST_ITEM = re.compile(r"- [^'\"|>&*!{\[].*")
_PLAIN = re.compile(r"[A-Za-z/~][\w./~@+ -]*")
_QUOTED = re.compile(r"'([^']*)'")
_WORDS_WITH_MEANING = frozenset({"true", "false", "yes", "no", "on", "off", "null"})


def plain_settings(config_file: Path) -> dict[str, str] | None:
    """The text settings of a config file, without a YAML library.

    Gives None for a file that needs the real parser: the caller loads it with `projects`.
    """
    settings: dict[str, str] = {}
    for line in config_file.read_text("utf-8", "replace").splitlines():
        if _LIST_ITEM.fullmatch(line):
            continue
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            return None
        key, value = entry[1], (entry[2] or "").strip()
        if quoted := _QUOTED.fullmatch(value):
            settings[key] = quoted[1]
        elif _PLAIN.fullmatch(value) and value.lower() not in _WORDS_WITH_MEANING:
            settings[key] = value
        elif value and not re.fullmatch(r"\d+(\.\d+)?|\[\]|null|true|false", value):
            return None
    return settings
