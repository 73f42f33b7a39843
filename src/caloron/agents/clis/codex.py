"""OpenAI's Codex: one question without a terminal, which may read nothing but an empty folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from caloron.agents.clis.base import AnsweringCli, ReportBuilder
from caloron.json_values import count, text
from caloron.ports import AgentRequest, CliInfo


class Codex(AnsweringCli):
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
        provider="codex-cli",
        default_model="gpt-5.5",
        base_url_env="OPENAI_BASE_URL",
        base_url="https://api.openai.com/v1",
    )

    def arguments(self, request: AgentRequest) -> Sequence[str]:
        # The built-in provider tries a WebSocket first, and loops for ever if it is refused.
        provider = (
            'model_providers.caloron={name="caloron",wire_api="responses",'
            f'base_url={json.dumps(self._settings.base_url)},env_key="OPENAI_API_KEY",'
            "request_max_retries=2,stream_max_retries=1,stream_idle_timeout_ms=120000}"
        )
        quiet = ("analytics.enabled=false", "project_doc_max_bytes=0")
        settings = ("model_provider=caloron", provider, *quiet)
        return (
            *("exec", "--json", "--skip-git-repo-check", "--sandbox", "read-only"),
            *("-m", request.model, "--disable", "plugins"),
            *(word for setting in settings for word in ("-c", setting)),
            "-",
        )

    def add(self, event: dict[str, Any], answer: ReportBuilder) -> None:
        match event.get("type"):
            case "item.completed" if text(event, "item", "type") == "agent_message":
                answer.texts = [text(event, "item", "text")]
            case "turn.completed":
                answer.is_complete = True
                answer.tokens_in = count(event, "usage", "input_tokens")
                answer.tokens_out = count(event, "usage", "output_tokens")
            case "turn.failed":
                answer.error = text(event, "error", "message")
