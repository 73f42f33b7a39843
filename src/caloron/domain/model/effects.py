"""What a tick decides: effects on the forge, each with its natural key, and work for the queue."""

from __future__ import annotations

import msgspec

from caloron.domain.model.snapshots import Verdict
from caloron.domain.model.task import Work


class CreateIssue(msgspec.Struct, frozen=True, kw_only=True, tag="create_issue"):
    key: str
    task: str
    title: str
    body: str
    labels: tuple[str, ...]


class PostComment(msgspec.Struct, frozen=True, kw_only=True, tag="comment"):
    key: str
    task: str
    issue: int
    body: str


class ReportProgress(msgspec.Struct, frozen=True, kw_only=True, tag="progress"):
    """Bring the one comment that says how far a task is up to date; only the newest is needed."""

    key: str
    task: str
    issue: int
    #: Its id, if it was seen.
    comment: int | None
    #: The key by which it is found otherwise.
    marker: str
    body: str


class Describe(msgspec.Struct, frozen=True, kw_only=True, tag="describe"):
    """Bring our section in a description up to date; only the newest is needed."""

    key: str
    task: str
    #: Of an issue, or of a pull request.
    number: int
    is_pull: bool
    #: What the section is called in its markers.
    section: str
    text: str
    #: Nobody has seen it there yet; one that was seen and is gone was taken out by a person.
    add: bool


class AddLabel(msgspec.Struct, frozen=True, kw_only=True, tag="label"):
    key: str
    task: str
    issue: int
    label: str


class CloseIssue(msgspec.Struct, frozen=True, kw_only=True, tag="close_issue"):
    key: str
    task: str
    issue: int


class ReopenIssue(msgspec.Struct, frozen=True, kw_only=True, tag="reopen_issue"):
    key: str
    task: str
    issue: int


class EditIssue(msgspec.Struct, frozen=True, kw_only=True, tag="edit_issue"):
    """Another body, unless a person changed the one that was seen."""

    key: str
    task: str
    issue: int
    old: str
    body: str


class SeeBranch(msgspec.Struct, frozen=True, kw_only=True, tag="see_branch"):
    """Look where a branch is that nobody has a pull request for."""

    key: str
    task: str
    branch: str


class ClosePull(msgspec.Struct, frozen=True, kw_only=True, tag="close_pull"):
    key: str
    task: str
    pull: int


class Push(msgspec.Struct, frozen=True, kw_only=True, tag="push"):
    key: str
    task: str
    branch: str
    old: str
    new: str
    #: The open pull request of the branch, which has this head from then on.
    pull: int | None = None


class OpenPull(msgspec.Struct, frozen=True, kw_only=True, tag="open_pull"):
    key: str
    task: str
    title: str
    body: str
    branch: str


class PostReview(msgspec.Struct, frozen=True, kw_only=True, tag="review"):
    key: str
    task: str
    pull: int
    head: str
    verdict: Verdict
    body: str


class Merge(msgspec.Struct, frozen=True, kw_only=True, tag="merge"):
    """Merge a head into a base; both, the message and the verified tree make one commit."""

    key: str
    task: str
    pull: int
    head: str
    base: str
    message: str
    #: Empty in effects that an older version stored.
    tree: str = ""


class MakeRevert(msgspec.Struct, frozen=True, kw_only=True, tag="revert"):
    """Put a branch on the forge that takes a merge of ours out of main again."""

    key: str
    task: str
    branch: str
    #: The commit that the merge put on main, and what it was to be called.
    commit: str
    merged_as: str
    #: What was merged, and into which main at the earliest.
    head: str
    base: str
    message: str


Effect = (
    CreateIssue
    | PostComment
    | ReportProgress
    | Describe
    | AddLabel
    | CloseIssue
    | ReopenIssue
    | EditIssue
    | SeeBranch
    | ClosePull
    | Push
    | OpenPull
    | PostReview
    | Merge
    | MakeRevert
)


class StartWork(msgspec.Struct, frozen=True, kw_only=True, tag="start_work"):
    """Queue work; an item that is known already gets another attempt."""

    task: str
    work: Work
    priority: int = 0
    reason: str = ""
    #: Not to be started before this time, in seconds since 1970.
    not_before: float = 0.0


class CancelWork(msgspec.Struct, frozen=True, kw_only=True, tag="cancel_work"):
    """Nobody needs this work any more; its agent is stopped."""

    item: str
    reason: str


class HoldWork(msgspec.Struct, frozen=True, kw_only=True, tag="hold_work"):
    """Work that waits in the queue is not to be started before a time."""

    item: str
    until: float


class RetryEffect(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="retry_effect"
):
    """A refused effect is tried again, because a person said the cause is gone."""

    key: str
    task: str = ""


class Probe(msgspec.Struct, frozen=True, kw_only=True, tag="probe"):
    """Look at a silent agent's process, write down what it does, and ask on its issue."""

    key: str
    task: str
    item: str
    reason: str


Action = Effect | StartWork | CancelWork | HoldWork | RetryEffect | Probe


class Moved(msgspec.Struct, frozen=True, kw_only=True, tag="moved"):
    """A task changed its status: the line that the diary keeps."""

    task: str
    old: str
    new: str
    reason: str


def describe_action(action: Action) -> str:
    """Return one line for traces and for the answer of a tick."""
    match action:
        case StartWork():
            return f"start:{action.work.item}"
        case HoldWork():
            return f"hold:{action.item}"
        case CancelWork():
            return f"cancel:{action.item}"
        case RetryEffect():
            return f"retry:{action.key}"
        case _:
            return action.key
