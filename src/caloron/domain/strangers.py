"""Labelled issues of people who have no say: somebody who has one approves their text first.

Who wrote an issue can change its text after somebody else gave it the label.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from caloron.domain import texts
from caloron.domain.actions import PostComment
from caloron.domain.commands import APPROVE, command_of
from caloron.domain.observations import IssueSeen, moment
from caloron.domain.sprint import Stranger
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
    said = [
        comment
        for comment in turn.comments_on(issue.number)
        if comment.object not in known.heard and command_of(comment) == APPROVE
    ]
    known = _replace(known, heard=(*known.heard, *(comment.object for comment in said)))
    _keep(turn, issue, known)
    for comment in said:
        if moment(comment.version) > moment(known.since):
            return True
        _say(turn, issue, f"answer-{comment.id}", _MOVED.format(command=APPROVE))
    return False


_ASKS = (
    "This issue has the label `caloron:task`, but @{author}, who wrote it, has no say here. It"
    f" joins the sprint once somebody who has comments `{APPROVE}`; what is changed in its text"
    " after that does not count."
)
_MOVED = "`{command}` changes nothing: the text may be newer than that; read it and say it again."


def _keep(turn: Turn, issue: IssueSeen, stranger: Stranger) -> None:
    turn.sprint.strangers = turn.sprint.strangers | {issue.number: stranger}


def _say(turn: Turn, issue: IssueSeen, cause: str, text: str) -> None:
    key = f"comment/{turn.sprint.id}/stranger/{issue.number}/{cause}"
    body = texts.comment_body(text, key)
    turn.do(PostComment(key=key, task="", issue=issue.number, body=body))


def _digest(issue: IssueSeen) -> str:
    text = f"{issue.title}\n{issue.body}"
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
