"""Which agents the shell started and when each was last heard of; outlives the shell itself."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from caloron.agents.processes import Process, boot_id, living, look
from caloron.server.requests import Heartbeat
from caloron.store import log
from caloron.store.database import Database, migrations_in
from caloron.store.statements import load_statements

_HERE = Path(__file__).parent
_SQL = load_statements(_HERE / "sql" / "shell.sql")
RESULT = "result.json"


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """The last run of one agent of one sprint."""

    sprint: str
    agent: str
    task: str
    run: int
    state: str
    run_dir: str
    workspace: str
    base: str
    pid: int
    started: int
    boot: str
    began_at: str
    ended_at: str | None
    exit_code: int | None

    def process(self) -> Process | None:
        """Its process if that lives: never another one that got its number since."""
        if self.state != "running" or self.boot != boot_id():
            return None
        found = look(self.pid)
        if found is None or found.started != self.started or not living([found]):
            return None
        return found


class Registry:
    """Agents by sprint and name, in a database of the home."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._runs = folder / "runs"
        self._store = Database(
            folder / "shell.sqlite", migrations_in(_HERE / "migrations", "shell")
        )

    def close(self) -> None:
        self._store.close()

    def get(self, sprint: str, agent: str) -> Agent | None:
        row = self._store.row(_SQL["agent"], {"sprint": sprint, "agent": agent})
        return _agent(row) if row else None

    def reserve(self, sprint: str, agent: str, task: str) -> Agent:
        """A new run, before anything of it is there: whatever comes to be can be found again."""
        key = {"sprint": sprint, "agent": agent}
        with self._store.transaction("shell.reserve") as connection:
            row = connection.execute(_SQL["agent"], key).fetchone()
            run_dir = self._runs / sprint / agent / str(row["run"] + 1 if row else 1)
            values = key | {"task": task, "run_dir": str(run_dir), "now": now()}
            connection.execute(_SQL["reserve"], values)
            connection.execute(_SQL["forget_heartbeat"], key)
            made = connection.execute(_SQL["agent"], key).fetchone()
        return _agent(made)

    def place(self, agent: Agent, workspace: Path, base: str) -> None:
        """Where it is to work; from now on no git of ours runs in that folder."""
        values = _key(agent) | {"workspace": str(workspace), "base": base}
        with self._store.transaction("shell.place") as connection:
            connection.execute(_SQL["place"], values)
            connection.execute(_SQL["remember_workspace"], {"path": str(workspace)})

    def workspaces(self) -> Iterator[Path]:
        return (Path(row["path"]) for row in self._store.rows(_SQL["workspaces"]))

    def started(self, agent: Agent, process: Process) -> None:
        values = {"pid": process.pid, "started": process.started, "boot": boot_id()}
        self._write("started", _key(agent) | values)

    def ended(self, agent: Agent, exit_code: int | None) -> None:
        """It is over; how it ended may have been seen by nobody."""
        values = _key(agent) | {"run": agent.run, "exit_code": exit_code}
        self._write("ended", values | {"now": now()})
        if exit_code is not None:
            self._write("learnt", values)

    def heard(self, said: Heartbeat) -> str:
        at = now()
        values = {"sprint": said.sprint_id, "agent": said.agent_id, "at": at}
        self._write("heartbeat", values | {"status": said.status, "tokens": said.tokens_used})
        return at

    def settle(self) -> None:
        """Write down who is gone, with the exit code that it left behind."""
        for row in self._store.rows(_SQL["agents"]):
            agent = _agent(row)
            gone = agent.state == "running" and agent.process() is None
            if gone or (agent.state == "ended" and agent.exit_code is None):
                self.ended(agent, told_exit_code(Path(agent.run_dir)))

    def forget_unfinished(self) -> None:
        """Runs that a shell was about to start when it died: their gate never opened."""
        for row in self._store.rows(_SQL["agents"]):
            agent = _agent(row)
            if agent.state == "starting":
                self.ended(agent, None)

    def status(self) -> list[dict[str, Any]]:
        """One row for each agent, as it is now."""
        self.settle()
        return [_told(row) for row in self._store.rows(_SQL["agents"])]

    def _write(self, statement: str, values: dict[str, Any]) -> None:
        with self._store.transaction(f"shell.{statement}") as connection:
            connection.execute(_SQL[statement], values)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def told_exit_code(run_dir: Path) -> int | None:
    """What the harness of a run wrote down as its last act; None: it was cut short."""
    try:
        told = json.loads((run_dir / RESULT).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("cannot read the result of a harness", error=error, path=run_dir)
        return None
    code = told.get("exit_code") if isinstance(told, dict) else None
    return code if isinstance(code, int) else None


def _agent(row: sqlite3.Row) -> Agent:
    return Agent(**{name: row[name] for name in Agent.__struct_fields__})


def _key(agent: Agent) -> dict[str, Any]:
    return {"sprint": agent.sprint, "agent": agent.agent}


def _told(row: sqlite3.Row) -> dict[str, Any]:
    agent = _agent(row)
    return {
        "agent_id": agent.agent,
        "sprint_id": agent.sprint,
        "pid": agent.pid,
        "alive": agent.process() is not None,
        "last_heartbeat": row["heard_at"],
        "task_id": agent.task,
        "run": agent.run,
        "state": agent.state,
        "status": row["heard"],
        "tokens_used": row["tokens"],
        "exit_code": agent.exit_code,
        "began_at": agent.began_at,
        "ended_at": agent.ended_at,
        "workspace": agent.workspace,
    }
