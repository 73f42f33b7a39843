"""Comments of people on a task. A command is the whole first line of one, and is obeyed once.

A command that makes no sense in the state of the task is answered, once, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from caloron.domain.model.effects import ReopenIssue, SeeBranch
from caloron.domain.model.snapshots import (
    CommentSnapshot,
    ReviewSnapshot,
    marker_key,
    moment,
    without_markers,
)
from caloron.domain.model.sprint import State
from caloron.domain.model.status import Status, Step
from caloron.domain.model.task import Task, Work
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.people import comments
from caloron.domain.rules.results import open_pull
from caloron.domain.rules.verdicts import take_back

RESOLVED = "resolved"
TAKE_OVER = "caloron:take-over"
RETRY = "caloron:retry"
CANCEL = "caloron:cancel"
APPROVE = "caloron:approve"

#: After these an agent works on the task: it gets the text below the command.
_WITH_TEXT = (RESOLVED, RETRY)
#: The longest text of one comment in a prompt, and of all.
_LONGEST, _LONGEST_TOGETHER = 4_000, 12_000
_LOOKS_LIKE = re.compile(r"[ \t]*(caloron:[\w-]{1,40})", re.IGNORECASE)


def command_of(comment: CommentSnapshot) -> str:
    """Return the command in a comment; empty: its author may not command, or it has none."""
    return command_in(comment.body) if comment.trusted else ""


def command_in(body: str) -> str:
    """Return the command in a text of any author.

    A text with a marker is ours or pretends to be, and is never a command.
    """
    if marker_key(body):
        return ""
    first = body.splitlines()[0].strip().lower() if body else ""
    return first if first in _OBEY else ""


def mistaken_command(body: str) -> str:
    """Return the beginning of a text that looks like a command and is none; else empty."""
    if marker_key(body) or command_in(body):
        return ""
    match = _LOOKS_LIKE.match(body)
    return match[1] if match else ""


def text_below_command(body: str) -> str:
    """Return a comment without the command on its first line."""
    body = without_markers(body)
    return body.partition("\n")[2].strip() if command_in(body) else body


def for_prompt(state: State, task: Task) -> tuple[str, tuple[str, ...]]:
    """Return the text of the unread comments, and their objects; the rest is for a later prompt."""
    parts: list[str] = []
    objects: list[str] = []
    for name in task.conversation.unread:
        comment = state.objects.get(name)
        if not isinstance(comment, CommentSnapshot | ReviewSnapshot):
            continue
        text = text_below_command(comment.body)
        part = f"{comment.author}:\n{text[:_LONGEST]}{'…' if len(text) > _LONGEST else ''}"
        if parts and sum(map(len, parts)) + len(part) > _LONGEST_TOGETHER:
            break
        parts.append(part)
        objects.append(name)
    return "\n\n".join(parts), tuple(objects)


def commented(evaluation: Evaluation, task: Task) -> list[comments.Comment]:
    """A person commented, on the issue, the pull request or in a review without a verdict."""
    return sorted(comments.new_comments(evaluation, task), key=lambda c: (c.version, c.id))


def obey(evaluation: Evaluation, task: Task, new: list[comments.Comment]) -> None:
    """Carry out a command, or answer why it changes nothing; keep other text for the next agent."""
    for comment in new:
        if isinstance(comment, ReviewSnapshot):
            comments.receive(evaluation, task, comment)
        elif command := command_of(comment):
            task.conversation.handle(comment.object)
            evaluation.record_act(task, comment.object)
            if why_not := _OBEY[command](evaluation, task, comment):
                _answer(evaluation, task, comment, f"`{command}` changes nothing: {why_not}.")
            elif command in _WITH_TEXT and text_below_command(comment.body):
                comments.receive(evaluation, task, comment, command)
        elif comment.trusted and (word := mistaken_command(comment.body)):
            _correct(evaluation, task, comment, word)
        else:
            comments.receive(evaluation, task, comment)


def _correct(evaluation: Evaluation, task: Task, comment: CommentSnapshot, word: str) -> None:
    """Name the commands, once for each comment; edited into a command, it is still obeyed."""
    corrected = f"{comment.object}?"
    if corrected not in task.conversation.handled:
        task.conversation.handle(corrected)
        known = ", ".join(f"`{name}`" for name in _OBEY)
        text = f"`{word}` is no command. A command is the whole first line of a comment: {known}."
        _answer(evaluation, task, comment, text)


def _answer(evaluation: Evaluation, task: Task, comment: CommentSnapshot, text: str) -> None:
    evaluation.comment(task, "answer", str(comment.id), text, on=comment.issue)


def new_objections(task: Task, comments: Iterable[CommentSnapshot]) -> tuple[CommentSnapshot, ...]:
    """Return commands that no tick has seen yet and that take a decided merge back."""
    return tuple(
        comment
        for comment in comments
        if comment.object not in task.conversation.handled
        and comment.version > task.conversation.since_version
        and command_of(comment) in (CANCEL, TAKE_OVER, RETRY)
    )


# Each command returns why it changes nothing; empty: it was carried out.


def _over(task: Task) -> str:
    """Return why a task takes no commands: it is done, cancelled, or just merged."""
    if task.status is Status.DONE:
        return f"task `{task.id}` is done"
    if task.status is Status.CANCELLED:
        return f"task `{task.id}` is cancelled; `{RETRY}` or opening its issue again brings it back"
    if task.merge.unverified:
        return f"the change of task `{task.id}` is merged, and main is being looked at"
    return ""


def _resolved(evaluation: Evaluation, task: Task, comment: CommentSnapshot) -> str:
    if task.status is not Status.ESCALATED:
        if task.step is Step.AWAITING_APPROVAL:
            return f"its change waits for an approval; `{APPROVE}` approves it"
        return _over(task) or f"task `{task.id}` does not wait for a person"
    _hand_back(evaluation, task, comment)
    return ""


def _take_over(evaluation: Evaluation, task: Task, comment: CommentSnapshot) -> str:
    """Stop the agent; the commits that the person pushes, opens or merges are the change."""
    if why_not := _over(task):
        return why_not
    reason, work = f"taken over by {comment.author}", task.work
    if task.status is Status.ESCALATED:
        evaluation.note(task, reason)
    else:
        evaluation.stop_work(task, reason)
        evaluation.wait_for_person(task, reason, work)
    task.escalation.taken_over_by, task.escalation.handback_by = comment.author, ""
    return ""


def _hand_back(evaluation: Evaluation, task: Task, comment: CommentSnapshot) -> None:
    """Release the task; after a take-over with the person's commits on its branch."""
    who, escalation = comment.author, task.escalation
    if escalation.handback_by:
        return
    if not escalation.taken_over_by or task.plan.kind == "check":
        evaluation.release(task, who)
        return
    pull = evaluation.state.pull_of(task)
    if pull is None or pull.state != "open":
        # No snapshots show a branch without a pull request, so it is read first.
        escalation.handback_by = who
        key = f"see_branch/{evaluation.sprint.id}/{task.id}/{comment.id}"
        evaluation.do(SeeBranch(key=key, task=task.id, branch=task.change.branch))
        return
    if task.change.pushed == task.change.head and pull.head != task.change.head:
        escalation.resume_work = None
    evaluation.release(task, who)


def handed_back(evaluation: Evaluation, task: Task, commit: str) -> None:
    """Go on after a take-over: with the person's commit, or where the agent was stopped."""
    escalation = task.escalation
    if task.status is not Status.ESCALATED or not escalation.handback_by:
        return
    pushed = bool(commit) and commit != task.change.pushed
    if pushed:
        task.change.adopt(commit)
        task.change.is_empty = False
        escalation.reset()
    started = escalation.resume_as is not Step.WAITING
    evaluation.release(task, escalation.handback_by)
    if pushed and started and task.links.pull is None:
        evaluation.move(task, Step.PUBLISHING)
        open_pull(evaluation, task)


def _retry(evaluation: Evaluation, task: Task, comment: CommentSnapshot) -> str:
    reason = f"{comment.author} said {RETRY}"
    match task.status:
        case Status.ESCALATED:
            _hand_back(evaluation, task, comment)
        case Status.CANCELLED if task.links.issue is not None:
            task.conversation.by_label = task.conversation.unlabelled = False
            evaluation.note(task, f"{reason}: it comes back")
            key = f"reopen/{evaluation.sprint.id}/{task.id}/{comment.id}"
            evaluation.do(ReopenIssue(key=key, task=task.id, issue=task.links.issue))
        case Status.IN_PROGRESS if task.work is not None:
            _begin_again(evaluation, task, task.work, reason)
        case Status.IN_REVIEW if not task.merge.unverified:
            evaluation.stop_work(task, reason)
            take_back(evaluation, task)
            task.merge.verified, task.merge.merging, task.merge.stale_merges = None, "", 0
            task.attempts.reset()
            evaluation.note(task, f"{reason}: verified and reviewed again")
        case Status.IN_PROGRESS:
            return f"the change of task `{task.id}` is just being published"
        case _:
            waits = task.reason or "it waits for its turn"
            return _over(task) or f"task `{task.id}` has not begun: {waits}"
    return ""


def _begin_again(evaluation: Evaluation, task: Task, work: Work, reason: str) -> None:
    evaluation.stop_work(task, reason)
    task.forgive()
    task.attempts.session = ""
    evaluation.note(task, f"{reason}: begun again")
    evaluation.start_again(task, work, reason, reason=work.reason)


def _cancel(evaluation: Evaluation, task: Task, comment: CommentSnapshot) -> str:
    if why_not := _over(task):
        return why_not
    who = comment.author
    evaluation.cancel(task, f"cancelled by {who}", closed_by_person=False)
    task.conversation.cancelled_by = who
    task.escalation.reset()
    evaluation.close_escalation(task)
    text = (
        f"Cancelled by {who}. Comment `{RETRY}` or open the issue again to bring it back; if the"
        " sprint has ended by then, that waits for `caloron resume`."
    )
    evaluation.comment(task, "cancelled", str(comment.id), text)
    evaluation.close_issue(task.links.issue, f"cancelled-{comment.id}", task)
    return ""


def _approve(evaluation: Evaluation, task: Task, comment: CommentSnapshot) -> str:
    """Count the command like an approving review of the head that its author could see."""
    pull, who = evaluation.state.pull_of(task), comment.author
    if why_not := _over(task):
        return why_not
    if pull is None or pull.state != "open":
        if task.change.is_empty and task.status is Status.IN_REVIEW:
            agreed = f"Nothing to do: {who} agrees."
            evaluation.complete(task, f"nothing to do, as {who} agrees", agreed)
            return ""
        return f"task `{task.id}` has no open pull request to approve"
    if moment(comment.version) <= moment(task.review.seen_version):
        # The head may not have been there yet; in doubt it was not.
        return f"the branch moved since, to {pull.head[:12]}; look at that and say it again"
    approval = ReviewSnapshot(
        version=comment.version,
        # Forges number comments and reviews separately.
        id=-comment.id,
        pull=pull.number,
        head=pull.head,
        verdict="approved",
        author=who,
    )
    others = (a for a in task.review.approvals if a.head == pull.head and a.author != who)
    task.review.approvals = (*others, approval)
    evaluation.note(task, f"{who} approved {pull.head[:12]}")
    if task.status is Status.ESCALATED:
        task.change.adopt(pull.head)
        task.escalation.resume(None, Step.REVIEW_QUEUED)
        evaluation.release(task, who)
    return ""


_OBEY: dict[str, Callable[[Evaluation, Task, CommentSnapshot], str]] = {
    RESOLVED: _resolved,
    TAKE_OVER: _take_over,
    RETRY: _retry,
    CANCEL: _cancel,
    APPROVE: _approve,
}
