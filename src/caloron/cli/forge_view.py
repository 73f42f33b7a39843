"""How issues and pull requests look: as JSON data and as lines on a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from caloron.cli.output import printable
from caloron.cli.person import person
from caloron.domain.observations import CommentSeen, IssueSeen, PullSeen, ReviewSeen, marker_key
from caloron.forge.local import LocalForge
from caloron.ledger.locate import ProjectPaths, find_project

STATES = ("open", "closed", "merged", "all")

_MARKER_LINE = re.compile(r"\n*<!-- caloron:[^\s<>]+ -->")


@contextmanager
def person_at_forge(project: str | None) -> Iterator[tuple[ProjectPaths, LocalForge]]:
    """The forge of a project, for the person at the keyboard."""
    paths = find_project(project)
    forge = LocalForge(paths.path, actor=person())
    try:
        yield paths, forge
    finally:
        forge.close()


def issue_data(issue: IssueSeen) -> dict[str, Any]:
    data = {
        "number": issue.number,
        "title": issue.title,
        "state": issue.state,
        "author": issue.author,
        "labels": list(issue.labels),
    }
    return data | _task_of(issue)


def pull_data(pull: PullSeen) -> dict[str, Any]:
    data = {
        "number": pull.number,
        "title": pull.title,
        "state": pull.state,
        "author": pull.author,
        "branch": pull.branch,
        "head": pull.head,
        "closes": list(pull.closes),
    }
    return data | _task_of(pull)


def comment_data(comment: CommentSeen) -> dict[str, Any]:
    return {"id": comment.id, "author": comment.author, "body": comment.body}


def review_data(review: ReviewSeen) -> dict[str, Any]:
    return {
        "id": review.id,
        "author": review.author,
        "verdict": review.verdict,
        "head": review.head,
        "body": review.body,
    }


def issue_line(issue: IssueSeen) -> str:
    labels = f"  [{', '.join(issue.labels)}]" if issue.labels else ""
    return printable(f"#{issue.number:<4} {issue.state:<7} {_one_line(issue.title)}{labels}")


def pull_line(pull: PullSeen) -> str:
    return printable(f"#{pull.number:<4} {pull.state:<7} {_one_line(pull.title)}  ({pull.branch})")


def issue_page(issue: IssueSeen, comments: Iterable[CommentSeen]) -> str:
    about = f"opened by {issue.author}"
    if issue.state == "closed" and issue.closed_by:
        about += f", closed by {issue.closed_by}"
    return _page([issue_line(issue), about, _prose(issue.body), *_remarks(comments)])


def pull_page(
    pull: PullSeen, reviews: Iterable[ReviewSeen], comments: Iterable[CommentSeen]
) -> str:
    about = f"opened by {pull.author}, head {pull.head[:12]}"
    if pull.state != "open" and pull.ended_by:
        about += f", {pull.state} by {pull.ended_by}"
    if pull.closes:
        about += f", closes {', '.join(f'#{n}' for n in pull.closes)}"
    judged = [
        f"-- {r.author}: {r.verdict.replace('_', ' ')} ({r.head[:12]})\n{_prose(r.body)}".rstrip()
        for r in reviews
    ]
    return _page([pull_line(pull), about, _prose(pull.body), *judged, *_remarks(comments)])


def _task_of(seen: IssueSeen | PullSeen) -> dict[str, str]:
    """The task that our own marker names; on an object of somebody else it means nothing."""
    parts = marker_key(seen.body).split("/")
    if seen.author != LocalForge.author or len(parts) < 3:
        return {}
    return {"sprint": parts[1], "task": parts[2]}


def _remarks(comments: Iterable[CommentSeen]) -> list[str]:
    return [f"-- {c.author} wrote\n{_prose(c.body)}" for c in comments]


def _prose(body: str) -> str:
    return _MARKER_LINE.sub("", body).strip()


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _page(parts: Iterable[str]) -> str:
    return printable("\n\n".join(part for part in parts if part))
