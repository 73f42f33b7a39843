"""The framework `command`: any program that takes a prompt and works in the current folder."""

from __future__ import annotations

import re
import shutil
from itertools import takewhile
from pathlib import Path

from caloron.agents.clis.base import ARGUMENT_BYTES, CliSettings, ReportFileCli
from caloron.agents.sandbox.mounts import SYSTEM, is_below
from caloron.agents.workspace.workspaces import clear
from caloron.errors import PreconditionFailed, UsageError
from caloron.ports import AgentCommand, AgentRequest, CliInfo

_PLACEHOLDER = re.compile(r"\{(prompt|prompt_file|workspace)\}")
_INTERPRETER = re.compile(r"(python|sh|bash|dash|zsh|node|ruby|perl)[\d.]*")
#: Every sandbox has these; a program in there needs nothing else.
_SYSTEM = tuple(map(Path, SYSTEM))


class Command(ReportFileCli):
    """Any program: `{prompt}`, `{prompt_file}` and `{workspace}` are filled into its arguments.

    Without one of the first two the prompt comes on standard input.
    """

    #: It may report a cost, but that is not known before.
    info = CliInfo(
        name="command",
        title="the configured command",
        uses_model=False,
        version_args=(),
    )

    def __init__(self, settings: CliSettings) -> None:
        super().__init__(settings)
        self._template = settings.command
        if not self._template or not self._template[0].strip():
            raise UsageError(
                "the framework `command` has no command to run",
                hint='set one, e.g. caloron config set command "my-agent --ask {prompt_file}"',
            )

    def check(self) -> None:
        program = self._template[0]
        if inside := _workspace_file(self._template):
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
            "prompt_file": str(request.sandbox_home / "prompt.txt"),
            "workspace": str(request.workspace),
        }
        if "prompt_file" in used:
            request.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            clear(request.home / "prompt.txt").write_text(request.prompt, "utf-8")
        argv = tuple(_PLACEHOLDER.sub(lambda m: values[m[1]], word) for word in self._template)
        if any(len(word.encode()) > ARGUMENT_BYTES for word in argv):
            raise UsageError(
                f"the prompt for {request.task or request.role} is too long for a command line",
                hint="use {prompt_file} in the command, or no placeholder for standard input",
            )
        program, needs = _installation(argv[0], request.run_dir)
        return AgentCommand(
            argv=(program, *argv[1:]),
            env=self.report_environment(request),
            stdin="" if used & {"prompt", "prompt_file"} else request.prompt,
            read_only=needs,
        )


def _workspace_file(command: tuple[str, ...]) -> str:
    """Return the program, script or module that would be a file of the workspace; empty: none."""
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


def _installation(program: str, run_dir: Path) -> tuple[str, tuple[Path, ...]]:
    """Return how a program is called inside a sandbox, and which folders it needs there.

    By its full path: a branch can install a program of any name into the workspace.
    """
    on_path = shutil.which(program)
    if on_path is None:
        return program, ()
    path = Path(on_path).absolute()
    environment = path.parent.parent
    if (environment / "pyvenv.cfg").is_file():
        # The interpreter finds its packages by the path that it is called by.
        return str(path), (environment, *_base_interpreter(path))
    real = path.resolve()
    if is_below(real, _SYSTEM):
        return str(path if is_below(path, _SYSTEM) else real), ()
    crowded = real.parent in (Path.home(), Path("/"), Path("/tmp"), Path("/var/tmp"))
    holds_run = run_dir.resolve().is_relative_to(real.parent)
    return str(real), (real if crowded or holds_run else real.parent,)


def _base_interpreter(script: Path) -> tuple[Path, ...]:
    """Return the Python installation below a virtual environment, unless it is the system's."""
    base = (script.parent / "python").resolve()
    if is_below(base, _SYSTEM) or not base.is_file():
        return ()
    return (base.parent.parent,)
