"""OpenAI's Codex: one question without a terminal, which may read nothing but an empty folder."""

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


class Codex(Cli):
    """OpenAI's `codex`."""

    info = CliInfo(
        name="codex",
        title="Codex",
        program="codex",
        program_env="CALORON_CODEX",
        install="npm install -g @openai/codex",
        key_vars=("OPENAI_API_KEY",),
        env_prefixes=("OPENAI_", "CODEX_"),
        hosts=("api.openai.com",),
        reads_repo_docs=("AGENTS.md",),
        provider="codex-cli",
        default_model="gpt-5.5",
        base_url_env="OPENAI_BASE_URL",
        base_url="https://api.openai.com/v1",
    )

    def command(self, request: AgentRequest) -> AgentCommand:
        program, files = installation(self.info)
        base_url = self._settings.base_url
        # The built-in provider tries a WebSocket first, and loops for ever where it is refused.
        provider = (
            f'model_providers.caloron={{name="caloron",base_url={json.dumps(base_url)},'
            'wire_api="responses",env_key="OPENAI_API_KEY",request_max_retries=2,'
            "stream_max_retries=1,stream_idle_timeout_ms=120000}"
        )
        settings = ("model_provider=caloron", provider, "analytics.enabled=false")
        arguments = ["exec", "--json", "--skip-git-repo-check", "--sandbox", "read-only"]
        arguments += ["-m", request.model, "--disable", "plugins"]
        for setting in (*settings, "project_doc_max_bytes=0"):
            arguments += ["-c", setting]
        return AgentCommand(
            argv=(*program, *arguments, "-"),
            secrets={"OPENAI_API_KEY": api_key(self.info)},
            stdin=request.prompt,
            read_only=files,
            hosts=provider_hosts(base_url, self.info.hosts),
        )

    def read_report(self, run_dir: Path) -> AgentReport:
        answer, error = "", ""
        usage: dict[str, Any] | None = None
        for event in json_events(run_dir):
            item = as_dict(event.get("item"))
            match event.get("type"):
                case "item.completed" if item.get("type") == "agent_message":
                    answer = as_text(item.get("text"))
                case "turn.completed":
                    usage = as_dict(event.get("usage"))
                case "turn.failed":
                    error = as_text(as_dict(event.get("error")).get("message"))
        if usage is None:
            return failed(run_dir, error)
        return AgentReport(
            text=answer,
            tokens_in=as_count(usage.get("input_tokens")),
            tokens_out=as_count(usage.get("output_tokens")),
        )
