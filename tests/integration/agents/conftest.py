"""A ledger with one claimed item, and attempts on it with the real shim."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from caloron.agents.supervise import launch
from caloron.store.database import Database
from caloron.store.queue import QUEUE_MIGRATIONS, Claim, claim, enqueue, reopen
from tests.support.wait import wait_for


class Attempt:
    """One attempt at the only item of a ledger."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.run_dir = home / "run"
        self.workspace = home / "workspace"
        self.workspace.mkdir()
        self.ledger = Database(home / "ledger.db", QUEUE_MIGRATIONS)
        with self.ledger.transaction("test") as connection:
            enqueue(connection, "task-1", "implement", "{}")
        self.token = self.claim(60_000).token
        self.shim: subprocess.Popen[bytes] | None = None

    def claim(self, lease_ms: int) -> Claim:
        with self.ledger.transaction("test") as connection:
            claimed = claim(connection, ["implement"], holder="test", lease_ms=lease_ms, cap=9)
        assert claimed is not None
        return claimed

    def fence(self) -> None:
        with self.ledger.transaction("test") as connection:
            reopen(connection, "task-1", "another holder takes it")

    def spec(self, argv: tuple[str, ...], **changes: Any) -> dict[str, Any]:
        return {
            "ledger": str(self.ledger.path),
            "item": "task-1",
            "token": self.token,
            "lease_ms": 600,
            "argv": list(argv),
            "env": {"PATH": os.environ["PATH"]},
            "cwd": str(self.workspace),
            "stdin": "",
            "output_cap": 1_000_000,
            "limit_s": 600.0,
            "wake": "",
        } | changes

    def start(self, *argv: str, **changes: Any) -> None:
        self.shim = launch.start(self.run_dir, self.spec(argv, **changes))

    def start_shell(self, script: str, **changes: Any) -> None:
        self.start("sh", "-c", script, **changes)

    def start_sleeping(self, **changes: Any) -> int:
        """Start an agent that sleeps, and return its process id once it does."""
        self.start_shell("echo ready; exec sleep 1000", **changes)
        self.wait_for_output("ready")
        return self.agent()

    def end(self) -> int:
        """Wait for the shim, and return its exit code."""
        assert self.shim is not None
        launch.wait_until_gone(self.run_dir)
        return self.shim.wait()

    def finished(self) -> dict[str, Any]:
        """Wait for the shim, and return the result that it has written."""
        assert self.end() == 0
        result = self.result()
        assert result is not None
        return result

    def lease(self) -> dict[str, Any]:
        row = self.ledger.row("SELECT * FROM leases WHERE item = 'task-1'")
        assert row is not None
        return dict(row)

    def result(self) -> dict[str, Any] | None:
        text = self.lease()["result"]
        return None if text is None else dict(json.loads(text))

    def events(self, kind: str) -> int:
        row = self.ledger.row("SELECT count(*) FROM events WHERE type = ?", (kind,))
        assert row is not None
        return int(row[0])

    def identity(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.run_dir / "shim.json").read_bytes()))
        except FileNotFoundError:
            return {}

    def agent(self) -> int:
        return int(wait_for(lambda: self.identity().get("agent_pid"), "the agent is started"))

    def output(self) -> str:
        log = self.run_dir / "output.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def wait_for_output(self, text: str) -> str:
        """Wait until the agent has printed a text, and return its whole output."""
        wait_for(lambda: text in self.output(), f"the agent prints {text!r}")
        return self.output()

    def renewals(self, count: int) -> None:
        """Wait until the lease was renewed so many times from now on."""
        wait_for(lambda: self.lease()["started_at"], "the attempt is counted")
        for _ in range(count):
            self._next_renewal(self.lease()["expires_at"])

    def _next_renewal(self, expiry: int) -> None:
        wait_for(lambda: self.lease()["expires_at"] > expiry, "the lease is renewed")


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[Attempt]:
    made = Attempt(tmp_path)
    yield made
    launch.stop(made.run_dir, grace_s=5)
    if made.shim is not None:
        made.shim.wait()
    made.ledger.close()
