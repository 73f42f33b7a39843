"""The framework `stub`: the scripted agent, which answers from a fixture file."""

from __future__ import annotations

import json
import sys
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from caloron.agents.clis.base import CliSettings, ReportFileCli
from caloron.errors import UsageError
from caloron.ports import AgentCommand, AgentRequest, CliInfo

_SCRIPT = Path(__file__).with_name("scripted_agent.py")
_Condition = str | int | list[str | int]


class _Base64(msgspec.Struct, forbid_unknown_fields=True):
    base64: bytes


class _Conditions(msgspec.Struct, forbid_unknown_fields=True):
    role: _Condition = ""
    task: _Condition = ""
    attempt: _Condition = ""
    round: _Condition = ""


class _Response(msgspec.Struct, forbid_unknown_fields=True):
    when: _Conditions = msgspec.field(default_factory=_Conditions)
    match: str = ""
    output: str = ""
    ending: bool = True
    #: Content by path; null deletes the file.
    files: dict[str, str | _Base64 | None] = {}
    run: str = ""
    sleep_s: Annotated[float, Meta(ge=0)] = 0
    exit_code: Annotated[int, Meta(ge=0, le=255)] = 0
    report: dict[str, Any] = {}

    def __post_init__(self) -> None:
        for name in self.files:
            parts = PurePosixPath(name).parts
            if not parts or name.startswith("/") or ".." in parts or "\0" in name:
                raise ValueError(f"`files` has {name!r}, which is no path inside the workspace")


class _Fixture(msgspec.Struct, forbid_unknown_fields=True):
    responses: list[_Response] = []
    default: str = ""


def _fixture(file: str) -> _Fixture:
    """Read a fixture and check every field of it."""
    try:
        return msgspec.convert(json.loads(Path(file).read_text("utf-8")), _Fixture)
    except OSError as error:
        problem = f"cannot be read: {error.strerror}"
    except msgspec.ValidationError as error:
        problem = str(error)
    except ValueError as error:
        problem = f"is not JSON: {error}"
    raise UsageError(
        f"the stub fixture {file}: {problem}", hint="correct the file; nothing was started"
    )


class Stub(ReportFileCli):
    """The scripted agent, with its fixture checked before anything starts."""

    info = CliInfo(name="stub", title="the scripted agent", uses_model=False, version_args=())

    def __init__(self, settings: CliSettings) -> None:
        super().__init__(settings)
        if not settings.stub_fixture:
            raise UsageError(
                "the framework `stub` has no fixture",
                hint="set CALORON_STUB_FIXTURE, or caloron config set stub_fixture FILE",
            )
        self._path = Path(settings.stub_fixture).absolute()
        responses = _fixture(settings.stub_fixture).responses
        costs = any("cost_usd" in response.report for response in responses)
        self.info = msgspec.structs.replace(self.info, reports_cost=costs)

    def check(self) -> None:
        """The scripted agent is part of Caloron."""

    def command(self, request: AgentRequest) -> AgentCommand:
        return AgentCommand(
            argv=(sys.executable, "-S", "-E", str(_SCRIPT), str(self._path)),
            env=self.report_environment(request),
            stdin=request.prompt,
            read_only=(self._path,),
        )
