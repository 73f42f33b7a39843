"""Labelled issues of people who have no say: somebody who has one stands behind their text.

Who wrote an issue can change its text, close it and open it again, also after somebody else gave it
the label. None of that decides what is worked on: a word of somebody who has a say does.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from caloron.domain import texts
from caloron.domain.actions import PostComment
from caloron.domain.commands import APPROVE, RETRY, command_of
from caloron.domain.observations import IssueSeen, moment
from caloron.domain.sections import without_sections
from caloron.domain.sprint import Stranger, Task
from caloron.domain.turn import Turn

_replace = msgspec.structs.replace


def may_join(turn: Turn, issue: IssueSeen) -> bool:
    """Whether the text of a labelled issue may be worked on; if not, what is missing is told."""
    if issue.trusted:
        return True
    known, text = turn.sprint.strangers.get(issue.number), _digest(issue)
    if known is None:
        _keep(turn, issue, Stranger(text=text, since=issue.version))
        _say(turn, issue, "asks", _ASKS.format(author=issue.author))
        return False
    if known.text != text:
        known = _replace(known, text=text, since=issue.version)
    return _is_approved(turn, issue, known)


def was_closed(turn: Turn, issue: IssueSeen) -> None:
    """Closing a labelled issue that waits takes back what was said on it: opened, it asks again."""
    known = turn.sprint.strangers.get(issue.number)
    if known is None:
        return
    heard = tuple(comment.object for comment in turn.comments_on(issue.number))
    if heard != known.heard:
        _keep(turn, issue, _replace(known, heard=heard))


def may_change(turn: Turn, task: Task, issue: IssueSeen, *, same: bool) -> bool:
    """Whether the text of a task's issue is to replace the one that is worked on.

    Who has no say may write another text, but the one that was approved stands until somebody who
    has a say approves again. `same`: it asks for nothing else than what is worked on.
    """
    if issue.trusted:
        return not same
    text = _digest(issue)
    known = turn.sprint.strangers.get(issue.number, Stranger(text="", since=0))
    if same or text == known.approved:
        if known.text != text or known.approved != text:
            since = issue.version if known.text != text else known.since
            _keep(turn, issue, _replace(known, text=text, since=since, approved=text))
        return False
    if known.text != text:
        known = _replace(known, text=text, since=issue.version)
        cause = f"changed-{known.approved or 'first'}"
        _say(turn, issue, cause, _CHANGED.format(author=issue.author))
    known = _replace(known, heard=tuple(sorted({*known.heard, *task.heard})))
    approved = _is_approved(turn, issue, known)
    # That word was about the text, not about a commit.
    heard = turn.sprint.strangers[issue.number].heard
    task.heard = tuple(sorted({*task.heard, *heard}))
    return approved


def may_return(turn: Turn, task: Task, issue: IssueSeen) -> bool:
    """Whether an issue that was opened again brings its task back: not by who has no say."""
    if issue.trusted or task.wanted_back:
        return True
    known = turn.sprint.strangers.get(issue.number, Stranger(text="", since=0))
    if not known.returned:
        _keep(turn, issue, _replace(known, returned=True))
        _say(turn, issue, "returned", _RETURNED.format(author=issue.author))
    return False


_ASKS = (
    "This issue has the label `caloron:task`, but @{author}, who wrote it, has no say here. It"
    f" joins the sprint once somebody who has comments `{APPROVE}`; what is changed in its text"
    " after that does not count."
)
_CHANGED = (
    "The text of this issue was changed, and @{author}, who wrote it, has no say here: the task"
    f" goes on with the text it had. If somebody who has a say comments `{APPROVE}` here, the text"
    " as it is then is what is asked for."
)
_RETURNED = (
    "This issue was opened again, and @{author}, who wrote it, has no say here: its task stays"
    f" cancelled until somebody who has comments `{RETRY}`."
)
_MOVED = "`{command}` changes nothing: the text may be newer than that; read it and say it again."


def _is_approved(turn: Turn, issue: IssueSeen, known: Stranger) -> bool:
    """Hear what was said since: whether somebody approved the text as it is.

    A newer picture with the same text may have had another one in between, while nobody looked.
    """
    said = [
        comment
        for comment in turn.comments_on(issue.number)
        if comment.object not in known.heard and command_of(comment) == APPROVE
    ]
    known = _replace(known, heard=(*known.heard, *(comment.object for comment in said)))
    first, newest = moment(known.since), moment(issue.version)
    approved = any(first < moment(comment.version) >= newest for comment in said)
    _keep(turn, issue, _replace(known, approved=known.text) if approved else known)
    for comment in said if not approved else ():
        _say(turn, issue, f"answer-{comment.id}", _MOVED.format(command=APPROVE))
    return approved


def _keep(turn: Turn, issue: IssueSeen, stranger: Stranger) -> None:
    turn.sprint.strangers = turn.sprint.strangers | {issue.number: stranger}


def _say(turn: Turn, issue: IssueSeen, cause: str, text: str) -> None:
    key = f"comment/{turn.sprint.id}/stranger/{issue.number}/{cause}"
    body = texts.comment_body(text, key)
    turn.do(PostComment(key=key, task="", issue=issue.number, body=body))


def _digest(issue: IssueSeen) -> str:
    text = f"{issue.title}\n{without_sections(issue.body)}"
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
