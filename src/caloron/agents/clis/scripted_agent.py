"""The scripted agent: answers from a fixture file instead of asking a model.

Started as `python -S -E scripted_agent.py FIXTURE` in the workspace, with a fixture that `stub`
checked; the prompt comes on standard input. Standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

_CONDITIONS = {
    "role": "CALORON_ROLE",
    "task": "CALORON_TASK_ID",
    "attempt": "CALORON_ATTEMPT",
    "round": "CALORON_ROUND",
}
_FEEDBACK = """\
---
caloron_feedback:
  task_clarity: 8
  blockers: []
  self_assessment: completed
  notes: ""
---"""


def choose(
    fixture: dict[str, Any], prompt: str, environment: dict[str, str]
) -> dict[str, Any] | None:
    """Return the first response that fits; else the default, if there is one."""
    for response in fixture.get("responses", []):
        if _fits(response, prompt, environment):
            return dict(response)
    return {"output": fixture["default"]} if "default" in fixture else None


def _fits(response: dict[str, Any], prompt: str, environment: dict[str, str]) -> bool:
    for name, wanted in response.get("when", {}).items():
        values = wanted if isinstance(wanted, list) else [wanted]
        if environment.get(_CONDITIONS[name], "") not in {_stored(str(value)) for value in values}:
            return False
    return response.get("match", "") in prompt


def _stored(value: str) -> str:
    """The role of the planner is called `po` in the environment."""
    return "po" if value == "planner" else value


def act(response: dict[str, Any], workspace: Path) -> int:
    """Carry out a response: sleep, files, run, report, output. Returns the exit code.

    Without an `exit_code` the one of `run` counts, so that a shell line that fails is noticed.
    """
    time.sleep(response.get("sleep_s", 0))
    for name, content in response.get("files", {}).items():
        _write_file(workspace / name, content)
    code = 0
    if response.get("run"):
        import subprocess

        done = subprocess.run(
            ("sh", "-c", response["run"]), cwd=workspace, stdin=subprocess.DEVNULL, check=False
        )
        code = done.returncode if done.returncode >= 0 else 128 - done.returncode
    if "report" in response and os.environ.get("CALORON_REPORT"):
        Path(os.environ["CALORON_REPORT"]).write_text(json.dumps(response["report"]), "utf-8")
    code = int(response.get("exit_code", code))
    output = response.get("output")
    if response.get("ending", True) and not code:
        output = _with_ending(output, os.environ.get("CALORON_ROLE", ""))
    if output is not None:
        _print(output)
    return code


def _with_ending(output: str | None, role: str) -> str | None:
    """Return the output, with the ending that the prompt of this role asks for: models write it."""
    if role in ("po", "retro"):
        is_json = (output or "").lstrip().startswith(("[", "{"))
        return f"```json\n{output}\n```" if is_json else output
    if role not in ("implement", "fix", "resolve", "check") or "task_clarity" in (output or ""):
        return output
    if role == "check":
        *before, verdict = (output or "").rstrip().split("\n")
        return "\n".join((*before, _FEEDBACK, verdict))
    return f"{output or 'Done.'}\n\n{_FEEDBACK}"


def _write_file(path: Path, content: str | dict[str, str] | None) -> None:
    """Write text, or bytes in base64; without content, delete the file."""
    if content is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            import base64

            path.write_bytes(base64.b64decode(content["base64"]))
        else:
            path.write_bytes(content.encode("utf-8", "surrogatepass"))
    elif path.is_dir() and not path.is_symlink():
        import shutil

        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _print(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")
    sys.stdout.buffer.flush()


def main(arguments: list[str]) -> int:
    prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    path = Path(arguments[0])
    fixture = json.loads(path.read_text("utf-8"))
    response = choose(fixture, prompt, dict(os.environ))
    if response is None:
        asked = ", ".join(f"{name} {os.environ.get(key)}" for name, key in _CONDITIONS.items())
        _print(f"The fixture {path} has no response for this prompt ({asked}) and no default.")
        return 0
    return act(response, Path.cwd())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
