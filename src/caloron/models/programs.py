"""A model behind an agent CLI: asked in the agents' sandbox, in an empty folder, without tools."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from caloron.agents.foreground import Ended, run_confined
from caloron.agents.sandbox import Bubblewrap, NoSandbox
from caloron.errors import ModelError
from caloron.models.clis import Cli
from caloron.ports import (
    AgentCommand,
    AgentReport,
    AgentRequest,
    Confinement,
    ModelAnswer,
    Sandbox,
)
from caloron.store.redact import Redactor

_TROUBLES = {
    "auth": "look at its key or its login",
    "quota": "wait until the quota is there again, or choose another provider",
    "rate_limit": "wait, or choose another provider",
}


class _Stopped(Event):
    """An event that somebody else knows about."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        super().__init__()
        self._stopped = stopped

    def is_set(self) -> bool:
        return self._stopped()


class ProgramModel:
    """Asks an agent CLI one question, in print mode."""

    def __init__(
        self,
        name: str,
        cli: Cli,
        *,
        model: str = "",
        may_act: bool = False,
        unsandboxed: bool = False,
    ) -> None:
        self.name = name
        self._cli, self._model, self._may_act = cli, model, may_act
        self._sandbox: Sandbox = NoSandbox() if unsandboxed else Bubblewrap()

    def ask(
        self, prompt: str, *, seconds: float, stopped: Callable[[], bool] = lambda: False
    ) -> ModelAnswer:
        deadline = time.monotonic() + seconds
        self._sandbox.check()
        with TemporaryDirectory(prefix="caloron-model-") as place:
            run_dir = Path(place)
            command = self._command(prompt, run_dir)
            left = max(deadline - time.monotonic(), 0.1)
            ended = self._run(command, run_dir, left, _Stopped(stopped))
            return self._answer(self._cli.report(run_dir), ended)

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
                home_inside=self._sandbox.home_inside(home),
                model=self._model,
                may_act=self._may_act,
            )
        )

    def _run(self, command: AgentCommand, run_dir: Path, seconds: float, stopped: Event) -> Ended:
        workspace, home = run_dir / "workspace", run_dir / "home"
        question = run_dir / "question.txt"
        question.write_text(command.stdin, "utf-8")
        self._sandbox.hand_to_agent(workspace, home)
        given = Confinement(
            workspace=workspace,
            home=home,
            read_only=command.read_only,
            network="model",
            hosts=command.hosts,
            env=command.env | command.secrets,
        )
        return run_confined(
            self._sandbox.confine(command.argv, given),
            run_dir / "output.log",
            limit_s=seconds,
            redactor=Redactor(command.secrets),
            stdin=question,
            cancelled=stopped,
        )

    def _answer(self, report: AgentReport, ended: Ended) -> ModelAnswer:
        if ended.timed_out:
            raise ModelError(
                f"{self.name} did not answer in time",
                hint="give it longer with CALORON_LLM_TIMEOUT (seconds), or ask for less",
            )
        if ended.over:
            raise ModelError("nobody waits for the model's answer any more")
        if report.trouble or ended.exit_code or not report.text.strip():
            what = report.detail or f"it ended with exit code {ended.exit_code} and no answer"
            raise ModelError(
                f"{self.name} failed: {what}",
                hint=_TROUBLES.get(report.trouble, "run it by hand to see more"),
            )
        return ModelAnswer(
            text=report.text,
            model=report.model or self._model,
            tokens_in=report.tokens_in,
            tokens_out=report.tokens_out,
            cost_usd=report.cost_usd,
        )
