"""The agents that the shell started and their last heartbeats; outlives the shell itself."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from caloron.agents.supervise.processes import Process, living, read_process
from caloron.server.requests import Heartbeat
from caloron.store import log
from caloron.store.database import Database, load_statements, migrations_in
from caloron.store.lock import boot_id

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
        """Its running process; never another one that got the same pid since."""
        if self.state != "running" or self.boot != boot_id():
            return None
        process = read_process(self.pid)
        if process is None or process.started != self.started or not living([process]):
            return None
        return process


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
        """Record a new run before anything of it exists, so that a crash leaves nothing unknown."""
        key = {"sprint": sprint, "agent": agent}
        with self._store.transaction("shell.reserve") as connection:
            row = connection.execute(_SQL["agent"], key).fetchone()
            run_dir = self._runs / sprint / agent / str(row["run"] + 1 if row else 1)
            values = key | {"task": task, "run_dir": str(run_dir), "now": now()}
            connection.execute(_SQL["reserve"], values)
            connection.execute(_SQL["forget_heartbeat"], key)
            made = connection.execute(_SQL["agent"], key).fetchone()
        return _agent(made)

    def assign_workspace(self, agent: Agent, workspace: Path, base: str) -> None:
        """Record its workspace; from now on no git of ours runs in that folder."""
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
        """Record the end of a run; the exit code may be unknown."""
        values = {"run": agent.run, "exit_code": exit_code, "now": now()}
        self._write("ended", _key(agent) | values)

    def record_heartbeat(self, heartbeat: Heartbeat) -> str:
        values = msgspec.to_builtins(heartbeat) | {"at": now()}
        self._write("heartbeat", values)
        return str(values["at"])

    def reap(self, *, restarted: bool = False) -> None:
        """Record the runs that have ended, with the exit codes that they wrote.

        After a restart these include the runs whose gate a killed shell never opened.
        """
        for row in self._store.rows(_SQL["agents"]):
            agent = _agent(row)
            ended = (
                restarted
                if agent.state == "starting"
                else agent.exit_code is None and agent.process() is None
            )
            if ended:
                self.ended(agent, recorded_exit_code(Path(agent.run_dir)))

    def status(self) -> list[dict[str, Any]]:
        """One row for each agent."""
        self.reap()
        return [_row(row) for row in self._store.rows(_SQL["agents"])]

    def _write(self, statement: str, values: dict[str, Any]) -> None:
        with self._store.transaction(f"shell.{statement}") as connection:
            connection.execute(_SQL[statement], values)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def recorded_exit_code(run_dir: Path) -> int | None:
    """The exit code that the harness wrote as its last act; None: it was killed."""
    try:
        result = json.loads((run_dir / RESULT).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("cannot read the result of a harness", error=error, path=run_dir)
        return None
    code = result.get("exit_code") if isinstance(result, dict) else None
    return code if isinstance(code, int) else None


def _agent(row: sqlite3.Row) -> Agent:
    return Agent(**{name: row[name] for name in Agent.__struct_fields__})


def _key(agent: Agent) -> dict[str, Any]:
    return {"sprint": agent.sprint, "agent": agent.agent}


def _row(row: sqlite3.Row) -> dict[str, Any]:
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
