"""What a person may say to a task: the whole first line of a comment, obeyed once.

A command that makes no sense where the task stands is answered, once, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from caloron.domain.model.effects import CloseIssue, PostComment, ReopenIssue, SeeBranch
from caloron.domain.model.snapshots import CommentSnapshot, ReviewSnapshot, marker_key, moment
from caloron.domain.model.sprint import pull_of
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.reporting import forge_texts
from caloron.domain.rules.evaluation import Evaluation
from caloron.domain.rules.results import open_pull
from caloron.domain.rules.verdicts import take_back

RESOLVED = "resolved"
TAKE_OVER = "caloron:take-over"
RETRY = "caloron:retry"
CANCEL = "caloron:cancel"
APPROVE = "caloron:approve"

_LOOKS_LIKE = re.compile(r"[ \t]*(caloron:[\w-]{1,40})", re.IGNORECASE)


def command_of(comment: CommentSnapshot) -> str:
    """The command that a comment is; empty: it is text of somebody, and data."""
    return word_of(comment.body) if comment.trusted else ""


def word_of(body: str) -> str:
    """The command that a text would be if whoever wrote it has a say.

    One that carries a marker is ours or pretends to be, and is never a command.
    """
    if marker_key(body):
        return ""
    first = body.splitlines()[0].strip().lower() if body else ""
    return first if first in _OBEY else ""


def mistaken_word(body: str) -> str:
    """What a text says that looks like a command and is none; empty: it does not look like one."""
    if marker_key(body) or word_of(body):
        return ""
    found = _LOOKS_LIKE.match(body)
    return found[1] if found else ""


def command_given(evaluation: Evaluation, task: Task) -> bool:
    """A trusted person wrote a command, or what looks like one."""
    return bool(_new_comments(evaluation, task))


def _new_comments(evaluation: Evaluation, task: Task) -> list[CommentSnapshot]:
    new = [
        comment
        for place in evaluation.places(task)
        for comment in evaluation.comments_on(place)
        if comment.object not in task.conversation.handled and comment.trusted
    ]
    return sorted(new, key=lambda comment: comment.id)


def obey(evaluation: Evaluation, task: Task) -> None:
    """Carry out the command, or answer why it changes nothing."""
    for comment in _new_comments(evaluation, task):
        if command := command_of(comment):
            task.conversation.handle(comment.object)
            evaluation.acted(task, comment.object)
            _OBEY[command](evaluation, task, comment)
        elif word := mistaken_word(comment.body):
            _correct(evaluation, task, comment, word)


def _correct(evaluation: Evaluation, task: Task, comment: CommentSnapshot, word: str) -> None:
    """Name the commands, once for each comment; edited into one of them, it is still obeyed."""
    said = f"{comment.object}?"
    if said in task.conversation.handled:
        return
    task.conversation.handle(said)
    known = ", ".join(f"`{name}`" for name in _OBEY)
    text = f"`{word}` is no command. A command is the whole first line of a comment: {known}."
    key = forge_texts.comment_key(evaluation.sprint.id, task.id, "answer", str(comment.id))
    evaluation.do(
        PostComment(
            key=key, task=task.id, issue=comment.issue, body=forge_texts.comment_body(text, key)
        )
    )


def unheard_no(task: Task, comments: Iterable[CommentSnapshot]) -> tuple[CommentSnapshot, ...]:
    """Commands that take a decided merge back, of those that no tick was told of yet."""
    return tuple(
        comment
        for comment in comments
        if comment.object not in task.conversation.handled
        and comment.version > task.conversation.since_version
        and command_of(comment) in (CANCEL, TAKE_OVER, RETRY)
    )


def _answer(evaluation: Evaluation, task: Task, comment: CommentSnapshot, why: str) -> None:
    """Say where it was asked why nothing follows."""
    key = forge_texts.comment_key(evaluation.sprint.id, task.id, "answer", str(comment.id))
    text = f"`{command_of(comment)}` changes nothing: {why}."
    evaluation.do(
        PostComment(
            key=key, task=task.id, issue=comment.issue, body=forge_texts.comment_body(text, key)
        )
    )


def _over(task: Task) -> str:
    """Why nothing can be done with a task any more, or not before it comes back."""
    if task.status is Status.DONE:
        return f"task `{task.id}` is done"
    if task.status is Status.CANCELLED:
        return f"task `{task.id}` is cancelled; `{RETRY}` or opening its issue again brings it back"
    if task.merge.unverified:
        return f"the change of task `{task.id}` is merged, and main is being looked at"
    return ""


def _resolved(evaluation: Evaluation, task: Task, comment: CommentSnapshot) -> None:
    if task.status is Status.ESCALATED:
        _give_back(evaluation, task, comment)
    else:
        why = _over(task) or f"task `{task.id}` does not wait for a person"
        _answer(evaluation, task, comment, why)


def _take_over(evaluation: Evaluation, task: Task, comment: CommentSnapshot) -> None:
    """The agent stops; what the person pushes, opens or merges is the change."""
    if why := _over(task):
        _answer(evaluation, task, comment, why)
        return
    reason = f"taken over by {comment.author}"
    if task.status is Status.ESCALATED:
        evaluation.note(task, reason)
    else:
        held = task.work
        evaluation.stop_work(task, reason)
        evaluation.hold(task, reason, held=held)
    task.escalation.taken_over_by, task.escalation.handback_by = comment.author, ""


def _give_back(evaluation: Evaluation, task: Task, comment: CommentSnapshot) -> None:
    """The task goes on; after a take-over with what the person left on its branch."""
    who = comment.author
    if task.escalation.handback_by:
        return
    if not task.escalation.taken_over_by or task.plan.kind == "check":
        evaluation.release(task, who)
        return
    pull = pull_of(evaluation.state, task)
    if pull is None or pull.state != "open":
        # A branch without a pull request is not watched: look what is there first.
        task.escalation.handback_by = who
        key = f"see_branch/{evaluation.sprint.id}/{task.id}/{comment.id}"
        evaluation.do(SeeBranch(key=key, task=task.id, branch=task.change.branch))
        return
    if task.change.pushed == task.change.head and pull.head != task.change.head:
        task.escalation.resume_work = None
    evaluation.release(task, who)


def branch_was_seen(evaluation: Evaluation, task: Task, commit: str) -> None:
    """Go on after a take-over: with the person's commit, or where the agent was stopped."""
    if task.status is not Status.ESCALATED or not task.escalation.handback_by:
        return
    theirs = bool(commit) and commit != task.change.pushed
    if theirs:
        task.change.adopt(commit)
        task.change.is_empty, task.escalation.resume_work, task.escalation.retry_effects = (
            False,
            None,
            (),
        )
    begun = task.escalation.resume_as is not Status.PENDING
    evaluation.release(task, task.escalation.handback_by)
    if theirs and begun and task.links.pull is None:
        evaluation.move(task, Status.IN_PROGRESS)
        open_pull(evaluation, task)


def _retry(evaluation: Evaluation, task: Task, comment: CommentSnapshot) -> None:
    reason = f"{comment.author} said {RETRY}"
    match task.status:
        case Status.ESCALATED:
            _give_back(evaluation, task, comment)
        case Status.CANCELLED if task.links.issue is not None:
            task.conversation.by_label = task.conversation.unlabelled = False
            evaluation.note(task, f"{reason}: it comes back")
            key = f"reopen/{evaluation.sprint.id}/{task.id}/{comment.id}"
            evaluation.do(ReopenIssue(key=key, task=task.id, issue=task.links.issue))
        case Status.IN_PROGRESS if task.work is not None:
            _begin_again(evaluation, task, reason)
        case Status.IN_REVIEW if not task.merge.unverified:
            evaluation.stop_work(task, reason)
            take_back(evaluation, task)
            task.merge.verified, task.merge.merging, task.merge.stale_merges = None, "", 0
            task.attempts.failures = 0
            evaluation.note(task, f"{reason}: verified and reviewed again")
        case Status.IN_PROGRESS:
            why = f"the change of task `{task.id}` is just being published"
            _answer(evaluation, task, comment, why)
        case _:
            why = _over(task) or f"task `{task.id}` has not begun: {_waits(task)}"
            _answer(evaluation, task, comment, why)


def _waits(task: Task) -> str:
    return task.reason or "it waits for its turn"


def _begin_again(evaluation: Evaluation, task: Task, reason: str) -> None:
    work = task.work
    if work is None:
        return
    evaluation.stop_work(task, reason)
    (
        task.attempts.session,
        task.attempts.failures,
        task.supervision.interventions,
        task.supervision.restarts,
    ) = "", 0, 0, 0
    again = evaluation.new_work(
        task, work.role, head=work.head, reason=work.reason, log=work.verify_log
    )
    evaluation.note(task, f"{reason}: begun again")
    evaluation.start(task, msgspec.structs.replace(again, onto_main=work.onto_main), reason)


def _cancel(evaluation: Evaluation, task: Task, comment: CommentSnapshot) -> None:
    if why := _over(task):
        _answer(evaluation, task, comment, why)
        return
    who = comment.author
    evaluation.cancel(task, f"cancelled by {who}", closed_by_person=False)
    task.conversation.cancelled_by, task.escalation.resume_work, task.escalation.retry_effects = (
        who,
        None,
        (),
    )
    evaluation.close_escalation(task)
    if task.links.issue is None:
        return
    text = (
        f"Cancelled by {who}. Comment `{RETRY}` or open the issue again to bring it back; if the"
        " sprint has ended by then, that waits for `caloron resume`."
    )
    evaluation.comment(task, "cancelled", str(comment.id), text)
    key = f"close/{evaluation.sprint.id}/{task.id}/cancelled-{comment.id}"
    evaluation.do(CloseIssue(key=key, task=task.id, issue=task.links.issue))


def _approve(evaluation: Evaluation, task: Task, comment: CommentSnapshot) -> None:
    """As good as an approving review of the head that was there to be seen when it was said."""
    pull = pull_of(evaluation.state, task)
    who = comment.author
    if why := _over(task):
        _answer(evaluation, task, comment, why)
    elif pull is not None and pull.state == "open" and _moved_since(task, comment):
        why = f"the branch moved since, to {pull.head[:12]}; look at that and say it again"
        _answer(evaluation, task, comment, why)
    elif pull is not None and pull.state == "open":
        task.review.approval = ReviewSnapshot(
            version=comment.version,
            # A comment's number: those of reviews are counted elsewhere.
            id=-comment.id,
            pull=pull.number,
            head=pull.head,
            verdict="approved",
            author=who,
        )
        evaluation.note(task, f"{who} approved {pull.head[:12]}")
        if task.status is Status.ESCALATED:
            task.change.adopt(pull.head)
            (
                task.escalation.resume_work,
                task.escalation.retry_effects,
                task.escalation.resume_as,
            ) = None, (), Status.IN_REVIEW
            evaluation.release(task, who)
    elif task.change.is_empty and task.status is Status.IN_REVIEW:
        evaluation.complete(
            task, f"nothing to do, as {who} agrees", f"Nothing to do: {who} agrees."
        )
    else:
        _answer(evaluation, task, comment, f"task `{task.id}` has no open pull request to approve")


def _moved_since(task: Task, comment: CommentSnapshot) -> bool:
    """Whether the head of now may not have been there yet; in doubt it was not."""
    return moment(comment.version) <= moment(task.review.seen_version)


_OBEY: dict[str, Callable[[Evaluation, Task, CommentSnapshot], None]] = {
    RESOLVED: _resolved,
    TAKE_OVER: _take_over,
    RETRY: _retry,
    CANCEL: _cancel,
    APPROVE: _approve,
}
