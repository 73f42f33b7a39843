"""What was seen on the forge: one snapshot per object, each with the forge's own version.

A snapshot is a whole picture of its object, so only the newest version matters: an event that
was lost, doubled or out of order changes nothing.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Verdict = Literal["approved", "changes_requested", "commented"]

_MARKER = re.compile(r"<!-- caloron:([^\s<>]+) -->")
_CLOSES = re.compile(
    r"\b(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?):?\s+#([0-9]{1,9})\b", re.IGNORECASE
)


def marker(key: str) -> str:
    """The invisible line by which an object of ours is found again."""
    return f"<!-- caloron:{key} -->"


def marker_key(body: str) -> str:
    """The key of the first marker in a body, or an empty string."""
    found = _MARKER.search(body)
    return found[1] if found else ""


def without_markers(body: str) -> str:
    """A body as people read it."""
    return without_section_markers(_MARKER.sub("", body)).strip()


def issues_closed_by(body: str) -> tuple[int, ...]:
    """The numbers that a body names after `Closes`, `Fixes` or `Resolves`, each once."""
    return tuple(dict.fromkeys(int(n) for n in _CLOSES.findall(body)))


#: Below the second of a change, versions of forges that tell no more than seconds have this many
#: bits for the moment of the look. Versions that only count never get so far.
PART_BITS = 24
_COUNTED = 1 << 48


def moment(version: int) -> int:
    """When a picture changed, as exactly as its forge tells; equal: either may be the first."""
    return version >> PART_BITS if version >= _COUNTED else version


class IssueSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag="issue"):
    version: int
    number: int
    title: str
    body: str
    state: Literal["open", "closed"]
    author: str
    labels: tuple[str, ...] = ()
    #: Who closed it, when it is closed.
    closed_by: str = ""
    #: Whether its author has a say here: only then are later edits of it taken in.
    trusted: bool = True

    @property
    def object(self) -> str:
        return f"issue:{self.number}"


class PullSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag="pull"):
    version: int
    number: int
    title: str
    body: str
    state: Literal["open", "closed", "merged"]
    author: str
    branch: str
    #: The commit at the tip of the branch (of the last known tip, once closed or merged).
    head: str
    #: The branch it is to be merged into, as the forge calls it; empty: there is only main.
    base: str = ""
    #: The issues named by `Closes #n` in the body.
    closes: tuple[int, ...] = ()
    #: Who closed or merged it.
    ended_by: str = ""
    merge_commit: str = ""
    #: Whether its author has a say here: a stranger's is nobody's change.
    trusted: bool = True

    @property
    def object(self) -> str:
        return f"pull:{self.number}"


class ReviewSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag="review"):
    version: int
    #: Below zero: the number of the comment that tells the verdict.
    id: int
    pull: int
    #: The commit that was reviewed: a review of another head says nothing about this one.
    head: str
    verdict: Verdict
    author: str
    body: str = ""
    #: Whether its author has a say here; on a public forge anybody may write a review.
    trusted: bool = True

    @property
    def object(self) -> str:
        return f"review:{self.id}"

    @property
    def is_comment(self) -> bool:
        """Whether it was told as a comment, and not as a review of the forge's own."""
        return self.id < 0


class CommentSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag="comment"):
    version: int
    id: int
    #: Number of the issue or pull request it stands on.
    issue: int
    author: str
    body: str
    #: Whether its author may give commands; everybody else's text is data.
    trusted: bool = True
    #: When it was written, in ISO 8601; empty: nobody knows.
    created_at: str = ""

    @property
    def object(self) -> str:
        return f"comment:{self.id}"


class BranchSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag="branch"):
    version: int
    name: str
    commit: str

    @property
    def object(self) -> str:
        return f"branch:{self.name}"


Snapshot = IssueSnapshot | PullSnapshot | ReviewSnapshot | CommentSnapshot | BranchSnapshot


def observation_id(snapshot: Snapshot) -> str:
    """One id per observation: the same picture seen twice is one observation."""
    return f"{snapshot.object}@{snapshot.version}"


def merge_observations(
    known: dict[str, Snapshot], seen: tuple[Snapshot, ...]
) -> dict[str, Snapshot]:
    """The newest picture of every object; order and repetition of `seen` do not matter."""
    newest = dict(known)
    for snapshot in seen:
        held = newest.get(snapshot.object)
        if held is None or snapshot.version > held.version:
            newest[snapshot.object] = snapshot
    return newest


#: A description is not made longer than this: each forge has a limit, and cuts what is longer.
_LONGEST = 60_000
_REFERENCE = re.compile(r"(#|!|\bgh-|:/)(?=[0-9/])", re.IGNORECASE)
_BROKEN = "\\1\u200b"
_SECTION_MARKER = re.compile(r"<!-- /?caloron-section:[^\s<>]+ -->")
_WHOLE = re.compile(
    r"\s*<!-- caloron-section:([^\s<>]+) -->.*?<!-- /caloron-section:\1 -->", re.DOTALL
)


def has_section(body: str, name: str) -> bool:
    """Whether the section stands there, whole and once."""
    begin, end = _markers(name)
    whole = body.count(begin) == body.count(end) == 1
    return whole and body.index(begin) < body.index(end)


def with_section(body: str, name: str, text: str, *, add: bool) -> str:
    """The body with this text in the section; `add`: one that was never there comes to the end."""
    begin, end = _markers(name)
    section = f"{begin}\n{inert(text)}\n{end}"
    if has_section(body, name):
        before, _, rest = body.partition(begin)
        held, _, after = rest.partition(end)
        if _same(f"{begin}{held}{end}", section):
            return body
        new = f"{before}{section}{after}"
    elif add and begin not in body and end not in body:
        new = f"{body.rstrip()}\n\n{section}" if body.strip() else section
    else:
        return body
    return new if len(new) <= max(_LONGEST, len(body)) else body


def without_sections(body: str) -> str:
    """What a person wrote."""
    return _WHOLE.sub("", body)


def without_section_markers(body: str) -> str:
    """The same text, as people read it."""
    return _SECTION_MARKER.sub("", body)


def inert(text: str) -> str:
    """Words that close no issue: in the description of a pull request, `fixes #3` would."""
    return _REFERENCE.sub(_BROKEN, text.replace("<!--", "<! --"))


def _markers(name: str) -> tuple[str, str]:
    return f"<!-- caloron-section:{name} -->", f"<!-- /caloron-section:{name} -->"


def _same(held: str, wanted: str) -> bool:
    """Editors of forges have line ends of their own."""
    return held.replace("\r\n", "\n") == wanted
