"""The settings of the shell and of a harness, read from the environment and checked."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from caloron.agents.clis.registry import INFOS, require_framework
from caloron.domain.model.plan import DEFAULT_FRAMEWORK
from caloron.errors import NotFound, PreconditionFailed, UsageError

PORT = "CALORON_SHELL_PORT"
TOKEN = "CALORON_SHELL_TOKEN"
ROOT = "CALORON_SHELL_ROOT"
_PORT = 7710
_LARGEST_PORT = 65535


class ShellSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The port and token of the shell, and the folder of its agents."""

    port: int
    token: str
    #: All repositories and worktrees are inside this folder.
    root: Path

    def __repr__(self) -> str:
        return f"ShellSettings(port={self.port}, root={self.root})"


def shell_settings(environment: Mapping[str, str]) -> ShellSettings:
    """Read and check the settings of the shell."""
    return ShellSettings(
        port=_port(environment.get(PORT, "")),
        token=_token(environment.get(TOKEN, "")),
        root=_root(environment.get(ROOT, "")),
    )


def _port(value: str) -> int:
    if not value:
        return _PORT
    if not (value.isascii() and value.isdecimal() and int(value) <= _LARGEST_PORT):
        raise UsageError(
            f"{PORT} is {value!r}, which is not a port",
            hint=f"use a number from 0 (any free port) to {_LARGEST_PORT}, or leave it unset for "
            f"{_PORT}",
        )
    return int(value)


def _token(value: str) -> str:
    if not value:
        raise PreconditionFailed(
            f"{TOKEN} is not set: without it every user of this machine could start agents",
            hint=f'export {TOKEN}="$(openssl rand -hex 32)", for the shell and its clients',
        )
    if not (value.isascii() and value.isprintable()) or value != value.strip():
        raise UsageError(
            f"{TOKEN} has characters that no HTTP header can contain",
            hint="use printable ASCII without spaces around it",
        )
    return value


def _root(value: str) -> Path:
    root = Path(value or ".").expanduser()
    if not root.is_dir():
        raise UsageError(f"{ROOT} is {value!r}, which is not a folder", hint="name an existing one")
    return root.resolve()


ALLOW_DANGEROUS = INFOS["claude-code"].full_access_env
DANGEROUS = "--dangerously-skip-permissions"
_YES = ("1", "true", "yes", "on")
_ID = re.compile(r"[a-z0-9_-]{1,64}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_SECRETS = 1 << 20


class HarnessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One agent: its task, its framework, its folder, and the shell it reports to."""

    agent: str
    role: str
    task: str
    sprint: str
    worktree: Path
    run_dir: Path
    shell_url: str = ""
    token: str = ""
    system_prompt: str = ""
    task_description: str = ""
    #: The framework, and its command line if it is `command`.
    framework: str = DEFAULT_FRAMEWORK
    command: tuple[str, ...] = ()
    stub_fixture: str = ""
    allow_dangerous: bool = False
    secrets_file: str = ""
    #: The source of the workspace and the target of its commits; empty: they stay there.
    mirror: str = ""
    repository: str = ""
    branch: str = ""
    base: str = ""

    def __repr__(self) -> str:
        return f"HarnessSettings(agent={self.agent!r}, task={self.task!r})"


def harness_settings(environment: Mapping[str, str], runs: Path) -> HarnessSettings:
    """Read and check the settings; `runs` is the default parent of the run directory."""
    get = environment.get
    role = _id(get("CALORON_AGENT_ROLE") or "unknown", "CALORON_AGENT_ROLE")
    agent = _id(get("CALORON_AGENT_ID") or role, "CALORON_AGENT_ID")
    url, token = get("CALORON_SHELL_URL", ""), get("CALORON_SHELL_TOKEN", "")
    if url and not token:
        raise PreconditionFailed(
            "CALORON_SHELL_URL is set without CALORON_SHELL_TOKEN: heartbeats would be refused",
            hint="export the token of the shell, or leave both unset",
        )
    dangerous = get(ALLOW_DANGEROUS, "").strip().lower() in _YES
    framework, command = _framework(environment, dangerous=dangerous)
    sprint = _id(get("CALORON_SPRINT_ID") or "none", "CALORON_SPRINT_ID")
    return HarnessSettings(
        agent=agent,
        role=role,
        task=_id(get("CALORON_TASK_ID") or "none", "CALORON_TASK_ID"),
        sprint=sprint,
        worktree=_worktree(get("CALORON_WORKTREE") or "."),
        run_dir=Path(get("CALORON_RUN_DIR") or runs / f"{agent}-{sprint}-{os.getpid()}"),
        shell_url=url.rstrip("/"),
        token=token,
        system_prompt=get("CALORON_SYSTEM_PROMPT", ""),
        task_description=get("CALORON_TASK_DESCRIPTION", ""),
        framework=framework,
        command=command,
        stub_fixture=get("CALORON_STUB_FIXTURE", ""),
        allow_dangerous=dangerous,
        secrets_file=get("CALORON_SECRETS_FILE", ""),
        mirror=get("CALORON_MIRROR", ""),
        repository=get("CALORON_REPOSITORY", ""),
        branch=get("CALORON_BRANCH", ""),
        base=get("CALORON_BASE_COMMIT", ""),
    )


def take_secrets(file: str) -> dict[str, str]:
    """Read `NAME=value` lines from a file and delete it: its secrets are for this run alone."""
    if not file:
        return {}
    path = Path(file)
    try:
        text = path.read_bytes()[:_MAX_SECRETS].decode("utf-8")
    except FileNotFoundError as error:
        raise NotFound(
            f"there is no file {file} (CALORON_SECRETS_FILE)",
            hint="each run reads and deletes it: write it again for each run",
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} (CALORON_SECRETS_FILE) is not text") from error
    finally:
        path.unlink(missing_ok=True)
    return dict(_secret(line, number) for number, line in _lines(text))


def _lines(text: str) -> list[tuple[int, str]]:
    kept = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    return [(number, line) for number, line in kept if line and not line.startswith("#")]


def _secret(line: str, number: int) -> tuple[str, str]:
    name, separator, value = line.partition("=")
    name = name.removeprefix("export ").strip()
    if not separator or not _NAME.fullmatch(name) or name in ("PATH", "HOME"):
        # The line itself may be a secret.
        raise UsageError(
            f"line {number} of CALORON_SECRETS_FILE is not NAME=value",
            hint="the file was deleted; write it again",
        )
    return name, value.strip().strip("\"'")


def _framework(environment: Mapping[str, str], *, dangerous: bool) -> tuple[str, tuple[str, ...]]:
    """A framework by its name, or any program, which gets the prompt after `-p`."""
    named, program = (
        environment.get("CALORON_FRAMEWORK", ""),
        environment.get("CALORON_FRAMEWORK_CMD", ""),
    )
    if named and program:
        raise UsageError(
            "CALORON_FRAMEWORK and CALORON_FRAMEWORK_CMD are both set", hint="leave one unset"
        )
    try:
        arguments = shlex.split(environment.get("CALORON_FRAMEWORK_ARGS", ""))
        words = shlex.split(program)
    except ValueError as error:
        raise UsageError(f"CALORON_FRAMEWORK_CMD or _ARGS: {error}") from error
    if DANGEROUS in (*words, *arguments) and not dangerous:
        raise UsageError(
            f"CALORON_FRAMEWORK_ARGS has {DANGEROUS}",
            hint=f"leave it out, or allow it: {ALLOW_DANGEROUS}=1",
        )
    if words and words != [INFOS[DEFAULT_FRAMEWORK].program]:
        has_prompt = any("{prompt" in word for word in (*words, *arguments))
        return "command", (*words, *arguments, *(() if has_prompt else ("-p", "{prompt}")))
    framework = require_framework(named or DEFAULT_FRAMEWORK)
    return framework, tuple(arguments) if framework == "command" else ()


def _id(value: str, name: str) -> str:
    if not _ID.fullmatch(value):
        raise UsageError(f"{name} is {value!r}", hint=f"expected {_ID.pattern}")
    return value


def _worktree(value: str) -> Path:
    path = Path(value).absolute()
    if path.is_symlink() or not path.is_dir():
        raise NotFound(f"there is no folder {path} (CALORON_WORKTREE)", hint="clone one there")
    git = path / ".git"
    if git.is_symlink() or not git.is_dir():
        raise PreconditionFailed(
            f"{path} is not a repository of its own",
            hint="agents work in clones: a linked worktree would let them write the repository"
            " that it belongs to",
        )
    return path
