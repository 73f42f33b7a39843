"""What can go wrong with a graph: each error says where, what, and which exit code it means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caloron.graph.trace import Trace


class GraphError(Exception):
    """Any failure of this library; `path` is the JSON path of the node or field it is about."""

    #: One word for machines: parse, reference, type, capabilities, effects, budget, execution, run,
    #: in use, journal.
    kind = "parse"
    #: As Noether ends: 1 the graph cannot be read, 2 it may not run, 3 it failed while running.
    exit_code = 1

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.reason = message
        self.path = path

    def as_noether(self) -> str:
        """The same in the words of Noether, as far as they are known."""
        return str(self)


class ParseError(GraphError):
    """Text that is no JSON, or JSON that is no graph, type or stage."""


class UnknownStage(GraphError):
    """A reference that names no stage that may be used."""

    kind = "reference"


class AmbiguousStage(UnknownStage):
    """A reference that names more than one stage."""


class Finding(GraphError):
    """One thing that the checker objects to; collected, so that all are told together."""

    kind = "type"
    exit_code = 2

    def __init__(
        self, message: str, *, path: str, expected: str | None = None, found: str | None = None
    ) -> None:
        super().__init__(message, path=path)
        self.expected = expected
        self.found = found


class Refused(GraphError):
    """A graph that may not run; `findings` holds every reason."""

    kind = "type"
    exit_code = 2

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("\n".join(str(finding) for finding in findings))
        self.findings = tuple(findings)


class CapabilityRefused(Refused):
    """Stages need capabilities that were not granted."""

    kind = "capabilities"


class EffectRefused(Refused):
    """Stages declare effects that were not allowed."""

    kind = "effects"


class BudgetRefused(Refused):
    """What the stages declare to cost is more than the budget, before anything ran."""

    kind = "budget"


class RunConflict(GraphError):
    """A durable run cannot be resumed so: its id belongs to another graph, input or answer."""

    kind = "run"


class RunInUse(RunConflict):
    """Another process runs this durable run."""

    kind = "in use"


class JournalError(GraphError):
    """The journal of a durable run cannot be read or written: no space, no permission, damage."""

    kind = "journal"


class ExecutionError(GraphError):
    """A run that failed; `trace` tells what was done until then."""

    kind = "execution"
    exit_code = 3

    def __init__(self, message: str, *, path: str = "", stage_id: str = "") -> None:
        super().__init__(message, path=path)
        self.stage_id = stage_id
        self.trace: Trace | None = None

    def as_noether(self) -> str:
        return f"stage {self._stage()} failed: {self.reason}"

    def _stage(self) -> str:
        return f'StageId("{self.stage_id}")'


class StageFailed(ExecutionError):
    """A stage raised, exited with a failure, or answered what it must not."""


class StageMissing(ExecutionError):
    """Nobody here can run this stage."""

    def as_noether(self) -> str:
        return f"stage {self._stage()} not found"


class StageTimedOut(ExecutionError):
    """A stage was stopped because its time, or that of the run, was over."""

    def __init__(self, message: str, *, seconds: float, path: str = "", stage_id: str = "") -> None:
        super().__init__(message, path=path, stage_id=stage_id)
        self.seconds = seconds

    def as_noether(self) -> str:
        return f"stage {self._stage()} timed out after {self.seconds:g}s"


class RunTimedOut(ExecutionError):
    """The time of the whole run was over; a durable run can go on from here."""


class Cancelled(ExecutionError):
    """A node was given up because a sibling had failed."""


class RemoteCallFailed(ExecutionError):
    """A RemoteStage did not answer, or answered with an error."""

    def __init__(self, message: str, *, url: str, path: str = "") -> None:
        super().__init__(message, path=path)
        self.url = url

    def as_noether(self) -> str:
        return f"remote call to {self.url} failed: {self.reason}"


class RetryExhausted(ExecutionError):
    """No attempt was left, or none was allowed."""

    def __init__(self, message: str, *, attempts: int, path: str = "", stage_id: str = "") -> None:
        super().__init__(message, path=path, stage_id=stage_id)
        self.attempts = attempts

    def as_noether(self) -> str:
        return f"retry exhausted after {self.attempts} attempts for stage {self._stage()}"


class BudgetExceeded(ExecutionError):
    """The next call would cost more than what is left; it was not made."""

    kind = "budget"
    exit_code = 2

    def __init__(self, *, spent: int, limit: int, path: str = "", stage_id: str = "") -> None:
        super().__init__(
            f"the budget of {limit} cents does not allow this call: {spent} cents are spent",
            path=path,
            stage_id=stage_id,
        )
        self.spent = spent
        self.limit = limit

    def as_noether(self) -> str:
        return f"cost budget exceeded: spent {self.spent}¢ of {self.limit}¢ limit"
