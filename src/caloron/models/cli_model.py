"""A model behind an agent CLI: asked in the sandbox of agents, in an empty folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from caloron.agents.clis.base import prepare_run
from caloron.agents.supervise.supervise import Ended, Limits, supervise
from caloron.agents.supervise.transcript import LOG_CAP, Transcript
from caloron.errors import ModelError
from caloron.ports import AgentCli, AgentReport, ModelAnswer, Permissions, Sandbox
from caloron.store.redact import Redactor

_HINTS = {
    "auth": "check its key or its login",
    "quota": "wait until the quota is reset, or choose another provider",
    "rate_limit": "wait, or choose another provider",
}


@dataclass
class CliModel:
    """Asks an agent CLI one question at a time."""

    name: str
    cli: AgentCli
    sandbox: Sandbox
    model: str = ""
    permissions: Permissions = "answer"

    def ask(
        self, prompt: str, *, seconds: float, stopped: Callable[[], bool] = lambda: False
    ) -> ModelAnswer:
        deadline = time.monotonic() + seconds
        self.sandbox.check()
        with TemporaryDirectory(prefix="caloron-model-") as folder:
            run_dir = Path(folder)
            command, spec = prepare_run(
                self.cli,
                self.sandbox,
                run_dir,
                role="ask",
                prompt=prompt,
                model=self.model,
                permissions=self.permissions,
            )
            ended = supervise(
                self.sandbox.confine(command.argv, spec),
                Limits(max(deadline - time.monotonic(), 0.1)),
                stdout=Transcript(run_dir / "output.log", LOG_CAP, Redactor(command.secrets)),
                stdin=command.stdin.encode("utf-8", "replace"),
                cancelled=stopped,
            )
            return self._answer(self.cli.read_report(run_dir), ended)

    def _answer(self, report: AgentReport, ended: Ended) -> ModelAnswer:
        if ended.timed_out:
            raise ModelError(
                f"{self.name} did not answer in time",
                hint="give it longer with CALORON_LLM_TIMEOUT (seconds), or ask for less",
            )
        if ended.cancelled:
            raise ModelError("the question to the model was cancelled")
        if report.trouble or ended.exit_code or not report.text.strip():
            what = report.detail or f"it ended with exit code {ended.exit_code} and no answer"
            raise ModelError(
                f"{self.name} failed: {what}",
                hint=_HINTS.get(report.trouble, "run it by hand to see more"),
            )
        return ModelAnswer(
            text=report.text,
            model=report.model or self.model,
            tokens_in=report.tokens_in,
            tokens_out=report.tokens_out,
            cost_usd=report.cost_usd,
        )
