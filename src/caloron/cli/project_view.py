"""A project for commands: its ledger, its forge, orphaned agents, and exclusive access to it."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from caloron.errors import CaloronError, InUse, NotFound, StoreError
from caloron.ledger import reading
from caloron.ledger.legacy import find_legacy_sprint, legacy_sprints
from caloron.ledger.locate import ProjectPaths, current_project_name, find_project, home
from caloron.ledger.reading import open_ledger
from caloron.store import log
from caloron.store.database import is_damage, open_read_only, store_error
from caloron.store.lock import ProcessLock, holder

if TYPE_CHECKING:
    from caloron.domain.model.sprint import State
    from caloron.domain.reporting.inbox import InboxItem
    from caloron.ledger.projects import Project
    from caloron.ledger.views import AgentProcess, Standing

#: The record of a forge before the first sprint on it.
UNKNOWN_FORGE = {
    "kind": "local", "url": "", "main": "main", "author": "caloron", "reviewer": "caloron",
    "reviews": "review", "pages": "",
}  # fmt: skip


def require_ledger(project: ProjectPaths) -> sqlite3.Connection:
    """Open the ledger; a project without a sprint has none."""
    if not project.ledger.exists():
        raise NotFound(
            f"project {project.name} has no sprint yet", hint='start one: caloron sprint "<goal>"'
        )
    return open_ledger(project.ledger)


@contextmanager
def read_ledger(
    project: str | None, sprint: str | None = None
) -> Iterator[tuple[ProjectPaths, sqlite3.Connection]]:
    """A project and one consistent snapshot of its ledger, to read a sprint from."""
    paths = find_project(project)
    if not paths.ledger.exists():
        _refuse_imported(paths, sprint)
    connection = require_ledger(paths)
    try:
        connection.execute("BEGIN")
        yield paths, connection
    except sqlite3.Error as error:
        raise store_error(paths.ledger, error) from error
    finally:
        connection.close()


def _refuse_imported(project: ProjectPaths, sprint: str | None) -> None:
    """Refuse a sprint of an older version: only its summary was recorded."""
    known = legacy_sprints(project, None, 1).sprints
    if not known:
        return
    imported = find_legacy_sprint(project, None, sprint) if sprint else known[0]
    if imported is None:
        raise NotFound(f"there is no sprint {sprint}", hint="caloron history lists them")
    raise NotFound(
        f"Sprint {imported.id} was imported from an older version; only its summary is available.",
        hint=f"caloron show {imported.number}",
    )


def known_forge(project: ProjectPaths) -> dict[str, str]:
    """The record of the forge from the start of the last sprint."""
    with reading.ledger_if_any(project) as connection:
        recorded = reading.value(connection, "kv", key="forge") if connection else None
    known: dict[str, str] = json.loads(recorded) if recorded else {}
    return UNKNOWN_FORGE | known


def standing_of(project: ProjectPaths, connection: sqlite3.Connection, sprint: str) -> Standing:
    """What a sprint's own rows do not show: its engine, its forge, its orphaned agents."""
    return {
        "running": is_running(project, sprint),
        "outage": str(reading.read_outage(connection, sprint) or ""),
        "orphaned_agents": orphaned_agents(project, connection, sprint),
    }


def orphaned_agents(
    project: ProjectPaths, connection: sqlite3.Connection, sprint: str = ""
) -> list[AgentProcess]:
    """The running agents of a sprint, or of any, that no engine drives.

    The agents of a sprint that `caloron tick` drives are meant to run between two ticks.
    """
    if holder(project.engine_lock) is not None:
        return []
    scope = f"{sprint}/" if sprint else ""
    ticked = reading.ticked_sprints(connection)
    rows = [
        row
        for row in reading.rows(connection, "in_flight")
        if row["id"].startswith(scope) and row["id"].partition("/")[0] not in ticked
    ]
    if not rows:
        return []
    from caloron.agents.supervise import launch
    from caloron.domain.model.roles import WorkId

    agents: list[AgentProcess] = []
    for row in rows:
        pid = launch.agent_pid(project.runs / row["id"] / str(row["token"]))
        if pid:
            work = WorkId.parse(row["id"])
            agents.append(
                {
                    "sprint_id": work.sprint,
                    "number": row["number"],
                    "task": work.task,
                    "role": work.role,
                    "pid": pid,
                }
            )
    return agents


def orphan_line(agent: AgentProcess) -> str:
    return (
        f"The engine was killed; agent {agent['task']} ({agent['role']}) still runs as process"
        f" {agent['pid']}: `caloron resume {agent['sprint_id']}` takes it over,"
        " `caloron stop` ends it"
    )


def with_orphans(item: InboxItem, agents: list[AgentProcess], flags: str) -> InboxItem:
    """An inbox item that names the orphaned agents of its sprint: that sprint is not stopped."""
    if item.kind != "resume" or not agents:
        return item
    import msgspec

    why = "; ".join(orphan_line(agent) for agent in agents)
    commands = (*item.commands, f"caloron stop{flags}")
    return msgspec.structs.replace(item, why=why, commands=commands)


def inbox_data(items: Iterable[InboxItem], numbers: Mapping[str, int]) -> list[dict[str, Any]]:
    """Inbox items as data; `numbers` maps the ids of sprints to their numbers."""
    return [
        {"kind": item["kind"], "sprint_id": (sprint := item.pop("sprint"))}
        | {"number": numbers[sprint]}
        | item
        for item in as_data(list(items))
    ]


def as_data(value: Any) -> Any:
    """Structs as plain data, just as JSON has them."""
    # Importing msgspec takes longer than all that `status` and `history` do.
    import msgspec

    return msgspec.json.decode(msgspec.json.encode(value))


def is_running(project: ProjectPaths, sprint: str) -> bool:
    """True while an engine drives this sprint."""
    engine = holder(project.engine_lock)
    return engine is not None and engine.get("sprint") == sprint


def project_flag(paths: ProjectPaths, project: str | None) -> str:
    """The `--project` that a printed command needs to act on this project when it is copied."""
    if project is None:
        return ""
    try:
        current = current_project_name()
    except CaloronError:
        # No project is current: the command has to name one.
        current = ""
    return "" if current == paths.name else f" --project {paths.name}"


def apply_command(project: Project, state: State, flags: str) -> str:
    """The command that brings merged work to the user; empty if there is none to bring."""
    from caloron.domain.model.status import Status

    if not any(task.status is Status.DONE and task.links.pull for task in state.tasks.values()):
        return ""
    if project.repository:
        return "" if _is_applied(project, state) else f"caloron apply{flags}"
    return "git pull" if project.is_remote else f"git clone {quote(str(project.forge_git))}"


def _is_applied(project: Project, state: State) -> bool:
    """True if the user's branch has everything that the sprint merged."""
    from caloron.cli.commands.sprint.apply import merge_commits
    from caloron.git.checkout import Checkout

    repository, commits = project.repository, merge_commits(state)
    if not repository or not commits:
        return False
    return Checkout(repository).contains(project.git_here, *commits)


def disk_usage(root: Path) -> int:
    """The bytes of a file or of everything in a folder; links are not followed."""
    total, remaining = 0, [str(root)]
    while remaining:
        path = remaining.pop()
        try:
            if os.path.isdir(path) and not os.path.islink(path):  # noqa: PTH112, PTH114
                with os.scandir(path) as entries:
                    remaining += [entry.path for entry in entries]
            else:
                total += os.lstat(path).st_size
        except OSError:
            # It was removed meanwhile, or its path is too long: the size is only information.
            continue
    return total


def state_files(project: str) -> list[Path]:
    """The files that a project's sprints have outside its own folder."""
    chosen = os.environ.get("CALORON_KV_DIR", "")
    folder = Path(chosen) if chosen else home() / "kv"
    pattern = re.compile(rf"{re.escape(project)}-\d+\.json(\..*)?")
    return sorted(file for file in folder.glob(f"{project}-*") if pattern.fullmatch(file.name))


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
            item = reading.value(connection, "live_agent")
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
