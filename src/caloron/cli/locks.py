"""Exclusive access to a project for commands that change or remove its files."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

from caloron.errors import InUse, StoreError
from caloron.ledger import views
from caloron.ledger.locate import ProjectPaths
from caloron.store import log
from caloron.store.database import is_damage, open_read_only
from caloron.store.lock import ProcessLock, holder


@contextmanager
def exclusive(project: ProjectPaths) -> Iterator[None]:
    """Lock the project; refused while an engine or an agent works on it."""
    with ProcessLock(project.engine_lock):
        _refuse_live_agents(project)
        yield


def ensure_unlocked(project: ProjectPaths) -> None:
    """Refuse what `exclusive` would refuse, without writing a lock file: for dry runs."""
    if holder(project.engine_lock) is not None:
        with ProcessLock(project.engine_lock):
            pass
    _refuse_live_agents(project)


def _refuse_live_agents(project: ProjectPaths) -> None:
    """Refuse while an agent runs: it outlives its engine, and its files must stay."""
    if not project.ledger.exists():
        return
    try:
        with closing(open_read_only(project.ledger)) as connection:
            item = views.value(connection, "live_agent")
    except (StoreError, sqlite3.Error) as error:
        if not is_damage(error):
            raise
        # An empty or damaged ledger names no agent, and must not stop its own replacement.
        log.warning("cannot read from the ledger which agents run", error=error)
        return
    if item is not None:
        raise InUse(
            f"an agent of project {project.name} is still running ({item})",
            hint=f"caloron resume --project {project.name}, or wait until its lease expires",
        )
