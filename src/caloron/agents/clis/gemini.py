"""Google's Gemini CLI: one question without a terminal, in a private HOME."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from caloron.agents.clis.base import AnsweringCli, ReportBuilder
from caloron.json_values import count, text
from caloron.ports import AgentRequest, CliInfo

#: Without the authentication type, a base URL alone selects one that is refused.
_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "general": {"maxAttempts": 2, "retryFetchErrors": False, "enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}


class Gemini(AnsweringCli):
    """Google's `gemini`."""

    info = CliInfo(
        name="gemini",
        title="Gemini CLI",
        program="gemini",
        program_env="CALORON_GEMINI",
        install="npm install -g @google/gemini-cli",
        key_vars=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        env_prefixes=("GEMINI_", "GOOGLE_"),
        hosts=("generativelanguage.googleapis.com",),
        provider="gemini-cli",
        default_model="gemini-2.5-flash",
        base_url_env="GOOGLE_GEMINI_BASE_URL",
    )

    def arguments(self, request: AgentRequest) -> Sequence[str]:
        return ("-m", request.model, "--skip-trust", "-o", "stream-json")

    def environment(self, request: AgentRequest) -> dict[str, str]:
        config = request.home / ".gemini"
        config.mkdir(parents=True)
        (config / "settings.json").write_text(json.dumps(_SETTINGS))
        base_url = self._settings.base_url
        own = {"GOOGLE_GEMINI_BASE_URL": base_url} if base_url else {}
        return {"GEMINI_CLI_NO_RELAUNCH": "true"} | own

    def add(self, event: dict[str, Any], answer: ReportBuilder) -> None:
        if event.get("type") == "message" and event.get("role") == "assistant":
            answer.texts.append(text(event, "content"))
        elif event.get("type") == "result":
            answer.is_complete = event.get("status") == "success"
            answer.error = text(event, "error", "message")
            answer.tokens_in = count(event, "stats", "input_tokens")
            answer.tokens_out = count(event, "stats", "output_tokens")
