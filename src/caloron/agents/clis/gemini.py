"""Google's Gemini CLI: one question without a terminal, in a private HOME."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from caloron.agents.clis.base import (
    Cli,
    api_key,
    as_count,
    as_dict,
    as_text,
    failed,
    installation,
    json_events,
    provider_hosts,
)
from caloron.ports import AgentCommand, AgentReport, AgentRequest, CliInfo

#: Without the authentication type, a base URL alone selects one that is refused.
_SETTINGS = {
    "security": {"auth": {"selectedType": "gemini-api-key"}, "folderTrust": {"enabled": False}},
    "general": {"maxAttempts": 2, "retryFetchErrors": False, "enableAutoUpdate": False},
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}


class Gemini(Cli):
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
        reads_repo_docs=("GEMINI.md",),
        provider="gemini-cli",
        default_model="gemini-2.5-flash",
        base_url_env="GOOGLE_GEMINI_BASE_URL",
    )

    def command(self, request: AgentRequest) -> AgentCommand:
        program, files = installation(self.info)
        config = request.home / ".gemini"
        config.mkdir(parents=True)
        (config / "settings.json").write_text(json.dumps(_SETTINGS))
        base_url = self._settings.base_url
        env = {"GEMINI_CLI_NO_RELAUNCH": "true"}
        if base_url:
            env["GOOGLE_GEMINI_BASE_URL"] = base_url
        return AgentCommand(
            argv=(*program, "-m", request.model, "--skip-trust", "-o", "stream-json"),
            env=env,
            secrets={"GEMINI_API_KEY": api_key(self.info)},
            stdin=request.prompt,
            read_only=files,
            hosts=provider_hosts(base_url, self.info.hosts),
        )

    def read_report(self, run_dir: Path) -> AgentReport:
        answer: list[str] = []
        result: dict[str, Any] = {}
        for event in json_events(run_dir):
            if event.get("type") == "message" and event.get("role") == "assistant":
                answer.append(as_text(event.get("content")))
            elif event.get("type") == "result":
                result = event
        if result.get("status") != "success":
            return failed(run_dir, as_dict(result.get("error")).get("message"))
        stats = as_dict(result.get("stats"))
        return AgentReport(
            text="".join(answer),
            tokens_in=as_count(stats.get("input_tokens")),
            tokens_out=as_count(stats.get("output_tokens")),
        )
