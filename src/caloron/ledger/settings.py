"""The settings of a project: every key, its type, and how the file is read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import yaml
from msgspec import Meta

from caloron.domain.model.merge import MergeStyle
from caloron.errors import NotFound, StoreError, UsageError
from caloron.ids import ID_FORM, ID_WORDS

#: Settings that name the place of a secret. Users paste tokens here, so never echo such a value.
SECRET_SETTINGS = (
    "token_env",
    "token_file",
    "reviewer_token_env",
    "reviewer_token_file",
    "webhook_secret_env",
)

_SECRET = re.compile(
    r"(?:gh[pousr]_|github_pat_|glpat-)\w+"
    r"|[0-9a-fA-F]{32,}"
    # 20 or more characters with capitals, small letters and two digits: not a name.
    r"|(?=.*[A-Z])(?=.*[a-z])(?=(?:.*\d){2})[A-Za-z0-9_+=-]{20,}"
)
#: The name, password or token in front of the host of an address.
_USER = re.compile(r"[^\s/@'\"]+@")


def looks_like_secret(text: str) -> bool:
    """True if a text has the form of a token."""
    return _SECRET.fullmatch(text.strip()) is not None


def printable_value(key: str, value: object) -> str:
    """Return a refused value for a message; empty if it may be a secret."""
    text = value if isinstance(value, str) else repr(value)
    if key in SECRET_SETTINGS or looks_like_secret(text):
        return ""
    if key in ("host", "git_url", "repo"):
        text = _USER.sub("***@", text)
    return repr(text) if isinstance(value, str) else text


def _text(pattern: str, description: str) -> Meta:
    return Meta(pattern=pattern, description=description)


def _whole(low: int, high: int) -> Meta:
    return Meta(ge=low, le=high, description=f"a whole number from {low} to {high}")


def _number(of: str, most: float, most_in_words: str) -> Meta:
    description = f"a number of {of} above 0, at most {most_in_words}"
    return Meta(gt=0, le=most, description=description)


_PORT = r"\d{1,4}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5]"

Name = Annotated[str, _text(rf"^{ID_FORM}\Z", ID_WORDS)]
Line = Annotated[str, _text(r"^[^\r\n\x00]*\Z", "one line of text")]
Words = Annotated[list[str], Meta(description="a list of words")]
Slots = Annotated[int, _whole(1, 256)]
YesNo = Annotated[bool, Meta(description="true or false")]
Rounds = Annotated[int, _whole(0, 100)]
Megabytes = Annotated[int, _whole(1, 4096)]
Amount = Annotated[int, Meta(ge=1, le=1 << 24, description="a whole number above 0")]
Pool = Annotated[int, _whole(0, 64)]
Dollars = Annotated[float, _number("dollars", 1e6, "a million")]
Seconds = Annotated[float, _number("seconds", 30 * 86_400.0, "30 days")]
Minutes = Annotated[float, _number("minutes", 30 * 1440.0, "30 days")]
ForgeKind = Literal["local", "gitea", "github"]
NetworkPolicy = Literal["full", "none", "model", "public"]
OnHangup = Literal["stop", "continue"]
RetroBy = Literal["auto", "rules", "model"]
#: An address must not contain a password or token: `token_env` and `token_file` are for that.
WebAddress = Annotated[
    str,
    _text(
        r"^(https?://[^\s/@?#]+(/[^\s@?#]*)?)?\Z",
        "a web address such as https://git.example.org, without a name in it",
    ),
]
GitAddress = Annotated[
    str,
    _text(
        r"^(?!-)(?!\w+://[^/@]*:[^/@]*@)\S*\Z",
        "an address for git such as git@host:owner/name.git, without a password in it",
    ),
]
Variable = Annotated[
    str,
    _text(r"^([A-Za-z_][A-Za-z0-9_]*)?\Z", "the name of an environment variable (not its value)"),
]
Listen = Annotated[
    str,
    _text(
        rf"^(([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):({_PORT}))?\Z",
        "an address to listen on such as 127.0.0.1:9443, with a port up to 65535",
    ),
]


class ProjectConfig(msgspec.Struct, kw_only=True):
    """The content of a project's `config.yml`; every field but the name has a default."""

    name: Name
    repo: Line = ""
    forge: ForgeKind = "local"
    host: WebAddress = ""
    token_env: Variable = ""
    token_file: Line = ""
    reviewer_token_env: Variable = ""
    reviewer_token_file: Line = ""
    ca_file: Line = ""
    git_url: GitAddress = ""
    checkout: Line = ""
    people: Words = msgspec.field(default_factory=list)
    webhook: Listen = ""
    webhook_secret_env: Variable = ""
    backend: Line = "direct"
    framework: Line = "stub"
    work_dir: Line = ""
    created_at: Line = ""
    verify: Line = ""
    parallel: Slots = 4
    command: Words = msgspec.field(default_factory=list)
    stub_fixture: Line = ""
    timeout_s: Seconds = 1800.0
    planner_timeout_s: Seconds = 900.0
    verify_timeout_s: Seconds = 900.0
    stall_threshold_m: Minutes = 20.0
    probe_grace_s: Seconds = 300.0
    max_fix_rounds: Rounds = 3
    merge_style: MergeStyle = "merge"
    require_human_review: YesNo = False
    lease_s: Seconds = 30.0
    poll_s: Seconds = 1.0
    output_cap_mb: Megabytes = 64
    pass_env: Words = msgspec.field(default_factory=list)
    git_name: Line = ""
    git_email: Line = ""
    setup: Line = ""
    setup_timeout_s: Seconds = 1800.0
    network: NetworkPolicy = "model"
    network_roles: Words = msgspec.field(default_factory=lambda: ["setup=public", "verify=none"])
    allow_hosts: Words = msgspec.field(default_factory=list)
    read_only: Words = msgspec.field(default_factory=list)
    memory_mb: Amount = 4096
    max_processes: Amount = 512
    max_file_mb: Amount = 2048
    disk_mb: Amount = 10_240
    budget_usd: Dollars = 20.0
    run_budget_usd: Dollars = 2.0
    model: Line = ""
    model_roles: Words = msgspec.field(default_factory=list)
    retro: RetroBy = "auto"
    on_hangup: OnHangup = "stop"
    pool: Pool = 2


#: What each setting means, in the order of the file.
DESCRIPTIONS = {
    "name": "name of the project",
    "repo": "your repository: a folder for the local forge, else OWNER/NAME on the forge",
    "forge": "where issues, pull requests and merges are",
    "host": "API root or address of the forge",
    "token_env": "variable with the token of the account that writes",
    "token_file": "file with that token; without both, git's credential helper is asked",
    "reviewer_token_env": "variable with the token of the account that reviews",
    "reviewer_token_file": "file with that token",
    "ca_file": "certificates that signed the forge's own",
    "git_url": "address for git, such as over SSH",
    "checkout": "your clone on this disk, for `caloron apply`",
    "people": "who may command on the forge; empty: accounts with write access",
    "webhook": "address for the forge's webhooks",
    "webhook_secret_env": "variable with the secret that signs webhooks",
    "backend": "where the state is kept",
    "framework": "agent CLI that works on tasks",
    "work_dir": "folder of the project's files",
    "created_at": "when the project was created",
    "verify": "shell line that tests a result; `none`: nothing is verified",
    "parallel": "agents at the same time",
    "command": "command line of framework `command`",
    "stub_fixture": "script of framework `stub`",
    "timeout_s": "seconds until an agent is probed and restarted",
    "planner_timeout_s": "longest run of the planner",
    "verify_timeout_s": "longest run of a verification",
    "stall_threshold_m": "minutes of silence until an agent is probed",
    "probe_grace_s": "seconds to answer a probe",
    "max_fix_rounds": "fix rounds before a person is asked",
    "merge_style": "how a change gets onto main: a merge commit, one commit, or its own",
    "require_human_review": "a person approves each merge",
    "lease_s": "seconds that work stays with an agent that does not renew it",
    "poll_s": "seconds between two polls of the forge",
    "output_cap_mb": "kept part of an agent's output",
    "pass_env": "variables that agents get, such as the key of their model",
    "git_name": "author of commits",
    "git_email": "address of that author",
    "setup": "shell line that installs dependencies; `none`: nothing",
    "setup_timeout_s": "longest run of setup",
    "network": "network of agents; `model`: hosts of their model and allow_hosts",
    "network_roles": "other networks, as role=policy",
    "allow_hosts": "more hosts: host, host:port or *.domain",
    "read_only": "files and folders outside the workspace that agents may read",
    "memory_mb": "memory of one sandbox",
    "max_processes": "processes of one sandbox",
    "max_file_mb": "largest file in a sandbox",
    "disk_mb": "disk space of one sandbox",
    "budget_usd": "largest cost of a sprint",
    "run_budget_usd": "largest cost of one attempt",
    "model": "model of the agents; empty: the framework's choice",
    "model_roles": "other models, as role=model",
    "retro": "author of the retro; `auto`: a model if one drives the framework",
    "on_hangup": "what a closed terminal does to its sprint: `stop` or `continue`",
    "pool": "workspaces that are prepared in advance",
}
#: Earlier names of settings, which are still accepted.
RENAMED = {"po_timeout_s": "planner_timeout_s"}
FIELDS = {field.name: field for field in msgspec.structs.fields(ProjectConfig)}


def setting_name(key: str) -> str:
    """Return the present name of a setting; refused if there is no such setting."""
    name = RENAMED.get(key, key)
    if name not in FIELDS:
        from difflib import get_close_matches

        close = get_close_matches(key[:100], FIELDS, 1)
        hint = f"did you mean {close[0]}?" if close else "caloron config list shows them"
        raise NotFound(f"there is no setting {key!r}", hint=hint)
    return name


def parse_setting(key: str, text: str) -> Any:
    """Parse the value of a key from the command line."""
    key = setting_name(key)
    if key in SECRET_SETTINGS and looks_like_secret(text):
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
        elif kind is bool:
            value = {"true": True, "false": False}.get(text.lower(), text)
        elif get_origin(kind) is list:
            import shlex

            value = shlex.split(text)
    except ValueError as error:
        raise _bad_value(key, text, "") from error
    return _checked(key, value, "")


def read_settings(file: Path) -> dict[str, Any]:
    """Read a settings file without checking types; report where it is not YAML."""
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
    """A YAML loader that leaves times as text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def typed(raw: dict[str, Any], file: Path) -> ProjectConfig:
    """Return the settings with their types; a `UsageError` names the first bad value."""
    named = {RENAMED.get(key, key): value for key, value in raw.items()}
    present = {key: named[key] for key in FIELDS if named.get(key) is not None}
    checked = {key: _checked(key, value, f"{file}: ") for key, value in present.items()}
    return ProjectConfig(**checked)


def _checked(key: str, value: Any, where: str) -> Any:
    try:
        return msgspec.convert(value, FIELDS[key].type)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        # The latter: bytes that are no text cannot be compared with the words of a choice.
        raise _bad_value(key, value, where) from error


def _bad_value(key: str, value: Any, where: str) -> UsageError:
    printable = printable_value(key, value) or "something else, which is not repeated here"
    hint = "nothing was changed"
    if key == "host" and isinstance(value, str) and "://" not in value:
        hint = f"put https:// or http:// before it; {hint}"
    message = f"{where}setting {key} is {printable}; expected {_expected(key)}"
    return UsageError(message, hint=hint)


def _expected(key: str) -> str:
    """Return the description of the values that a setting can have."""
    arguments = get_args(FIELDS[key].type)
    for argument in arguments:
        if isinstance(argument, Meta):
            return argument.description or ""
    return f"one of {', '.join(arguments[:-1])} and {arguments[-1]}"
