"""Merges on a forge that needs some time to decide whether a change can be merged."""

from __future__ import annotations

import time
from collections.abc import Callable

from caloron.domain.model.merge import MergeStyle
from caloron.domain.model.snapshots import PullSnapshot
from caloron.errors import (
    ApprovalMissing,
    CaloronError,
    ForgeError,
    ForgeUnavailable,
    MergeConflict,
    NotFound,
    NotYet,
    StaleBase,
    StaleHead,
)
from caloron.forge.api import types
from caloron.forge.http import Refused
from caloron.forge.remote import git as remote_git
from caloron.forge.remote import snapshots
from caloron.forge.remote.reader import Reader
from caloron.forge.validate import stale_base, stale_head
from caloron.ports import Merged, Remote, VerifiedMerge
from caloron.store import log

#: How long a forge may check a push; afterwards we assume a conflict.
_PATIENCE_S = 10.0
_PAUSE_S = 0.3


class Merger:
    """Merges one pull request at a time, and reports the exact reason of a refusal."""

    def __init__(self, reader: Reader, git_remote: Callable[[], Remote]) -> None:
        self._reader = reader
        self._api = reader.api
        self._git_remote = git_remote

    def mergeable(self, number: int) -> bool:
        """True if a pull request can be merged; wait until the forge knows."""
        pull = self._checked_pull(number)
        return pull.state == "open" and bool(pull.mergeable) and self._reader.is_for_main(pull)

    def merge(
        self, number: int, head: str, base: str, message: str, verified: VerifiedMerge | None
    ) -> Merged:
        """Merge `head`; main is checked first, because no forge's API takes an expected base."""
        json, began = self._reader.pull_json(number)
        pull = self._reader.pull_snapshot(json, began)
        self._expect_main(json)
        if pull.state == "merged" and head in ("", pull.head):
            return Merged(pull, did_it=False)
        head = self._expected(pull, head)
        self._expect_base(base)
        if json.merge_base == head:
            raise ForgeError(
                f"pull request #{number} has nothing to merge: {json.base.ref} contains all of"
                f" {pull.branch}",
                hint="push commits to the branch, or close the pull request",
            )
        # Read it now: people change the merge styles that a repository allows.
        repository = self._reader.fetch_repository()
        style = self._api.merge_style(repository, verified.style if verified else "merge")
        if (
            verified
            and self._takes_pushes(repository, style, verified)
            and self._push_main(verified, base)
        ):
            return Merged(self.mark_merged(number, verified.commit), did_it=True)
        message = message.strip() or f"Merge pull request #{number}: {pull.title}"
        for last in (False, True):
            try:
                self._api.merge(self._reader.http, number, head, style, message)
                break
            except (NotFound, Refused) as refusal:
                merged = self._explained(refusal, pull, head, base, last=last)
                log.info("the forge refused a merge", error=refusal, pull=number, repeated=not last)
                if merged is not None:
                    # A person was faster.
                    return Merged(merged, did_it=False)
        merged = self._reader.pull(number)
        if merged.state != "merged":
            raise NotYet(f"pull request #{number} was merged, but does not show it yet")
        return Merged(merged, did_it=True)

    def mark_merged(self, number: int, commit: str) -> PullSnapshot:
        """Have the forge show a pull request as merged by `commit`, which is on main already."""
        refusal: CaloronError | None = None
        try:
            self._api.mark_merged(self._reader.http, number, commit)
        except (NotFound, Refused) as error:
            # The forge may have noticed by itself; the read below shows that.
            refusal = error
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            pull = self._reader.pull(number)
            if pull.state == "merged":
                return pull
            name = f"{self._reader.main} has pull request #{number} since"
            if refusal is not None or pull.state == "closed":
                raise ForgeError(
                    f"{name} {commit[:12]}, but the forge does not show it as merged",
                    hint="mark it as merged on the forge, or close it and its issue",
                )
            if time.monotonic() > deadline:
                raise NotYet(f"{name} {commit[:12]}, but the forge does not show that yet")
            time.sleep(_PAUSE_S)

    def _takes_pushes(
        self, repository: types.Repository, style: MergeStyle, verified: VerifiedMerge
    ) -> bool:
        """True if we may push to main, and the forge then shows the merge by itself or by request.

        Protected branches are left to the forge: a push could bypass what the protection requires.
        So are repositories that do not allow the style.
        """
        may_push = repository.permissions is not None and repository.permissions.push
        return (
            may_push
            and style == verified.style
            and self._api.shows_pushed_merges(repository, style)
            and not self._api.protection(self._reader.http, self._reader.main).protected
        )

    def _push_main(self, verified: VerifiedMerge, base: str) -> bool:
        """Move main from `base` to the verified commit; False if a rule of the forge forbids it."""
        main = self._reader.main
        try:
            remote_git.push(self._git_remote(), verified.source, main, verified.commit, base)
        except StaleHead as error:
            raise StaleBase(
                str(error), hint="verify the result on the new main, then merge again"
            ) from error
        except ForgeUnavailable:
            raise
        except ForgeError as refusal:
            log.info("main takes no push; the forge's API merges", error=refusal, branch=main)
            return False
        return True

    def _expect_main(self, pull: types.Pull) -> None:
        if not self._reader.is_for_main(pull):
            main = self._reader.main
            raise ForgeError(
                f"pull request #{pull.number} is to be merged into {pull.base.ref}, not into"
                f" {main}",
                hint=f"choose {main} as its base on the forge again, or merge it there yourself",
            )

    def _expected(self, pull: PullSnapshot, head: str) -> str:
        name = f"pull request #{pull.number}"
        if pull.state == "merged":
            raise StaleHead(f"{name} was merged at {pull.head}, not at {head}")
        if pull.state == "closed":
            raise ForgeError(f"{name} is closed", hint="open a new one for its branch")
        if head and head != pull.head:
            raise stale_head(pull.branch, pull.head, head)
        return pull.head

    def _expect_base(self, base: str) -> None:
        main = self._reader.main
        there = self._reader.branch(main) if base else None
        tip = there.commit if there else ""
        if base and tip != base:
            raise stale_base(main, tip, base)

    def _explained(
        self, refusal: CaloronError, pull: PullSnapshot, head: str, base: str, *, last: bool
    ) -> PullSnapshot | None:
        """Raise the error for a refusal; None: the forge has finished its check, ask once more."""
        name = f"pull request #{pull.number}"
        refused = refusal if isinstance(refusal, Refused) else None
        status, reason = (refused.status, refused.reason) if refused else (404, "")
        meaning = self._api.merge_refusal(status, reason)
        now = self._reader.pull(pull.number)
        if now.state == "merged" and now.head == head:
            return now
        # A branch that moved in between explains any refusal.
        self._expected(now, head)
        self._expect_base(base)
        main = self._reader.main
        match meaning:
            case "head":
                raise NotYet(f"{name}: the forge has not seen its newest commit yet: {reason}")
            case "base":
                raise StaleBase(f"{main} moved while {name} was being merged: {reason}")
            case "conflict":
                raise self._conflict(pull)
            case "people":
                raise ApprovalMissing(self._missing(pull.number, head, reason), hint=reason)
            case "unclear":
                checked = self._checked_pull(pull.number)
                if not checked.mergeable:
                    raise self._conflict(pull)
                if last:
                    raise NotYet(f"{name} cannot be merged yet: {reason}")
                return None
        if refused is None:
            raise refusal
        raise ForgeError(f"{name} may not be merged: {reason}", hint=self._api.grant) from None

    def _missing(self, number: int, head: str, reason: str) -> str:
        """The number of missing approvals, as far as it can be counted."""
        main = self._reader.main
        required = self._api.protection(self._reader.http, main).required_approvals
        last = {r.author: r for r in self._reader.real_reviews(number) if r.verdict != "commented"}
        approvals = [r for r in last.values() if r.verdict == "approved" and r.head == head]
        more = required - len(approvals)
        if more <= 0 or len(approvals) != len(last):
            return f"waits for people who review it: {reason}"
        return f"waits for {more} more approval{'' if more == 1 else 's'} by people"

    def _conflict(self, pull: PullSnapshot) -> MergeConflict:
        main = self._reader.main
        return MergeConflict(
            f"pull request #{pull.number} conflicts with {main}",
            hint=f"merge {main} into {pull.branch}, settle the conflict and push",
        )

    def _checked_pull(self, number: int) -> types.Pull:
        """A pull request once the forge knows whether it can be merged.

        While it checks, Gitea answers no and GitHub answers nothing, so only time tells.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            pull, _ = self._reader.pull_json(number)
            if pull.mergeable or pull.state != "open" or snapshots.is_merged(pull):
                return pull
            known = pull.mergeable is False and self._api.kind == "github"
            if known or time.monotonic() > deadline:
                return pull
            time.sleep(_PAUSE_S)
