"""What a harness is told by its environment: whom it runs, on what, where, and whom it tells."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from caloron.agents.frameworks import FRAMEWORKS
from caloron.errors import NotFound, PreconditionFailed, UsageError

ALLOW_DANGEROUS = "CALORON_ALLOW_DANGEROUS_CLAUDE"
DANGEROUS = "--dangerously-skip-permissions"
_YES = ("1", "true", "yes", "on")
_ID = re.compile(r"[a-z0-9_-]{1,64}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MOST_SECRETS = 1 << 20


class HarnessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One agent and its surroundings."""

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
    #: A framework of ours, and the words of the command where it is `command`.
    framework: str = "claude-code"
    command: tuple[str, ...] = ()
    stub_fixture: str = ""
    allow_dangerous: bool = False
    secrets_file: str = ""
    #: Where the shell took the workspace from, and where the commits go; empty: they stay there.
    mirror: str = ""
    repository: str = ""
    branch: str = ""
    base: str = ""

    def __repr__(self) -> str:
        return f"HarnessSettings(agent={self.agent!r}, task={self.task!r})"


def harness_settings(environment: Mapping[str, str], runs: Path) -> HarnessSettings:
    """The settings, or what is wrong with them; `runs` is for one that names no run directory."""
    told = environment.get
    role = _id(told("CALORON_AGENT_ROLE") or "unknown", "CALORON_AGENT_ROLE")
    agent = _id(told("CALORON_AGENT_ID") or role, "CALORON_AGENT_ID")
    url, token = told("CALORON_SHELL_URL", ""), told("CALORON_SHELL_TOKEN", "")
    if url and not token:
        raise PreconditionFailed(
            "CALORON_SHELL_URL is set and CALORON_SHELL_TOKEN is not: no heartbeat would be taken",
            hint="export the token of the shell, or leave both unset",
        )
    dangerous = told(ALLOW_DANGEROUS, "").strip().lower() in _YES
    framework, command = _framework(environment, dangerous=dangerous)
    sprint = _id(told("CALORON_SPRINT_ID") or "none", "CALORON_SPRINT_ID")
    return HarnessSettings(
        agent=agent,
        role=role,
        task=_id(told("CALORON_TASK_ID") or "none", "CALORON_TASK_ID"),
        sprint=sprint,
        worktree=_worktree(told("CALORON_WORKTREE") or "."),
        run_dir=Path(told("CALORON_RUN_DIR") or runs / f"{agent}-{sprint}-{os.getpid()}"),
        shell_url=url.rstrip("/"),
        token=token,
        system_prompt=told("CALORON_SYSTEM_PROMPT", ""),
        task_description=told("CALORON_TASK_DESCRIPTION", ""),
        framework=framework,
        command=command,
        stub_fixture=told("CALORON_STUB_FIXTURE", ""),
        allow_dangerous=dangerous,
        secrets_file=told("CALORON_SECRETS_FILE", ""),
        mirror=told("CALORON_MIRROR", ""),
        repository=told("CALORON_REPOSITORY", ""),
        branch=told("CALORON_BRANCH", ""),
        base=told("CALORON_BASE_COMMIT", ""),
    )


def take_secrets(file: str) -> dict[str, str]:
    """The lines `NAME=value` of a file, which is deleted: what is in it is for this run alone."""
    if not file:
        return {}
    path = Path(file)
    try:
        text = path.read_bytes()[:_MOST_SECRETS].decode("utf-8")
    except FileNotFoundError as error:
        raise NotFound(
            f"there is no file {file} (CALORON_SECRETS_FILE)",
            hint="it is deleted once it was read: write it anew for each run",
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} (CALORON_SECRETS_FILE) is no text") from error
    finally:
        path.unlink(missing_ok=True)
    return dict(_secret(line, number) for number, line in _lines(text))


def _lines(text: str) -> list[tuple[int, str]]:
    kept = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1)]
    return [(number, line) for number, line in kept if line and not line.startswith("#")]


def _secret(line: str, number: int) -> tuple[str, str]:
    name, is_one, value = line.partition("=")
    name = name.removeprefix("export ").strip()
    if not is_one or not _NAME.fullmatch(name) or name in ("PATH", "HOME"):
        # The line itself may be a secret.
        raise UsageError(
            f"line {number} of CALORON_SECRETS_FILE is not NAME=value",
            hint="the file was deleted; write it anew",
        )
    return name, value.strip().strip("\"'")


def _framework(environment: Mapping[str, str], *, dangerous: bool) -> tuple[str, tuple[str, ...]]:
    """One of ours by its name, or any program, which gets the prompt behind `-p`."""
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
            hint=f"leave it out, or say that you mean it: {ALLOW_DANGEROUS}=1",
        )
    if words and words != ["claude"]:
        given = any("{prompt" in word for word in (*words, *arguments))
        return "command", (*words, *arguments, *(() if given else ("-p", "{prompt}")))
    if named and named not in FRAMEWORKS:
        raise UsageError(
            f"CALORON_FRAMEWORK is {named!r}", hint=f"known frameworks: {', '.join(FRAMEWORKS)}"
        )
    return named or "claude-code", tuple(arguments) if named == "command" else ()


def _id(value: str, name: str) -> str:
    if not _ID.fullmatch(value):
        raise UsageError(f"{name} is {value!r}", hint=f"expected {_ID.pattern}")
    return value


def _worktree(given: str) -> Path:
    place = Path(given).absolute()
    if place.is_symlink() or not place.is_dir():
        raise NotFound(f"there is no folder {place} (CALORON_WORKTREE)", hint="clone one there")
    git = place / ".git"
    if git.is_symlink() or not git.is_dir():
        raise PreconditionFailed(
            f"{place} is no repository of its own",
            hint="agents work in clones: a linked worktree would let them write the repository"
            " that it belongs to",
        )
    return place
