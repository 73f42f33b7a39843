"""What is known about changes on their way into main: proofs, trains, waits and reverts."""

from __future__ import annotations

import msgspec

#: How many changes are verified together at most.
LONGEST_TRAIN = 8


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What the verification of one head, merged into one base, came to."""

    head: str
    base: str
    ok: bool
    log: str = ""
    #: It is red, but so was main, and the user allowed that.
    tolerated: bool = False
    #: The files of the merged result: what main must hold once this is merged.
    tree: str = ""

    @property
    def passes(self) -> bool:
        return self.ok or self.tolerated


class Link(msgspec.Struct, frozen=True):
    """One change of a chain of merges, and the tree that main has once it is merged."""

    head: str
    tree: str


class Member(msgspec.Struct, frozen=True):
    """A change in a train: the task, and the head that was approved."""

    task: str
    head: str


class Train(msgspec.Struct, frozen=True, kw_only=True):
    """Approved changes that are verified as one batch and merged one after the other."""

    #: Those that are not merged yet, in the order of merging.
    members: tuple[Member, ...]
    #: So many of the first ones are verified together.
    size: int
    #: So many of the first ones are known to be red together, on top of `base`; 0: not known.
    red: int = 0
    #: What the red run told.
    red_log: str = ""
    red_line: str = ""
    #: The main that `red` and `chain` are about.
    base: str = ""
    #: What is verified and to be merged next, in order.
    chain: tuple[Link, ...] = ()
    proof: Verified | None = None
    #: The verification that is under way: work of the first member.
    item: str = ""


class MergeWait(msgspec.Struct, frozen=True, kw_only=True):
    """Why a head cannot go on: checks or a limit of the forge, or main is being verified."""

    head: str
    what: str
    since: float
    #: When to ask again.
    until: float
    times: int = 1


class SuspectFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A red result of which it is not known whether main alone is red."""

    proof: Verified
    line: str


class Revert(msgspec.Struct, frozen=True, kw_only=True):
    """How far it is that a merge which turned main red is taken out again."""

    number: int
    branch: str
    #: The red verification of main: what the agent gets to see.
    red: Verified
    line: str
    #: The commit that takes the change out, and one on top of it that brings it back.
    head: str = ""
    reapply_commit: str = ""
    pull: int | None = None
    merged: bool = False
    #: Main without the change is known to be green.
    sound: bool = False
    #: The issue, which the merge had closed, is open again.
    reopened: bool = False
