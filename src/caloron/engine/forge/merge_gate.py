"""Checks just before a merge: objections of people since the decision, and the forge's CI."""

from __future__ import annotations

from collections.abc import Callable

from caloron.domain.model.effects import Merge
from caloron.domain.model.snapshots import CommentSnapshot, IssueSnapshot
from caloron.domain.model.sprint import State
from caloron.domain.model.task import Task
from caloron.domain.rules.people.commands import new_objections
from caloron.domain.rules.people.labelled_issues import read_text
from caloron.domain.rules.verdicts import POLICY
from caloron.errors import ChecksFailed, ForgeError, StaleHead
from caloron.git.mirror import Mirror
from caloron.git.repository_context import ci_files
from caloron.ports import Clock, Forge

#: A CI that has reported nothing about a head by then does not run for it.
_CI_BEGINS_S = 60.0


class ChecksPending(ForgeError):
    """The forge's own CI has not ended; meanwhile other changes may be merged."""


class LaterVeto(StaleHead):
    """A person objected to the merge on the forge, in comments that no tick has handled yet."""

    def __init__(self, message: str, comments: tuple[CommentSnapshot, ...]) -> None:
        super().__init__(message)
        self.comments = comments


class MergeGate:
    """Refuses a merge that is not wanted any more, or not yet."""

    def __init__(
        self, forge: Forge, mirror: Mirror, clock: Clock, state: Callable[[], State]
    ) -> None:
        self._forge = forge
        self._mirror = mirror
        self._clock = clock
        #: The sprint as it is now: whether the merge is still wanted.
        self._state = state

    def check(self, effect: Merge) -> None:
        self._check_objections(effect)
        self._look_at_checks(effect)

    def _check_objections(self, effect: Merge) -> None:
        """Refuse a merge that a person stopped after it was decided, here or on the forge."""
        state = self._state()
        task = state.tasks.get(effect.task)
        name = f"pull request #{effect.pull}"
        if task and task.merge.merging != effect.head:
            raise StaleHead(f"{name} is not to be merged any more: {task.reason}")
        if task and task.links.issue is not None and not task.merge.unverified:
            self._look_at_issue(state, task.links.issue)
            self._look_at_comments(task)
        reviews = self._forge.reviews(effect.pull)
        last = POLICY.last_word(state.sprint, task, reviews, effect.pull, effect.head)
        if last is not None and last.verdict == "changes_requested":
            raise StaleHead(f"{last.author} asked for changes in {name}")

    def _look_at_issue(self, state: State, number: int) -> None:
        known = state.objects.get(f"issue:{number}")
        issue = self._forge.issue(number)
        if issue.state == "closed":
            raise StaleHead(f"issue #{number} was closed")
        if not isinstance(known, IssueSnapshot) or not issue.trusted:
            return
        if read_text(issue.title, issue.body) != read_text(known.title, known.body):
            raise StaleHead(f"the text of issue #{number} was changed")

    def _look_at_comments(self, task: Task) -> None:
        places = [number for number in (task.links.issue, task.links.pull) if number is not None]
        comments = [comment for number in places for comment in self._forge.comments(number)]
        if words := new_objections(task, comments):
            who, what = words[0].author, words[0].body.splitlines()[0].strip()
            raise LaterVeto(f"{who} said {what} on #{words[0].issue}", words)

    def _look_at_checks(self, effect: Merge) -> None:
        """Refuse a merge that the forge's own CI has not passed, where there is a CI."""
        checks = self._forge.checks(effect.head)
        if checks.state == "pending":
            raise ChecksPending(f"waits for the forge's CI: {checks.detail or 'not told yet'}")
        if checks.state == "red":
            raise ChecksFailed(f"the forge's CI failed: {checks.detail or 'no details'}")
        if checks.state == "none" and self._may_still_report(effect):
            raise ChecksPending("waits for the forge's CI: nothing reported yet")

    def _may_still_report(self, effect: Merge) -> bool:
        """True if the repository has a CI that may not have started for this new head."""
        task = self._state().tasks.get(effect.task)
        if task is None or task.review.seen_head != effect.head or not self._forge.url(effect.pull):
            return False
        is_new = self._clock.now() - task.review.seen_at < _CI_BEGINS_S
        return is_new and bool(ci_files(self._mirror.files(effect.head)))
