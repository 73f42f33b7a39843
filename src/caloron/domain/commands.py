"""What a person may say to a task: the whole first line of a comment, obeyed once.

A command that makes no sense where the task stands is answered, once, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from caloron.domain import texts
from caloron.domain.actions import CloseIssue, PostComment, ReopenIssue, SeeBranch
from caloron.domain.observations import CommentSeen, ReviewSeen, marker_key, moment
from caloron.domain.sprint import Task, pull_of
from caloron.domain.status import Status
from caloron.domain.turn import Turn
from caloron.domain.verdicts import take_back
from caloron.domain.workflow import open_pull

RESOLVED = "resolved"
TAKE_OVER = "caloron:take-over"
RETRY = "caloron:retry"
CANCEL = "caloron:cancel"
APPROVE = "caloron:approve"

_LOOKS_LIKE = re.compile(r"[ \t]*(caloron:[\w-]{1,40})", re.IGNORECASE)


def command_of(comment: CommentSeen) -> str:
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


def obey(turn: Turn, task: Task) -> None:
    """Follow every command that was not heard yet, in the order they were given."""
    new = [
        comment
        for place in turn.places(task)
        for comment in turn.comments_on(place)
        if comment.object not in task.heard and comment.trusted
    ]
    for comment in sorted(new, key=lambda c: c.id):
        if command := command_of(comment):
            task.heard = tuple(sorted({*task.heard, comment.object}))
            turn.acted(task, comment.object)
            _OBEY[command](turn, task, comment)
        elif word := mistaken_word(comment.body):
            _correct(turn, task, comment, word)


def _correct(turn: Turn, task: Task, comment: CommentSeen, word: str) -> None:
    """Name the commands, once for each comment; edited into one of them, it is still obeyed."""
    said = f"{comment.object}?"
    if said in task.heard:
        return
    task.heard = tuple(sorted({*task.heard, said}))
    known = ", ".join(f"`{name}`" for name in _OBEY)
    text = f"`{word}` is no command. A command is the whole first line of a comment: {known}."
    key = texts.comment_key(turn.sprint.id, task.id, "answer", str(comment.id))
    turn.do(
        PostComment(key=key, task=task.id, issue=comment.issue, body=texts.comment_body(text, key))
    )


def unheard_no(task: Task, comments: Iterable[CommentSeen]) -> tuple[CommentSeen, ...]:
    """Commands that take a decided merge back, of those that no tick was told of yet."""
    return tuple(
        comment
        for comment in comments
        if comment.object not in task.heard
        and comment.version > task.listens_from
        and command_of(comment) in (CANCEL, TAKE_OVER, RETRY)
    )


def _answer(turn: Turn, task: Task, comment: CommentSeen, why: str) -> None:
    """Say where it was asked why nothing follows."""
    key = texts.comment_key(turn.sprint.id, task.id, "answer", str(comment.id))
    text = f"`{command_of(comment)}` changes nothing: {why}."
    turn.do(
        PostComment(key=key, task=task.id, issue=comment.issue, body=texts.comment_body(text, key))
    )


def _over(task: Task) -> str:
    """Why nothing can be done with a task any more, or not before it comes back."""
    if task.status is Status.DONE:
        return f"task `{task.id}` is done"
    if task.status is Status.CANCELLED:
        return f"task `{task.id}` is cancelled; `{RETRY}` or opening its issue again brings it back"
    if task.landed:
        return f"the change of task `{task.id}` is merged, and main is being looked at"
    return ""


def _resolved(turn: Turn, task: Task, comment: CommentSeen) -> None:
    if task.status is Status.ESCALATED:
        _give_back(turn, task, comment)
    else:
        why = _over(task) or f"task `{task.id}` does not wait for a person"
        _answer(turn, task, comment, why)


def _take_over(turn: Turn, task: Task, comment: CommentSeen) -> None:
    """The agent stops; what the person pushes, opens or merges is the change."""
    if why := _over(task):
        _answer(turn, task, comment, why)
        return
    reason = f"taken over by {comment.author}"
    if task.status is Status.ESCALATED:
        turn.note(task, reason)
    else:
        held = task.work
        turn.stop_work(task, reason)
        turn.hold(task, reason, held=held)
    task.taken_over, task.given_back = comment.author, ""


def _give_back(turn: Turn, task: Task, comment: CommentSeen) -> None:
    """The task goes on; after a take-over with what the person left on its branch."""
    who = comment.author
    if task.given_back:
        return
    if not task.taken_over or task.plan.kind == "check":
        turn.release(task, who)
        return
    pull = pull_of(turn.state, task)
    if pull is None or pull.state != "open":
        # A branch without a pull request is not watched: look what is there first.
        task.given_back = who
        key = f"see_branch/{turn.sprint.id}/{task.id}/{comment.id}"
        turn.do(SeeBranch(key=key, task=task.id, branch=task.branch))
        return
    if task.pushed == task.head and pull.head != task.head:
        task.held = None
    turn.release(task, who)


def branch_was_seen(turn: Turn, task: Task, commit: str) -> None:
    """Go on after a take-over: with the person's commit, or where the agent was stopped."""
    if task.status is not Status.ESCALATED or not task.given_back:
        return
    theirs = bool(commit) and commit != task.pushed
    if theirs:
        task.head = task.pushed = commit
        task.empty, task.held, task.held_effects = False, None, ()
    begun = task.held_from is not Status.PENDING
    turn.release(task, task.given_back)
    if theirs and begun and task.pull is None:
        turn.move(task, Status.IN_PROGRESS)
        open_pull(turn, task)


def _retry(turn: Turn, task: Task, comment: CommentSeen) -> None:
    reason = f"{comment.author} said {RETRY}"
    match task.status:
        case Status.ESCALATED:
            _give_back(turn, task, comment)
        case Status.CANCELLED if task.issue is not None:
            task.by_label = task.unlabelled = False
            turn.note(task, f"{reason}: it comes back")
            key = f"reopen/{turn.sprint.id}/{task.id}/{comment.id}"
            turn.do(ReopenIssue(key=key, task=task.id, issue=task.issue))
        case Status.IN_PROGRESS if task.work is not None:
            _begin_again(turn, task, reason)
        case Status.IN_REVIEW if not task.landed:
            turn.stop_work(task, reason)
            take_back(turn, task)
            task.verified, task.merging, task.stale_merges = None, "", 0
            task.failures = 0
            turn.note(task, f"{reason}: verified and reviewed again")
        case Status.IN_PROGRESS:
            why = f"the change of task `{task.id}` is just being published"
            _answer(turn, task, comment, why)
        case _:
            why = _over(task) or f"task `{task.id}` has not begun: {_waits(task)}"
            _answer(turn, task, comment, why)


def _waits(task: Task) -> str:
    return task.reason or "it waits for its turn"


def _begin_again(turn: Turn, task: Task, reason: str) -> None:
    work = task.work
    if work is None:
        return
    turn.stop_work(task, reason)
    task.session, task.failures, task.interventions, task.restarts = "", 0, 0, 0
    again = turn.new_work(task, work.role, head=work.head, reason=work.reason, log=work.log)
    turn.note(task, f"{reason}: begun again")
    turn.start(task, msgspec.structs.replace(again, onto_main=work.onto_main), reason)


def _cancel(turn: Turn, task: Task, comment: CommentSeen) -> None:
    if why := _over(task):
        _answer(turn, task, comment, why)
        return
    who = comment.author
    turn.cancel(task, f"cancelled by {who}", closed_by_person=False)
    task.cancelled_by, task.held, task.held_effects = who, None, ()
    turn.close_escalation(task)
    if task.issue is None:
        return
    text = (
        f"Cancelled by {who}. Comment `{RETRY}` or open the issue again to bring it back; if the"
        " sprint has ended by then, that waits for `caloron resume`."
    )
    turn.comment(task, "cancelled", str(comment.id), text)
    key = f"close/{turn.sprint.id}/{task.id}/cancelled-{comment.id}"
    turn.do(CloseIssue(key=key, task=task.id, issue=task.issue))


def _approve(turn: Turn, task: Task, comment: CommentSeen) -> None:
    """As good as an approving review of the head that was there to be seen when it was said."""
    pull = pull_of(turn.state, task)
    who = comment.author
    if why := _over(task):
        _answer(turn, task, comment, why)
    elif pull is not None and pull.state == "open" and _moved_since(task, comment):
        why = f"the branch moved since, to {pull.head[:12]}; look at that and say it again"
        _answer(turn, task, comment, why)
    elif pull is not None and pull.state == "open":
        task.approval = ReviewSeen(
            version=comment.version,
            # A comment's number: those of reviews are counted elsewhere.
            id=-comment.id,
            pull=pull.number,
            head=pull.head,
            verdict="approved",
            author=who,
        )
        turn.note(task, f"{who} approved {pull.head[:12]}")
        if task.status is Status.ESCALATED:
            task.head = task.pushed = pull.head
            task.held, task.held_effects, task.held_from = None, (), Status.IN_REVIEW
            turn.release(task, who)
    elif task.empty and task.status is Status.IN_REVIEW:
        turn.complete(task, f"nothing to do, as {who} agrees", f"Nothing to do: {who} agrees.")
    else:
        _answer(turn, task, comment, f"task `{task.id}` has no open pull request to approve")


def _moved_since(task: Task, comment: CommentSeen) -> bool:
    """Whether the head of now may not have been there yet; in doubt it was not."""
    return moment(comment.version) <= moment(task.seen_from)


_OBEY: dict[str, Callable[[Turn, Task, CommentSeen], None]] = {
    RESOLVED: _resolved,
    TAKE_OVER: _take_over,
    RETRY: _retry,
    CANCEL: _cancel,
    APPROVE: _approve,
}
