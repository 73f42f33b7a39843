"""What the tick is told: forge snapshots, ends of work, and effects that were done or refused."""

from __future__ import annotations

from typing import Literal

import msgspec

from caloron.domain.budget import Usage
from caloron.domain.feedback import Feedback
from caloron.domain.merging import Link
from caloron.domain.observations import BranchSeen, CommentSeen, IssueSeen, PullSeen, ReviewSeen
from caloron.domain.plan import PlannedTask
from caloron.domain.sprint import Role

Trouble = Literal["", "auth", "quota", "rate_limit", "overflow", "budget", "crash"]
#: Why nothing was verified: main has no files yet, or no way to verify was found or wanted.
Skipped = Literal["", "none", "unverified"]


class WorkEnded(msgspec.Struct, frozen=True, kw_only=True, tag="work_ended"):
    """An attempt came to its end; one that was interrupted is not told, it is run again."""

    item: str
    task: str
    role: Role
    #: The fencing token of the claim that ended: one claim ends once.
    token: int
    exit_code: int = 0
    timed_out: bool = False
    last_line: str = ""
    #: What the agent said: the tail of it, or all of it from a planner.
    answer: str = ""
    #: The commit that the work left; equal to `base` when nothing was committed.
    head: str = ""
    base: str = ""
    #: Files that could not be merged, or that still hold conflict markers.
    conflicts: tuple[str, ...] = ()
    log: str = ""
    #: Something of ours failed around the agent: what it was.
    fault: str = ""
    #: The limit that the agent was ended for, such as its memory.
    over: str = ""
    #: Who the agent was, and what its provider refused.
    framework: str = ""
    trouble: Trouble = ""
    detail: str = ""
    reset_at: float | None = None
    stop_reason: str = ""
    #: The conversation, to go on with it in the next round.
    session: str = ""
    usage: Usage | None = None
    feedback: Feedback | None = None
    #: The shell line that verified, or why nothing was verified.
    how: str = ""
    skipped: Skipped = ""
    #: Of a verification of main alone: who made its newest commit.
    by: str = ""
    #: The tree that was verified.
    tree: str = ""
    #: Of a batch, what was verified, in order; who is not in it could not be merged there.
    chain: tuple[Link, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.item}#{self.token}"


class RunInterrupted(msgspec.Struct, frozen=True, kw_only=True, tag="run_interrupted"):
    """An attempt was cut short and is run again: what it used, and its conversation."""

    item: str
    task: str
    token: int
    usage: Usage
    session: str = ""

    @property
    def id(self) -> str:
        return f"{self.item}#{self.token}#interrupted"


class Halt(msgspec.Struct, frozen=True, kw_only=True, tag="halt"):
    """Nothing more may be started until a person says so."""

    reason: str
    id: str = "halt"


#: `gone`: the branch is not there any more; `waiting`: the forge's CI has not ended; `checks`:
#: it is red; `elsewhere`: it was merged, but not into main.
Refusal = Literal[
    "stale_head", "stale_base", "conflict", "gone", "waiting", "checks", "elsewhere", "refused"
]


class EffectDone(msgspec.Struct, frozen=True, kw_only=True, tag="effect_done"):
    key: str
    task: str
    kind: str
    #: The commit that a push put on the branch, a merge on main, or a look found there.
    commit: str = ""
    #: Of a merge, the tree of that commit.
    tree: str = ""
    #: Of a merge: it is not a person's own.
    by_us: bool = True
    #: Of a revert, the commit that brings the change back.
    again: str = ""

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
    """A person looked at the plan and said yes."""

    id: str = "plan_approved"


class PlanEdited(msgspec.Struct, frozen=True, kw_only=True, tag="plan_edited"):
    """A person put other tasks in the place of a plan that waits for approval."""

    tasks: tuple[PlannedTask, ...]
    #: When, in seconds since 1970: of two edits the later one counts.
    at: float

    @property
    def id(self) -> str:
        return f"plan_edited/{self.at}"


class SprintDiscarded(msgspec.Struct, frozen=True, kw_only=True, tag="sprint_discarded"):
    """A person does not want what is left of the sprint."""

    by: str
    id: str = "sprint_discarded"


Fact = (
    WorkEnded
    | RunInterrupted
    | Halt
    | EffectDone
    | EffectFailed
    | PlanApproved
    | PlanEdited
    | SprintDiscarded
    | IssueSeen
    | PullSeen
    | ReviewSeen
    | CommentSeen
    | BranchSeen
)
