"""Everything that agent CLIs have in common: their installation, their output, their report file.

An agent may write one JSON object to the file that CALORON_REPORT names, with any of the fields
`cost_usd`, `tokens_in`, `tokens_out`, `session`, `model`, `stop_reason`, `trouble`, `detail` and
`reset_at`. A field of the wrong type is left out, and `detail` says so.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from caloron.agents.workspace.workspaces import folder_in, read_regular
from caloron.errors import PreconditionFailed
from caloron.ports import (
    AgentCli,
    AgentCommand,
    AgentReport,
    AgentRequest,
    CliInfo,
    Sandbox,
    SandboxSpec,
    Trouble,
)

REPORT_FILE = "report.json"
#: An answer of this length is kept whole; of a longer one the beginning and the end.
TEXT_LIMIT = 1 << 20
#: The kernel takes no longer argument than this.
ARGUMENT_BYTES = 128 * 1024 - 1

_REPORT_LIMIT = 64 * 1024
_SHOWN = 500
_CHUNK = 1 << 18
_LINE_LIMIT = 8 << 20
_Count = Annotated[int, Meta(ge=0, lt=1 << 53)]
_Amount = Annotated[float, Meta(ge=0, lt=1e15)] | None
_REPORT_FIELDS: dict[str, Any] = {
    "cost_usd": _Amount,
    "reset_at": _Amount,
    "tokens_in": _Count,
    "tokens_out": _Count,
    "session": str,
    "model": str,
    "stop_reason": str,
    "trouble": Trouble,
    "detail": str,
}


class CliSettings(NamedTuple):
    """The settings of the user that an agent CLI may need."""

    #: The fixture of the scripted agent.
    stub_fixture: str = ""
    #: The words of the framework `command`.
    command: tuple[str, ...] = ()
    #: The address of the provider; empty: its own.
    base_url: str = ""


_NO_SETTINGS = CliSettings()


class Cli(AgentCli):
    """The defaults of an agent CLI; a new one adds `info`, `command` and `read_report`."""

    def __init__(self, settings: CliSettings = _NO_SETTINGS) -> None:
        self._settings = settings

    def check(self) -> None:
        installation(self.info)
        api_key(self.info)

    def save_session(
        self, home: Path, sessions: Path, session: str, clean: Callable[[bytes], bytes] = bytes
    ) -> bool:
        return False

    @staticmethod
    def format_line(line: str) -> str:
        return line.rstrip()


class ReportFileCli(Cli):
    """An agent without a protocol: its answer is its output, its report is a file."""

    def read_report(self, run_dir: Path) -> AgentReport:
        text = head_and_tail(run_dir / "output.log")
        return AgentReport(text=text, **_report_file(run_dir / "home"))

    def report_environment(self, request: AgentRequest) -> dict[str, str]:
        return {"CALORON_REPORT": str(request.sandbox_home / REPORT_FILE)}


class ReportBuilder:
    """The answer to one question, collected from the events of an agent CLI."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.tokens_in = self.tokens_out = 0
        self.is_complete = False
        self.error = ""


class AnsweringCli(Cli):
    """An agent CLI that answers one question and prints JSON events, one in a line."""

    def arguments(self, request: AgentRequest) -> Sequence[str]:
        raise NotImplementedError

    def add(self, event: dict[str, Any], answer: ReportBuilder) -> None:
        """Add the content of an event to the answer."""
        raise NotImplementedError

    def environment(self, request: AgentRequest) -> dict[str, str]:
        return {}

    def hosts(self, model: str) -> tuple[str, ...]:
        return provider_hosts(self._settings.base_url, self.info.hosts)

    def secrets(self) -> dict[str, str]:
        return {self.info.key_vars[0]: api_key(self.info)}

    def command(self, request: AgentRequest) -> AgentCommand:
        program, files = installation(self.info)
        return AgentCommand(
            argv=(*program, *self.arguments(request)),
            env=self.environment(request),
            secrets=self.secrets(),
            stdin=request.prompt,
            read_only=files,
            hosts=self.hosts(request.model),
        )

    def read_report(self, run_dir: Path) -> AgentReport:
        answer, log = ReportBuilder(), run_dir / "output.log"
        for line in lines(log) if log.exists() else ():
            self.add(json_event(line), answer)
        if answer.error or not answer.is_complete:
            return failed(run_dir, answer.error)
        return AgentReport(
            text="".join(answer.texts), tokens_in=answer.tokens_in, tokens_out=answer.tokens_out
        )


def prepare_run(
    cli: AgentCli, sandbox: Sandbox, run_dir: Path, *, role: str, prompt: str = "", **fields: Any
) -> tuple[AgentCommand, SandboxSpec]:
    """Return the command and the sandbox of a CLI that runs in an empty workspace of its own."""
    workspace, home = run_dir / "workspace", run_dir / "home"
    for folder in (workspace, home):
        folder.mkdir(mode=0o700, parents=True)
    request = AgentRequest(
        role=role,
        task="",
        prompt=prompt,
        workspace=sandbox.inside(workspace),
        run_dir=run_dir,
        home=home,
        sandbox_home=sandbox.sandbox_home(home),
        **fields,
    )
    command = cli.command(request)
    sandbox.give_ownership(workspace, home)
    spec = SandboxSpec(
        workspace=workspace,
        home=home,
        read_only=command.read_only,
        network="model",
        hosts=command.hosts,
        env=command.env | command.secrets,
    )
    return command, spec


def installation(info: CliInfo, packages: str = "") -> tuple[tuple[str, ...], tuple[Path, ...]]:
    """Return how to start a program, and which of its files must be readable in a sandbox.

    npm installs packages side by side; `packages` is the pattern of those that are needed.
    """
    named = os.environ.get(info.program_env, "")
    program = shutil.which(named or info.program)
    if program is None:
        how = f"install it with `{info.install}`" if info.install else "install it"
        raise PreconditionFailed(
            f"{info.title} is not installed: {named or info.program} is not there, "
            "or may not be run",
            hint=f"{how}, or name its program in {info.program_env}",
        )
    real = Path(program).resolve()
    modules = next((up for up in real.parents if up.name == "node_modules"), None)
    files: tuple[Path, ...] = (real,)
    if modules:
        files = tuple(sorted(modules.glob(packages))) or (real,) if packages else (modules,)
    with real.open("rb") as opened:
        first = opened.readline(200)
    if not (first.startswith(b"#!") and b"node" in first):
        return (str(real),), files
    node = shutil.which("node")
    if node is None:
        raise PreconditionFailed(
            f"{info.title} in {real} needs `node`, which is not there", hint="install Node.js"
        )
    interpreter = Path(node).resolve()
    return (str(interpreter), str(real)), (*files, interpreter)


def api_key(info: CliInfo) -> str:
    """Return the first key of the provider that is set."""
    key = next((os.environ[name] for name in info.key_vars if os.environ.get(name)), "")
    if not key:
        raise PreconditionFailed(
            f"{info.title} has no key here", hint=f"set {' or '.join(info.key_vars)}"
        )
    return key


def provider_hosts(base_url: str, hosts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the hosts that a program may reach: that of the user's address, else these."""
    if not base_url:
        return hosts
    from caloron.agents.sandbox.network import hosts_in

    return hosts_in((base_url,))


def lines(file: Path) -> Iterator[bytes]:
    """Read the lines of a file in constant memory; one that is longer than any event is skipped."""
    begun, too_long = b"", False
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            *whole, rest = chunk.split(b"\n")
            for part in whole:
                if not too_long and len(begun) + len(part) <= _LINE_LIMIT:
                    yield begun + part
                begun, too_long = b"", False
            # A line of many chunks is put together in steps, so at most 32 of them.
            too_long = too_long or len(begun) + len(rest) > _LINE_LIMIT
            begun = b"" if too_long else begun + rest
    if begun and not too_long:
        yield begun


def json_event(line: bytes | str) -> dict[str, Any]:
    """Return the event in a line of output; empty for anything else: it is chatter."""
    try:
        event = msgspec.json.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def failed(run_dir: Path, message: str) -> AgentReport:
    """Report a failure in the program's own words, or with its last line."""
    if not message:
        printed = head_and_tail(run_dir / "output.log").splitlines()
        message = next((line for line in reversed(printed) if line.strip()), "it printed nothing")
    return AgentReport(trouble="crash", detail=one_line(message, 300))


def head_and_tail(file: Path) -> str:
    """Read a text file; of a long one, a plan is at the beginning and a verdict at the end."""
    half = TEXT_LIMIT // 2
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(0)
            if size <= TEXT_LIMIT:
                return opened.read(TEXT_LIMIT).decode("utf-8", "replace")
            head = opened.read(half)
            opened.seek(size - half)
            tail = opened.read(half)
    except FileNotFoundError:
        return ""
    omitted = f"\n[... {size - TEXT_LIMIT} bytes omitted ...]\n"
    return head.decode("utf-8", "replace") + omitted + tail.decode("utf-8", "replace")


def one_line(text: str, limit: int = _SHOWN) -> str:
    """Return a foreign text as one line that can be shown anywhere."""
    printable = "".join(c if c.isprintable() else " " for c in text[: 4 * limit])
    return " ".join(printable.split())[:limit]


def _report_file(home: Path) -> dict[str, Any]:
    try:
        with folder_in(home) as folder:
            data = read_regular(folder, REPORT_FILE, _REPORT_LIMIT)
    except FileNotFoundError:
        return {}
    except OSError as error:
        return {"detail": f"its {REPORT_FILE} was not read: {error.strerror or error}"}
    try:
        report = json.loads(data)
    except (ValueError, RecursionError):
        return {"detail": f"its {REPORT_FILE} is not JSON"}
    if not isinstance(report, dict):
        return {"detail": f"its {REPORT_FILE} is not an object"}
    return _usable_fields(report)


def _usable_fields(report: dict[str, Any]) -> dict[str, Any]:
    usable: dict[str, Any] = {}
    unusable = []
    for name, value in report.items():
        try:
            field = msgspec.convert(value, _REPORT_FIELDS[name])
        except (KeyError, msgspec.ValidationError):
            unusable.append(one_line(name, 40))
        else:
            usable[name] = one_line(field) if isinstance(field, str) else field
    if unusable:
        listed = ", ".join(unusable[:5])
        usable["detail"] = one_line(
            f"{usable.get('detail', '')} (its {REPORT_FILE} has unusable fields: {listed})"
        )
    return usable
