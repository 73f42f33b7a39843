"""Every agent CLI that Caloron knows: a new one is one file in this folder and one line here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib import import_module
from typing import cast

from caloron.agents.clis.base import Cli, CliSettings
from caloron.errors import UsageError
from caloron.ports import AgentCli, CliInfo

#: In the order in which they are looked for on PATH.
_CLASSES = (
    "stub:Stub",
    "command:Command",
    "claude:ClaudeCode",
    "gemini:Gemini",
    "cursor:Cursor",
    "opencode:OpenCode",
    "codex:Codex",
)


def _load(path: str) -> type[Cli]:
    module, _, name = path.partition(":")
    return cast("type[Cli]", getattr(import_module(f"caloron.agents.clis.{module}"), name))


_CLIS = {cli.info.name: cli for cli in map(_load, _CLASSES)}
INFOS: dict[str, CliInfo] = {name: cli.info for name, cli in _CLIS.items()}
#: The names that the setting `framework` takes.
FRAMEWORKS = tuple(info.name for info in INFOS.values() if info.is_agent)


def agent_cli(framework: str, *, stub_fixture: str = "", command: tuple[str, ...] = ()) -> AgentCli:
    """Return the agent CLI of a framework, ready to work on tasks."""
    require_framework(framework)
    return _CLIS[framework](CliSettings(stub_fixture=stub_fixture, command=command))


def answering_cli(name: str, base_url: str) -> AgentCli:
    """Return an agent CLI that is only asked questions."""
    return _CLIS[name](CliSettings(base_url=base_url))


def require_framework(name: str) -> str:
    """Return the name of a framework, or raise `UsageError` if it cannot work on tasks."""
    if name in FRAMEWORKS:
        return name
    known = f"known frameworks: {', '.join(FRAMEWORKS)}"
    if name in INFOS:
        provider = INFOS[name].provider
        raise UsageError(
            f"{INFOS[name].title} cannot work on tasks yet: it only answers, as a model "
            f"(CALORON_LLM_PROVIDER={provider})",
            hint=known,
        )
    raise UsageError(f"unknown framework `{name}`", hint=known)


def framework_on_path() -> str:
    """Return the first framework whose program is installed here; empty: there is none."""
    return next((info.name for info in INFOS.values() if info.is_agent and is_installed(info)), "")


def is_installed(info: CliInfo) -> bool:
    named = os.environ.get(info.program_env) if info.program_env else ""
    return bool(info.program and shutil.which(named or info.program))


def uses_model(framework: str) -> bool:
    """True if a model answers for sure; of the others that is not known."""
    return framework in INFOS and INFOS[framework].uses_model


def model_prefix(framework: str) -> str:
    return INFOS[framework].model_prefix if framework in INFOS else ""


def installable() -> list[CliInfo]:
    """Return the frameworks that a user can install."""
    return [info for info in INFOS.values() if info.is_agent and info.install]


def line_formatter(framework: str) -> Callable[[str], str]:
    """Return the function that makes a line of an agent's output readable."""
    cli = _CLIS.get(framework)
    return cli.format_line if cli else str
