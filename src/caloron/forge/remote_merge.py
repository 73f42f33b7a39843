"""Merges on a forge that looks at a change by itself first, and takes its time for that."""

from __future__ import annotations

import time
from collections.abc import Callable

from caloron.domain.observations import PullSeen
from caloron.errors import (
    CaloronError,
    ForgeError,
    MergeConflict,
    NotFound,
    NotYet,
    StaleBase,
    StaleHead,
    WaitsForPeople,
)
from caloron.forge import answers, seen
from caloron.forge.dialect import Dialect
from caloron.forge.http import Refused
from caloron.forge.remote_read import Reader
from caloron.ports import Merged
from caloron.store import log

#: How long a forge may look at a push before its silence is taken for a conflict.
_PATIENCE_S = 10.0
_PAUSE_S = 0.3


class Merger:
    """Merges one pull request at a time, and says exactly why not."""

    def __init__(
        self, reader: Reader, dialect: Dialect, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._reader = reader
        self._dialect = dialect
        self._sleep = sleep

    def mergeable(self, number: int) -> bool:
        """Whether it could be merged; a forge that is still looking is waited for."""
        pull = self._look(number)
        return pull.state == "open" and bool(pull.mergeable) and self._reader.is_for_main(pull)

    def merge(self, number: int, head: str, base: str, message: str) -> Merged:
        """Merge `head`; main is looked at first, because no forge can be told a base."""
        json, began = self._reader.pull_json(number)
        pull = self._reader.pull_seen(json, began)
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
        message = message.strip() or f"Merge pull request #{number}: {pull.title}"
        # Looked at now: people change what a repository allows.
        style = self._dialect.merge_style(self._reader.look_at_repository())
        for last in (False, True):
            try:
                self._dialect.merge(self._reader.http, number, head, style, message)
                break
            except (NotFound, Refused) as refusal:
                done = self._explained(refusal, pull, head, base, last=last)
                log.info("the forge refused a merge", error=refusal, pull=number, repeated=not last)
                if done is not None:
                    # A person was faster.
                    return Merged(done, did_it=False)
        merged = self._reader.pull(number)
        if merged.state != "merged":
            raise NotYet(f"pull request #{number} was merged, but does not show it yet")
        return Merged(merged, did_it=True)

    def _expect_main(self, pull: answers.Pull) -> None:
        if not self._reader.is_for_main(pull):
            main = self._reader.repository.default_branch
            raise ForgeError(
                f"pull request #{pull.number} is to be merged into {pull.base.ref}, not into"
                f" {main}",
                hint=f"choose {main} as its base on the forge again, or merge it there yourself",
            )

    def _expected(self, pull: PullSeen, head: str) -> str:
        name = f"pull request #{pull.number}"
        if pull.state == "merged":
            raise StaleHead(f"{name} was merged at {pull.head}, not at {head}")
        if pull.state == "closed":
            raise ForgeError(f"{name} is closed", hint="open a new one for its branch")
        if head and head != pull.head:
            raise StaleHead(
                f"branch {pull.branch} is at {pull.head}, not at {head} as expected",
                hint="look at what is there now, then decide again",
            )
        return pull.head

    def _expect_base(self, base: str) -> None:
        main = self._reader.repository.default_branch
        there = self._reader.branch(main) if base else None
        tip = there.commit if there else ""
        if base and tip != base:
            raise StaleBase(
                f"{main} is {f'at {tip}' if tip else 'not there'}, not at {base} as expected",
                hint="verify the result on the new main, then merge again",
            )

    def _explained(
        self, refusal: CaloronError, pull: PullSeen, head: str, base: str, *, last: bool
    ) -> PullSeen | None:
        """Raise what a refusal means; None: the forge has looked now, so ask once more."""
        name = f"pull request #{pull.number}"
        status, said = (refusal.status, refusal.said) if isinstance(refusal, Refused) else (404, "")
        meaning = self._dialect.merge_refusal(status, said)
        now = self._reader.pull(pull.number)
        if now.state == "merged" and now.head == head:
            return now
        # What moved in between explains any refusal.
        self._expected(now, head)
        self._expect_base(base)
        main = self._reader.repository.default_branch
        match meaning:
            case "head":
                raise NotYet(f"{name}: the forge has not seen its newest commit yet: {said}")
            case "base":
                raise StaleBase(f"{main} moved while {name} was being merged: {said}")
            case "conflict":
                raise self._conflict(pull)
            case "people":
                raise WaitsForPeople(self._missing(pull.number, head, said), hint=said)
            case "unclear":
                looked = self._look(pull.number)
                if not looked.mergeable:
                    raise self._conflict(pull)
                if last:
                    raise NotYet(f"{name} cannot be merged yet: {said}")
                return None
        if not isinstance(refusal, Refused):
            raise refusal
        raise ForgeError(f"{name} may not be merged: {said}", hint=self._dialect.grant) from None

    def _missing(self, number: int, head: str, said: str) -> str:
        """How many people have still to say yes, as far as that can be counted."""
        main = self._reader.repository.default_branch
        required = self._dialect.protection(self._reader.http, main).required_approvals
        last = {r.author: r for r in self._reader.real_reviews(number) if r.verdict != "commented"}
        yes = [r for r in last.values() if r.verdict == "approved" and r.head == head]
        more = required - len(yes)
        if more <= 0 or len(yes) != len(last):
            return f"waits for people who review it: {said}"
        return f"waits for {more} more approval{'' if more == 1 else 's'} by people"

    def _conflict(self, pull: PullSeen) -> MergeConflict:
        main = self._reader.repository.default_branch
        return MergeConflict(
            f"pull request #{pull.number} conflicts with {main}",
            hint=f"merge {main} into {pull.branch}, settle the conflict and push",
        )

    def _look(self, number: int) -> answers.Pull:
        """A pull request once the forge knows whether it can be merged.

        Gitea says no while it looks and GitHub says nothing, so only time tells.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            pull, _ = self._reader.pull_json(number)
            if pull.mergeable or pull.state != "open" or seen.is_merged(pull):
                return pull
            known = pull.mergeable is False and self._dialect.kind == "github"
            if known or time.monotonic() > deadline:
                return pull
            self._sleep(_PAUSE_S)
