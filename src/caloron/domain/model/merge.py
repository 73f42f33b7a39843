"""Changes on their way into main: verifications, trains, waits and reverts."""

from __future__ import annotations

from typing import Literal

import msgspec

#: How a change gets onto main: as a merge commit, as one commit, or as its own commits.
MergeStyle = Literal["merge", "squash", "rebase"]
#: The most changes that are verified together.
LONGEST_TRAIN = 8


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the verification of a head merged into a base."""

    head: str
    base: str
    ok: bool
    log: str = ""
    #: It is red, but so was main, and the user allowed that.
    tolerated: bool = False
    #: The tree of the merged result, which main must have after the merge.
    tree: str = ""
    #: The shell line that verified, and the line of its output that sums it up.
    command: str = ""
    summary: str = ""

    @property
    def passes(self) -> bool:
        return self.ok or self.tolerated


class LandedMerge(msgspec.Struct, frozen=True, kw_only=True):
    """A change on main: what it takes to find main as it was before."""

    #: The commit that the merge put on main, and the message of the merge.
    commit: str
    merged_as: str
    #: The merged head, and the earliest main it can have been merged into.
    head: str
    base: str


class Link(msgspec.Struct, frozen=True):
    """A change in a chain of merges, and the tree of main after it."""

    head: str
    tree: str


class Member(msgspec.Struct, frozen=True):
    """A change in a train: the task, and the head that was approved."""

    task: str
    head: str


class Train(msgspec.Struct, frozen=True, kw_only=True):
    """Approved changes that are verified as one batch and merged one after the other."""

    #: The members that are not merged yet, in the order of merging.
    members: tuple[Member, ...]
    #: The number of first members that are verified together.
    size: int
    #: The number of first members that are red together on top of `base`; 0: unknown.
    red: int = 0
    #: The log of the red run, and the line that shows why.
    red_log: str = ""
    red_line: str = ""
    #: The main under `red` and `chain`.
    base: str = ""
    #: The verified members, to be merged in this order.
    chain: tuple[Link, ...] = ()
    proof: Verified | None = None
    #: The verification that runs: work of the first member.
    item: str = ""


class MergeWait(msgspec.Struct, frozen=True, kw_only=True):
    """Why a head waits: for checks or a limit of the forge, or because main is being verified."""

    head: str
    what: str
    since: float
    #: The time of the next request.
    until: float
    times: int = 1


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verification, and the line that shows why it is red."""

    proof: Verified
    line: str = ""


class Revert(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of reverting a merge that turned main red, or that a person does not want."""

    number: int
    branch: str
    #: The red verification of main, which the agent gets.
    red: Verified | None = None
    line: str = ""
    #: The person who asked for it, the tasks to revert, and why that failed.
    by: str = ""
    tasks: tuple[str, ...] = ()
    failure: str = ""
    #: The commit that reverts the change, and one on top of it that brings it back.
    head: str = ""
    reapply_commit: str = ""
    pull: int | None = None
    merged: bool = False
    #: Main without the change is known to be green.
    sound: bool = False
    #: The issue, which the merge had closed, is open again.
    reopened: bool = False
