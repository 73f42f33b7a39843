"""The protocols that are the architecture: what the engine needs from the outside world."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

import msgspec

from caloron.domain.observations import (
    BranchSeen,
    CommentSeen,
    IssueSeen,
    PullSeen,
    ReviewSeen,
    Snapshot,
    Verdict,
)

State = Literal["open", "closed", "merged", "all"]


class Clock(Protocol):
    """Wall time for people and thresholds; leases use the database's clock instead."""

    def now(self) -> float: ...


class Poll(msgspec.Struct, frozen=True):
    """What changed on the forge since a cursor, and the cursor for the next call."""

    snapshots: tuple[Snapshot, ...]
    cursor: str


class Forge(Protocol):
    """Issues, pull requests, reviews and merges on the user's own forge.

    Reads raise `NotFound` for an unknown number and `ForgeUnavailable` when the forge does not
    answer. Changes are made by the effect executor alone.
    """

    #: The account that our own objects carry; a marker counts only on its objects.
    author: str
    main: str

    def remote(self) -> str:
        """Where git fetches from and pushes to."""
        ...

    def poll(self, cursor: str) -> Poll: ...

    def issue(self, number: int) -> IssueSeen: ...
    def issues(self, state: State = "all") -> list[IssueSeen]: ...
    def comments(self, number: int) -> list[CommentSeen]: ...
    def pull(self, number: int) -> PullSeen: ...
    def pulls(self, state: State = "all") -> list[PullSeen]: ...
    def reviews(self, number: int) -> list[ReviewSeen]: ...
    def branch(self, name: str) -> BranchSeen | None: ...
    def mergeable(self, number: int) -> bool: ...

    def find_issue(self, key: str) -> IssueSeen | None:
        """Our own issue with this marker key, in any state."""
        ...

    def find_comment(self, number: int, key: str) -> CommentSeen | None: ...

    def find_pull(self, branch: str, key: str) -> PullSeen | None:
        """Our own pull request from this branch with this marker key, in any state."""
        ...

    def find_review(self, number: int, key: str) -> ReviewSeen | None: ...

    def create_issue(self, title: str, body: str, labels: tuple[str, ...]) -> IssueSeen: ...
    def comment(self, number: int, body: str) -> CommentSeen: ...
    def label(self, number: int, label: str) -> IssueSeen: ...
    def close_issue(self, number: int) -> IssueSeen: ...

    def push(self, source: Path, branch: str, new: str, old: str) -> BranchSeen:
        """Move a branch from `old` (empty: it must not exist) to `new`, or raise `StaleHead`."""
        ...

    def open_pull(self, title: str, body: str, branch: str) -> PullSeen: ...
    def close_pull(self, number: int) -> PullSeen: ...

    def review(self, number: int, head: str, verdict: Verdict, body: str) -> ReviewSeen: ...

    def merge(self, number: int, head: str, base: str, message: str) -> PullSeen:
        """Merge exactly `head` into exactly `base`: `StaleHead`, `StaleBase`, `MergeConflict`."""
        ...


class AgentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one agent: who it is, what it is asked, and where it works."""

    role: str
    task: str
    prompt: str
    workspace: Path
    #: A private directory of this attempt, outside the workspace.
    run_dir: Path


class AgentCommand(msgspec.Struct, frozen=True, kw_only=True):
    """How to start an agent: its argv, extra environment, and what it reads on standard input."""

    argv: tuple[str, ...]
    env: dict[str, str] = msgspec.field(default_factory=dict)
    stdin: str = ""


class AgentRunner(Protocol):
    """A coding-agent framework: turns a request into a process to start."""

    name: str

    def command(self, request: AgentRequest) -> AgentCommand: ...


class Sandbox(Protocol):
    """Confines a process: wraps an argv so that it runs inside."""

    def wrap(self, argv: tuple[str, ...], workspace: Path) -> tuple[str, ...]: ...
    def environment(self, extra: dict[str, str]) -> dict[str, str]: ...
