"""The paths of the home, of its projects and of their files. Standard library only.

Commands that only read, such as `caloron status`, import nothing heavier than this.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from caloron.errors import CaloronError, NotFound, PreconditionFailed, UsageError
from caloron.ids import ID_WORDS, is_valid_id
from caloron.store import log
from caloron.store.files import home as home  # noqa: PLC0414 - many ask here
from caloron.store.files import read_text


def require_id(value: str, what: str) -> str:
    """Return the name, or raise a `UsageError` that says what is allowed."""
    if not is_valid_id(value):
        raise UsageError(
            f"{what} {value!r} cannot be used",
            hint=f"take {ID_WORDS}",
        )
    return value


def projects_directory() -> Path:
    return home() / "projects"


def project_path(name: str) -> Path:
    """Return the directory of a project, whether or not it exists."""
    return projects_directory() / require_id(name, "project name")


def active_project_name() -> str:
    """Return the project that commands use outside of a repository."""
    file = home() / "active"
    try:
        name = read_text(file).strip()
    except FileNotFoundError:
        if project_names():
            raise NotFound(
                f"no project is active in {home()}",
                hint=f"caloron project switch NAME, or use --project NAME ({_known()})",
            ) from None
        raise NotFound(
            f"no project yet in {home()}",
            hint='in a git repository, `caloron sprint "<goal>"` makes one; '
            "elsewhere: caloron init NAME",
        ) from None
    if not is_valid_id(name):
        raise UsageError(
            f"{file} contains {name!r}, which is not a project name",
            hint=f"write the name of a project into it ({_known()}), or use --project NAME",
        )
    return name


class _Inside:
    """A file or folder of a project, by its name in the folder of the project."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: ProjectPaths, owner: type) -> Path:
        return paths.path / self._name


@dataclass(frozen=True)
class ProjectPaths:
    """The files of one project."""

    name: str
    path: Path

    config_file = _Inside("config.yml")
    ledger = _Inside("ledger.sqlite")
    #: The identity of the ledger, stored beside it, so that a lost ledger is noticed.
    ledger_id = _Inside("ledger.id")
    forge_git = _Inside("forge.git")
    forge_sqlite = _Inside("forge.sqlite")
    sprints_json = _Inside("sprints.json")
    #: One directory per attempt: prompt, transcript, result.
    runs = _Inside("runs")
    #: The folders of the agents: queue, event log and cycles, exported from the ledger.
    agents = _Inside("agents")
    #: Our own repository, from which workspaces are cloned.
    mirror = _Inside("mirror.git")
    engine_lock = _Inside("engine.lock")
    #: The FIFO that wakes the engine.
    wake = _Inside("wake")


def repository_here() -> Path | None:
    """Return the git repository around the current folder, without running git."""
    try:
        here = Path.cwd()
    except OSError:
        # The current folder was removed.
        return None
    return next((folder for folder in (here, *here.parents) if _is_repository(folder)), None)


def _is_repository(folder: Path) -> bool:
    """True for a folder with `.git` in it, and for a bare repository."""
    parts = ("HEAD", "objects", "refs")
    return (folder / ".git").exists() or all((folder / part).exists() for part in parts)


def projects_for(repository: Path) -> list[str]:
    """Return the projects of a repository, in alphabetical order.

    Refused if there is none and the settings of a project cannot be read: it may be the project of
    this repository, and another one must not be used instead.
    """
    wanted = os.path.realpath(repository)
    origin = origin_of(repository)
    names: list[str] = []
    damaged: UsageError | None = None
    for name in project_names():
        try:
            settings = _place_settings(project_path(name) / "config.yml")
        except UsageError as error:
            damaged = damaged or error
            continue
        if _is_place_of(settings, wanted) or is_clone_of(settings, origin):
            names.append(name)
    if damaged is not None and not names:
        raise UsageError(
            f"{damaged}; it may be the project of {repository}",
            hint="correct that file (it was not touched), or say which project with --project NAME",
        )
    return names


def _is_place_of(settings: dict[str, str], wanted: str) -> bool:
    remote = settings.get("forge", "local") != "local"
    place = settings.get("checkout" if remote else "repo", "")
    try:
        return bool(place) and os.path.realpath(Path(place).expanduser()) == wanted
    except RuntimeError:
        # `~name` of a user that does not exist.
        return False


def is_clone_of(settings: dict[str, str], origin: str) -> bool:
    """True if a clone of the repository in the settings has this origin."""
    if not origin or settings.get("forge", "local") == "local":
        return False
    git_url = settings.get("git_url", "")
    if git_url and _address(origin) == _address(git_url):
        return True
    site = settings.get("host", "").partition("://")[2].partition("/")[0].partition(":")[0]
    site = "github.com" if site in ("", "api.github.com") else site.lower()
    host, path = _address(origin)
    return host == site and f"/{path}".endswith(f"/{settings.get('repo', '')}".lower())


_ADDRESS = re.compile(
    r"(?:[a-z+]+://)?(?:[^@/]*@)?([^:/]+)(?::\d+(?=/))?[:/]+(.+?)(?:\.git)?/?", re.IGNORECASE
)


def _address(url: str) -> tuple[str, str]:
    """Return the host and the path of a git address in any notation."""
    match = _ADDRESS.fullmatch(url.strip().lower())
    return (match[1], match[2]) if match else ("", "")


_ORIGIN = re.compile(r'^\s*\[remote "origin"\]\s*\n(?:(?!\s*\[).*\n)*?\s*url\s*=\s*(.+)$', re.M)


def origin_of(repository: Path) -> str:
    """Return the origin of a clone, without running git; empty if there is none."""
    inside = repository / ".git"
    try:
        if inside.is_file():
            # The files of a worktree are in the repository that it belongs to.
            named = read_text(inside).removeprefix("gitdir:").strip()
            inside = Path(repository, named).parent.parent
        match = _ORIGIN.search((inside / "config").read_text("utf-8", "replace"))
    except (OSError, ValueError):
        # A repository that cannot be read has no known origin.
        return ""
    return match[1].strip().strip('"') if match else ""


_ENTRY = re.compile(r"([a-z_]+):(?: (.*))?")
_LIST_ITEM = re.compile(r"- [^'\"|>&*!{\[].*")
_PLAIN = re.compile(r"[A-Za-z/~](?:[\w./~@+ -]|:(?=\S))*|\d+(?:\.\d+){3}:\d+")
_NO_TEXT = re.compile(r"|\d+(\.\d+)?|\[\]|null|true|false")
_WORDS_WITH_MEANING = frozenset({"true", "false", "yes", "no", "on", "off", "null"})


def plain_settings(config_file: Path) -> dict[str, str] | None:
    """Return the text settings of a file in the form that Caloron writes, without a YAML library.

    None for any other file: the caller loads it with `projects`.
    """
    settings: dict[str, str] = {}
    try:
        lines = config_file.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        # The YAML parser reports the error.
        return None
    for line in lines:
        if entry := _ENTRY.fullmatch(line):
            key, value = entry[1], (entry[2] or "").strip()
            if (text := _plain_value(value)) is not None:
                settings[key] = text
            elif not _NO_TEXT.fullmatch(value):
                return None
        elif not _LIST_ITEM.fullmatch(line):
            return None
    return settings


def _plain_value(value: str) -> str | None:
    """Return a text in the form that Caloron writes; None for anything else."""
    if value[:1] == "'" and value[1:].endswith("'"):
        return value[1:-1].replace("''", "'")
    if value[:1] == '"':
        with suppress(ValueError):
            return str(json.loads(value))
        # YAML has escapes that JSON does not have.
        return None
    is_text = _PLAIN.fullmatch(value) and value.lower() not in _WORDS_WITH_MEANING
    return value if is_text else None


def _place_settings(config_file: Path) -> dict[str, str]:
    """Return the settings about the repository; a `UsageError` if the file is damaged.

    The YAML library is loaded only for a file that Caloron did not write in this form.
    """
    try:
        if settings := plain_settings(config_file):
            return settings
    except FileNotFoundError:
        return {}
    except OSError:
        # The YAML parser reports the error.
        pass
    from caloron.ledger.settings import read_settings

    try:
        raw = read_settings(config_file)
    except CaloronError as error:
        raise UsageError(str(error)) from error
    if not raw or not isinstance(raw.get("repo") or "", str):
        problem = f"has the repository {raw['repo']!r}" if raw else "has no settings"
        raise UsageError(f"{config_file} {problem}")
    return {key: value for key, value in raw.items() if isinstance(value, str)}


def forge_kind(config_file: Path) -> str:
    return _place_settings(config_file).get("forge", "local")


def project_here() -> str | None:
    """Return the project of the current folder; None if there is none.

    The folder is in the project's own folder or in its repository. Of several projects of one
    repository, the active one is used.
    """
    if inside := _project_around():
        return inside
    repository = repository_here()
    own = projects_for(repository) if repository else []
    if len(own) <= 1:
        return own[0] if own else None
    active = active_project_name() if (home() / "active").exists() else ""
    if active not in own:
        raise UsageError(
            f"{repository} has several projects: {', '.join(own)}",
            hint="say which one with --project NAME, or caloron project switch NAME",
        )
    return active


def _project_around() -> str | None:
    """Return the project whose folder in the home contains the current folder."""
    try:
        inside = Path.cwd().relative_to(projects_directory().resolve()).parts[:1]
    except (OSError, ValueError):
        # The current folder is elsewhere, or was removed.
        return None
    return inside[0] if inside and inside[0] in project_names() else None


def current_project_name() -> str:
    """Return the project that commands use when none is named.

    In a repository it is the project of this repository and never another one; outside of any
    repository it is the active project.
    """
    if own := project_here():
        return own
    if repository := repository_here():
        others = f"; another project: --project NAME ({_known()})" if project_names() else ""
        raise NotFound(
            f"{repository} has no project yet",
            hint=f'`caloron sprint "<goal>"` makes one here{others}',
        )
    return active_project_name()


def has_current_project() -> bool:
    """True if `current_project_name` finds a project."""
    return bool(project_here()) or (repository_here() is None and (home() / "active").exists())


#: Called with the active project when a command uses it because its folder has none: the command
#: line prints which project it is.
on_fallback: list[Callable[[ProjectPaths], None]] = []
#: The project that was found last, for reports about internal errors.
found_last: list[ProjectPaths] = []


def find_project(name: str | None = None, *, need_ledger: bool = True) -> ProjectPaths:
    """Return the named project, else that of the folder, else the active one.

    A project whose ledger is lost is refused, unless the command does not need it.
    """
    wanted = name if name is not None else current_project_name()
    paths = ProjectPaths(wanted, project_path(wanted))
    if not paths.config_file.is_file():
        raise NotFound(f"there is no project {wanted!r} in {home()}", hint=_known())
    log.write_to(log.log_of(paths.path))
    found_last[:] = [paths]
    if need_ledger:
        _refuse_lost_ledger(paths)
    if name is None and repository_here() is None and _project_around() is None:
        for announce in on_fallback:
            announce(paths)
    return paths


def _refuse_lost_ledger(paths: ProjectPaths) -> None:
    """Refuse a project without its ledger: it would look like one without sprints."""
    try:
        lost = "" if paths.ledger.stat().st_size else "is empty"
    except FileNotFoundError:
        lost = "is gone"
    if lost and paths.ledger_id.exists():
        from caloron.store.database import restore_hint

        raise PreconditionFailed(
            f"the ledger of project {paths.name} {lost}: {paths.ledger}",
            hint=f"{restore_hint(paths.ledger)}; without a backup, `caloron apply --project"
            f" {paths.name}` still brings the merged work to your repository",
        )


def repository_of(project: ProjectPaths) -> str:
    """Return the repository of a project for people; empty if it has only its forge's own."""
    try:
        settings = _place_settings(project.config_file)
    except UsageError:
        # The command that loads the settings reports the damage.
        return ""
    repo, host = settings.get("repo", ""), settings.get("host", "")
    return f"{repo} at {host}" if repo and host else repo


def project_names(*, valid: bool = True) -> list[str]:
    """Return the names of all projects, in alphabetical order.

    With `valid=False`, those with names that cannot be used; the older program allowed any.
    """
    directory = projects_directory()
    return sorted(
        entry.name
        for entry in (directory.iterdir() if directory.is_dir() else ())
        if is_valid_id(entry.name) == valid
        and (valid or not entry.name.startswith("."))
        and (entry / "config.yml").is_file()
    )


def _known() -> str:
    names = project_names()
    return f"known projects: {', '.join(names)}" if names else "make one: caloron init NAME"


def project_of_sprint(sprint: object) -> ProjectPaths:
    if not isinstance(sprint, str):
        raise UsageError("`sprint_id` is no text")
    name = require_id(sprint, "sprint").rpartition("-")[0]
    paths = ProjectPaths(name, project_path(name)) if name else None
    if paths is None or not paths.ledger.exists():
        raise NotFound(f"there is no sprint {sprint}", hint="caloron history")
    return paths
