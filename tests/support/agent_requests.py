"""Requests to agent CLIs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from caloron.ports import AgentRequest


def agent_request(
    workspace: Path, run_dir: Path, prompt: str = "hello", **fields: Any
) -> AgentRequest:
    """Return a request to implement a task, whose home is below the run directory."""
    home = run_dir / "home"
    defaults: dict[str, Any] = {
        "role": "implement", "task": "t", "prompt": prompt, "workspace": workspace,
        "run_dir": run_dir, "home": home, "sandbox_home": home,
    }  # fmt: skip
    return AgentRequest(**defaults | fields)
