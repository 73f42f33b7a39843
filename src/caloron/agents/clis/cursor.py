"""Cursor's agent: takes its question as an argument and answers in plain text."""

from __future__ import annotations

from pathlib import Path

from caloron.agents.clis.base import (
    ARGUMENT_BYTES,
    Cli,
    api_key,
    failed,
    head_and_tail,
    installation,
)
from caloron.errors import PreconditionFailed
from caloron.ports import AgentCommand, AgentReport, AgentRequest, CliInfo


class Cursor(Cli):
    """`cursor-agent`."""

    info = CliInfo(
        name="cursor",
        title="Cursor",
        program="cursor-agent",
        program_env="CALORON_CURSOR",
        key_vars=("CURSOR_API_KEY",),
        env_prefixes=("CURSOR_",),
        hosts=("*.cursor.sh", "*.cursor.com"),
        provider="cursor-cli",
    )

    def command(self, request: AgentRequest) -> AgentCommand:
        program, files = installation(self.info)
        if len(request.prompt.encode()) > ARGUMENT_BYTES:
            raise PreconditionFailed(
                "the question is too long for cursor-agent, which takes it as an argument",
                hint="choose another provider (CALORON_LLM_PROVIDER)",
            )
        model = ("--model", request.model) if request.model else ()
        question = ("-p", request.prompt.replace("\0", ""))
        return AgentCommand(
            argv=(*program, "--output-format", "text", *model, *question),
            secrets={"CURSOR_API_KEY": api_key(self.info)},
            read_only=files,
            hosts=self.info.hosts,
        )

    def read_report(self, run_dir: Path) -> AgentReport:
        text = head_and_tail(run_dir / "output.log").strip()
        return AgentReport(text=text) if text else failed(run_dir, "")
