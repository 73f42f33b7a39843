"""Several runners as one: each stage goes to the first that can run it."""

from __future__ import annotations

from caloron.graph.datum import Datum
from caloron.graph.errors import StageMissing
from caloron.graph.jsontext import Json
from caloron.graph.protocols import Call, StageRunner
from caloron.graph.spec import StageSpec


class Runners:
    """Asks runners in order; what none of them has is missing, and said to be."""

    def __init__(self, *runners: StageRunner) -> None:
        self._runners = runners

    def code_hash(self, stage: StageSpec) -> str | None:
        for runner in self._runners:
            found = runner.code_hash(stage)
            if found is not None:
                return found
        return None

    def run(self, stage: StageSpec, given: Datum, call: Call) -> Json | Datum:
        for runner in self._runners:
            if runner.code_hash(stage) is not None:
                return runner.run(stage, given, call)
        raise StageMissing(f"nobody here can run the stage {stage.name or stage.id}")
