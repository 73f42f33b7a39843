"""Runs one agent outside a sprint: in a sandbox, with heartbeats, its work kept as commits."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import msgspec

from caloron.agents.clis.registry import agent_cli
from caloron.agents.sandbox.bubblewrap import Bubblewrap, NoSandbox
from caloron.agents.supervise.supervise import Ended, Limits, supervise
from caloron.agents.supervise.transcript import LOG_CAP, Transcript
from caloron.agents.supervise.watch import Watch
from caloron.agents.workspace.commits import HandOver, hand_over, seal
from caloron.errors import CaloronError, UsageError
from caloron.git.command import git
from caloron.git.mirror import Mirror
from caloron.ids import http_url
from caloron.ports import (
    AgentCli,
    AgentCommand,
    AgentReport,
    AgentRequest,
    Caps,
    Network,
    Remote,
    Sandbox,
    SandboxedCommand,
    SandboxSpec,
)
from caloron.server.settings import HarnessSettings, take_secrets
from caloron.store.files import write_atomic
from caloron.store.redact import Redactor, secrets_in

_TIMEOUT_S = 10.0
_LAST_TRIES = 5
_LONGEST_STATUS = 200


class Heartbeats:
    """A thread that sends heartbeats; the agent continues if the shell does not answer."""

    def __init__(
        self, settings: HarnessSettings, every_s: float, tokens: Callable[[], int]
    ) -> None:
        self._settings = settings
        self._every_s = every_s
        self._tokens = tokens
        self._ended = threading.Event()
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
        self._address = http_url(settings.shell_url)
        if settings.shell_url and self._address is None:
            raise UsageError(
                f"CALORON_SHELL_URL is {settings.shell_url!r}", hint="e.g. http://127.0.0.1:7710"
            )

    def start(self) -> None:
        if self._settings.shell_url:
            self._thread.start()

    def end(self, status: str, tokens: int) -> bool:
        """Send the last heartbeat, and retry while the shell restarts."""
        self._ended.set()
        if not self._settings.shell_url:
            return False
        self._thread.join(2 * _TIMEOUT_S)
        for number in range(_LAST_TRIES):
            if self._send(status, tokens):
                return True
            time.sleep(0.2 * 2**number)
        return False

    def _run(self) -> None:
        while True:
            self._send("running", self._tokens())
            if self._ended.wait(self._every_s):
                return

    def _send(self, status: str, tokens: int) -> bool:
        settings = self._settings
        body = {
            "agent_id": settings.agent,
            "sprint_id": settings.sprint,
            "status": status[:_LONGEST_STATUS],
            "tokens_used": tokens,
        }
        try:
            code = self._post(json.dumps(body))
            problem = "" if code == http.HTTPStatus.OK else f"it answers {code}"
        except (OSError, http.client.HTTPException) as error:
            problem = str(error) or type(error).__name__
        self._failures = self._failures + 1 if problem else 0
        if problem:
            url = settings.shell_url
            sys.stderr.write(f"heartbeat {self._failures} to {url} failed: {problem}\n")
            sys.stderr.flush()
        return not problem

    def _post(self, body: str) -> int:
        assert self._address is not None
        secure = self._address.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(str(self._address.hostname), self._address.port, timeout=_TIMEOUT_S)
        headers = {
            "Content-Type": "application/json",
            "X-Caloron-Token": self._settings.token,
        }
        try:
            connection.request("POST", f"{self._address.path}/heartbeat", body, headers)
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()


TIMED_OUT, STOPPED, FAILED = 6, 130, 1
_INSTRUCTIONS = """Work only in the folder that you are started in. Read the existing code before
you change it, keep to its style, and run the project's own tests. Commit what belongs together; do
not push, and open no pull request. At the end describe in a few lines what you did, what you did
not do, and why."""


class HarnessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one run."""

    unsandboxed: bool = False
    every_s: float = 60.0
    timeout_s: float = 7200.0
    network: Network = "model"
    hosts: tuple[str, ...] = ()


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run."""

    exit_code: int
    status: str
    reason: str = ""
    tokens_used: int = 0
    cost_usd: float | None = None
    #: The agent's last commit; empty: it made none.
    head: str = ""
    output: str = ""
    #: True if the shell accepted the last heartbeat.
    told: bool = False


class Harness:
    """One run of an agent; its preconditions are checked before it starts."""

    def __init__(self, settings: HarnessSettings, options: HarnessOptions) -> None:
        self._settings = settings
        self._options = options
        # Read first, because that deletes the file, whatever fails later.
        self._secrets = take_secrets(settings.secrets_file)
        mirror = Path(settings.mirror) if settings.mirror else None
        self._sandbox: Sandbox = NoSandbox() if options.unsandboxed else Bubblewrap(mirror=mirror)
        self._cli: AgentCli = agent_cli(
            settings.framework, stub_fixture=settings.stub_fixture, command=settings.command
        )
        self._stopped = Event()

    def check(self) -> None:
        """Raise `PreconditionFailed` if the sandbox or the framework does not work here."""
        self._sandbox.check()
        self._cli.check()

    def run(self) -> Result:
        """Run the agent to its end; the result is written to a file and sent to the shell."""
        settings = self._settings
        settings.run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        beats = Heartbeats(settings, self._options.every_s, lambda: _tokens(self._report()))
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
        status = f"{result.status}: {result.reason}" if result.reason else result.status
        accepted = beats.end(status, result.tokens_used)
        return msgspec.structs.replace(result, told=accepted)

    def _attempt(self) -> Result:
        settings = self._settings
        home = settings.run_dir / "home"
        home.mkdir(mode=0o700, exist_ok=True)
        command = self._command(home)
        secrets = command.secrets | self._secrets
        known = secrets_in(os.environ) | secrets | {"CALORON_SHELL_TOKEN": settings.token}
        known = {name: value for name, value in known.items() if value}
        self._sandbox.give_ownership(settings.worktree, home)
        prompt = settings.run_dir / "prompt.txt"
        write_atomic(prompt, command.stdin.encode("utf-8", "replace"), durable=False)
        caps = Caps()
        watch = Watch.of(caps, settings.worktree, home)
        ended = supervise(
            self._sandboxed(command, home, secrets, caps),
            Limits(self._options.timeout_s, watch=watch),
            stdout=Transcript(settings.run_dir / "output.log", LOG_CAP, Redactor(known)),
            stdin=prompt,
            cancelled=self._stopped.is_set,
        )
        return self._result(ended, self._report(), self._keep_work(known))

    def _command(self, home: Path) -> AgentCommand:
        settings, sandbox = self._settings, self._sandbox
        return self._cli.command(
            AgentRequest(
                role=settings.role,
                task=settings.task,
                prompt=self._prompt(),
                workspace=sandbox.inside(settings.worktree),
                run_dir=settings.run_dir,
                home=home,
                sandbox_home=sandbox.sandbox_home(home),
                permissions="full" if settings.allow_dangerous else "edit",
            )
        )

    def _prompt(self) -> str:
        settings = self._settings
        task = settings.task_description.strip() or f"Complete task {settings.task}."
        return "\n\n".join(filter(None, (settings.system_prompt.strip(), task, _INSTRUCTIONS)))

    def _sandboxed(
        self, command: AgentCommand, home: Path, secrets: dict[str, str], caps: Caps
    ) -> SandboxedCommand:
        settings, options = self._settings, self._options
        hosts = (*command.hosts, *options.hosts)
        env = {
            "CALORON_ROLE": settings.role,
            "CALORON_AGENT_ID": settings.agent,
            "CALORON_TASK_ID": settings.task,
            "CALORON_SPRINT_ID": settings.sprint,
            "CALORON_SANDBOXED": "0" if options.unsandboxed else "1",
        }
        confined = self._sandbox.confine(
            command.argv,
            SandboxSpec(
                workspace=settings.worktree,
                home=home,
                read_only=command.read_only,
                network="none" if options.network == "model" and not hosts else options.network,
                hosts=hosts,
                env=env | command.env,
                caps=caps,
            ),
        )
        return msgspec.structs.replace(confined, env=confined.env | secrets)

    def _report(self) -> AgentReport:
        return self._cli.read_report(self._settings.run_dir)

    def _keep_work(self, secrets: dict[str, str]) -> str:
        """Commit the remaining changes inside the sandbox; then fetch the commits."""
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
        # The user's own repository, which no agent can write, only fetches the branch.
        fetch = ("fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-gc")
        git(Path(settings.repository), *fetch, str(mirror.path), f"{ref}:{ref}")
        return head

    def _result(self, ended: Ended, report: AgentReport, head: str) -> Result:
        code, reason = _outcome(ended, report, stopped=self._stopped.is_set())
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
        """Write the result before the last heartbeat, for a shell that does not run then."""
        data = msgspec.to_builtins(result) | {"pid": os.getpid()}
        write_atomic(self._settings.run_dir / "result.json", json.dumps(data).encode())


def _outcome(ended: Ended, report: AgentReport, *, stopped: bool) -> tuple[int, str]:
    """The exit code of the harness, and the reason if it is not zero."""
    if stopped:
        return STOPPED, "it was stopped"
    if ended.timed_out:
        return TIMED_OUT, "it timed out"
    if ended.over:
        return FAILED, f"it exceeded a limit: {ended.over}"
    if ended.exit_code:
        return ended.exit_code, f"the agent ended with exit code {ended.exit_code}"
    if report.trouble:
        return FAILED, f"{report.trouble}: {report.detail}"
    return 0, ""


def _tokens(report: AgentReport) -> int:
    return report.tokens_in + report.tokens_out


@contextmanager
def _on_signal(stopped: Event) -> Iterator[None]:
    """Let a signal end the agent; its work is kept."""

    def stop(_number: int, _frame: object) -> None:
        stopped.set()
        sys.stderr.write("stopping: the agent is ended, its work is kept\n")

    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
