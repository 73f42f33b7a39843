"""The scripted agent: answers from a fixture file instead of asking a model.

Started as `python -S -E scripted_agent.py FIXTURE` in the workspace; the prompt comes on standard
input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path, PurePosixPath
from typing import Any

_CONDITIONS = {
    "role": "CALORON_ROLE",
    "task": "CALORON_TASK_ID",
    "attempt": "CALORON_ATTEMPT",
    "round": "CALORON_ROUND",
}
_FIELDS = ("when", "match", "output", "ending", "files", "run", "sleep_s", "exit_code", "report")
_FEEDBACK = """\
---
caloron_feedback:
  task_clarity: 8
  blockers: []
  self_assessment: completed
  notes: ""
---"""


class FixtureError(ValueError):
    """A fixture that cannot be used: which field, and what was expected there."""


def load_fixture(path: Path) -> dict[str, Any]:
    """Read a fixture and check every field of it."""
    try:
        fixture = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise FixtureError(f"cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise FixtureError(f"is not JSON: {error}") from error
    _expect(isinstance(fixture, dict), "", "an object with responses and default")
    _expect_known(fixture, ("responses", "default"), "")
    _expect(isinstance(fixture.get("default", ""), str), "default", "a text")
    responses = fixture.get("responses", [])
    _expect(isinstance(responses, list), "responses", "a list of objects")
    for number, response in enumerate(responses):
        _check_response(response, f"responses[{number}]")
    return fixture  # type: ignore[no-any-return]


def _check_response(response: object, at: str) -> None:
    if not isinstance(response, dict):
        raise FixtureError(f"{at}: expected an object")
    _expect_known(response, _FIELDS, at)
    for name in ("match", "output", "run"):
        _expect(isinstance(response.get(name, ""), str), f"{at}.{name}", "a text")
    pause = response.get("sleep_s", 0)
    _expect(_is_number(pause) and pause >= 0, f"{at}.sleep_s", "a number of seconds from 0")
    code = response.get("exit_code", 0)
    _expect(_is_int(code) and 0 <= code <= 255, f"{at}.exit_code", "a number from 0 to 255")
    _check_conditions(response.get("when", {}), f"{at}.when")
    _check_files(response.get("files", {}), f"{at}.files")
    _expect(isinstance(response.get("report", {}), dict), f"{at}.report", "an object")
    _expect(isinstance(response.get("ending", True), bool), f"{at}.ending", "true or false")


def _check_conditions(when: object, at: str) -> None:
    if not isinstance(when, dict):
        raise FixtureError(f"{at}: expected an object with {_one_of(tuple(_CONDITIONS))}")
    _expect_known(when, tuple(_CONDITIONS), at)
    for name, wanted in when.items():
        values = wanted if isinstance(wanted, list) else [wanted]
        good = all(isinstance(value, str) or _is_int(value) for value in values)
        _expect(good, f"{at}.{name}", "a text, a whole number or a list of them")


def _check_files(files: object, at: str) -> None:
    if not isinstance(files, dict):
        raise FixtureError(f"{at}: expected an object of paths and contents")
    for name, content in files.items():
        path = PurePosixPath(name)
        inside = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
        _expect(inside and "\0" not in name, f"{at}[{name!r}]", "a path inside the workspace")
        _content(content, f"{at}[{name!r}]")


def _content(content: object, at: str) -> bytes | None:
    """The bytes of a file, or None if it is to be deleted."""
    if content is None:
        return None
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    expected = 'a text, null to delete the file, or {"base64": "..."}'
    if not (isinstance(content, dict) and content.keys() == {"base64"}):
        raise FixtureError(f"{at}: expected {expected}")
    import base64
    import binascii

    try:
        return base64.b64decode(content["base64"], validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise FixtureError(f"{at}.base64: expected a text in base64") from error


def _expect(condition: bool, at: str, what: str) -> None:
    if not condition:
        raise FixtureError(f"{at or 'the file'}: expected {what}")


def _expect_known(fields: dict[str, Any], known: tuple[str, ...], at: str) -> None:
    for name in fields:
        _expect(name in known, f"{at}.{name}".lstrip("."), f"one of the fields {_one_of(known)}")


def _one_of(names: tuple[str, ...]) -> str:
    return ", ".join(names)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_int(value)


def choose(
    fixture: dict[str, Any], prompt: str, environment: dict[str, str]
) -> dict[str, Any] | None:
    """The first response whose conditions all hold; else the default, if there is one."""
    for response in fixture.get("responses", []):
        if _holds(response, prompt, environment):
            return dict(response)
    return {"output": fixture["default"]} if "default" in fixture else None


def _holds(response: dict[str, Any], prompt: str, environment: dict[str, str]) -> bool:
    for name, wanted in response.get("when", {}).items():
        values = wanted if isinstance(wanted, list) else [wanted]
        if environment.get(_CONDITIONS[name], "") not in {str(value) for value in values}:
            return False
    return response.get("match", "") in prompt


def act(response: dict[str, Any], workspace: Path) -> int:
    """Carry out a response: sleep, files, run, report, output. Returns the exit code.

    Without an `exit_code` the one of `run` counts, so that a shell line that fails is noticed.
    """
    time.sleep(response.get("sleep_s", 0))
    for name, content in response.get("files", {}).items():
        _write_file(workspace / name, _content(content, name))
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


def _write_file(path: Path, content: bytes | None) -> None:
    if content is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
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
    try:
        fixture = load_fixture(path)
    except FixtureError as error:
        sys.stderr.write(f"the stub fixture {path}: {error}\n")
        return 2
    response = choose(fixture, prompt, dict(os.environ))
    if response is None:
        asked = ", ".join(f"{name} {os.environ.get(key)}" for name, key in _CONDITIONS.items())
        _print(f"The fixture {path} has no response for this prompt ({asked}) and no default.")
        return 0
    return act(response, Path.cwd())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
