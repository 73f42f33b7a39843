"""How issues and pull requests look: as JSON data and as lines on a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from caloron.cli.output import printable
from caloron.cli.person import person
from caloron.cli.screen import aligned, fitted, unmarked
from caloron.domain.observations import CommentSeen, IssueSeen, PullSeen, ReviewSeen, marker_key
from caloron.ids import sprint_number
from caloron.ledger.locate import ProjectPaths, find_project, forge_kind
from caloron.ports import Forge

STATES = ("open", "closed", "merged", "all")

_MARKER_LINE = re.compile(r"\n*<!-- caloron:[^\s<>]+ -->|<!-- /?caloron-section:[^\s<>]+ -->\n?")
#: What keeps words of agents from being taken for mentions and references.
_UNSEEN = "\u200b"


@contextmanager
def person_at_forge(project: str | None) -> Iterator[tuple[ProjectPaths, Forge]]:
    """The forge of a project, for the person at the keyboard.

    On a forge of the network it is the account of the project's token that acts.
    """
    paths = find_project(project)
    forge = _opened(paths)
    try:
        yield paths, forge
    finally:
        forge.close()


def _opened(paths: ProjectPaths) -> Forge:
    if forge_kind(paths.config_file) == "local":
        from caloron.forge.local import LocalForge

        return LocalForge(paths.path, actor=person())
    from caloron.engine.forges import open_forge
    from caloron.ledger.projects import load_project

    return open_forge(load_project(paths.name))


def issue_data(issue: IssueSeen, forge: Forge) -> dict[str, Any]:
    data = {
        "number": issue.number,
        "title": issue.title,
        "state": issue.state,
        "url": forge.url(issue.number),
        "author": issue.author,
        "labels": list(issue.labels),
    }
    return data | _task_of(issue, forge)


def pull_data(pull: PullSeen, forge: Forge) -> dict[str, Any]:
    data = {
        "number": pull.number,
        "title": pull.title,
        "state": pull.state,
        "url": forge.url(pull.number, pull=True),
        "author": pull.author,
        "branch": pull.branch,
        "head": pull.head,
        "closes": list(pull.closes),
    }
    return data | _task_of(pull, forge)


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


def issue_table(issues: Iterable[IssueSeen], forge: Forge) -> str:
    rows = [(*_issue_cells(i), forge.url(i.number)) for i in issues]
    return _table(("issue", "state", "title", "labels", "page"), rows)


def pull_table(pulls: Iterable[PullSeen], forge: Forge) -> str:
    rows = [(*_pull_cells(p), forge.url(p.number, pull=True)) for p in pulls]
    return _table(("pull", "state", "title", "branch", "page"), rows)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Rows under their heads; only a forge of the network has pages."""
    table = [head, *(tuple(printable(cell) for cell in row) for row in rows)]
    return "\n".join(aligned(table if any(row[-1] for row in rows) else [r[:-1] for r in table]))


def _issue_cells(issue: IssueSeen) -> tuple[str, ...]:
    return f"#{issue.number}", issue.state, _one_line(issue.title), ", ".join(issue.labels)


def _pull_cells(pull: PullSeen) -> tuple[str, ...]:
    return f"#{pull.number}", pull.state, _one_line(pull.title), pull.branch


def issue_page(issue: IssueSeen, comments: Iterable[CommentSeen], url: str) -> str:
    about = f"opened by {issue.author}"
    if issue.state == "closed" and issue.closed_by:
        about += f", closed by {issue.closed_by}"
    head = "\n".join(filter(None, ("  ".join(_issue_cells(issue)).rstrip(), url)))
    return _page([head, about, _prose(issue.body), *_remarks(comments)])


def pull_page(
    pull: PullSeen, reviews: Iterable[ReviewSeen], comments: Iterable[CommentSeen], url: str
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
    head = "\n".join(filter(None, ("  ".join(_pull_cells(pull)), url)))
    return _page([head, about, _prose(pull.body), *judged, *_remarks(comments)])


def _task_of(seen: IssueSeen | PullSeen, forge: Forge) -> dict[str, Any]:
    """The task that our own marker names; on an object of somebody else it means nothing."""
    parts = marker_key(seen.body).split("/")
    if seen.author != forge.author or len(parts) < 3:
        return {}
    # `number` is that of the issue or pull request.
    return {"sprint_id": parts[1], "sprint_number": sprint_number(parts[1]), "task": parts[2]}


def _remarks(comments: Iterable[CommentSeen]) -> list[str]:
    return [f"-- {c.author} wrote\n{_prose(c.body)}" for c in comments]


def _prose(body: str) -> str:
    return unmarked(_MARKER_LINE.sub("", body).replace(_UNSEEN, "")).strip()


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _page(parts: Iterable[str]) -> str:
    return fitted(printable("\n\n".join(part for part in parts if part)))
