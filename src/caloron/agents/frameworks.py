"""The coding-agent frameworks: each turns a request into a command to start."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

from caloron.agents.claude_code import ClaudeCodeRunner
from caloron.agents.reports import REPORT_FILE, told_report
from caloron.agents.stub import FixtureError, load_fixture
from caloron.agents.untrusted import clear
from caloron.errors import PreconditionFailed, UsageError
from caloron.ports import AgentCommand, AgentReport, AgentRequest, AgentRunner

FRAMEWORKS = ("stub", "command", "claude-code")
#: Those that a model drives for sure; of the others nobody knows.
WITH_MODEL = ("claude-code",)
#: Frameworks that need nothing but their program: by how it is called, and what may name another.
_BY_PROGRAM = {"claude-code": ("claude", "CALORON_CLAUDE")}

_STUB = Path(__file__).with_name("stub.py")
_PLACEHOLDER = re.compile(r"\{(prompt|prompt_file|workspace)\}")
#: The kernel takes no longer argument than this.
_ARGUMENT_BYTES = 128 * 1024 - 1
_INTERPRETER = re.compile(r"(python|sh|bash|dash|zsh|node|ruby|perl)[\d.]*")
#: What every sandbox has; a program in there needs nothing else.
_SYSTEM = tuple(map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib64")))


class _TellsByFile:
    """What agents have in common that tell about their run through output and a report file."""

    def report(self, run_dir: Path) -> AgentReport:
        return told_report(run_dir)

    def keep_session(
        self, home: Path, sessions: Path, session: str, clean: Callable[[bytes], bytes] = bytes
    ) -> bool:
        return False

    def readable(self, line: str) -> str:
        return line.rstrip()


def _environment(request: AgentRequest) -> dict[str, str]:
    return {"CALORON_REPORT": str(request.home_inside / REPORT_FILE)}


class StubRunner(_TellsByFile):
    """The scripted agent, with its fixture checked before anything starts."""

    name = "stub"

    def __init__(self, fixture: Path) -> None:
        self._fixture = fixture.absolute()
        try:
            responses = load_fixture(self._fixture).get("responses", [])
        except FixtureError as error:
            raise UsageError(
                f"the stub fixture {fixture}: {error}",
                hint="correct the file; nothing was started",
            ) from error
        self.tells_cost = any("cost_usd" in one.get("report", {}) for one in responses)

    def check(self) -> None:
        """It is always there."""

    def command(self, request: AgentRequest) -> AgentCommand:
        argv = (sys.executable, "-S", "-E", str(_STUB), str(self._fixture))
        return AgentCommand(
            argv=argv,
            env=_environment(request),
            stdin=request.prompt,
            read_only=(self._fixture,),
        )


class CommandRunner(_TellsByFile):
    """Any program: `{prompt}`, `{prompt_file}` and `{workspace}` are filled into its arguments.

    Without one of the first two the prompt comes on standard input.
    """

    name = "command"
    #: It may tell a cost, but nothing is known about it before.
    tells_cost = False

    def __init__(self, template: tuple[str, ...]) -> None:
        if not template or not template[0].strip():
            raise UsageError(
                "the framework `command` has no command to run",
                hint='set one, e.g. caloron config set command "my-agent --ask {prompt_file}"',
            )
        self._template = template

    def check(self) -> None:
        program = self._template[0]
        if inside := _found_in_workspace(self._template):
            raise UsageError(
                f"{inside!r} in the command of the framework `command` would be a file of the "
                "workspace, so the author of a change could replace its reviewer",
                hint="name a file outside the repository by its full path;"
                " a module of Python: python3 -P -m MODULE",
            )
        if shutil.which(program) is None:
            raise PreconditionFailed(
                f"the program {program!r} of the framework `command` is not there, "
                "or may not be run",
                hint="install it, or change it with caloron config set command",
            )

    def command(self, request: AgentRequest) -> AgentCommand:
        used = set(_PLACEHOLDER.findall(" ".join(self._template)))
        # An argument cannot hold the zero byte.
        values = {
            "prompt": request.prompt.replace("\0", ""),
            "prompt_file": str(request.home_inside / "prompt.txt"),
            "workspace": str(request.workspace),
        }
        if "prompt_file" in used:
            request.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            clear(request.home / "prompt.txt").write_text(request.prompt, "utf-8")
        argv = tuple(_PLACEHOLDER.sub(lambda m: values[m[1]], word) for word in self._template)
        if any(len(word.encode()) > _ARGUMENT_BYTES for word in argv):
            raise UsageError(
                f"the prompt for {request.task or request.role} is too long for a command line",
                hint="use {prompt_file} in the command, or no placeholder for standard input",
            )
        program, needs = _installation(argv[0], request.run_dir)
        given = used & {"prompt", "prompt_file"}
        return AgentCommand(
            argv=(program, *argv[1:]),
            env=_environment(request),
            stdin="" if given else request.prompt,
            read_only=needs,
        )


def _found_in_workspace(command: tuple[str, ...]) -> str:
    """The program, script or module that would be looked for in the workspace; empty: none."""
    program, *arguments = command
    if "/" in program and not program.startswith("/"):
        return program
    interpreter = _INTERPRETER.fullmatch(Path(program).name)
    if interpreter is None:
        return ""
    options = list(takewhile(lambda word: word.startswith("-"), arguments))
    rest = arguments[len(options) :]
    inline = "-e" if interpreter[1] in ("node", "ruby", "perl") else "-c"
    if not rest or options[-1:] == [inline]:
        return ""
    if options[-1:] == ["-m"]:
        return "" if {"-P", "-I"} & set(options) else rest[0]
    return "" if rest[0].startswith(("/", "{")) else rest[0]


def _installation(program: str, own: Path) -> tuple[str, tuple[Path, ...]]:
    """How a program is called inside a sandbox, and what of it must be readable there.

    By its full path: a branch can install a program of any name into the workspace.
    """
    found = shutil.which(program)
    if found is None:
        return program, ()
    place = Path(found).absolute()
    environment = place.parent.parent
    if (environment / "pyvenv.cfg").is_file():
        # Its interpreter finds the packages by the path that it is called by.
        return str(place), (environment, *_interpreter(place))
    real = place.resolve()
    if any(real.is_relative_to(system) for system in _SYSTEM):
        visible = any(place.is_relative_to(system) for system in _SYSTEM)
        return str(place if visible else real), ()
    crowded = real.parent in (Path.home(), Path("/"), Path("/tmp"), Path("/var/tmp"))
    around_us = own.resolve().is_relative_to(real.parent)
    return str(real), (real if crowded or around_us else real.parent,)


def _interpreter(script: Path) -> tuple[Path, ...]:
    """The Python installation that a virtual environment stands on, if the system has it not."""
    base = (script.parent / "python").resolve()
    if any(base.is_relative_to(system) for system in _SYSTEM) or not base.is_file():
        return ()
    return (base.parent.parent,)


def framework_on_path() -> str:
    """The framework whose program is installed here; empty if there is none."""
    for name, (program, variable) in _BY_PROGRAM.items():
        if shutil.which(os.environ.get(variable) or program):
            return name
    return ""


def runner_for(framework: str, *, stub_fixture: str, command: tuple[str, ...]) -> AgentRunner:
    """The runner of a framework by its name, ready to use."""
    if framework == "stub":
        if not stub_fixture:
            raise UsageError(
                "the framework `stub` has no fixture",
                hint="set CALORON_STUB_FIXTURE, or caloron config set stub_fixture FILE",
            )
        return StubRunner(Path(stub_fixture))
    if framework == "command":
        return CommandRunner(command)
    if framework == "claude-code":
        return ClaudeCodeRunner()
    raise UsageError(
        f"unknown framework `{framework}`",
        hint=f"known frameworks: {', '.join(FRAMEWORKS)}",
    )
