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

    status: Status

    def __new__(cls, value: str, status: Status = Status.PENDING) -> Step:
        step = str.__new__(cls, value)
        step._value_, step.status = value, status
        return step

    WAITING = "waiting", Status.PENDING
    BLOCKED = "blocked", Status.BLOCKED
    READY = "ready", Status.READY
    IMPLEMENTING = "implementing", Status.IN_PROGRESS
    FIXING = "fixing", Status.IN_PROGRESS
    RESOLVING = "resolving", Status.IN_PROGRESS
    CHECKING = "checking", Status.IN_PROGRESS
    PUBLISHING = "publishing", Status.IN_PROGRESS
    REVIEW_QUEUED = "review_queued", Status.IN_REVIEW
    VERIFYING = "verifying", Status.IN_REVIEW
    MAIN_SUSPECT = "main_suspect", Status.IN_REVIEW
    REVIEWING = "reviewing", Status.IN_REVIEW
    POSTING_VERDICT = "posting_verdict", Status.IN_REVIEW
    AWAITING_APPROVAL = "awaiting_approval", Status.IN_REVIEW
    MERGE_QUEUED = "merge_queued", Status.IN_REVIEW
    MERGE_VERIFYING = "merge_verifying", Status.IN_REVIEW
    WAITING_FOR_CI = "waiting_for_ci", Status.IN_REVIEW
    MERGING = "merging", Status.IN_REVIEW
    MERGED_UNVERIFIED = "merged_unverified", Status.IN_REVIEW
    REVERTING = "reverting", Status.IN_REVIEW
    REVERTED = "reverted", Status.IN_REVIEW
    ESCALATED = "escalated", Status.ESCALATED
    DONE = "done", Status.DONE
    CANCELLED = "cancelled", Status.CANCELLED


class IllegalTransition(ValueError):
    """A move that the rules do not allow: a bug, not a state of the world."""

    def __init__(self, task: str, old: Status, new: Status) -> None:
        super().__init__(f"task {task}: {old} → {new}")
        self.task = task


class IllegalPhase(ValueError):
    """A change of phase that the rules do not allow: a bug, too."""

    def __init__(self, sprint: str, old: Phase, new: Phase) -> None:
        super().__init__(f"sprint {sprint}: {old} → {new}")


_P, _R, _G, _V = Status.PENDING, Status.READY, Status.IN_PROGRESS, Status.IN_REVIEW
_D, _B, _E, _C = Status.DONE, Status.BLOCKED, Status.ESCALATED, Status.CANCELLED

#: The step of a task if only its status is known.
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

#: A task in one of these waits for a person, or is over.
SETTLED = frozenset({_D, _B, _E, _C})

#: A dependency in one of these blocks its dependents.
HOLDS_DEPENDENTS = frozenset({_B, _E, _C})


def check_transition(task: str, old: Status, new: Status) -> None:
    if new not in TRANSITIONS[old]:
        raise IllegalTransition(task, old, new)


#: The phases that may follow. A person's act may continue a sprint that has ended.
PHASES: dict[Phase, frozenset[Phase]] = {
    "planning": frozenset({"approval", "running", "ended"}),
    "approval": frozenset({"planning", "running"}),
    "running": frozenset({"retro", "ended"}),
    "retro": frozenset({"running", "ended"}),
    "ended": frozenset({"planning", "running", "retro"}),
}


_DONE, _NO_PLAN, _TASKS_NOT_DONE = 0, 8, 10


def exit_code_for(*, stopped: str, done: int, total: int) -> int:
    """Return the exit code of `sprint` and `resume` once a sprint has ended."""
    if stopped:
        return _NO_PLAN
    return _DONE if total and done == total else _TASKS_NOT_DONE
