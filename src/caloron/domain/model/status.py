"""The statuses of a task, the phases of a sprint, and which moves between them are allowed."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

Phase = Literal["planning", "approval", "running", "retro", "ended"]


class Status(StrEnum):
    PENDING = "Pending"
    READY = "Ready"
    IN_PROGRESS = "InProgress"
    IN_REVIEW = "InReview"
    DONE = "Done"
    BLOCKED = "Blocked"
    ESCALATED = "Escalated"
    CANCELLED = "Cancelled"


class Step(StrEnum):
    """Where a task is, exactly; its status follows from the step."""

    WAITING = "waiting"
    BLOCKED = "blocked"
    READY = "ready"
    IMPLEMENTING = "implementing"
    FIXING = "fixing"
    RESOLVING = "resolving"
    CHECKING = "checking"
    PUBLISHING = "publishing"
    REVIEW_QUEUED = "review_queued"
    VERIFYING = "verifying"
    MAIN_SUSPECT = "main_suspect"
    REVIEWING = "reviewing"
    POSTING_VERDICT = "posting_verdict"
    MERGE_QUEUED = "merge_queued"
    MERGE_VERIFYING = "merge_verifying"
    WAITING_FOR_CI = "waiting_for_ci"
    MERGING = "merging"
    MERGED_UNVERIFIED = "merged_unverified"
    REVERTING = "reverting"
    REVERTED = "reverted"
    ESCALATED = "escalated"
    DONE = "done"
    CANCELLED = "cancelled"

    @property
    def status(self) -> Status:
        return STATUS_OF[self]


class IllegalTransition(ValueError):
    """A move that the rules do not know; it is a bug, not a state of the world."""

    def __init__(self, task: str, old: Status, new: Status) -> None:
        super().__init__(f"task {task}: {old} → {new}")
        self.task = task


class IllegalPhase(ValueError):
    """A change of phase that the rules do not know; it is a bug, too."""

    def __init__(self, sprint: str, old: Phase, new: Phase) -> None:
        super().__init__(f"sprint {sprint}: {old} → {new}")


_P, _R, _G, _V = Status.PENDING, Status.READY, Status.IN_PROGRESS, Status.IN_REVIEW
_D, _B, _E, _C = Status.DONE, Status.BLOCKED, Status.ESCALATED, Status.CANCELLED

#: The status of each step.
STATUS_OF: dict[Step, Status] = {
    Step.WAITING: _P,
    Step.BLOCKED: _B,
    Step.READY: _R,
    Step.IMPLEMENTING: _G,
    Step.FIXING: _G,
    Step.RESOLVING: _G,
    Step.CHECKING: _G,
    Step.PUBLISHING: _G,
    Step.REVIEW_QUEUED: _V,
    Step.VERIFYING: _V,
    Step.MAIN_SUSPECT: _V,
    Step.REVIEWING: _V,
    Step.POSTING_VERDICT: _V,
    Step.MERGE_QUEUED: _V,
    Step.MERGE_VERIFYING: _V,
    Step.WAITING_FOR_CI: _V,
    Step.MERGING: _V,
    Step.MERGED_UNVERIFIED: _V,
    Step.REVERTING: _V,
    Step.REVERTED: _V,
    Step.ESCALATED: _E,
    Step.DONE: _D,
    Step.CANCELLED: _C,
}

#: The step of a task of which only the status is known.
FIRST_STEP: dict[Status, Step] = {
    _P: Step.WAITING,
    _R: Step.READY,
    _G: Step.PUBLISHING,
    _V: Step.REVIEW_QUEUED,
    _D: Step.DONE,
    _B: Step.BLOCKED,
    _E: Step.ESCALATED,
    _C: Step.CANCELLED,
}

#: Done is final. Every other status can be left, because a person may act at any time.
TRANSITIONS: dict[Status, frozenset[Status]] = {
    _P: frozenset({_R, _B, _C, _D, _E}),
    _R: frozenset({_G, _P, _B, _C, _D, _E}),
    _G: frozenset({_V, _D, _E, _C}),
    _V: frozenset({_G, _D, _E, _C}),
    _D: frozenset(),
    _B: frozenset({_P, _C, _D, _E}),
    _E: frozenset({_P, _G, _V, _D, _C}),
    _C: frozenset({_P, _D}),
}

#: Statuses in which a task waits for a person, or for nothing any more.
SETTLED = frozenset({_D, _B, _E, _C})

#: A dependency in one of these holds its dependents back.
HOLDS_DEPENDENTS = frozenset({_B, _E, _C})


def check_transition(task: str, old: Status, new: Status) -> None:
    if new not in TRANSITIONS[old]:
        raise IllegalTransition(task, old, new)


#: What may follow a phase. A person's act may continue a sprint that has ended.
PHASES: dict[Phase, frozenset[Phase]] = {
    "planning": frozenset({"approval", "running", "ended"}),
    "approval": frozenset({"running"}),
    "running": frozenset({"retro", "ended"}),
    "retro": frozenset({"running", "ended"}),
    "ended": frozenset({"planning", "running", "retro"}),
}


def check_phase(sprint: str, old: Phase, new: Phase) -> None:
    if new not in PHASES[old]:
        raise IllegalPhase(sprint, old, new)


_DONE, _NO_PLAN, _TASKS_NOT_DONE = 0, 8, 10


def exit_code_for(*, stopped: str, done: int, total: int) -> int:
    """Return what `sprint` and `resume` exit with once a sprint has ended."""
    if stopped:
        return _NO_PLAN
    return _DONE if total and done == total else _TASKS_NOT_DONE
