"""opencode: one question without a terminal, without any of its tools."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from caloron.agents.clis.base import (
    Cli,
    as_count,
    as_dict,
    as_text,
    failed,
    installation,
    json_events,
    provider_hosts,
)
from caloron.errors import PreconditionFailed
from caloron.ports import AgentCommand, AgentReport, AgentRequest, CliInfo

_QUIET = {
    f"OPENCODE_DISABLE_{feature}": "1"
    for feature in (
        "AUTOUPDATE",
        "CLAUDE_CODE",
        "DEFAULT_PLUGINS",
        "LSP_DOWNLOAD",
        "MODELS_FETCH",
        "PROJECT_CONFIG",
    )
}
#: Its models are named `provider/model`; each provider has a host of its own.
_HOSTS = {
    "anthropic": "api.anthropic.com",
    "google": "generativelanguage.googleapis.com",
    "mistral": "api.mistral.ai",
    "openai": "api.openai.com",
}


class OpenCode(Cli):
    """`opencode`; a base address means an OpenAI-compatible endpoint."""

    info = CliInfo(
        name="opencode",
        title="opencode",
        program="opencode",
        program_env="CALORON_OPENCODE",
        install="npm install -g opencode-ai",
        key_vars=(
            "ANTHROPIC_API_KEY",
            "OPENAI_API_KEY",
            "GEMINI_API_KEY",
            "GOOGLE_API_KEY",
            "MISTRAL_API_KEY",
        ),
        env_prefixes=("OPENCODE_",),
        hosts=tuple(_HOSTS.values()),
        reads_repo_docs=("AGENTS.md",),
        provider="opencode",
        default_model="anthropic/claude-sonnet-4-5",
    )

    def command(self, request: AgentRequest) -> AgentCommand:
        program, files = installation(self.info)
        _prevent_installing(request.home)
        keys = {name: os.environ[name] for name in self.info.key_vars if os.environ.get(name)}
        config = json.dumps(self._config(request.model))
        return AgentCommand(
            argv=(*program, "run", "--format", "json", "--title", "question"),
            env=_QUIET | {"OPENCODE_CONFIG_CONTENT": config},
            secrets=keys,
            stdin=request.prompt,
            read_only=files,
            hosts=self._hosts(request.model),
        )

    def _config(self, model: str) -> dict[str, Any]:
        config: dict[str, Any] = {
            "model": model,
            "small_model": model,
            "tools": {"*": False},
            "permission": {"edit": "deny", "bash": "deny", "webfetch": "deny"},
            "share": "disabled",
            "autoupdate": False,
            "snapshot": False,
        }
        if base_url := self._settings.base_url:
            name = model.partition("/")[2] or model
            options = {"baseURL": base_url, "apiKey": "{env:OPENAI_API_KEY}"}
            provider = {"npm": "@ai-sdk/openai-compatible", "options": options}
            config["provider"] = {"caloron": {**provider, "models": {name: {}}}}
            config["model"] = config["small_model"] = f"caloron/{name}"
        return config

    def _hosts(self, model: str) -> tuple[str, ...]:
        provider = model.partition("/")[0]
        if not self._settings.base_url and provider not in _HOSTS:
            raise PreconditionFailed(
                f"the hosts of the provider {provider!r} are not known, so it cannot be reached",
                hint="name its address in CALORON_LLM_BASE_URL",
            )
        return provider_hosts(self._settings.base_url, (_HOSTS.get(provider, ""),))

    def read_report(self, run_dir: Path) -> AgentReport:
        answer: list[str] = []
        tokens_in = tokens_out = 0
        finish_reason, problem = "", ""
        for event in json_events(run_dir):
            part = as_dict(event.get("part"))
            match event.get("type"):
                case "text":
                    answer.append(as_text(part.get("text")))
                case "step_finish":
                    finish_reason, tokens = as_text(part.get("reason")), as_dict(part.get("tokens"))
                    tokens_in += as_count(tokens.get("input"))
                    tokens_out += as_count(tokens.get("output"))
                case "error":
                    error = as_dict(event.get("error"))
                    message = as_dict(error.get("data")).get("message")
                    problem = as_text(message) or as_text(error.get("name"))
        if problem or finish_reason != "stop":
            return failed(run_dir, problem)
        return AgentReport(text="".join(answer), tokens_in=tokens_in, tokens_out=tokens_out)


def _prevent_installing(home: Path) -> None:
    """Write the files without which opencode fetches a package in the background."""
    config = home / ".config" / "opencode"
    (config / "node_modules").mkdir(parents=True)
    lock = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
    (config / "package-lock.json").write_text(json.dumps(lock))
