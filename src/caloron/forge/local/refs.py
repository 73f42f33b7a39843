"""The git half of the local forge, and how its records follow the refs.

A push or a merge changes git first. The records may miss a change because of a crash, or because a
person used plain git. The refs still show it, and the next call writes it into the records.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess

from caloron.domain.model.snapshots import BranchSnapshot
from caloron.errors import ForgeError, ForgeUnavailable, MergeConflict
from caloron.forge.local.records import MergeRecord, Records, Tracked, TrackedPull, branch_snapshot
from caloron.git.command import IDENTITY, GitError, complaint, remove_abandoned_locks
from caloron.git.repository import Repository
from caloron.store.lock import flock

MAIN = "main"
#: The account that merged a pull request if all we know is that main was pushed with it.
GIT_PUSH = "git push"

_MERGE_WAIT_S = 30.0
_LOCKED = ".lock': File exists"
_TRANSIENT = ("File exists", "No space left", "temporarily unavailable", "Cannot allocate memory")
#: A process that git started was killed. A repository that is gone is named before the last line.
_KILLED = re.compile(
    r"died of signal|^Killed$|unexpected disconnect|\Afatal: Could not read from remote",
    re.MULTILINE,
)


class ForgeRepository(Repository):
    """The bare repository of a forge, which plain git commands may use at the same time."""

    def __init__(self, path: Path, identity: tuple[str, str] = IDENTITY) -> None:
        # Exactly this repository, never one that surrounds it.
        super().__init__(path, identity, ("--git-dir=.",))

    def process(
        self, *arguments: str, stdin: bytes | None = None, environment: dict[str, str] | None = None
    ) -> CompletedProcess[bytes]:
        with _git_started():
            done = super().process(*arguments, stdin=stdin, environment=environment)
        return self._without_abandoned_lock(done)

    def failure(self, arguments: Sequence[str], code: int, stderr: str) -> ForgeError:
        return forge_error(self.path, arguments[0], code, stderr)

    def _without_abandoned_lock(self, done: CompletedProcess[bytes]) -> CompletedProcess[bytes]:
        """Remove the lock that a killed git left, so that the next try succeeds."""
        if done.returncode != 0 and _LOCKED in done.stderr.decode("utf-8", "replace"):
            remove_abandoned_locks(self.path)
        return done

    def tip(self, branch: str) -> str | None:
        return self.tips((branch,)).get(branch)

    def tips(self, branches: Iterable[str]) -> dict[str, str]:
        """The commits of those branches that exist."""
        if not ((self.path / "HEAD").exists() and (self.path / "objects").exists()):
            # `git init` has not run here, or was interrupted.
            return {}
        try:
            with _git_started():
                tips = {branch: self._commit_of(branch) for branch in branches}
        except GitError as error:
            raise self.failure(("cat-file",), error.returncode, error.stderr) from error
        return {branch: tip for branch, tip in tips.items() if tip}

    def _commit_of(self, branch: str) -> str:
        ref = f"refs/heads/{branch}"
        # Twice: a branch may be created between the look at the ref and the look at its file.
        for _ in range(2):
            info = self.objects.info(ref)
            if info is not None and info.type == "commit":
                return info.id
            try:
                (self.path / ref).read_bytes()
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return ""
            except OSError as error:
                reason = f"cannot open {self.path / ref}: {error.strerror}"
                raise ForgeUnavailable(reason) from error
        raise ForgeError(
            f"{self.path}: branch {branch} is damaged, its ref names no commit",
            hint="look with `git fsck`, then push the branch again",
        )

    def push_from(self, source: Path, branch: str, new: str, old: str) -> str:
        """Move a branch from `old` to `new`, whose commits are in the repository `source`.

        Return the commit of the branch afterwards: another push may have been faster.
        """
        ref = f"refs/heads/{branch}"
        lease = f"--force-with-lease={ref}:{old}"
        with _git_started():
            done = Repository(source, self._identity).process(
                "push", "--quiet", lease, str(self.path), f"{new}:{ref}"
            )
        self._without_abandoned_lock(done)
        tip = self.tip(branch) or ""
        if tip == old:
            raise forge_error(
                source, "push", done.returncode, done.stderr.decode("utf-8", "replace")
            )
        return tip

    def merged_tree(self, base: str, head: str) -> str:
        """The tree of both merged; `MergeConflict` names the files that need a decision."""
        try:
            tree, conflicts = self.merge_tree(base, head)
        except ForgeError as error:
            if "unrelated histories" in str(error):
                raise MergeConflict(f"{head[:10]} and {base[:10]} share no history") from error
            raise
        if conflicts is not None:
            raise MergeConflict(f"{head[:10]} and {base[:10]} both changed {', '.join(conflicts)}")
        return tree

    def move(self, branch: str, new: str, old: str) -> bool:
        """Compare and swap; `old` empty: it must not exist. False if the branch is elsewhere."""
        arguments = ("update-ref", f"refs/heads/{branch}", new, old or "0" * len(new))
        done = self.process(*arguments)
        if done.returncode == 0:
            return True
        if (self.tip(branch) or "") != old:
            return False
        raise self.failure(arguments, done.returncode, done.stderr.decode("utf-8", "replace"))

    def contains(self, tip: str, commit: str) -> bool:
        """True if `commit` is `tip` or behind it; a commit that is gone is behind nothing."""
        return self.has(commit) and self.has(tip) and self.is_ancestor(commit, tip)

    def contained(self, tip: str, commits: Iterable[str]) -> set[str]:
        """Return the commits that `tip` contains, from one walk."""
        wanted = set(commits)
        if not wanted:
            return set()
        ahead = self.git("rev-list", "--ignore-missing", *wanted, "--not", tip).split()
        return {commit for commit in wanted.difference(ahead) if self.contains(tip, commit)}

    def first_with(self, commit: str, tip: str, base: str) -> str:
        """The commit on the first-parent line from `base` to `tip` that brought `commit` in."""
        line = self.git("rev-list", "--ignore-missing", "--first-parent", tip, "--not", base)
        above = {commit, *self.git("rev-list", "--ancestry-path", f"{commit}..{tip}").split()}
        return [other for other in line.split() or [tip] if other in above][-1]

    @contextmanager
    def merge_lock(self, *, wait: bool = True) -> Iterator[bool]:
        """Allow one merge at a time over all processes; without `wait`, False if it is taken."""
        path = self.path.with_name("forge.lock")
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise ForgeUnavailable(
                f"cannot open {path}: {error.strerror}", hint="make the project directory yours"
            ) from error
        try:
            taken = flock(lock, _MERGE_WAIT_S if wait else -1.0)
            if wait and not taken:
                raise ForgeUnavailable(
                    f"{self.path}: another process has been merging for {_MERGE_WAIT_S:.0f} s",
                    hint="let it finish or end it, then try again",
                )
            yield taken
        finally:
            os.close(lock)


def forge_error(where: Path, command: str, code: int, stderr: str) -> ForgeError:
    """A failed git command as an error of the forge, retryable if the cause may pass."""
    reason = complaint(stderr)
    message = f"{where}: git {command} failed ({code}): {reason}"
    if "No space left" in reason:
        return ForgeUnavailable(message, hint="free some space on that disk; nothing was changed")
    if code < 0 or _KILLED.search(reason):
        return ForgeUnavailable(message, hint="a git process was killed; it is tried again")
    if any(sign in reason for sign in _TRANSIENT):
        return ForgeUnavailable(
            message, hint="another git may be at work; if none is, remove the .lock file it names"
        )
    return ForgeError(message)


@contextmanager
def _git_started() -> Iterator[None]:
    """Translate the error of a git that could not even start."""
    try:
        yield
    except FileNotFoundError as error:
        raise ForgeError("git was not found", hint="install git 2.38 or newer") from error
    except OSError as error:
        raise ForgeUnavailable(f"git could not be started: {error.strerror}") from error


class RefSync:
    """Compares the refs with the records, and writes differences into the records."""

    def __init__(self, repository: ForgeRepository, records: Records, author: str) -> None:
        self._repository = repository
        self._records = records
        self._author = author

    def refresh(self) -> int:
        """Record what moved outside our calls; return the newest version."""
        tracked = self._records.tracked()
        if not self._moved(tracked):
            return tracked.version
        with self._repository.merge_lock(wait=False) as mine:
            # The process that has the lock is recording this very move.
            return self.sync_records().version if mine else tracked.version

    def sync_records(self) -> Tracked:
        """Do the same for a caller that holds the merge lock; return the new records."""
        tracked = self._records.tracked()
        if not self._moved(tracked):
            return tracked
        main = self.main_tip()
        merged = self._merged_into(main, tracked.pulls, tracked) if main != tracked.main else []
        self._record(tracked, main, merged, "notice")
        return self._records.tracked()

    def record_merge(self, mine: MergeRecord, tracked: Tracked, main: str = "") -> None:
        """Record a merge just made, and the other pull requests that came into main with it.

        `main`: the tip of main, if that is not the commit of the merge.
        """
        main = main or mine.commit
        others = [pull for pull in tracked.pulls if pull.number != mine.number]
        merged = [mine, *self._merged_into(main, others, tracked)]
        self._record(tracked, main, merged, "merge")

    def see_branch(self, branch: str) -> BranchSnapshot | None:
        """The commit of a branch now, with the version at which it was first seen."""
        tip = self._repository.tip(branch)
        if tip is None:
            return None
        row = self._records.row("branch", name=branch)
        if row is None or row["tip"] != tip:
            self._record_branch(branch)
            row = self._records.row("branch", name=branch)
        return branch_snapshot(row) if row else None

    def main_tip(self) -> str:
        tip = self._repository.tip(MAIN)
        if tip is None:
            raise ForgeUnavailable(
                f"{self._repository.path} has no branch {MAIN}",
                hint=f"push {MAIN} again, or put the repository back",
            )
        return tip

    def _moved(self, tracked: Tracked) -> bool:
        """A branch that was deleted did not move: its pull request keeps the last head."""
        tips = self._repository.tips((MAIN, *(pull.branch for pull in tracked.pulls)))
        return tips.get(MAIN) != tracked.main or any(
            tips.get(pull.branch, pull.head) != pull.head for pull in tracked.pulls
        )

    def _record_branch(self, branch: str) -> None:
        if branch == MAIN:
            with self._repository.merge_lock():
                self.sync_records()
            return
        with self._records.change("push") as change:
            # Read under the write lock: an older tip must never be written over a newer one.
            tip = self._repository.tip(branch)
            if tip is not None:
                change.record_tip(branch, tip)

    def _record(
        self, tracked: Tracked, main: str, merged: Sequence[MergeRecord], transaction: str
    ) -> None:
        with self._records.change(transaction) as change:
            for merge in merged:
                change.record_merged(merge)
            # main last: the base of a head that moved is main as it was before.
            for branch, tip in self._repository.tips(p.branch for p in tracked.pulls).items():
                change.record_tip(branch, tip)
            change.record_tip(MAIN, main)

    def _merged_into(
        self, main: str, pulls: Sequence[TrackedPull], tracked: Tracked
    ) -> list[MergeRecord]:
        """The pull requests that main contains, though it did not when they got their head."""
        tips = self._repository.tips(pull.branch for pull in pulls)
        heads = [(pull.number, pull.head, pull.base) for pull in pulls]
        heads += [
            (pull.number, tips[pull.branch], tracked.main)
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
        made = self._repository.commit(commit)
        if len(made.parents) < 2 or commit == head:
            by = GIT_PUSH
        else:
            by = self._author if made.email == IDENTITY[1] else made.committer
        return MergeRecord(number, head, commit, by)
