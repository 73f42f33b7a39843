"""The output of a tick: effects on the forge, each with its natural key, and work for the queue."""

from __future__ import annotations

import msgspec

from caloron.domain.model.merge import LandedMerge, MergeStyle
from caloron.domain.model.snapshots import Verdict
from caloron.domain.model.task import Work


class ForgeEffect(msgspec.Struct, frozen=True, kw_only=True):
    """A change on the forge that is made once per key; an empty task means the sprint itself."""

    key: str
    task: str


class IssueEffect(ForgeEffect, frozen=True, kw_only=True):
    """A change of one issue, or of one pull request, which forges treat as an issue."""

    issue: int


class CreateIssue(ForgeEffect, frozen=True, kw_only=True, tag="create_issue"):
    title: str
    body: str
    labels: tuple[str, ...]


class PostComment(IssueEffect, frozen=True, kw_only=True, tag="comment"):
    body: str


class ReportProgress(IssueEffect, frozen=True, kw_only=True, tag="progress"):
    """Update the progress comment of a task; only the newest of these effects is needed."""

    #: The id of the comment, if a snapshot showed it; otherwise the marker finds it.
    comment: int | None
    marker: str
    body: str


class Describe(ForgeEffect, frozen=True, kw_only=True, tag="describe"):
    """Update our section in a description; only the newest of these effects is needed."""

    #: The number of an issue or of a pull request.
    number: int
    is_pull: bool
    #: The name of the section in its markers.
    section: str
    text: str
    #: No snapshot showed the section yet. A section that disappears was removed by a person.
    add: bool


class AddLabel(IssueEffect, frozen=True, kw_only=True, tag="label"):
    label: str


class CloseIssue(IssueEffect, frozen=True, kw_only=True, tag="close_issue"):
    pass


class ReopenIssue(IssueEffect, frozen=True, kw_only=True, tag="reopen_issue"):
    pass


class EditIssue(IssueEffect, frozen=True, kw_only=True, tag="edit_issue"):
    """Replace the body, unless a person has changed the old one."""

    old: str
    body: str


class SeeBranch(ForgeEffect, frozen=True, kw_only=True, tag="see_branch"):
    """Read the tip of a branch that has no pull request."""

    branch: str


class ClosePull(ForgeEffect, frozen=True, kw_only=True, tag="close_pull"):
    pull: int


class Push(ForgeEffect, frozen=True, kw_only=True, tag="push"):
    branch: str
    old: str
    new: str
    #: The open pull request of the branch, which has this head from then on.
    pull: int | None = None


class OpenPull(ForgeEffect, frozen=True, kw_only=True, tag="open_pull"):
    title: str
    body: str
    branch: str


class PostReview(ForgeEffect, frozen=True, kw_only=True, tag="review"):
    pull: int
    head: str
    verdict: Verdict
    body: str


class Merge(ForgeEffect, frozen=True, kw_only=True, tag="merge"):
    """Merge a head into a base, in a style; with the message these make the commit that lands."""

    pull: int
    head: str
    base: str
    message: str
    #: Empty in effects that an older version stored.
    tree: str = ""
    style: MergeStyle = "merge"


class MakeRevert(ForgeEffect, frozen=True, kw_only=True, tag="revert"):
    """Push a branch that reverts a merge of ours."""

    branch: str
    #: The commit that the merge put on main, and the message of the merge.
    commit: str
    merged_as: str
    #: The merged head, and the earliest main it can have been merged into.
    head: str
    base: str
    message: str
    #: Merges before that one, to be reverted with it; the newest first.
    older: tuple[LandedMerge, ...] = ()


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
    """Queue work; an item that is queued again gets another attempt."""

    task: str
    work: Work
    priority: int = 0
    reason: str = ""
    #: The earliest start, in seconds since 1970.
    not_before: float = 0.0


class CancelWork(msgspec.Struct, frozen=True, kw_only=True, tag="cancel_work"):
    """Remove work that is not needed any more; its agent is stopped."""

    item: str
    reason: str


class HoldWork(msgspec.Struct, frozen=True, kw_only=True, tag="hold_work"):
    """Postpone work that waits in the queue."""

    item: str
    until: float


class RetryEffect(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="retry_effect"
):
    """Try a refused effect again, because a person has removed the cause."""

    key: str
    task: str = ""


class Probe(msgspec.Struct, frozen=True, kw_only=True, tag="probe"):
    """Inspect the process of a silent agent, record what it does, and ask on its issue."""

    key: str
    task: str
    item: str
    reason: str


Action = Effect | StartWork | CancelWork | HoldWork | RetryEffect | Probe


class Moved(msgspec.Struct, frozen=True, kw_only=True, tag="moved"):
    """A task changed its status, as the event log records it."""

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
