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
    #: The user's own repository when the forge is local, else `owner/name` on the forge.
    repo: Line = ""
    forge: ForgeKind = "local"
    #: The API root of the forge, or the address of its pages.
    host: WebAddress = ""
    #: The token of our account, in a variable or a file; neither: git's credential helper.
    token_env: Variable = ""
    token_file: Line = ""
    #: The second account, whose reviews count as such on the forge.
    reviewer_token_env: Variable = ""
    reviewer_token_file: Line = ""
    #: Certificates that signed the forge's own, if the system does not have them.
    ca_file: Line = ""
    #: The address for git, such as over SSH, instead of the forge's https address.
    git_url: GitAddress = ""
    #: A clone of the repository on this disk, for `caloron apply` and commands given inside it.
    checkout: Line = ""
    #: Logins that may give commands on the forge; empty: its owner and accounts with write access.
    people: Words = msgspec.field(default_factory=list)
    #: The address for the forge's webhooks; empty: none.
    webhook: Listen = ""
    webhook_secret_env: Variable = ""
    backend: Line = "direct"
    framework: Line = "stub"
    work_dir: Line = ""
    created_at: Line = ""
    #: One shell line that tests the merged result; empty: detected; `none`: nothing is verified.
    verify: Line = ""
    parallel: Slots = 4
    #: The argv of framework `command`.
    command: Words = msgspec.field(default_factory=list)
    stub_fixture: Line = ""
    timeout_s: Seconds = 1800.0
    planner_timeout_s: Seconds = 900.0
    verify_timeout_s: Seconds = 900.0
    stall_threshold_m: Minutes = 20.0
    probe_grace_s: Seconds = 300.0
    max_fix_rounds: Rounds = 3
    #: How a change gets onto main: a `merge` commit, one commit (`squash`), or its own (`rebase`).
    merge_style: MergeStyle = "merge"
    #: A person has to approve each merge, besides the reviewing agent.
    require_human_review: YesNo = False
    lease_s: Seconds = 30.0
    poll_s: Seconds = 1.0
    output_cap_mb: Megabytes = 64
    #: Environment variables that agents get, such as the key of their model.
    pass_env: Words = msgspec.field(default_factory=list)
    git_name: Line = ""
    git_email: Line = ""
    #: One shell line that installs dependencies; empty: detected; `none`: nothing.
    setup: Line = ""
    setup_timeout_s: Seconds = 1800.0
    #: The network of agents: `model` (the hosts of their model and `allow_hosts`), `full`, `none`.
    network: NetworkPolicy = "model"
    #: Other policies by role, as `role=policy`.
    network_roles: Words = msgspec.field(default_factory=lambda: ["setup=public", "verify=none"])
    #: Hosts besides those of the model: `host`, `host:port`, `*.domain`, `127.0.0.1:port`.
    allow_hosts: Words = msgspec.field(default_factory=list)
    #: Files and folders outside the workspace that agents may read.
    read_only: Words = msgspec.field(default_factory=list)
    memory_mb: Amount = 4096
    max_processes: Amount = 512
    max_file_mb: Amount = 2048
    disk_mb: Amount = 10_240
    #: The largest cost of a sprint, and of one attempt.
    budget_usd: Dollars = 20.0
    run_budget_usd: Dollars = 2.0
    #: The model that agents use; empty: the framework's own choice. By role: `role=model`.
    model: Line = ""
    model_roles: Words = msgspec.field(default_factory=list)
    #: The author of the retro: `rules` alone, or also a `model`; `auto`: a model if one drives
    #: the framework.
    retro: RetroBy = "auto"
    #: When the terminal of a sprint is closed: stop it, or continue it in the background.
    on_hangup: OnHangup = "stop"
    #: Workspaces that are prepared in advance.
    pool: Pool = 2


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
