"""Projects: what the user decided about each, and how one comes to be."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import yaml
from msgspec import Meta

from caloron.errors import AlreadyExists, NotFound, PreconditionFailed, StoreError, UsageError
from caloron.ids import ID_FORM, ID_WORDS
from caloron.ledger.given import NAMES_OF_SECRETS, looks_like_secret, shown
from caloron.ledger.locate import (
    ProjectPaths,
    find_project,
    home,
    project_names,
    project_path,
    projects_directory,
    require_id,
)
from caloron.store.files import write_atomic

__all__ = [
    "Project",
    "ProjectConfig",
    "create_project",
    "home",
    "list_projects",
    "load_project",
    "parse_setting",
    "read_settings",
    "save_config",
    "set_active",
]

_DAY = 86_400.0
_PORT = r"\d{1,4}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5]"
_FORGE_NAME = re.compile(r"[\w.-]+/[\w.-]+")

Name = Annotated[
    str,
    Meta(pattern=rf"^{ID_FORM}\Z", description=ID_WORDS),
]
Text = Annotated[str, Meta(description="text")]
Line = Annotated[str, Meta(pattern=r"^[^\r\n\x00]*\Z", description="one line of text")]
Words = Annotated[list[str], Meta(description="a list of words")]
Slots = Annotated[int, Meta(ge=1, le=256, description="a whole number from 1 to 256")]
Rounds = Annotated[int, Meta(ge=0, le=100, description="a whole number from 0 to 100")]
Megabytes = Annotated[int, Meta(ge=1, le=4096, description="a whole number from 1 to 4096")]
Amount = Annotated[int, Meta(ge=1, le=1 << 24, description="a whole number above 0")]
Pool = Annotated[int, Meta(ge=0, le=64, description="a whole number from 0 to 64")]
Dollars = Annotated[
    float, Meta(gt=0, le=1e6, description="a number of dollars above 0, at most a million")
]
ForgeKind = Annotated[
    Literal["local", "gitea", "github"], Meta(description="one of local, gitea and github")
]
#: Neither a password nor a token may stand in an address: `token_env` and `token_file` are for it.
WebAddress = Annotated[
    str,
    Meta(
        pattern=r"^(https?://[^\s/@?#]+(/[^\s@?#]*)?)?\Z",
        description="a web address such as https://git.example.org, without a name in it",
    ),
]
GitAddress = Annotated[
    str,
    Meta(
        pattern=r"^(?!-)(?!\w+://[^/@]*:[^/@]*@)\S*\Z",
        description="an address for git such as git@host:owner/name.git, without a password in it",
    ),
]
Variable = Annotated[
    str,
    Meta(
        pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?\Z",
        description="the name of an environment variable (not its value)",
    ),
]
Listen = Annotated[
    str,
    Meta(
        pattern=rf"^(([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):({_PORT}))?\Z",
        description="an address to listen on such as 127.0.0.1:9443, with a port up to 65535",
    ),
]
NetworkPolicy = Annotated[
    Literal["full", "none", "model"], Meta(description="one of full, none and model")
]
RetroBy = Annotated[
    Literal["auto", "rules", "model"], Meta(description="one of auto, rules and model")
]
Seconds = Annotated[
    float, Meta(gt=0, le=30 * _DAY, description="a number of seconds above 0, at most 30 days")
]
Minutes = Annotated[
    float, Meta(gt=0, le=43_200, description="a number of minutes above 0, at most 30 days")
]


class ProjectConfig(msgspec.Struct, kw_only=True):
    """What `config.yml` of a project says; every field has a default but the name."""

    name: Name
    #: The user's own repository when the forge is local, else `owner/name` on the forge.
    repo: Line = ""
    forge: ForgeKind = "local"
    #: Where the forge is: its API root, or the address of its pages.
    host: WebAddress = ""
    #: Who acts there: a token in a variable or a file; neither: git's credential helper knows it.
    token_env: Variable = ""
    token_file: Line = ""
    #: The second account, whose reviews count as such on the forge.
    reviewer_token_env: Variable = ""
    reviewer_token_file: Line = ""
    #: Certificates that the forge's own is signed by, if the system does not know them.
    ca_file: Line = ""
    #: Where git fetches and pushes instead of the forge's https address, such as over SSH.
    git_url: GitAddress = ""
    #: A clone of the repository on this disk, for `caloron take` and commands given inside it.
    checkout: Line = ""
    #: Logins that may give commands on the forge; empty: its owner and those who may write to it.
    people: Words = msgspec.field(default_factory=list)
    #: Where the forge's webhooks are heard; empty: nowhere.
    webhook: Listen = ""
    webhook_secret_env: Variable = ""
    backend: Line = "direct"
    framework: Line = "stub"
    work_dir: Line = ""
    created_at: Line = ""
    #: One shell line that tests the merged result; empty: found out; `none`: nothing is verified.
    verify: Line = ""
    parallel: Slots = 4
    #: The argv of framework `command`.
    command: Words = msgspec.field(default_factory=list)
    stub_fixture: Line = ""
    timeout_s: Seconds = 1800.0
    po_timeout_s: Seconds = 900.0
    verify_timeout_s: Seconds = 900.0
    stall_threshold_m: Minutes = 20.0
    probe_grace_s: Seconds = 300.0
    max_fix_rounds: Rounds = 3
    lease_s: Seconds = 30.0
    poll_s: Seconds = 1.0
    output_cap_mb: Megabytes = 64
    #: Names of environment variables that agents get, such as the key of their model.
    pass_env: Words = msgspec.field(default_factory=list)
    git_name: Line = ""
    git_email: Line = ""
    #: One shell line that installs what the project needs; empty: found out; `none`: nothing.
    setup: Line = ""
    setup_timeout_s: Seconds = 1800.0
    #: What agents reach: `model` (the hosts of their model and `allow_hosts`), `full`, `none`.
    network: NetworkPolicy = "model"
    #: Other policies by role, as `role=policy`.
    network_roles: Words = msgspec.field(default_factory=lambda: ["setup=full", "verify=none"])
    #: Hosts besides those of the model: `host`, `host:port`, `*.domain`, `127.0.0.1:port`.
    allow_hosts: Words = msgspec.field(default_factory=list)
    #: Files and folders outside the workspace that agents may read.
    read_only: Words = msgspec.field(default_factory=list)
    memory_mb: Amount = 4096
    max_processes: Amount = 512
    max_file_mb: Amount = 2048
    disk_mb: Amount = 10_240
    #: What a sprint, and one run of an agent, may cost.
    budget_usd: Dollars = 20.0
    run_budget_usd: Dollars = 2.0
    #: The model that agents use; empty: the framework's own choice. By role: `role=model`.
    model: Line = ""
    model_roles: Words = msgspec.field(default_factory=list)
    #: Who writes the retro: `rules` alone, or a `model` besides; `auto`: a model where one drives
    #: the framework, and is paid from the same budget.
    retro: RetroBy = "auto"
    #: Workspaces that are made ready before they are needed.
    pool: Pool = 2


FIELDS = {field.name: field for field in msgspec.structs.fields(ProjectConfig)}


@dataclass(frozen=True)
class Project(ProjectPaths):
    """A project of this home: its files and its configuration."""

    config: ProjectConfig

    @property
    def workspace(self) -> Path:
        """Where agents work and learnings are kept: `work_dir`, or beside the ledger."""
        chosen = self.config.work_dir
        if not chosen or self.lost_work_dir:
            return self.path / "workspace"
        return Path(chosen).expanduser()

    @property
    def lost_work_dir(self) -> str:
        """A `work_dir` that is not there while its files are beside the ledger; else empty.

        An older Caloron wrote out where its home was, which a home that was moved still says.
        """
        chosen = self.config.work_dir
        if not chosen or _is_folder(Path(chosen).expanduser()):
            return ""
        usual = Path(chosen).parts[-3:] == ("projects", self.name, "workspace")
        return chosen if usual or _is_folder(self.path / "workspace") else ""

    @property
    def is_remote(self) -> bool:
        """Whether its forge is another program, reached over the network."""
        return self.config.forge != "local"

    @property
    def git_here(self) -> Path:
        """The repository on this disk that has what is on the forge: it, or our copy of it."""
        return self.mirror if self.is_remote else self.forge_git

    @property
    def repository(self) -> Path | None:
        """The user's own repository; None if there is none on this disk.

        An older Caloron kept the name that the repository has on a forge in that setting.
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
        return False


def create_project(config: ProjectConfig, furnish: Callable[[Path], None] | None = None) -> Project:
    """Make a project whole or not at all; `furnish` adds what other rooms keep in it.

    It is built beside its place and moved there in one step, so that a crash leaves nothing
    that looks like a project, and the next try starts from nothing.
    """
    place = project_path(config.name)
    if place.exists():
        raise _taken(config.name, place)
    _remove_remains(config.name)
    config.created_at = config.created_at or datetime.now(UTC).isoformat(timespec="seconds")
    scaffold = place.with_name(f".init-{config.name}-{os.getpid()}")
    try:
        # Goals, prompts and logs are nobody else's business.
        home().mkdir(mode=0o700, parents=True, exist_ok=True)
        scaffold.mkdir(parents=True)
        if furnish is not None:
            furnish(scaffold)
        project = Project(config.name, scaffold, config)
        save_config(project)
        scaffold.rename(place)
    except OSError as error:
        if place.exists():
            raise _taken(config.name, place) from error
        raise StoreError(
            f"cannot make project {config.name!r} in {place}: {error.strerror}",
            hint="make that place writable for you, or choose another with CALORON_HOME",
        ) from error
    finally:
        shutil.rmtree(scaffold, ignore_errors=True)
    return Project(config.name, place, config)


def _taken(name: str, place: Path) -> Exception:
    if (place / "config.yml").is_file():
        return AlreadyExists(
            f"project {name!r} exists already in {place}",
            hint=f"use it with --project {name}, or choose another name",
        )
    return PreconditionFailed(
        f"{place} exists but holds no config.yml",
        hint="move that directory aside, then try again; nothing was changed",
    )


def _remove_remains(name: str) -> None:
    """What an `init` that was killed left behind."""
    for remains in projects_directory().glob(f".init-{name}-*"):
        pid = remains.name.rpartition("-")[2]
        if remains.name == f".init-{name}-{pid}" and not Path("/proc", pid).exists():
            shutil.rmtree(remains, ignore_errors=True)


def load_project(name: str | None = None) -> Project:
    """The named project, or the active one."""
    paths = find_project(name)
    raw = read_settings(paths.config_file)
    raw.setdefault("name", paths.name)
    return Project(paths.name, paths.path, _typed(raw, paths.config_file))


def list_projects() -> list[Project]:
    """Every project of this home, in alphabetical order."""
    return [load_project(name) for name in project_names()]


def set_active(name: str) -> None:
    """Let commands act on this project when none is named."""
    paths = find_project(require_id(name, "project name"))
    write_atomic(home() / "active", f"{paths.name}\n".encode())


def save_config(project: Project) -> None:
    """Write the configuration; keys that are not ours stay as they are in the file."""
    raw = read_settings(project.config_file) if project.config_file.exists() else {}
    config = msgspec.structs.asdict(project.config)
    _typed(config, project.config_file)
    raw.update(config)
    text = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True, width=10_000)
    write_atomic(project.config_file, text.encode())


def parse_setting(key: str, text: str) -> Any:
    """The value of a key as a user types it on a command line."""
    if key not in FIELDS:
        raise NotFound(f"there is no setting {key!r}", hint=f"known: {', '.join(FIELDS)}")
    if key in NAMES_OF_SECRETS and looks_like_secret(text):
        raise UsageError(
            f"what was given for {key} looks like a token itself, so it is not repeated here",
            hint="give the name of the variable, or of the file, that holds the token;"
            " nothing was changed",
        )
    kind = get_args(FIELDS[key].type)[0]
    value: Any = text
    try:
        if kind in (int, float):
            value = kind(text)
        elif get_origin(kind) is list:
            value = _split(text)
    except ValueError as error:
        raise _bad_value(key, text, "") from error
    return _checked(key, value, "")


def _split(text: str) -> list[str]:
    import shlex

    return shlex.split(text)


def read_settings(file: Path) -> dict[str, Any]:
    """What a config file says, its types not looked at; says where it is not YAML."""
    try:
        raw = yaml.load(file.read_text("utf-8"), Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise UsageError(
            f"{file}{line} is not YAML: {error.problem or error.context}",
            hint="correct that line; the file was not touched",
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{file} is not YAML text: {error}", hint="correct it; the file was not touched"
        ) from error
    except OSError as error:
        raise StoreError(
            f"cannot read {file}: {error.strerror}", hint="make it readable for you"
        ) from error
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        raise UsageError(
            f"{file} holds a {type(raw).__name__}; expected lines of `key: value`",
            hint="correct it; the file was not touched",
        )
    return raw


class _Loader(yaml.SafeLoader):
    """YAML whose times stay text: a time is only ever shown."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _typed(raw: dict[str, Any], file: Path) -> ProjectConfig:
    given = {key: raw[key] for key in FIELDS if raw.get(key) is not None}
    checked = {key: _checked(key, value, f"{file}: ") for key, value in given.items()}
    return ProjectConfig(**checked)


def _checked(key: str, value: Any, where: str) -> Any:
    try:
        return msgspec.convert(value, FIELDS[key].type)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        # The latter: bytes that are no text cannot be compared with the words of a choice.
        raise _bad_value(key, value, where) from error


def _bad_value(key: str, value: Any, where: str) -> UsageError:
    expected = next(m.description for m in get_args(FIELDS[key].type) if isinstance(m, Meta))
    given = shown(key, value) or "something else, which is not repeated here"
    return UsageError(
        f"{where}setting {key} is {given}; expected {expected}", hint="nothing was changed"
    )
