"""For commands that remove things: nobody else is at work on the project meanwhile."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from caloron.errors import HeldByAnother, StoreError
from caloron.ledger.locate import ProjectPaths, home
from caloron.store import log
from caloron.store.database import is_damage, open_read_only
from caloron.store.lock import ProcessLock, holder

_LIVE = """
SELECT l.item FROM leases l JOIN work_items w ON w.id = l.item
WHERE w.status = 'in_flight' AND l.result IS NULL AND l.expires_at > (SELECT ms FROM clock)
ORDER BY l.item LIMIT 1
"""


@contextmanager
def alone(project: ProjectPaths) -> Iterator[None]:
    """Hold the project; refused while an engine holds it, or an agent outlives its engine."""
    with ProcessLock(project.engine_lock):
        refuse_live_agents(project)
        yield


def refuse_held(project: ProjectPaths) -> None:
    """What `alone` would refuse, for a dry run: without writing even a lock file."""
    if holder(project.engine_lock) is not None:
        with ProcessLock(project.engine_lock):
            pass
    refuse_live_agents(project)


def refuse_live_agents(project: ProjectPaths) -> None:
    """An agent goes on when its engine dies: what it works on must stay."""
    if not project.ledger.exists():
        return
    try:
        with closing(open_read_only(project.ledger)) as connection:
            row = connection.execute(_LIVE).fetchone()
    except (StoreError, sqlite3.Error) as error:
        if not is_damage(error):
            raise
        # An empty or damaged ledger names no agent, and must not stop its own replacement.
        log.warning("the ledger cannot say which agents work", error=error)
        return
    if row is not None:
        raise HeldByAnother(
            f"an agent of project {project.name} is still at work ({row['item']})",
            hint=f"caloron resume --project {project.name}, or wait until its lease has run out",
        )


def size_of(place: Path) -> int:
    """The bytes of a file or of everything in a folder; links are not followed."""
    total, waiting = 0, [str(place)]
    while waiting:
        path = waiting.pop()
        try:
            if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114
                with os.scandir(path) as entries:
                    waiting += [entry.path for entry in entries]
            else:
                total += os.lstat(path).st_size
        except OSError:
            # It is gone meanwhile, or deeper than a path can say: a size is only told.
            continue
    return total


def state_files(project: str) -> list[Path]:
    """The files that a project's sprints have outside its own folder."""
    chosen = os.environ.get("CALORON_KV_DIR", "")
    folder = Path(chosen) if chosen else home() / "kv"
    ours = re.compile(rf"{re.escape(project)}-\d+\.json(\..*)?")
    return sorted(f for f in folder.glob(f"{project}-*") if ours.fullmatch(f.name))
