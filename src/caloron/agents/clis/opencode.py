"""opencode: one question without a terminal, without any of its tools."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from caloron.agents.clis.base import AnsweringCli, ReportBuilder, provider_hosts
from caloron.errors import PreconditionFailed
from caloron.json_values import count, text
from caloron.ports import AgentRequest, CliInfo

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


class OpenCode(AnsweringCli):
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
        provider="opencode",
        default_model="anthropic/claude-sonnet-4-5",
    )

    def arguments(self, request: AgentRequest) -> Sequence[str]:
        return ("run", "--format", "json", "--title", "question")

    def environment(self, request: AgentRequest) -> dict[str, str]:
        _prevent_installing(request.home)
        return _QUIET | {"OPENCODE_CONFIG_CONTENT": json.dumps(self._config(request.model))}

    def secrets(self) -> dict[str, str]:
        return {name: os.environ[name] for name in self.info.key_vars if os.environ.get(name)}

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

    def hosts(self, model: str) -> tuple[str, ...]:
        provider = model.partition("/")[0]
        if not self._settings.base_url and provider not in _HOSTS:
            raise PreconditionFailed(
                f"the hosts of the provider {provider!r} are not known, so it cannot be reached",
                hint="name its address in CALORON_LLM_BASE_URL",
            )
        return provider_hosts(self._settings.base_url, (_HOSTS.get(provider, ""),))

    def add(self, event: dict[str, Any], answer: ReportBuilder) -> None:
        match event.get("type"):
            case "text":
                answer.texts.append(text(event, "part", "text"))
            case "step_finish":
                answer.is_complete = text(event, "part", "reason") == "stop"
                answer.tokens_in += count(event, "part", "tokens", "input")
                answer.tokens_out += count(event, "part", "tokens", "output")
            case "error":
                answer.error = text(event, "error", "data", "message") or text(
                    event, "error", "name"
                )


def _prevent_installing(home: Path) -> None:
    """Write the files without which opencode fetches a package in the background."""
    config = home / ".config" / "opencode"
    (config / "node_modules").mkdir(parents=True)
    lock = {"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}
    (config / "package-lock.json").write_text(json.dumps(lock))
