"""The framework `stub`: the scripted agent, which answers from a fixture file."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from caloron.agents.clis.base import CliSettings, ReportFileCli
from caloron.agents.clis.scripted_agent import FixtureError, load_fixture
from caloron.errors import UsageError
from caloron.ports import AgentCommand, AgentRequest, CliInfo

_SCRIPT = Path(__file__).with_name("scripted_agent.py")


class Stub(ReportFileCli):
    """The scripted agent, with its fixture checked before anything starts."""

    info = CliInfo(
        name="stub",
        title="the scripted agent",
        uses_model=False,
        version_args=(),
        is_agent=True,
    )

    def __init__(self, settings: CliSettings) -> None:
        super().__init__(settings)
        if not settings.stub_fixture:
            raise UsageError(
                "the framework `stub` has no fixture",
                hint="set CALORON_STUB_FIXTURE, or caloron config set stub_fixture FILE",
            )
        self._fixture = Path(settings.stub_fixture).absolute()
        try:
            responses = load_fixture(self._fixture).get("responses", [])
        except FixtureError as error:
            raise UsageError(
                f"the stub fixture {settings.stub_fixture}: {error}",
                hint="correct the file; nothing was started",
            ) from error
        costs = any("cost_usd" in response.get("report", {}) for response in responses)
        self.info = msgspec.structs.replace(self.info, reports_cost=costs)

    def check(self) -> None:
        """The scripted agent is part of Caloron."""

    def command(self, request: AgentRequest) -> AgentCommand:
        return AgentCommand(
            argv=(sys.executable, "-S", "-E", str(_SCRIPT), str(self._fixture)),
            env=self.report_environment(request),
            stdin=request.prompt,
            read_only=(self._fixture,),
        )
