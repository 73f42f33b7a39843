"""The settings of the shell and of a harness, read from the environment and checked."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from caloron.agents.clis.registry import info, require_framework
from caloron.domain.model.plan import DEFAULT_FRAMEWORK
from caloron.errors import NotFound, PreconditionFailed, UsageError
from caloron.server.requests import Id

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
    root = Path(environment.get(ROOT) or ".").expanduser()
    port = _port(environment.get(PORT) or str(_PORT))
    token = _token(environment.get(TOKEN, ""))
    if not root.is_dir():
        raise UsageError(
            f"{ROOT} is {str(root)!r}, which is not a folder", hint="name an existing one"
        )
    return ShellSettings(port=port, token=token, root=root.resolve())


def _port(value: str) -> int:
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


ALLOW_DANGEROUS = info("claude-code").full_access_env
DANGEROUS = "--dangerously-skip-permissions"
_YES = ("1", "true", "yes", "on")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_SECRETS = 1 << 20
#: The fields that are one variable each; the shell writes them and the harness reads them.
_VARIABLES = {
    "agent": "CALORON_AGENT_ID",
    "role": "CALORON_AGENT_ROLE",
    "task": "CALORON_TASK_ID",
    "sprint": "CALORON_SPRINT_ID",
    "worktree": "CALORON_WORKTREE",
    "run_dir": "CALORON_RUN_DIR",
    "shell_url": "CALORON_SHELL_URL",
    "token": TOKEN,
    "system_prompt": "CALORON_SYSTEM_PROMPT",
    "task_description": "CALORON_TASK_DESCRIPTION",
    "stub_fixture": "CALORON_STUB_FIXTURE",
    "secrets_file": "CALORON_SECRETS_FILE",
    "mirror": "CALORON_MIRROR",
    "repository": "CALORON_REPOSITORY",
    "branch": "CALORON_BRANCH",
    "base": "CALORON_BASE_COMMIT",
}


class HarnessSettings(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_VARIABLES
):
    """One agent: its task, its framework, its folder, and the shell it reports to."""

    agent: Id = ""
    role: Id = "unknown"
    task: Id = "none"
    sprint: Id = "none"
    worktree: Path = Path()
    run_dir: Path = Path()
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

    def environment(self) -> dict[str, str]:
        """The variables from which a harness reads these settings."""
        variables: dict[str, str] = msgspec.to_builtins(self, enc_hook=str)
        return variables


def harness_settings(environment: Mapping[str, str], runs: Path) -> HarnessSettings:
    """Read and check the settings; `runs` is the default parent of the run directory."""
    variables = {name: environment[name] for name in _VARIABLES.values() if environment.get(name)}
    try:
        settings = msgspec.convert(variables, HarnessSettings, dec_hook=lambda _, text: Path(text))
    except msgspec.ValidationError as error:
        raise UsageError(str(error), hint="ids have 1 to 64 of a-z 0-9 _ -") from error
    if settings.shell_url and not settings.token:
        raise PreconditionFailed(
            f"CALORON_SHELL_URL is set without {TOKEN}: heartbeats would be refused",
            hint="export the token of the shell, or leave both unset",
        )
    dangerous = environment.get(ALLOW_DANGEROUS, "").strip().lower() in _YES
    framework, command = _framework(environment, dangerous=dangerous)
    agent = settings.agent or settings.role
    run_dir = runs / f"{agent}-{settings.sprint}-{os.getpid()}"
    return msgspec.structs.replace(
        settings,
        agent=agent,
        worktree=_worktree(settings.worktree),
        run_dir=settings.run_dir if "CALORON_RUN_DIR" in variables else run_dir,
        shell_url=settings.shell_url.rstrip("/"),
        framework=framework,
        command=command,
        allow_dangerous=dangerous,
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
    secrets = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if not line or line.startswith("#"):
            continue
        name, separator, value = line.partition("=")
        name = name.removeprefix("export ").strip()
        if not separator or not _NAME.fullmatch(name) or name in ("PATH", "HOME"):
            # The line itself may be a secret.
            raise UsageError(
                f"line {number} of CALORON_SECRETS_FILE is not NAME=value",
                hint="the file was deleted; write it again",
            )
        secrets[name] = value.strip().strip("\"'")
    return secrets


def _framework(environment: Mapping[str, str], *, dangerous: bool) -> tuple[str, tuple[str, ...]]:
    """A framework by its name, or any program, which gets the prompt after `-p`."""
    framework = environment.get("CALORON_FRAMEWORK", "")
    program = environment.get("CALORON_FRAMEWORK_CMD", "")
    if framework and program:
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
    if words and words != [info(DEFAULT_FRAMEWORK).program]:
        has_prompt = any("{prompt" in word for word in (*words, *arguments))
        return "command", (*words, *arguments, *(() if has_prompt else ("-p", "{prompt}")))
    framework = require_framework(framework or DEFAULT_FRAMEWORK)
    return framework, tuple(arguments) if framework == "command" else ()


def _worktree(folder: Path) -> Path:
    path = folder.absolute()
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
