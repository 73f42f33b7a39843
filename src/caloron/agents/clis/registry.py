"""Every agent CLI that Caloron knows: a new one is one file in this folder and one line here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import cast

from caloron.agents.clis.base import Cli, CliSettings
from caloron.errors import UsageError
from caloron.ports import AgentCli, CliInfo

#: Module and class of each CLI that works on tasks, in the order in which PATH is searched.
_AGENTS = {
    "stub": "stub:Stub",
    "command": "command:Command",
    "claude-code": "claude:ClaudeCode",
}
#: Those that only answer questions.
_ANSWERING = {
    "gemini": "gemini:Gemini",
    "cursor": "cursor:Cursor",
    "opencode": "opencode:OpenCode",
    "codex": "codex:Codex",
}
#: The names that the setting `framework` takes.
FRAMEWORKS = tuple(_AGENTS)
NAMES = (*_AGENTS, *_ANSWERING)


@cache
def _load(name: str) -> type[Cli]:
    """Import the module of one CLI; a sprint needs one of them."""
    module, _, class_name = (_AGENTS | _ANSWERING)[name].partition(":")
    return cast("type[Cli]", getattr(import_module(f"caloron.agents.clis.{module}"), class_name))


def info(name: str) -> CliInfo:
    return _load(name).info


def agent_cli(framework: str, *, stub_fixture: str = "", command: tuple[str, ...] = ()) -> AgentCli:
    """Return the agent CLI of a framework, ready to work on tasks."""
    require_framework(framework)
    return _load(framework)(CliSettings(stub_fixture=stub_fixture, command=command))


def answering_cli(name: str, base_url: str) -> AgentCli:
    """Return an agent CLI that is only asked questions."""
    return _load(name)(CliSettings(base_url=base_url))


def require_framework(name: str) -> str:
    """Return the name of a framework, or raise `UsageError` if it cannot work on tasks."""
    if name in FRAMEWORKS:
        return name
    known = f"known frameworks: {', '.join(FRAMEWORKS)}"
    if name in NAMES:
        provider = info(name).provider
        raise UsageError(
            f"{info(name).title} cannot work on tasks yet: it only answers, as a model "
            f"(CALORON_LLM_PROVIDER={provider})",
            hint=known,
        )
    raise UsageError(f"unknown framework `{name}`", hint=known)


def framework_on_path() -> str:
    """Return the first framework whose program is installed here; empty: there is none."""
    return next((name for name in FRAMEWORKS if is_installed(info(name))), "")


def is_installed(cli: CliInfo) -> bool:
    named = os.environ.get(cli.program_env) if cli.program_env else ""
    return bool(cli.program and shutil.which(named or cli.program))


def uses_model(framework: str) -> bool:
    """True if a model answers for sure; of the others that is not known."""
    return framework in NAMES and info(framework).uses_model


def model_prefix(framework: str) -> str:
    return info(framework).model_prefix if framework in NAMES else ""


def installable() -> list[CliInfo]:
    """Return the frameworks that a user can install."""
    return [cli for cli in map(info, FRAMEWORKS) if cli.install]


def line_formatter(framework: str) -> Callable[[str], str]:
    """Return the function that makes a line of an agent's output readable."""
    return _load(framework).format_line if framework in NAMES else str
