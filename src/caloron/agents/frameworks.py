"""The coding-agent frameworks: each turns a request into a command to start."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from caloron.agents.stub import FixtureError, load_fixture
from caloron.errors import UsageError
from caloron.ports import AgentCommand, AgentRequest, AgentRunner

FRAMEWORKS = ("stub", "command")

_STUB = Path(__file__).with_name("stub.py")
_PLACEHOLDER = re.compile(r"\{(prompt|prompt_file|workspace)\}")
#: The kernel takes no longer argument than this.
_ARGUMENT_BYTES = 128 * 1024 - 1


class StubRunner:
    """The scripted agent, with its fixture checked before anything starts."""

    name = "stub"

    def __init__(self, fixture: Path) -> None:
        self._fixture = fixture.absolute()
        try:
            load_fixture(self._fixture)
        except FixtureError as error:
            raise UsageError(
                f"the stub fixture {fixture}: {error}",
                hint="correct the file; nothing was started",
            ) from error

    def command(self, request: AgentRequest) -> AgentCommand:
        argv = (sys.executable, "-S", "-E", str(_STUB), str(self._fixture))
        return AgentCommand(argv=argv, stdin=request.prompt)


class CommandRunner:
    """Any program: `{prompt}`, `{prompt_file}` and `{workspace}` are filled into its arguments.

    Without one of the first two the prompt comes on standard input.
    """

    name = "command"

    def __init__(self, template: tuple[str, ...]) -> None:
        if not template or not template[0].strip():
            raise UsageError(
                "the framework `command` has no command to run",
                hint='set one, e.g. caloron config set command "my-agent --ask {prompt_file}"',
            )
        self._template = template

    def command(self, request: AgentRequest) -> AgentCommand:
        used = set(_PLACEHOLDER.findall(" ".join(self._template)))
        # An argument cannot hold the zero byte.
        values = {
            "prompt": request.prompt.replace("\0", ""),
            "prompt_file": str(request.run_dir / "prompt.txt"),
            "workspace": str(request.workspace),
        }
        if "prompt_file" in used:
            request.run_dir.mkdir(parents=True, exist_ok=True)
            Path(values["prompt_file"]).write_text(request.prompt, "utf-8")
        argv = tuple(_PLACEHOLDER.sub(lambda m: values[m[1]], word) for word in self._template)
        if any(len(word.encode()) > _ARGUMENT_BYTES for word in argv):
            raise UsageError(
                f"the prompt for {request.task or request.role} is too long for a command line",
                hint="use {prompt_file} in the command, or no placeholder for standard input",
            )
        given = used & {"prompt", "prompt_file"}
        return AgentCommand(argv=argv, stdin="" if given else request.prompt)


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
    raise UsageError(
        f"unknown framework `{framework}`",
        hint=f"known frameworks: {', '.join(FRAMEWORKS)}",
    )
