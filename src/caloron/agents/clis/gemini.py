"""Google's Gemini CLI: one question without a terminal, in a private HOME."""

from __future__ import annotations

import json
from collections.abc import Sequence

from msgspec import Struct

from caloron.agents.clis.base import AnsweringCli, ReportBuilder
from caloron.ports import AgentRequest, CliInfo

#: Without the authentication type, a base URL alone selects one that is refused.
_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "general": {"maxAttempts": 2, "retryFetchErrors": False, "enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}


class _Stats(Struct, frozen=True):
    input_tokens: int = 0
    output_tokens: int = 0


class _Error(Struct, frozen=True):
    message: str = ""


class _Event(Struct):
    type: str = ""
    role: str = ""
    content: str = ""
    status: str = ""
    stats: _Stats = _Stats()
    error: _Error | None = None


class Gemini(AnsweringCli[_Event]):
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
    event = _Event

    def arguments(self, request: AgentRequest) -> Sequence[str]:
        return ("-m", request.model, "--skip-trust", "-o", "stream-json")

    def environment(self, request: AgentRequest) -> dict[str, str]:
        config = request.home / ".gemini"
        config.mkdir(parents=True)
        (config / "settings.json").write_text(json.dumps(_SETTINGS))
        base_url = self._settings.base_url
        own = {"GOOGLE_GEMINI_BASE_URL": base_url} if base_url else {}
        return {"GEMINI_CLI_NO_RELAUNCH": "true"} | own

    def add(self, event: _Event, answer: ReportBuilder) -> None:
        if event.type == "message" and event.role == "assistant":
            answer.texts.append(event.content)
        elif event.type == "result":
            answer.is_complete = event.status == "success"
            answer.error = event.error.message if event.error else ""
            answer.tokens_in = event.stats.input_tokens
            answer.tokens_out = event.stats.output_tokens
