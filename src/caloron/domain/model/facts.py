"""The input of a tick: forge snapshots, ends of work, and effects that were done or refused."""

from __future__ import annotations

from typing import Literal

import msgspec

from caloron.domain.model.feedback import Feedback
from caloron.domain.model.merge import Link
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.roles import ROLES, Role
from caloron.domain.model.snapshots import (
    BranchSnapshot,
    CommentSnapshot,
    IssueSnapshot,
    PullSnapshot,
    ReviewSnapshot,
)
from caloron.domain.model.usage import Usage

Trouble = Literal["", "auth", "quota", "rate_limit", "overflow", "budget", "crash"]
#: Why nothing was verified: main has no files yet, or there is no command, or none is wanted.
Skipped = Literal["", "none", "unverified"]


class WorkEnded(msgspec.Struct, frozen=True, kw_only=True, tag="work_ended"):
    """An attempt ended. An interrupted attempt is run again and is no such fact."""

    item: str
    task: str
    role: Role
    #: The fencing token of the claim that ended: one claim ends once.
    token: int
    exit_code: int = 0
    timed_out: bool = False
    last_line: str = ""
    #: The output of the agent: its tail, or all of it from a planner.
    answer: str = ""
    #: The comments of people that its prompt had.
    comments: tuple[str, ...] = ()
    #: The agent's own description of its change, for people.
    summary: str = ""
    #: The commit that the work left; equal to `base` when nothing was committed.
    head: str = ""
    base: str = ""
    #: Files that could not be merged, or that still hold conflict markers.
    conflicts: tuple[str, ...] = ()
    log: str = ""
    #: The failure of our own code around the agent.
    internal_error: str = ""
    #: The limit that ended the agent, such as its memory.
    limit_hit: str = ""
    #: The agent CLI, and the refusal of its provider.
    framework: str = ""
    provider_error: Trouble = ""
    provider_message: str = ""
    reset_at: float | None = None
    stop_reason: str = ""
    #: The conversation, which the next round continues.
    session: str = ""
    usage: Usage | None = None
    feedback: Feedback | None = None
    #: The shell line that verified, or why nothing was verified.
    verify_command: str = ""
    skipped: Skipped = ""
    #: The author of the newest commit, for a verification of main alone.
    main_author: str = ""
    #: The tree that was verified.
    tree: str = ""
    #: The verified changes of a batch, in order; a member that is missing has a conflict.
    chain: tuple[Link, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.item}#{self.token}"


class Result(msgspec.Struct, frozen=True):
    """The end of an attempt, in the one interpretation that all rules share."""

    kind: Literal[
        "committed", "unchanged", "answered", "green", "red", "conflict", "refused", "failed"
    ]
    #: The reason as the predicate of a sentence, such as "ran out of time"; for a red
    #: verification, the line that shows it.
    reason: str = ""


#: The provider refuses every request, which is no failure of the agent.
PROVIDER_REFUSALS: tuple[Trouble, ...] = ("auth", "quota", "rate_limit")


def classify(fact: WorkEnded) -> Result:
    """Interpret the end of an attempt.

    Commits count although the agent failed afterwards; everything else of a failed agent does not.
    """
    spec = ROLES[fact.role]
    if fact.provider_error in PROVIDER_REFUSALS:
        return Result("refused", _failure(fact))
    if fact.internal_error:
        return Result("failed", fact.internal_error)
    if fact.conflicts:
        return Result("conflict", ", ".join(fact.conflicts))
    if not spec.needs_agent:
        return Result("red", red_line(fact)) if is_red(fact) else Result("green", fact.skipped)
    if spec.writes_code and fact.head != fact.base:
        return Result("committed")
    if failure := _failure(fact):
        return Result("failed", failure)
    return Result("unchanged" if spec.writes_code else "answered", fact.last_line)


def _failure(fact: WorkEnded) -> str:
    if fact.timed_out:
        return "ran out of time"
    if fact.limit_hit:
        return f"was ended: {fact.limit_hit}"
    if fact.provider_error:
        return f"failed ({fact.provider_error}): {fact.provider_message or fact.last_line}"
    if fact.exit_code:
        return f"ended with exit code {fact.exit_code}: {fact.last_line or 'no output'}"
    return ""


def is_red(fact: WorkEnded) -> bool:
    """True if a verification failed. A batch may have conflicts as well."""
    return bool(fact.exit_code or fact.timed_out or fact.limit_hit)


def red_line(fact: WorkEnded) -> str:
    """Return the line that shows why a verification is red."""
    if fact.timed_out:
        return "it timed out"
    return fact.limit_hit or fact.last_line or f"exit code {fact.exit_code}"


class RunInterrupted(msgspec.Struct, frozen=True, kw_only=True, tag="run_interrupted"):
    """An attempt was interrupted and is run again: its cost, and its conversation."""

    item: str
    task: str
    token: int
    usage: Usage
    session: str = ""

    @property
    def id(self) -> str:
        return f"{self.item}#{self.token}#interrupted"


class Halt(msgspec.Struct, frozen=True, kw_only=True, tag="halt"):
    """No work may be started until a person resumes the sprint."""

    reason: str
    id: str = "halt"


#: `gone`: the branch was deleted; `waiting`: the forge's CI has not ended; `checks`: the CI is
#: red; `elsewhere`: the change was merged, but not into main.
Refusal = Literal[
    "stale_head", "stale_base", "conflict", "gone", "waiting", "checks", "elsewhere", "refused"
]


class EffectDone(msgspec.Struct, frozen=True, kw_only=True, tag="effect_done"):
    key: str
    task: str
    kind: str
    #: The commit that a push put on the branch, a merge on main, or that was read there.
    commit: str = ""
    #: The tree of that commit, for a merge.
    tree: str = ""
    #: False for a merge by a person.
    by_us: bool = True
    #: The commit that brings the change back, for a revert.
    reapply_commit: str = ""

    @property
    def id(self) -> str:
        return f"{self.key}#done"


class EffectFailed(msgspec.Struct, frozen=True, kw_only=True, tag="effect_failed"):
    key: str
    task: str
    kind: str
    refusal: Refusal
    message: str

    @property
    def id(self) -> str:
        return f"{self.key}#failed"


class PlanApproved(msgspec.Struct, frozen=True, tag="plan_approved"):
    """A person approved the plan."""

    id: str = "plan_approved"


class PlanEdited(msgspec.Struct, frozen=True, kw_only=True, tag="plan_edited"):
    """A person replaced a plan that waits for approval."""

    tasks: tuple[PlannedTask, ...]
    #: In seconds since 1970: of two edits the later one counts.
    at: float

    @property
    def id(self) -> str:
        return f"plan_edited/{self.at}"


class PlanSentBack(msgspec.Struct, frozen=True, kw_only=True, tag="plan_sent_back"):
    """A person wants another plan than the one that waits for approval."""

    remark: str
    at: float

    @property
    def id(self) -> str:
        return f"plan_sent_back/{self.at}"


class SprintDiscarded(msgspec.Struct, frozen=True, kw_only=True, tag="sprint_discarded"):
    """A person discarded the sprint."""

    by: str
    id: str = "sprint_discarded"


class RevertRequested(msgspec.Struct, frozen=True, kw_only=True, tag="revert_requested"):
    """A person wants merged tasks of an ended sprint reverted."""

    by: str
    #: The one that was merged last comes first.
    tasks: tuple[str, ...]
    #: In seconds since 1970.
    at: float

    @property
    def id(self) -> str:
        return f"revert_requested/{self.at}"


Fact = (
    WorkEnded
    | RunInterrupted
    | Halt
    | EffectDone
    | EffectFailed
    | PlanApproved
    | PlanEdited
    | PlanSentBack
    | SprintDiscarded
    | RevertRequested
    | IssueSnapshot
    | PullSnapshot
    | ReviewSnapshot
    | CommentSnapshot
    | BranchSnapshot
)
