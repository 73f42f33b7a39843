"""A real `caloron serve` in a process of its own, and a client for it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.support.json_schema import problems
from tests.support.sockets import free_port
from tests.support.wait import wait_for

TOKEN = "a-token-of-the-tests"
_PATIENCE_S = 60


class LiveShell:
    """Started, killed and started again on the same home and port."""

    def __init__(self, home: Path, root: Path, fixture: Any, *options: str) -> None:
        self.home, self.root, self.port = home, root, free_port()
        self._options = options
        self._fixture = home.parent / "fixture.json"
        self.agents_do(fixture)
        self.process: subprocess.Popen[str] | None = None
        self.env: dict[str, str] = {}

    def agents_do(self, fixture: Any) -> None:
        self._fixture.write_text(json.dumps(fixture), "utf-8")

    def start(self) -> LiveShell:
        settings = {
            "CALORON_HOME": str(self.home),
            "CALORON_SHELL_TOKEN": TOKEN,
            "CALORON_SHELL_PORT": str(self.port),
            "CALORON_SHELL_ROOT": str(self.root),
            "CALORON_FRAMEWORK": "stub",
            "CALORON_STUB_FIXTURE": str(self._fixture),
            "CALORON_HEARTBEAT_S": "0.2",
            "GITHUB_TOKEN": "ghp_must_never_reach_an_agent",
        }
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "caloron.cli", "serve", "--output", "json", *self._options],
            env=kept | settings | self.env, cwd=self.root, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read() if self.process.stderr else ""
        envelope = json.loads(line)
        assert problems(envelope) == []
        assert envelope["data"]["url"] == f"http://127.0.0.1:{self.port}"
        return self

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def gone(self) -> bool:
        """True if the shell was killed at a crash point."""
        assert self.process is not None
        return self.process.poll() is not None

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.communicate()

    def call(
        self, method: str, path: str, body: Any = None, token: str = TOKEN, raw: bytes = b""
    ) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)
        data = raw or (b"" if body is None else json.dumps(body).encode())
        try:
            connection.request(method, path, data or None, {"X-Caloron-Token": token})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        return answer.status, text if path == "/health" else json.loads(text or "null")

    def post(self, path: str, **body: Any) -> Any:
        code, content = self.call("POST", path, body)
        assert code == 200, content
        return content

    def get(self, path: str, **query: Any) -> Any:
        code, content = self.call("GET", f"{path}?{urlencode(query)}" if query else path)
        assert code == 200, content
        return content

    def spawn(self, agent: str = "ann", sprint: str = "s-1", task: str = "t-1", **more: Any) -> Any:
        asked = {"sprint_id": sprint, "task_id": task, "agent_id": agent, "repo": "."}
        return self.post("/spawn", **asked | more)

    def agent(self, agent: str = "ann") -> dict[str, Any]:
        rows = self.get("/status", details=1)["agents"]
        (agent_row,) = [row for row in rows if row["agent_id"] == agent]
        return dict(agent_row)

    def ended(self, agent: str = "ann") -> dict[str, Any]:
        """The agent once it is over and its exit code is known."""
        return dict(
            wait_for(lambda: _if(self.agent(agent), lambda row: row["exit_code"] is not None))
        )


def _if(row: dict[str, Any], good: Callable[[dict[str, Any]], bool]) -> dict[str, Any] | None:
    return row if good(row) else None
