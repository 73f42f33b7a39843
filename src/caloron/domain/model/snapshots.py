"""Snapshots of forge objects, each with the forge's own version, and what we write into bodies.

A snapshot is a complete copy of its object, so only the newest version matters: an event that was
lost, doubled or out of order changes nothing.
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
    """Return the invisible line that identifies an object of ours."""
    return f"<!-- caloron:{key} -->"


def marker_key(body: str) -> str:
    """Return the key of the first marker in a body, or an empty string."""
    match = _MARKER.search(body)
    return match[1] if match else ""


def without_markers(body: str) -> str:
    """Return a body as people read it, with the text of our sections."""
    return _SECTION_MARKER.sub("", _MARKER.sub("", body)).strip()


def issues_closed_by(body: str) -> tuple[int, ...]:
    """Return the numbers after `Closes`, `Fixes` or `Resolves` in a body, each once."""
    return tuple(dict.fromkeys(int(n) for n in _CLOSES.findall(body)))


#: Forges with one-second timestamps get a version of `seconds << 24 | time of the poll`. The local
#: forge uses a plain counter, which never reaches 2**48.
PART_BITS = 24
_COUNTED = 1 << 48


def moment(version: int) -> int:
    """Return when an object changed, as exactly as known; equal moments have no order."""
    return version >> PART_BITS if version >= _COUNTED else version


class IssueSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag="issue"):
    version: int
    number: int
    title: str
    body: str
    state: Literal["open", "closed"]
    author: str
    labels: tuple[str, ...] = ()
    #: The account that closed it.
    closed_by: str = ""
    #: Its author may command: otherwise edits need an approval.
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
    #: The branch that it is to be merged into; empty: there is only main.
    base: str = ""
    #: The issues named by `Closes #n` in the body.
    closes: tuple[int, ...] = ()
    #: The account that closed or merged it.
    ended_by: str = ""
    merge_commit: str = ""
    #: Its author may command: other pull requests are no change of a task.
    trusted: bool = True

    @property
    def object(self) -> str:
        return f"pull:{self.number}"


class ReviewSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag="review"):
    version: int
    #: Below zero: the number of the comment that has the verdict.
    id: int
    pull: int
    #: The commit that was reviewed; a review of another head does not count for this one.
    head: str
    verdict: Verdict
    author: str
    body: str = ""
    #: Its author may command; on a public forge every account may review.
    trusted: bool = True

    @property
    def object(self) -> str:
        return f"review:{self.id}"

    @property
    def is_comment(self) -> bool:
        """True if it is a comment, and not a review of the forge."""
        return self.id < 0


class CommentSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag="comment"):
    version: int
    id: int
    #: The number of the issue or pull request.
    issue: int
    author: str
    body: str
    #: Its author may command; other text is data.
    trusted: bool = True
    #: The time in ISO 8601; empty: unknown.
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
    """Return one id per version: the same snapshot read twice is one observation."""
    return f"{snapshot.object}@{snapshot.version}"


def merge_observations(
    known: dict[str, Snapshot], seen: tuple[Snapshot, ...]
) -> dict[str, Snapshot]:
    """Return the newest snapshot of every object; order and repetition do not matter."""
    newest = dict(known)
    for snapshot in seen:
        before = newest.get(snapshot.object)
        if before is None or snapshot.version > before.version:
            newest[snapshot.object] = snapshot
    return newest


#: Forges cut longer descriptions.
_LONGEST = 60_000
#: Text that a forge acts on: references and links, mentions, orders to its CI, trailers.
_LIVE = re.compile(
    r"(?:#|!|\bgh-|:/)(?=[0-9/])|@(?=\w)|\[(?=(?:skip|no|ci|actions)[ -])"
    r"|^[ \t]*(?:[\w-]+-by|skip-checks)(?=:)",
    re.IGNORECASE | re.MULTILINE,
)
_SECTION_MARKER = re.compile(r"<!-- /?caloron-section:[^\s<>]+ -->")
_WHOLE = re.compile(
    r"\s*<!-- caloron-section:([^\s<>]+) -->.*?<!-- /caloron-section:\1 -->", re.DOTALL
)


def has_section(body: str, name: str) -> bool:
    """True if the section is there, complete and once."""
    begin, end = _markers(name)
    whole = body.count(begin) == body.count(end) == 1
    return whole and body.index(begin) < body.index(end)


def with_section(body: str, name: str, text: str, *, add: bool) -> str:
    """Return the body with this text in the section; `add`: append a section that is missing."""
    begin, end = _markers(name)
    section = f"{begin}\n{inert(text)}\n{end}"
    if has_section(body, name):
        before, _, rest = body.partition(begin)
        old, _, after = rest.partition(end)
        # Editors of forges have line ends of their own.
        if f"{begin}{old}{end}".replace("\r\n", "\n") == section:
            return body
        new = f"{before}{section}{after}"
    elif add and begin not in body and end not in body:
        new = f"{body.rstrip()}\n\n{section}" if body.strip() else section
    else:
        return body
    return new if len(new) <= max(_LONGEST, len(body)) else body


def without_sections(body: str) -> str:
    """Return a body without our sections, as a person wrote it."""
    return _WHOLE.sub("", body)


def with_text(body: str, text: str) -> str:
    """Return a body with another text of a person, and with our sections and our marker."""
    ours = [match[0].strip() for match in _WHOLE.finditer(body)]
    if key := marker_key(without_sections(body)):
        ours.append(marker(key))
    return "\n\n".join(
        filter(None, [text.replace("<!-- caloron", "<! -- caloron").rstrip(), *ours])
    )


def inert(text: str) -> str:
    """Change text of others so that the forge does nothing with it: `fixes #3` closes no issue.

    Used in descriptions and in messages of commits.
    """
    return _LIVE.sub("\\g<0>\u200b", text.replace("<!--", "<! --"))


def _markers(name: str) -> tuple[str, str]:
    return f"<!-- caloron-section:{name} -->", f"<!-- /caloron-section:{name} -->"
