"""Stages that are programs: JSON on standard input, one JSON value on standard output."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from caloron.graph.errors import ParseError, StageFailed, StageMissing
from caloron.graph.json_text import Json, decode, sha256
from caloron.graph.runtime.protocols import Call, Value
from caloron.graph.stage import StageSpec


class Language(msgspec.Struct, frozen=True):
    """A language for the code of stages."""

    name: str
    program: str
    suffix: str
    wrap: Callable[[str], str]


_PYTHON_TAIL = """

def __answer():
    import json
    import sys

    given = json.loads(sys.stdin.read())
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError:
            pass
    if given is None:
        given = {}
    stage = globals().get("execute")
    if not callable(stage):
        sys.stderr.write("the code has no function `execute`")
        sys.exit(1)
    try:
        answer = json.dumps(stage(given))
    except Exception as error:
        sys.stderr.write(str(error))
        sys.exit(1)
    print(answer)


__answer()
"""

_JAVASCRIPT = """const __parts = [];
process.stdin.on("data", (part) => __parts.push(part));
process.stdin.on("end", () => {
  let __answer;
  try {
    const __given = JSON.parse(Buffer.concat(__parts).toString("utf8"));
    %s
    __answer = JSON.stringify(execute(__given));
    if (__answer === undefined) throw new Error("execute gave no JSON value");
  } catch (error) {
    process.stderr.write(String(error && error.message ? error.message : error));
    process.exit(1);
  }
  process.stdout.write(__answer);
});
"""

_BASH = """set -euo pipefail
INPUT="$(cat)"
%s
execute "$INPUT"
"""


def _python(code: str) -> str:
    """Move imports from `__future__` to the top, where Python requires them."""
    lines = code.split("\n")
    future = [line for line in lines if line.startswith("from __future__ import")]
    rest = [line for line in lines if not line.startswith("from __future__ import")]
    return "\n".join([*future, *rest]) + _PYTHON_TAIL


_LANGUAGES = {
    "python": Language("python", "python3", ".py", _python),
    "javascript": Language("javascript", "node", ".js", lambda code: _JAVASCRIPT % code),
    "bash": Language("bash", "bash", ".sh", lambda code: _BASH % code),
}
_NAMES = {"": "python", "python3": "python", "js": "javascript", "sh": "bash"}


def language_of(name: str | None) -> Language | None:
    """Return the language of that name; None if it is not supported."""
    plain = (name or "").lower()
    return _LANGUAGES.get(_NAMES.get(plain, plain))


class ProcessResult(msgspec.Struct, frozen=True):
    """The exit code and the output of a process."""

    #: 128 and the number of the signal, if a signal ended the process.
    exit_code: int
    stdout: bytes
    stderr: bytes


_STAGE_SECONDS = 30.0
_MAX_OUTPUT = 10 * 1024 * 1024
#: The exit codes of a process that a signal ended: 128 and the number of the signal.
_SIGNALLED = range(129, 193)


class SandboxPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage may access, from its declared effects."""

    network: bool
    #: Directories and files that it may read, besides the system.
    readable: tuple[str, ...]
    writable: tuple[str, ...]


class Sandbox(Protocol):
    """Runs a command in confinement; implemented outside of this library."""

    def run(
        self,
        argv: Sequence[str],
        policy: SandboxPolicy,
        stdin: bytes,
        *,
        seconds: float,
        stopped: Callable[[], bool],
        max_output: int,
    ) -> ProcessResult:
        """Run a command to its end, with all processes that it starts.

        Raises StageTimedOut after the time, Cancelled when it is stopped, and StageFailed for a
        command that cannot be confined or prints more than `max_output` bytes.
        """


class SubprocessRunner(msgspec.Struct, frozen=True):
    """Runs stages that contain their code, each call in a process of its own."""

    #: The folder of the scripts that are run.
    scripts: Path
    sandbox: Sandbox
    #: The commands that run a language, by its name; by default its program on PATH.
    interpreters: Mapping[str, Sequence[str]] = {}
    seconds: float = _STAGE_SECONDS

    def code_version(self, stage: StageSpec) -> str | None:
        if stage.code is None or language_of(stage.language) is None:
            return None
        return sha256(stage.code)

    def run(self, stage: StageSpec, input: Value, call: Call) -> Json:
        language = language_of(stage.language)
        # Without both, `code_version` is None and the stage is not run.
        assert stage.code is not None
        assert language is not None
        script = self._script(stage.code, language)
        argv = [*self._interpreter(language), str(script)]
        left = call.seconds_left()
        result = self.sandbox.run(
            argv,
            policy_of(stage, script),
            input.text.encode("utf-8"),
            seconds=self.seconds if left is None else min(left, self.seconds),
            stopped=call.stopped,
            max_output=_MAX_OUTPUT,
        )
        return _answer(result)

    def _interpreter(self, language: Language) -> Sequence[str]:
        if language.name in self.interpreters:
            return self.interpreters[language.name]
        program = shutil.which(language.program)
        if program is None:
            raise StageMissing(f"{language.program} is not installed: it runs {language.name}")
        return [program]

    def _script(self, code: str, language: Language) -> Path:
        """Return the file of the wrapped code; it is written once."""
        wrapped = language.wrap(code)
        path = self.scripts / f"{sha256(wrapped)}{language.suffix}"
        if not path.exists():
            self.scripts.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.scripts)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                # The sandbox may run it as another user.
                os.fchmod(handle, 0o644)
                file.write(wrapped)
            Path(temporary).replace(path)
        return path


def policy_of(stage: StageSpec, script: Path) -> SandboxPolicy:
    """Allow the network and paths only as declared."""
    paths: dict[str, list[str]] = {"FsRead": [], "FsWrite": []}
    for effect in stage.effects:
        if effect.kind in paths and isinstance(effect.detail, str):
            paths[effect.kind].append(effect.detail)
    return SandboxPolicy(
        network=stage.declares("Network"),
        readable=(str(script), *paths["FsRead"]),
        writable=tuple(paths["FsWrite"]),
    )


def _answer(result: ProcessResult) -> Json:
    if code := result.exit_code:
        message = result.stderr.decode("utf-8", "replace").strip()
        ending = f"signal {code - 128}" if code in _SIGNALLED else f"exit {code}"
        raise StageFailed(
            f"{message} ({ending})" if message else f"ended with {ending} and no message"
        )
    try:
        return decode(result.stdout.strip(), allow_bigint=True, what="the answer")
    except ParseError as error:
        shown = result.stdout[:80].decode("utf-8", "replace")
        raise StageFailed(f"{error.reason}; it begins with {shown!r}") from error
