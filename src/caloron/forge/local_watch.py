"""Keeps the records of the local forge in step with its refs.

A push or a merge changes git first. What the records miss then, because of a crash or because
somebody used plain git, shows in the refs and is written down by the next call that looks.
"""

from __future__ import annotations

from collections.abc import Sequence

from caloron.domain.observations import BranchSeen
from caloron.errors import ForgeUnavailable
from caloron.forge.local_git import CALORON, MAIN, BareRepository
from caloron.forge.local_records import MergeRecord, Records, Watched, WatchedPull, branch_seen

#: Who ended a pull request when all we know is that main was pushed with it.
GIT_PUSH = "git push"


class RefWatch:
    """Compares what git holds with what was last seen of it."""

    def __init__(self, repository: BareRepository, records: Records, author: str) -> None:
        self._repository = repository
        self._records = records
        self._author = author

    def notice(self) -> int:
        """Write down what moved outside our calls; returns the newest version."""
        watched = self._records.watched()
        if not self._moved(watched):
            return watched.version
        with self._repository.merging(wait=False) as mine:
            # Whoever holds the lock is writing down the very move that was seen here.
            return self.catch_up().version if mine else watched.version

    def catch_up(self) -> Watched:
        """The same for a caller that holds the merge lock; returns what is known now."""
        watched = self._records.watched()
        if not self._moved(watched):
            return watched
        main = self.main_tip()
        merged = self._merged_into(main, watched.pulls, watched) if main != watched.main else []
        self._record(watched, main, merged, "notice")
        return self._records.watched()

    def record_merge(self, mine: MergeRecord, watched: Watched) -> None:
        """Write down a merge just made, and what else came into main with it."""
        others = [pull for pull in watched.pulls if pull.number != mine.number]
        merged = [mine, *self._merged_into(mine.commit, others, watched)]
        self._record(watched, mine.commit, merged, "merge")

    def see_branch(self, branch: str) -> BranchSeen | None:
        """Where a branch is now, with the version at which that was first seen."""
        tip = self._repository.tip(branch)
        if tip is None:
            return None
        seen = self._records.row("branch", name=branch)
        if seen is None or seen["tip"] != tip:
            self._record_branch(branch)
            seen = self._records.row("branch", name=branch)
        return branch_seen(seen) if seen else None

    def main_tip(self) -> str:
        tip = self._repository.tip(MAIN)
        if tip is None:
            raise ForgeUnavailable(
                f"{self._repository.path} has no branch {MAIN}",
                hint=f"push {MAIN} again, or put the repository back",
            )
        return tip

    def _moved(self, watched: Watched) -> bool:
        """A branch that was deleted did not move: its pull request keeps the last head."""
        tips = self._repository.tips((MAIN, *(pull.branch for pull in watched.pulls)))
        return tips.get(MAIN) != watched.main or any(
            tips.get(pull.branch, pull.head) != pull.head for pull in watched.pulls
        )

    def _record_branch(self, branch: str) -> None:
        if branch == MAIN:
            with self._repository.merging():
                self.catch_up()
            return
        with self._records.change("push") as change:
            # Read under the write lock: an older tip must never be written over a newer one.
            tip = self._repository.tip(branch)
            if tip is not None:
                change.see_tip(branch, tip)

    def _record(
        self, watched: Watched, main: str, merged: Sequence[MergeRecord], transaction: str
    ) -> None:
        with self._records.change(transaction) as change:
            for one in merged:
                change.see_merged(one)
            # main last: the base of a head that moved is main as it was before.
            for branch, tip in self._repository.tips(p.branch for p in watched.pulls).items():
                change.see_tip(branch, tip)
            change.see_tip(MAIN, main)

    def _merged_into(
        self, main: str, pulls: Sequence[WatchedPull], watched: Watched
    ) -> list[MergeRecord]:
        """The pull requests that main contains, though it did not when they got their head."""
        tips = self._repository.tips(pull.branch for pull in pulls)
        heads = [(pull.number, pull.head, pull.base) for pull in pulls]
        heads += [
            (pull.number, tips[pull.branch], watched.main)
            for pull in pulls
            if tips.get(pull.branch, pull.head) != pull.head
        ]
        inside = self._repository.contained(main, (head for _, head, _ in heads))
        return [
            self._how_merged(number, head, base, main)
            for number, head, base in heads
            if head in inside and not self._repository.contains(base, head)
        ]

    def _how_merged(self, number: int, head: str, base: str, main: str) -> MergeRecord:
        commit = self._repository.first_with(head, main, base)
        made = self._repository.look(commit)
        if len(made.parents) < 2 or commit == head:
            by = GIT_PUSH
        else:
            by = self._author if made.email == CALORON[1] else made.name
        return MergeRecord(number, head, commit, by)
