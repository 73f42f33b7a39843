"""Runs one agent outside a sprint: confined, heard of while it runs, its work kept as commits."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import msgspec

from caloron.agents.commits import HandOver, hand_over, seal
from caloron.agents.foreground import Ended, run_confined
from caloron.agents.frameworks import runner_for
from caloron.agents.sandbox import Bubblewrap, NoSandbox
from caloron.agents.watch import Watch
from caloron.engine.harness_settings import DANGEROUS, HarnessSettings, take_secrets
from caloron.engine.heartbeats import Heartbeats
from caloron.errors import CaloronError
from caloron.git.command import git
from caloron.git.mirror import Mirror
from caloron.ports import (
    AgentCommand,
    AgentReport,
    AgentRequest,
    AgentRunner,
    Caps,
    Confined,
    Confinement,
    Network,
    Remote,
    Sandbox,
)
from caloron.store.files import write_atomic
from caloron.store.redact import Redactor, secrets_in

TIMED_OUT, STOPPED, FAILED = 6, 130, 1
_STANDING = """Work only in the folder that you are started in. Look at what is there before you
change it, keep to the style that you find, and run the project's own tests. Commit what belongs
together; do not push, and open no pull request. Say at the end in a few lines what you did, what
you did not do, and why."""


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller decides for this run."""

    unsandboxed: bool = False
    every_s: float = 60.0
    timeout_s: float = 7200.0
    network: Network = "model"
    hosts: tuple[str, ...] = ()


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to."""

    exit_code: int
    status: str
    reason: str = ""
    tokens_used: int = 0
    cost_usd: float | None = None
    #: The agent's last commit; empty: it made none.
    head: str = ""
    output: str = ""
    #: Whether the shell took the last heartbeat.
    told: bool = False


class Harness:
    """One run: everything that could keep it from working is looked at before it begins."""

    def __init__(self, settings: HarnessSettings, wishes: Wishes) -> None:
        self._settings = settings
        self._wishes = wishes
        # Deleted first: whatever goes wrong later, they lie there no longer.
        self._given = take_secrets(settings.secrets_file)
        mirror = Path(settings.mirror) if settings.mirror else None
        self._sandbox: Sandbox = NoSandbox() if wishes.unsandboxed else Bubblewrap(mirror=mirror)
        self._runner: AgentRunner = runner_for(
            settings.framework, stub_fixture=settings.stub_fixture, command=settings.command
        )
        self._stopped = Event()

    def check(self) -> None:
        """`PreconditionFailed` where agents cannot be confined, or the framework is not there."""
        self._sandbox.check()
        self._runner.check()

    def run(self) -> Result:
        """Run the agent to its end; the result is written down and told to the shell."""
        settings = self._settings
        settings.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        beats = Heartbeats(settings, self._wishes.every_s, lambda: _tokens(self._report()))
        with _on_signal(self._stopped):
            beats.start()
            try:
                result = self._attempt()
            except CaloronError as error:
                result = Result(
                    exit_code=error.exit_code,
                    status="failed",
                    reason=str(error),
                    tokens_used=_tokens(self._report()),
                )
        self._write(result)
        told = beats.end(_last_word(result), result.tokens_used)
        return msgspec.structs.replace(result, told=told)

    def _attempt(self) -> Result:
        settings = self._settings
        home = settings.run_dir / "home"
        home.mkdir(mode=0o700, exist_ok=True)
        command = self._command(home)
        secrets = command.secrets | self._given
        known = secrets_in(os.environ) | secrets | {"CALORON_SHELL_TOKEN": settings.token}
        known = {name: value for name, value in known.items() if value}
        self._sandbox.hand_to_agent(settings.worktree, home)
        prompt = settings.run_dir / "prompt.txt"
        write_atomic(prompt, command.stdin.encode("utf-8", "replace"), durable=False)
        caps = Caps()
        ended = run_confined(
            self._confined(command, home, secrets, caps),
            settings.run_dir / "output.log",
            limit_s=self._wishes.timeout_s,
            watch=Watch(
                memory_mb=caps.memory_mb,
                processes=caps.processes,
                disk_mb=caps.disk_mb,
                folders=[str(settings.worktree), str(home)],
            ),
            redactor=Redactor(known),
            stdin=prompt,
            cancelled=self._stopped,
        )
        return self._judge(ended, self._report(), self._keep_work(known))

    def _command(self, home: Path) -> AgentCommand:
        settings, sandbox = self._settings, self._sandbox
        command = self._runner.command(
            AgentRequest(
                role=settings.role,
                task=settings.task,
                prompt=self._prompt(),
                workspace=sandbox.inside(settings.worktree),
                run_dir=settings.run_dir,
                home=home,
                home_inside=sandbox.home_inside(home),
            )
        )
        if settings.framework != "claude-code" or settings.allow_dangerous:
            return command
        # It may edit files; for all else it would have to ask, and nobody is there.
        argv = [word for word in command.argv if word != DANGEROUS]
        mild = (*argv, "--permission-mode", "acceptEdits")
        return msgspec.structs.replace(command, argv=mild)

    def _prompt(self) -> str:
        settings = self._settings
        task = settings.task_description.strip() or f"Complete task {settings.task}."
        return "\n\n".join(filter(None, (settings.system_prompt.strip(), task, _STANDING)))

    def _confined(
        self, command: AgentCommand, home: Path, secrets: dict[str, str], caps: Caps
    ) -> Confined:
        settings, wishes = self._settings, self._wishes
        hosts = (*command.hosts, *wishes.hosts)
        told = {
            "CALORON_ROLE": settings.role,
            "CALORON_AGENT_ID": settings.agent,
            "CALORON_TASK_ID": settings.task,
            "CALORON_SPRINT_ID": settings.sprint,
            "CALORON_SANDBOXED": "0" if wishes.unsandboxed else "1",
        }
        confined = self._sandbox.confine(
            command.argv,
            Confinement(
                workspace=settings.worktree,
                home=home,
                read_only=command.read_only,
                network="none" if wishes.network == "model" and not hosts else wishes.network,
                hosts=hosts,
                env=told | command.env,
                caps=caps,
            ),
        )
        return msgspec.structs.replace(confined, env=confined.env | secrets)

    def _report(self) -> AgentReport:
        return self._runner.report(self._settings.run_dir)

    def _keep_work(self, secrets: dict[str, str]) -> str:
        """Commit what was left, inside the sandbox; the commits then go where the branch is."""
        settings = self._settings
        base = settings.base
        message = f"[{settings.agent}] Complete {settings.task}\n"
        if not (base and settings.mirror and settings.repository and settings.branch):
            seal(settings.worktree, self._sandbox, message)
            return ""
        mirror = Mirror(Path(settings.mirror), Remote(settings.repository))
        ref = f"refs/heads/{settings.branch}"
        work = HandOver(
            workspace=settings.worktree,
            base=base,
            main=base,
            message=message,
            secrets=secrets,
            ref=ref,
            bundle=settings.run_dir / "work.bundle",
        )
        head = hand_over(work, self._sandbox, mirror)
        if head == base:
            return ""
        # The user's own repository, which no agent can write: it only takes a branch in.
        fetch = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc")
        git(Path(settings.repository), *fetch, str(mirror.path), f"{ref}:{ref}")
        return head

    def _judge(self, ended: Ended, report: AgentReport, head: str) -> Result:
        code, reason = _how(ended, report, stopped=self._stopped.is_set())
        return Result(
            exit_code=code,
            status="failed" if code else "completed",
            reason=reason,
            tokens_used=_tokens(report),
            cost_usd=report.cost_usd,
            head=head,
            output=str(self._settings.run_dir / "output.log"),
        )

    def _write(self, result: Result) -> None:
        """Before the last heartbeat: a shell that was not there to hear it finds it here."""
        told = msgspec.to_builtins(result) | {"pid": os.getpid()}
        write_atomic(self._settings.run_dir / "result.json", json.dumps(told).encode())


def _how(ended: Ended, report: AgentReport, *, stopped: bool) -> tuple[int, str]:
    """The exit code of the harness, and why it is not zero."""
    if stopped:
        return STOPPED, "it was told to stop"
    if ended.timed_out:
        return TIMED_OUT, "it ran out of time"
    if ended.over:
        return FAILED, f"it was over a limit: {ended.over}"
    if ended.exit_code:
        return ended.exit_code, f"the agent ended with exit code {ended.exit_code}"
    if report.trouble:
        return FAILED, f"{report.trouble}: {report.detail}"
    return 0, ""


def _last_word(result: Result) -> str:
    return f"{result.status}: {result.reason}" if result.reason else result.status


def _tokens(report: AgentReport) -> int:
    return report.tokens_in + report.tokens_out


@contextmanager
def _on_signal(stopped: Event) -> Iterator[None]:
    """Who is told to stop ends the agent, keeps its work and says so."""

    def stop(_number: int, _frame: object) -> None:
        stopped.set()
        sys.stderr.write("told to stop: the agent is ended, its work is kept\n")

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
