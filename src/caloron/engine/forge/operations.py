"""Performs each effect on the forge, and recognises the traces of one that was cut short.

In a sprint no other module changes anything on a forge.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from caloron.domain.model.effects import (
    AddLabel,
    CloseIssue,
    ClosePull,
    CreateIssue,
    Describe,
    EditIssue,
    Effect,
    MakeRevert,
    Merge,
    OpenPull,
    PostComment,
    PostReview,
    Probe,
    Push,
    ReopenIssue,
    ReportProgress,
    SeeBranch,
)
from caloron.domain.model.facts import EffectDone, Fact, Refusal
from caloron.domain.model.snapshots import IssueSnapshot, PullSnapshot, Snapshot, with_section
from caloron.domain.model.sprint import State
from caloron.engine.forge.merging import (
    ChecksPending,
    LaterVeto,
    MergedElsewhere,
    MergeGate,
    bring_back,
    is_landed,
    make_revert,
    merge_result,
    verified_merge,
)
from caloron.errors import (
    ApprovalMissing,
    ChecksFailed,
    ForgeError,
    MergeConflict,
    NotFound,
    StaleBase,
    StaleHead,
)
from caloron.git.mirror import Conflict, Mirror
from caloron.ports import Clock, Forge, VerifiedMerge
from caloron.store import log
from caloron.store.redact import Redactor


class ForgeOperations:
    """Performs effects and finds their traces; only the effect executor calls it."""

    def __init__(
        self,
        forge: Forge,
        mirror: Mirror,
        redactor: Redactor,
        clock: Clock,
        state: Callable[[], State],
    ) -> None:
        self._forge = forge
        self._mirror = mirror
        self._redactor = redactor
        self._gate = MergeGate(forge, mirror, clock, state)

    def find(self, effect: Effect) -> tuple[Fact, ...] | None:
        """Return the facts of an effect that was done before a crash; None: it was not done."""
        forge = self._forge
        match effect:
            case CreateIssue():
                return _seen(forge.find_issue(effect.key))
            case PostComment():
                return _seen(forge.find_comment(effect.issue, effect.key))
            case OpenPull():
                return _seen(forge.find_pull(effect.branch, effect.key))
            case PostReview():
                return _seen(forge.find_review(effect.pull, effect.key))
            case Push():
                there = forge.branch(effect.branch)
                pushed = there is not None and there.commit == effect.new
                return self._after_push(effect) if pushed else None
            case Merge():
                return self._find_merge(effect)
            case (
                AddLabel()
                | CloseIssue()
                | ReopenIssue()
                | EditIssue()
                | SeeBranch()
                | ClosePull()
                | ReportProgress()
                | Describe()
            ):
                # `do` reads the object first, so repeating these changes nothing.
                return None
            case MakeRevert():
                seen = forge.branch(effect.branch)
                return self._after_revert(effect, seen.commit) if seen else None

    def do(self, effect: Effect) -> tuple[Fact, ...]:  # noqa: C901, PLR0912 - all changes in one place
        forge, clean = self._forge, self._clean
        seen: Snapshot
        match effect:
            case CreateIssue():
                seen = forge.create_issue(clean(effect.title), clean(effect.body), effect.labels)
            case PostComment():
                seen = forge.comment(effect.issue, clean(effect.body))
            case ReportProgress():
                return self._report_progress(effect)
            case Describe():
                return (self._describe(effect),)
            case AddLabel() | CloseIssue() | ReopenIssue() | EditIssue():
                seen = self._do_to_issue(effect)
                if isinstance(effect, ReopenIssue):
                    return (seen, _done(effect, "reopen_issue"))
            case SeeBranch():
                there = forge.branch(effect.branch)
                return (_done(effect, "see_branch", there.commit if there else ""),)
            case ClosePull():
                pull = forge.pull(effect.pull)
                seen = forge.close_pull(effect.pull) if pull.state == "open" else pull
            case Push():
                forge.push(self._mirror.path, effect.branch, effect.new, effect.old)
                return self._after_push(effect)
            case OpenPull():
                seen = forge.open_pull(clean(effect.title), clean(effect.body), effect.branch)
            case PostReview():
                body = clean(effect.body)
                seen = forge.review(effect.pull, effect.head, effect.verdict, body)
            case Merge():
                return self._merge(effect)
            case MakeRevert():
                made = make_revert(self._mirror, effect)
                forge.push(self._mirror.path, effect.branch, made.head, "")
                return self._after_revert(effect, made.head)
        return (seen,)

    def _clean(self, text: str) -> str:
        """Return text without secrets and without characters that no forge stores."""
        return self._redactor.text(text).replace("\0", "").encode("utf-8", "replace").decode()

    def _merge(self, effect: Merge) -> tuple[Fact, ...]:
        self._gate.check(effect)
        commit, message = self._verified_merge(effect), self._clean(effect.message)
        verified = VerifiedMerge(commit, self._mirror.path, effect.style) if commit else None
        merged = self._forge.merge(effect.pull, effect.head, effect.base, message, verified)
        return self._after_merge(effect, merged.pull, did_it=merged.did_it)

    def _find_merge(self, effect: Merge) -> tuple[Fact, ...] | None:
        pull = self._forge.pull(effect.pull)
        if pull.state != "merged":
            commit = self._verified_merge(effect)
            if not (commit and is_landed(self._mirror, commit)):
                return None
            # A crash came after the push to main and before the forge showed the merge.
            pull = self._forge.mark_merged(effect.pull, commit)
        return self._after_merge(effect, pull)

    def _verified_merge(self, effect: Merge) -> str:
        return verified_merge(self._mirror, effect, self._clean(effect.message))

    def _report_progress(self, effect: ReportProgress) -> tuple[Fact, ...]:
        text, known = self._clean(effect.body), effect.comment or self._comment_of(effect)
        if not known:
            return (self._forge.comment(effect.issue, text),)
        try:
            return (self._forge.edit_comment(effect.issue, known, text),)
        except NotFound as error:
            log.info("the progress comment is gone", error=error, issue=effect.issue)
            # A person deleted it: they do not want it, and nothing waits for it.
            return ()

    def _comment_of(self, effect: ReportProgress) -> int | None:
        comment = self._forge.find_comment(effect.issue, effect.marker)
        return comment.id if comment else None

    def _describe(self, effect: Describe) -> Snapshot:
        """Change our section if it differs; the text of people around it stays."""
        forge, number, text = self._forge, effect.number, self._clean(effect.text)
        seen = forge.pull(number) if effect.is_pull else forge.issue(number)
        body = with_section(seen.body, effect.section, text, add=effect.add)
        if body == seen.body:
            return seen
        return forge.edit_pull(number, body) if effect.is_pull else forge.edit_issue(number, body)

    def _do_to_issue(
        self, effect: AddLabel | CloseIssue | ReopenIssue | EditIssue
    ) -> IssueSnapshot:
        """Change an issue if it differs; the text of people in it stays."""
        forge, number = self._forge, effect.issue
        issue = forge.issue(number)
        match effect:
            case AddLabel():
                there = effect.label in issue.labels
                return issue if there else forge.label(number, effect.label)
            case CloseIssue():
                return issue if issue.state == "closed" else forge.close_issue(number)
            case ReopenIssue():
                return issue if issue.state == "open" else forge.reopen_issue(number)
            case EditIssue():
                body = self._clean(effect.body)
                return forge.edit_issue(number, body) if issue.body == effect.old else issue

    def after_refusal(self, effect: Effect | Probe, error: Exception) -> tuple[Snapshot, ...]:
        """Read the pull request after a refusal: a person's act there often explains it.

        For a merge its issue is read too, and for a stale merge also main and the reviews.
        """
        if not isinstance(effect, PostReview | Merge) or isinstance(
            error, ChecksPending | ApprovalMissing
        ):
            return ()
        objections = error.comments if isinstance(error, LaterVeto) else ()
        return (*objections, *self._current(effect, error))

    def _current(self, effect: PostReview | Merge, error: Exception) -> tuple[Snapshot, ...]:
        try:
            pull = self._forge.pull(effect.pull)
            if not isinstance(effect, Merge):
                return (pull,)
            if isinstance(error, MergedElsewhere):
                # For us it has ended without a merge.
                pull = msgspec.structs.replace(pull, state="closed", merge_commit="")
            issues = [self._forge.issue(number) for number in pull.closes]
            if pull.state != "open" or not isinstance(error, StaleBase | StaleHead):
                return (pull, *issues)
            return (pull, *issues, *self._main(), *self._forge.reviews(effect.pull))
        except (ForgeError, NotFound) as problem:
            log.warning(
                "cannot read the pull request of a refused effect", error=problem, pull=effect.pull
            )
            # The refusal itself is reported, and is enough.
            return ()

    def is_doubtful(self, effect: Effect | Probe, error: Exception) -> bool:
        """True if the forge reports a conflict that git does not find, as a busy Gitea does.

        Gitea answers the same for a conflict and for a change that it has not checked yet.
        """
        if not (isinstance(effect, Merge) and isinstance(error, MergeConflict) and effect.base):
            return False
        known = self._mirror.has(effect.base) and self._mirror.has(effect.head)
        merged = self._mirror.merge(effect.base, effect.head, "Trial") if known else None
        return merged is not None and not isinstance(merged, Conflict)

    def refusal(self, effect: Effect | Probe, error: Exception) -> Refusal:
        """Classify a refusal; a branch that moved may also have been deleted."""
        try:
            gone = self._branch_is_gone(effect, error)
        except (ForgeError, NotFound) as problem:
            log.warning("cannot read the branch", error=problem, effect=effect.key)
            # It is unknown whether the branch exists, so the refusal keeps its kind.
            gone = False
        return "gone" if gone else _kind_of(error)

    def _branch_is_gone(self, effect: Effect | Probe, error: Exception) -> bool:
        match effect:
            case Push():
                moved = isinstance(error, StaleHead) and bool(effect.old)
                return moved and self._forge.branch(effect.branch) is None
            case OpenPull():
                return self._forge.branch(effect.branch) is None
            case Merge() if isinstance(error, StaleHead):
                pull = self._forge.pull(effect.pull)
                return pull.state == "open" and self._forge.branch(pull.branch) is None
            case _:
                return False

    def _after_push(self, effect: Push) -> tuple[Fact, ...]:
        """Report the pull request with its new head together with the push."""
        done = _done(effect, "push", effect.new)
        return (done,) if effect.pull is None else (self._forge.pull(effect.pull), done)

    def _after_merge(
        self, effect: Merge, pull: PullSnapshot, *, did_it: bool = False
    ) -> tuple[Fact, ...]:
        """Report the merged pull request, main as it is now, and the commit of the merge."""
        verified = self._verified_merge(effect)
        done = merge_result(self._mirror, effect, pull, verified, did_it=did_it)
        return (pull, *self._main(), done)

    def _after_revert(self, effect: MakeRevert, head: str) -> tuple[Fact, ...]:
        if not self._mirror.has(head):
            self._mirror.fetch_branch(effect.branch)
        again = bring_back(self._mirror, effect, head)
        return (msgspec.structs.replace(_done(effect, "revert", head), reapply_commit=again),)

    def _main(self) -> tuple[Snapshot, ...]:
        main = self._forge.branch(self._forge.main)
        return (main,) if main else ()


def _done(effect: Effect, kind: str, commit: str = "") -> EffectDone:
    return EffectDone(key=effect.key, task=effect.task, kind=kind, commit=commit)


def _seen(snapshot: Snapshot | None) -> tuple[Snapshot, ...] | None:
    return None if snapshot is None else (snapshot,)


def _kind_of(error: Exception) -> Refusal:
    match error:
        case StaleHead():
            return "stale_head"
        case StaleBase():
            return "stale_base"
        case MergeConflict():
            return "conflict"
        case ChecksPending() | ApprovalMissing():
            return "waiting"
        case ChecksFailed():
            return "checks"
        case MergedElsewhere():
            return "elsewhere"
        case _:
            return "refused"
