"""A merge on the forge: the checks just before it, the commit it made, and its revert.

The checks look for objections of people since the decision, and at the forge's CI. This module
changes nothing on the forge; the effect executor does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from caloron.domain.model.effects import MakeRevert, Merge
from caloron.domain.model.facts import EffectDone
from caloron.domain.model.merge import LandedMerge
from caloron.domain.model.snapshots import CommentSnapshot, IssueSnapshot, PullSnapshot
from caloron.domain.model.sprint import State
from caloron.domain.model.task import Task
from caloron.domain.rules.people.commands import new_objections
from caloron.domain.rules.people.labelled_issues import read_text
from caloron.domain.rules.verdicts import policy_of
from caloron.errors import (
    ChecksFailed,
    ForgeError,
    ForgeUnavailable,
    MergeConflict,
    NotFound,
    StaleHead,
)
from caloron.git.command import GitError
from caloron.git.mirror import Conflict, Merged, Mirror
from caloron.git.repository import Repository, printable_names
from caloron.git.repository_context import ci_files
from caloron.ports import Clock, Forge

#: A CI that has reported nothing about a head by then does not run for it.
_CI_BEGINS_S = 60.0
_PAUSES_S = (0.5, 1.0, 2.0)


class ChecksPending(ForgeError):
    """The forge's own CI has not ended; meanwhile other changes may be merged."""


class LaterVeto(StaleHead):
    """A person objected to the merge on the forge, in comments that no tick has handled yet."""

    def __init__(self, message: str, comments: tuple[CommentSnapshot, ...]) -> None:
        super().__init__(message)
        self.comments = comments


@dataclass
class MergeGate:
    """Refuses a merge that is not wanted any more, or not yet."""

    forge: Forge
    mirror: Mirror
    clock: Clock
    #: The sprint as it is now: whether the merge is still wanted.
    state: Callable[[], State]

    def check(self, effect: Merge) -> None:
        self._check_objections(effect)
        self._look_at_checks(effect)

    def _check_objections(self, effect: Merge) -> None:
        """Refuse a merge that a person stopped after it was decided, here or on the forge."""
        state = self.state()
        task = state.tasks.get(effect.task)
        name = f"pull request #{effect.pull}"
        if task and task.merge.merging != effect.head:
            raise StaleHead(f"{name} is not to be merged any more: {task.reason}")
        if task and task.links.issue is not None and not task.merge.unverified:
            self._look_at_issue(state, task.links.issue)
            self._look_at_comments(task)
        reviews = self.forge.reviews(effect.pull)
        policy = policy_of(state.sprint, task)
        ruling = policy.judge(state.sprint, task, reviews, effect.pull, effect.head)
        if ruling.last is not None and ruling.last.verdict == "changes_requested":
            raise StaleHead(f"{ruling.last.author} asked for changes in {name}")
        if ruling.missing and task and not task.merge.unverified:
            raise StaleHead(f"{name} waits for the approval of a person")

    def _look_at_issue(self, state: State, number: int) -> None:
        known = state.objects.get(f"issue:{number}")
        issue = self.forge.issue(number)
        if issue.state == "closed":
            raise StaleHead(f"issue #{number} was closed")
        if not isinstance(known, IssueSnapshot) or not issue.trusted:
            return
        if read_text(issue.title, issue.body) != read_text(known.title, known.body):
            raise StaleHead(f"the text of issue #{number} was changed")

    def _look_at_comments(self, task: Task) -> None:
        places = [number for number in (task.links.issue, task.links.pull) if number is not None]
        comments = [comment for number in places for comment in self.forge.comments(number)]
        if words := new_objections(task, comments):
            who, what = words[0].author, words[0].body.splitlines()[0].strip()
            raise LaterVeto(f"{who} said {what} on #{words[0].issue}", words)

    def _look_at_checks(self, effect: Merge) -> None:
        """Refuse a merge that the forge's own CI has not passed, where there is a CI."""
        checks = self.forge.checks(effect.head)
        if checks.state == "pending":
            raise ChecksPending(f"waits for the forge's CI: {checks.detail or 'not told yet'}")
        if checks.state == "red":
            raise ChecksFailed(f"the forge's CI failed: {checks.detail or 'no details'}")
        if checks.state == "none" and self._may_still_report(effect):
            raise ChecksPending("waits for the forge's CI: nothing reported yet")

    def _may_still_report(self, effect: Merge) -> bool:
        """True if the repository has a CI that may not have started for this new head."""
        task = self.state().tasks.get(effect.task)
        if task is None or task.review.seen_head != effect.head or not self.forge.url(effect.pull):
            return False
        is_new = self.clock.now() - task.review.seen_at < _CI_BEGINS_S
        return is_new and bool(ci_files(self.mirror.files(effect.head)))


class MergedElsewhere(ForgeError):
    """The forge says merged, but main does not have it: a person chose another branch."""


def verified_merge(mirror: Mirror, effect: Merge, message: str) -> str:
    """The commit whose tree was verified, as the effect describes it; empty if there is none."""
    if not (effect.tree and mirror.has(effect.base) and mirror.has(effect.head)):
        return ""
    merged = mirror.merge(effect.base, effect.head, message, style=effect.style)
    return merged.commit if isinstance(merged, Merged) and merged.tree == effect.tree else ""


def is_landed(mirror: Mirror, commit: str) -> bool:
    """True if main on the forge holds the commit."""
    return _is_on_main(mirror, commit, _main(mirror))


def merge_result(
    mirror: Mirror, effect: Merge, pull: PullSnapshot, verified: str, *, did_it: bool
) -> EffectDone:
    """Report the commit that the merge made and its tree; the same however often it is asked.

    `verified` is the commit that was to land. `did_it`: the forge says that we merged the pull
    request. Otherwise the merge is ours if it has our message.
    """
    main = _main(mirror)
    landed = verified and _is_on_main(mirror, verified, main)
    commit = verified if landed else pull.merge_commit or main
    for pause in _PAUSES_S:
        if _is_on_main(mirror, commit, main):
            break
        # Git may show a merge a moment later than the API.
        time.sleep(pause)
        main = _main(mirror)
    if not _is_on_main(mirror, commit, main):
        raise MergedElsewhere(
            f"pull request #{pull.number} was merged as {commit[:12]}, which is not on"
            f" {mirror.main}",
            hint=f"merge its branch into {mirror.main} by hand, or choose its base again",
        )
    named = mirror.subject(commit) == first_line(effect.message)
    return EffectDone(
        key=effect.key,
        task=effect.task,
        kind="merge",
        commit=commit,
        tree=mirror.tree(commit),
        by_us=did_it or named,
    )


def _is_on_main(mirror: Mirror, commit: str, main: str) -> bool:
    return mirror.has(commit) and mirror.is_ancestor(commit, main)


def _main(mirror: Mirror) -> str:
    """Fetch main; a failure says nothing about the effect, so the effect is tried again."""
    try:
        return mirror.fetch_main()
    except (GitError, NotFound) as error:
        raise ForgeUnavailable(f"main cannot be fetched: {error}") from error


@dataclass(frozen=True)
class RevertMade:
    """The commit that reverts a merge, and a commit on top of it that brings the change back."""

    head: str
    reapply_commit: str


def make_revert(mirror: Mirror, effect: MakeRevert) -> RevertMade:
    """Make both commits in our own repository; the same effect gives the same commits."""
    main = _main(mirror)
    before = before_merge(mirror, effect)
    head = mirror.same_tree_as(before, effect.commit, effect.message)
    for merge in effect.older:
        message = f'Revert "{first_line(merge.merged_as)}"'
        out = mirror.same_tree_as(before_merge(mirror, merge), merge.commit, message)
        tree, conflicts = mirror.merge_tree(head, out)
        if conflicts is not None:
            raise _same_lines(conflicts)
        head = mirror.commit_on(tree, head, message)
    merged = mirror.merge(main, head, "Merge to find conflicts")
    if isinstance(merged, Conflict):
        raise _same_lines(merged.files)
    return RevertMade(head, bring_back(mirror, effect, head))


def _same_lines(files: tuple[str, ...]) -> MergeConflict:
    names = ", ".join(printable_names(files))
    return MergeConflict(f"what came after it changed the same lines of {names}")


def bring_back(mirror: Mirror, effect: MakeRevert, head: str) -> str:
    """Commit the change again on top of its revert: a second merge would bring nothing back."""
    return mirror.same_tree_as(effect.commit, head, f"Again: {effect.message}")


def before_merge(repository: Repository, merge: LandedMerge | MakeRevert) -> str:
    """Return main as it was before the merge, for each way in which a forge merges."""
    commit, parents = merge.commit, repository.parents(merge.commit)
    if len(parents) == 1 and _is_as_verified(repository, merge):
        # Squashed or rebased onto exactly this main.
        return merge.base
    if len(parents) > 1 or repository.subject(commit) == first_line(merge.merged_as):
        return parents[0]
    if commit == merge.head:
        # Fast-forwarded: main was at the expected commit then.
        return merge.base
    # Rebased: as many commits as the change has are new on main.
    start = repository.merge_base(commit, merge.head)
    return repository.resolve(f"{commit}~{max(1, repository.commits_ahead(start, merge.head))}")


def _is_as_verified(repository: Repository, merge: LandedMerge | MakeRevert) -> bool:
    """True if the merge made of the expected main what was verified."""
    if not (merge.base and repository.has(merge.base) and repository.has(merge.head)):
        return False
    tree, conflicts = repository.merge_tree(merge.base, merge.head)
    return conflicts is None and tree == repository.tree(merge.commit)


def first_line(message: str) -> str:
    return message.strip().partition("\n")[0].strip()
