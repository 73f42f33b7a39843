"""What the tick is told: forge snapshots, ends of work, and effects that were done or refused."""

from __future__ import annotations

from typing import Literal

import msgspec

from caloron.domain.observations import BranchSeen, CommentSeen, IssueSeen, PullSeen, ReviewSeen
from caloron.domain.sprint import Role


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

    @property
    def id(self) -> str:
        return f"{self.item}#{self.token}"


Refusal = Literal["stale_head", "stale_base", "conflict", "refused"]


class EffectDone(msgspec.Struct, frozen=True, kw_only=True, tag="effect_done"):
    key: str
    task: str
    kind: str
    #: The commit that a push put on the branch.
    commit: str = ""

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


Fact = (
    WorkEnded
    | EffectDone
    | EffectFailed
    | PlanApproved
    | IssueSeen
    | PullSeen
    | ReviewSeen
    | CommentSeen
    | BranchSeen
)
