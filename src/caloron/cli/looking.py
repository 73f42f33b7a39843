"""What the commands that look back share: the ledger to read, and how numbers are said."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from shlex import quote
from typing import TYPE_CHECKING, Any

from caloron.cli.left_running import WITHOUT_ENGINE
from caloron.cli.status import forge_note, require_ledger
from caloron.domain.pauses import clock_time
from caloron.errors import CaloronError, NotFound
from caloron.ledger.earlier import earlier_sprints, find_earlier
from caloron.ledger.locate import ProjectPaths, current_project_name, find_project
from caloron.store.database import store_error
from caloron.store.lock import holder

if TYPE_CHECKING:
    from caloron.domain.needs import Need
    from caloron.domain.sprint import State
    from caloron.ledger.projects import Project

__all__ = [
    "Links", "as_data", "bring_command", "dollars", "forge_note", "has_ledger", "is_running",
    "is_taken", "local_time", "needs_data", "opened", "options_for", "standing",
]  # fmt: skip


def has_ledger(project: str | None) -> bool:
    """Whether the project has ever had a sprint."""
    return find_project(project).ledger.exists()


@contextmanager
def opened(
    project: str | None, sprint: str | None = None
) -> Iterator[tuple[ProjectPaths, sqlite3.Connection]]:
    """A project and its ledger, of one moment, to look into for a sprint."""
    found = find_project(project)
    if not found.ledger.exists():
        _refuse_adopted(found, sprint)
    connection = require_ledger(found)
    try:
        connection.execute("BEGIN")
        yield found, connection
    except sqlite3.Error as error:
        raise store_error(found.ledger, error) from error
    finally:
        connection.close()


def _refuse_adopted(found: ProjectPaths, sprint: str | None) -> None:
    """An older Caloron's sprints are all that there are: say so, and what shows them."""
    known = earlier_sprints(found, None, 1).sprints
    if not known:
        return
    wanted = find_earlier(found, None, sprint) if sprint else known[0]
    if wanted is None:
        raise NotFound(f"there is no sprint {sprint}", hint="caloron history lists them")
    raise NotFound(
        f"sprint {wanted.id} has no more than its numbers: an older Caloron ran it",
        hint=f"caloron show {wanted.number}",
    )


def as_data(found: Any) -> Any:
    """Typed things as plain data, just as JSON has them."""
    # Not every command that looks needs it, and importing it takes longer than all they do.
    import msgspec

    return msgspec.json.decode(msgspec.json.encode(found))


def is_running(found: ProjectPaths, sprint: str) -> bool:
    """Whether an engine works on this sprint right now."""
    who = holder(found.engine_lock)
    return who is not None and who.get("sprint") == sprint


def standing(phase: str, *, running: bool, left: bool = False) -> str:
    """Where a sprint stands: without an engine it is stopped, unless agents of it are `left`."""
    if running or phase == "ended":
        return phase
    return WITHOUT_ENGINE if left else "stopped"


def options_for(found: ProjectPaths, project: str | None) -> str:
    """What a command needs besides, so that it acts on this project when it is copied."""
    if project is None:
        return ""
    try:
        named = current_project_name()
    except CaloronError:
        # No project is current: the command has to name one.
        named = ""
    return "" if named == found.name else f" --project {found.name}"


def bring_command(found: Project, options: str) -> str:
    """The one command that brings what was merged to the user."""
    if found.repository:
        return f"caloron take{options}"
    if found.is_remote:
        return "git pull"
    return f"git clone {quote(str(found.forge_git))}"


def is_taken(found: Project, state: State) -> bool:
    """Whether the user's branch has everything that was merged in a sprint."""
    from caloron.cli.take import merge_commits
    from caloron.git.checkout import Checkout

    repo, commits = found.repository, merge_commits(state)
    return bool(repo and commits and Checkout(repo).contains(*commits))


def needs_data(needs: Iterable[Need], numbers: Mapping[str, int]) -> list[dict[str, Any]]:
    """What waits for a person; `numbers` are those of the sprints by their ids."""
    return [
        {"kind": need["kind"], "sprint_id": (sprint := need.pop("sprint"))}
        | {"number": numbers[sprint]}
        | need
        for need in as_data(list(needs))
    ]


class Links:
    """The pages of issues and pull requests, as remembered: nobody has to be asked."""

    def __init__(self, found: ProjectPaths) -> None:
        note = forge_note(found)
        self._pages = note["pages"]
        self._pull_pages = note.get("pull_pages", self._pages)

    def issue(self, number: int | None) -> str:
        return f"{self._pages}{number}" if self._pages and number else ""

    def pull(self, number: int | None) -> str:
        return f"{self._pull_pages}{number}" if self._pull_pages and number else ""


def local_time(iso: str | None) -> str:
    """A moment of an answer's data, which is in UTC, as people read it: in their time zone."""
    return clock_time(datetime.fromisoformat(iso).timestamp()) if iso else ""


def dollars(usd: float) -> str:
    return f"${usd:.2f}" if usd else "-"
