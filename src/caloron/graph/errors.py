"""The errors of this library: each has a message, a JSON path, a kind and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from caloron.graph.runtime.protocols import Trace


class GraphError(Exception):
    """Any failure of this library; `path` is the JSON path of the node or field concerned."""

    #: One word for machines: parse, reference, type, capabilities, effects, budget, execution, run,
    #: in use, journal.
    kind = "parse"
    #: 1: the graph cannot be read, 2: it may not run, 3: it failed while running.
    exit_code = 1

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.reason = message
        self.path = path


class ParseError(GraphError):
    """Text that is no JSON, or JSON that is no graph, type or stage."""


class UnknownStage(GraphError):
    """A reference that names no usable stage."""

    kind = "reference"


class AmbiguousStage(UnknownStage):
    """A reference that names more than one stage."""


class CheckError(GraphError):
    """One error of the checker; all errors of a graph are collected in a `Refused`."""

    kind = "type"
    exit_code = 2

    def __init__(
        self, message: str, *, path: str, expected: str | None = None, found: str | None = None
    ) -> None:
        super().__init__(message, path=path)
        self.expected = expected
        self.found = found


class Refused(GraphError):
    """A graph that may not run, by its types, capabilities, effects or budget.

    `errors` holds every reason.
    """

    exit_code = 2

    def __init__(self, errors: Sequence[CheckError], *, kind: str = "type") -> None:
        super().__init__("\n".join(map(str, errors)))
        self.errors = tuple(errors)
        self.kind = kind


class RunConflict(GraphError):
    """A durable run cannot be resumed: its id belongs to another graph, input or answer."""

    kind = "run"


class RunInUse(RunConflict):
    """Another process executes this durable run."""

    kind = "in use"


class JournalError(GraphError):
    """The journal of a durable run cannot be read or written: no space, no permission, damage."""

    kind = "journal"


class ExecutionError(GraphError):
    """A run that failed; `trace` holds the calls that were made before."""

    kind = "execution"
    exit_code = 3

    def __init__(self, message: str, *, path: str = "", stage_id: str = "") -> None:
        super().__init__(message, path=path)
        self.stage_id = stage_id
        self.trace: Trace | None = None


class StageFailed(ExecutionError):
    """A stage raised an exception, exited with a failure, or gave an invalid answer."""


class StageMissing(ExecutionError):
    """No runner can run this stage."""


class StageTimedOut(ExecutionError):
    """The time limit of a stage was exceeded."""


class RunTimedOut(ExecutionError):
    """The time limit of the whole run was exceeded; a durable run can be resumed."""


class Cancelled(ExecutionError):
    """A node was cancelled because a sibling failed."""


class BudgetExceeded(ExecutionError):
    """The next call would exceed the budget; it was not made."""

    kind = "budget"
    exit_code = 2

    def __init__(self, *, spent: int, limit: int, path: str = "", stage_id: str = "") -> None:
        super().__init__(
            f"the budget of {limit} cents does not allow this call: {spent} cents are spent",
            path=path,
            stage_id=stage_id,
        )
