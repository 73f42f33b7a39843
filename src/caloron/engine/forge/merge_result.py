"""Finds the commit of a merge in our own repository, and makes the commit that reverts it.

This module changes nothing on the forge; the effect executor does.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from caloron.domain.model.effects import MakeRevert, Merge
from caloron.domain.model.facts import EffectDone
from caloron.domain.model.snapshots import PullSnapshot
from caloron.errors import ForgeError, ForgeUnavailable, MergeConflict, NotFound
from caloron.git.command import GitError
from caloron.git.mirror import Conflict, Merged, Mirror
from caloron.git.repository import printable_names

_PAUSES_S = (0.5, 1.0, 2.0)


class MergedElsewhere(ForgeError):
    """The forge says merged, but main does not have it: a person chose another branch."""


def verified_merge(mirror: Mirror, effect: Merge, message: str) -> str:
    """The commit whose tree was verified, as the effect describes it; empty if there is none."""
    if not (effect.tree and mirror.has(effect.base) and mirror.has(effect.head)):
        return ""
    merged = mirror.merge(effect.base, effect.head, message)
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
    before = _before(mirror, effect)
    head = mirror.same_tree_as(before, effect.commit, effect.message)
    merged = mirror.merge(main, head, "Merge to find conflicts")
    if isinstance(merged, Conflict):
        files = ", ".join(printable_names(merged.files))
        raise MergeConflict(f"what came after it changed the same lines of {files}")
    return RevertMade(head, bring_back(mirror, effect, head))


def bring_back(mirror: Mirror, effect: MakeRevert, head: str) -> str:
    """Commit the change again on top of its revert: a second merge would bring nothing back."""
    return mirror.same_tree_as(effect.commit, head, f"Again: {effect.message}")


def _before(mirror: Mirror, effect: MakeRevert) -> str:
    """Return main as it was before the merge, for each way in which a forge merges."""
    commit, parents = effect.commit, mirror.parents(effect.commit)
    if len(parents) > 1 or mirror.subject(commit) == first_line(effect.merged_as):
        return parents[0]
    if commit == effect.head:
        # Fast-forwarded: main was at the expected commit then.
        return effect.base
    # Rebased: as many commits as the change has are new on main.
    start = mirror.merge_base(commit, effect.head)
    return mirror.resolve(f"{commit}~{max(1, mirror.commits_ahead(start, effect.head))}")


def first_line(message: str) -> str:
    return message.strip().partition("\n")[0].strip()
