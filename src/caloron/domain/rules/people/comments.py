"""Comments of people that are no commands: the next prompt of the task has them, once.

Each is answered once with when it is read, or why it is not. A comment with a marker is ours, or of
another Caloron, and is neither read nor answered.
"""

from __future__ import annotations

from collections.abc import Iterator

from caloron.domain.model.snapshots import CommentSnapshot, ReviewSnapshot, marker_key
from caloron.domain.model.status import Status
from caloron.domain.model.task import Task
from caloron.domain.rules.evaluation import Evaluation

Comment = CommentSnapshot | ReviewSnapshot

#: The answers to comments on one task: another program may answer each of ours.
_MOST_ANSWERS = 20
_UNTRUSTED = (
    "Agents do not read comments of accounts without write access, and commands of such accounts"
    " are not obeyed. A person with write access can repeat here what matters."
)
_LAST = " Further comments here are read in the same way, without an answer."


def new_comments(evaluation: Evaluation, task: Task) -> Iterator[Comment]:
    """Yield the comments of people that were not handled, also in reviews without a verdict."""
    handled = set(task.conversation.handled)
    seen: list[Comment] = [
        comment
        for number in evaluation.conversations(task)
        for comment in evaluation.comments_on(number)
    ]
    seen += (
        review
        for review in evaluation.reviews_of(task.links.pull)
        # A verdict that was dismissed becomes a remark, and does not count any more.
        if review.verdict == "commented" and review.object not in task.conversation.acts
    )
    for comment in seen:
        text = comment.body.strip()
        if text and comment.object not in handled and not marker_key(text):
            yield comment


def receive(evaluation: Evaluation, task: Task, comment: Comment, command: str = "") -> None:
    """Keep a comment for the next prompt, and answer it; an edit is not answered again.

    `command`: the one above its text, which was carried out.
    """
    conversation, received = task.conversation, f"{comment.object}!"
    if received in conversation.handled:
        return
    conversation.handle(received)
    number = comment.issue if isinstance(comment, CommentSnapshot) else comment.pull
    if not comment.trusted:
        note = f"untrusted:{number}"
        if note not in conversation.handled:
            conversation.handle(note)
            evaluation.comment(task, "untrusted", str(number), _UNTRUSTED, on=number)
        return
    if task.status is not Status.DONE:
        conversation.unread = (*conversation.unread, comment.object)
    if conversation.answers < _MOST_ANSWERS:
        conversation.answers += 1
        last = _LAST if conversation.answers == _MOST_ANSWERS else ""
        cause = comment.object.replace(":", "-")
        text = _when_read(evaluation, task, command) + last
        evaluation.comment(task, "read", cause, text, on=number)


def _when_read(evaluation: Evaluation, task: Task, command: str) -> str:
    """Say when a comment is read, and what to do if that is too late."""
    name = f"task `{task.id}`"
    if command:
        return f"The agent that continues {name} reads the text below `{command}`."
    queued = task.work is not None and task.work.item in evaluation.state.queued
    match task.status:
        case Status.DONE:
            return (
                f"No agent reads this: {name} is done. For another change start a sprint, or open"
                " an issue with the label `caloron:task`."
            )
        case Status.CANCELLED:
            return (
                f"No agent reads this now: {name} is cancelled. Comment `caloron:retry` to restore"
                " it; its agent then reads this."
            )
        case Status.ESCALATED:
            return f"An agent reads this when {name} continues: comment `resolved`."
        case Status.IN_PROGRESS if not queued:
            return (
                f"The next agent that works on {name} reads this, its reviewer at the latest. The"
                " agent at work does not: comment `caloron:retry` to start its work again."
            )
        case Status.IN_REVIEW:
            return (
                f"The next agent that works on {name} reads this. If the change is merged before"
                " that, no agent does: request changes in a review to have it changed."
            )
    return f"The agent of {name} reads this when it starts."
