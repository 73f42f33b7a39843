"""Stages that are programs: JSON on standard input, one JSON value on standard output."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import IO, Protocol

import msgspec

from caloron.graph.errors import Cancelled, ParseError, StageFailed, StageMissing, StageTimedOut
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


_POLL_S = 0.05
_POLL_AGAIN_S = 0.001
_DRAIN_S = 1.0
_MAX_STDERR = 64 * 1024


class ProcessResult(msgspec.Struct, frozen=True):
    """The exit code and the output of a process."""

    code: int
    stdout: bytes
    stderr: str
    too_long: bool


class _Reader(threading.Thread):
    """Reads a stream to its end and keeps its beginning."""

    def __init__(self, stream: IO[bytes], limit: int) -> None:
        super().__init__(daemon=True)
        self._stream = stream
        self._limit = limit
        self.kept = bytearray()
        self.too_long = False

    def run(self) -> None:
        while chunk := os.read(self._stream.fileno(), 65536):
            room = self._limit - len(self.kept)
            self.kept += chunk[: max(room, 0)]
            self.too_long = self.too_long or len(chunk) > room


def run_process(
    argv: Sequence[str],
    stdin: bytes,
    *,
    seconds: float,
    stopped: Callable[[], bool],
    max_output: int,
) -> ProcessResult:
    """Run a command; its process group is killed after its time, or when it is stopped."""
    try:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise StageFailed(f"{argv[0]} cannot be started: {error.strerror}") from error
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stderr is not None
    out, err = _Reader(child.stdout, max_output), _Reader(child.stderr, _MAX_STDERR)
    feeder = threading.Thread(target=_feed, args=(child.stdin, stdin), daemon=True)
    for thread in (out, err, feeder):
        thread.start()
    try:
        _wait(child, (out, err), seconds, stopped)
    finally:
        _end(child, (out, err, feeder))
    return ProcessResult(
        child.returncode, bytes(out.kept), err.kept.decode("utf-8", "replace"), out.too_long
    )


def _feed(stream: IO[bytes], data: bytes) -> None:
    # A child need not read its input.
    with suppress(BrokenPipeError), stream:
        stream.write(data)


def _wait(
    child: subprocess.Popen[bytes],
    readers: Sequence[_Reader],
    seconds: float,
    stopped: Callable[[], bool],
) -> None:
    """Wait for the end of the child, which also closes its streams."""
    until = time.monotonic() + seconds
    while not _has_ended(child) and not readers[0].too_long:
        left = until - time.monotonic()
        if stopped():
            raise Cancelled("cancelled because its result is no longer needed")
        if left <= 0:
            raise StageTimedOut(f"not done after {round(seconds, 2):g} s")
        reader = next((reader for reader in readers if reader.is_alive()), None)
        if reader is not None:
            reader.join(min(left, _POLL_S))
        else:
            time.sleep(_POLL_AGAIN_S)


def _has_ended(child: subprocess.Popen[bytes]) -> bool:
    """Check without reaping: until then its pid and its process group stay reserved."""
    kinds = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, child.pid, kinds) is not None


def _end(child: subprocess.Popen[bytes], threads: Sequence[threading.Thread]) -> None:
    """Kill the process group and release the streams."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for thread in threads:
        # A descendant that left the group may keep a stream open, so wait only briefly.
        thread.join(_DRAIN_S)
    if not any(thread.is_alive() for thread in threads):
        for stream in (child.stdout, child.stderr):
            if stream is not None:
                stream.close()


_STAGE_SECONDS = 30.0
_MAX_OUTPUT = 10 * 1024 * 1024


class SandboxPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage may access, from its declared effects."""

    network: bool
    #: Directories and files that it may read, besides the system.
    readable: tuple[str, ...]
    writable: tuple[str, ...]


class Sandbox(Protocol):
    """Confines a command; implemented outside of this library."""

    def command(
        self, argv: Sequence[str], policy: SandboxPolicy
    ) -> AbstractContextManager[Sequence[str]]:
        """Return the command that runs this one within the policy, while the context is open."""


class Unsandboxed:
    """Runs commands without a sandbox: for trusted stages and for tests."""

    def command(
        self, argv: Sequence[str], policy: SandboxPolicy
    ) -> AbstractContextManager[Sequence[str]]:
        return nullcontext(argv)


class SubprocessRunner:
    """Runs stages that contain their code, each call in a process of its own."""

    def __init__(
        self,
        scripts: Path,
        sandbox: Sandbox,
        *,
        interpreters: Mapping[str, Sequence[str]] | None = None,
        seconds: float = _STAGE_SECONDS,
    ) -> None:
        self._scripts = scripts
        self._sandbox = sandbox
        self._interpreters = dict(interpreters or {})
        self._seconds = seconds

    def code_version(self, stage: StageSpec) -> str | None:
        if stage.code is None or language_of(stage.language) is None:
            return None
        return sha256(stage.code)

    def run(self, stage: StageSpec, input: Value, call: Call) -> Json:
        language = language_of(stage.language)
        if stage.code is None or language is None:
            raise StageMissing(f"no interpreter for {stage.language!r}", stage_id=stage.id)
        script = self._script(stage.code, language)
        argv = [*self._interpreter(language), str(script)]
        with self._sandbox.command(argv, policy_of(stage, script)) as command:
            left = call.seconds_left()
            result = run_process(
                command,
                input.text.encode("utf-8"),
                seconds=self._seconds if left is None else min(left, self._seconds),
                stopped=call.stopped,
                max_output=_MAX_OUTPUT,
            )
        return _answer(result)

    def _interpreter(self, language: Language) -> Sequence[str]:
        if language.name in self._interpreters:
            return self._interpreters[language.name]
        program = shutil.which(language.program)
        if program is None:
            raise StageMissing(f"{language.program} is not installed: it runs {language.name}")
        return [program]

    def _script(self, code: str, language: Language) -> Path:
        """Return the file of the wrapped code; it is written once."""
        wrapped = language.wrap(code)
        path = self._scripts / f"{sha256(wrapped)}{language.suffix}"
        if not path.exists():
            self._scripts.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._scripts)
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
    if result.too_long:
        raise StageFailed(f"the answer is over {_MAX_OUTPUT} bytes")
    if result.code != 0:
        message = result.stderr.strip()
        ending = f"exit {result.code}" if result.code > 0 else f"signal {-result.code}"
        raise StageFailed(
            f"{message} ({ending})" if message else f"ended with {ending} and no message"
        )
    try:
        return decode(result.stdout.strip(), allow_bigint=True, what="the answer")
    except ParseError as error:
        shown = result.stdout[:80].decode("utf-8", "replace")
        raise StageFailed(f"{error.reason}; it begins with {shown!r}") from error
