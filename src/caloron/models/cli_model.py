"""A model behind an agent CLI: asked in the sandbox of agents, in an empty folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from caloron.agents.sandbox.bubblewrap import Bubblewrap, NoSandbox
from caloron.agents.supervise.supervise import Ended, Limits, supervise
from caloron.agents.supervise.transcript import LOG_CAP, Transcript
from caloron.errors import ModelError
from caloron.ports import (
    AgentCli,
    AgentCommand,
    AgentReport,
    AgentRequest,
    ModelAnswer,
    Permissions,
    Sandbox,
    SandboxSpec,
)
from caloron.store.redact import Redactor

_HINTS = {
    "auth": "check its key or its login",
    "quota": "wait until the quota is reset, or choose another provider",
    "rate_limit": "wait, or choose another provider",
}


class CliModel:
    """Asks an agent CLI one question at a time."""

    def __init__(
        self,
        name: str,
        cli: AgentCli,
        *,
        model: str = "",
        permissions: Permissions = "answer",
        unsandboxed: bool = False,
    ) -> None:
        self.name = name
        self._cli, self._model, self._permissions = cli, model, permissions
        self._sandbox: Sandbox = NoSandbox() if unsandboxed else Bubblewrap()

    def ask(
        self, prompt: str, *, seconds: float, stopped: Callable[[], bool] = lambda: False
    ) -> ModelAnswer:
        deadline = time.monotonic() + seconds
        self._sandbox.check()
        with TemporaryDirectory(prefix="caloron-model-") as folder:
            run_dir = Path(folder)
            command = self._command(prompt, run_dir)
            seconds_left = max(deadline - time.monotonic(), 0.1)
            ended = self._run(command, run_dir, seconds_left, stopped)
            return self._answer(self._cli.read_report(run_dir), ended)

    def _command(self, prompt: str, run_dir: Path) -> AgentCommand:
        workspace, home = run_dir / "workspace", run_dir / "home"
        for folder in (workspace, home):
            folder.mkdir(mode=0o700)
        return self._cli.command(
            AgentRequest(
                role="ask",
                task="",
                prompt=prompt,
                workspace=self._sandbox.inside(workspace),
                run_dir=run_dir,
                home=home,
                sandbox_home=self._sandbox.sandbox_home(home),
                model=self._model,
                permissions=self._permissions,
            )
        )

    def _run(
        self, command: AgentCommand, run_dir: Path, seconds: float, stopped: Callable[[], bool]
    ) -> Ended:
        workspace, home = run_dir / "workspace", run_dir / "home"
        self._sandbox.give_ownership(workspace, home)
        spec = SandboxSpec(
            workspace=workspace,
            home=home,
            read_only=command.read_only,
            network="model",
            hosts=command.hosts,
            env=command.env | command.secrets,
        )
        return supervise(
            self._sandbox.confine(command.argv, spec),
            Limits(seconds),
            stdout=Transcript(run_dir / "output.log", LOG_CAP, Redactor(command.secrets)),
            stdin=command.stdin.encode("utf-8", "replace"),
            cancelled=stopped,
        )

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
            model=report.model or self._model,
            tokens_in=report.tokens_in,
            tokens_out=report.tokens_out,
            cost_usd=report.cost_usd,
        )
