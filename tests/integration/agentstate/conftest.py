"""The folder of an agent, and calls of `caloron agent-state`."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from caloron.agentstate.instance import AgentInstance
from caloron.cli.commands.agent_state.main import main

DATA = Path(__file__).parents[2] / "data" / "agent-state"
CALORON = (sys.executable, "-c", "from caloron.cli.start import run; run()")


class Answer(NamedTuple):
    """The exit code and the output of one call."""

    code: int
    lines: list[Any]
    err: str


def agent_state(where: Path, *words: str, **environment: str) -> Answer:
    """Run one command in a separate process."""
    ran = subprocess.run(
        [*CALORON, "agent-state", *words],
        env=os.environ
        | {"MF_INSTANCE_DIR": str(where), "PYTHONPATH": os.pathsep.join(sys.path)}
        | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    lines = [json.loads(x) if x.startswith("{") else x for x in ran.stdout.splitlines()]
    return Answer(ran.returncode, lines, ran.stderr)


def called(*words: str) -> Answer:
    """Run one command in this process, with the environment of this process."""
    message: list[str] = []
    errors: list[str] = []
    code = main(words, message.append, errors.append)
    lines = [json.loads(line) if line.startswith("{") else line for line in message]
    return Answer(code, lines, "\n".join(errors))


@pytest.fixture
def where(tmp_path: Path) -> Path:
    return tmp_path / "agents" / "forge"


@pytest.fixture
def home(where: Path) -> Iterator[AgentInstance]:
    with AgentInstance(where) as instance:
        yield instance


def shift_clock(home: AgentInstance, ms: int) -> None:
    with home.db.transaction("test") as connection:
        connection.execute("UPDATE caloron_clock_offset SET ms = ms + ?", (ms,))


def foreign(where: Path) -> sqlite3.Connection:
    """Open the file as agent-state does: two pragmas, no timeout, autocommit."""
    connection = sqlite3.connect(where / "state.sqlite", isolation_level=None, timeout=0)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA journal_mode = WAL")
    return connection
