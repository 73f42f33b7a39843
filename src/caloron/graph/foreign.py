"""Stages that are programs: JSON on their standard input, one JSON value on their output."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

import msgspec

from caloron.graph.datum import Datum
from caloron.graph.errors import ParseError, StageFailed, StageMissing
from caloron.graph.jsontext import Json, decode, sha256
from caloron.graph.process import Ended, run_process
from caloron.graph.protocols import Call
from caloron.graph.spec import StageSpec
from caloron.graph.wrappers import Language, language_of

_STAGE_SECONDS = 30.0
_MOST_OUTPUT = 10 * 1024 * 1024
_REQUIRES = re.compile(r"#\s*requires:\s*(.+)")


class SandboxPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage may reach, taken from its declared effects."""

    network: bool
    #: Directories and files that it may read, besides the system.
    readable: tuple[str, ...]
    writable: tuple[str, ...]


class Sandbox(Protocol):
    """Shuts a command in; given from outside, since this library does not know how."""

    def command(
        self, argv: Sequence[str], policy: SandboxPolicy
    ) -> AbstractContextManager[Sequence[str]]:
        """The command that runs this one within the policy, for as long as it is needed."""


class Unsandboxed:
    """Runs commands as they are: for stages that are trusted, and for tests."""

    def command(
        self, argv: Sequence[str], policy: SandboxPolicy
    ) -> AbstractContextManager[Sequence[str]]:
        return nullcontext(argv)


#: Finds or makes an interpreter that has these packages (`name==version`).
Environments = Callable[[Sequence[str]], Sequence[str]]


class Programs:
    """Runs stages that carry their code, each call in a process of its own."""

    def __init__(
        self,
        scripts: Path,
        sandbox: Sandbox,
        *,
        interpreters: Mapping[str, Sequence[str]] | None = None,
        environments: Environments | None = None,
        environ: Mapping[str, str] | None = None,
        seconds: float = _STAGE_SECONDS,
    ) -> None:
        self._scripts = scripts
        self._sandbox = sandbox
        self._interpreters = dict(interpreters or {})
        self._environments = environments
        self._environ = dict(environ) if environ is not None else None
        self._seconds = seconds

    def code_hash(self, stage: StageSpec) -> str | None:
        if stage.code is None or language_of(stage.language) is None:
            return None
        return sha256(stage.code)

    def run(self, stage: StageSpec, given: Datum, call: Call) -> Json:
        language = language_of(stage.language)
        if stage.code is None or language is None:
            raise StageMissing(f"no interpreter for {stage.language!r}", stage_id=stage.id)
        script = self._script(stage.code, language)
        argv = [*self._interpreter(stage, language), str(script)]
        with self._sandbox.command(argv, policy_of(stage, script)) as command:
            left = call.seconds_left()
            ended = run_process(
                command,
                given.text.encode("utf-8"),
                seconds=self._seconds if left is None else min(left, self._seconds),
                stopped=call.stopped,
                most_output=_MOST_OUTPUT,
                environ=self._environ,
            )
        return _answer(ended)

    def _interpreter(self, stage: StageSpec, language: Language) -> Sequence[str]:
        needed = requirements_of(stage.code or "") if language.name == "python" else ()
        if needed:
            if self._environments is None:
                listed = ", ".join(needed)
                raise StageFailed(f"the stage needs packages that are not set up here: {listed}")
            return self._environments(needed)
        if language.name in self._interpreters:
            return self._interpreters[language.name]
        found = shutil.which(language.program)
        if found is None:
            raise StageMissing(f"{language.program} is not installed: it runs {language.name}")
        return [found]

    def _script(self, code: str, language: Language) -> Path:
        """The wrapped code as a file, written once and then left alone."""
        wrapped = language.wrap(code)
        path = self._scripts / f"{sha256(wrapped)}{language.suffix}"
        if not path.exists():
            self._scripts.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._scripts)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                # A sandbox may run it as a user who owns nothing here.
                os.fchmod(handle, 0o644)
                file.write(wrapped)
            Path(temporary).replace(path)
        return path


def policy_of(stage: StageSpec, script: Path) -> SandboxPolicy:
    """The network only for those that declare it, paths only as declared."""
    paths: dict[str, list[str]] = {"FsRead": [], "FsWrite": []}
    for effect in stage.effects:
        if effect.kind in paths and isinstance(effect.detail, str):
            paths[effect.kind].append(effect.detail)
    return SandboxPolicy(
        network=stage.declares("Network"),
        readable=(str(script), *paths["FsRead"]),
        writable=tuple(paths["FsWrite"]),
    )


def requirements_of(code: str) -> tuple[str, ...]:
    """The packages that the first line of a Python stage asks for."""
    match = _REQUIRES.match(code.split("\n", 1)[0])
    if match is None:
        return ()
    return tuple(one.strip() for one in match[1].split(",") if one.strip())


def _answer(ended: Ended) -> Json:
    if ended.too_long:
        raise StageFailed(f"the answer is over {_MOST_OUTPUT} bytes")
    if ended.code != 0:
        said = ended.stderr.strip()
        how = f"exit {ended.code}" if ended.code > 0 else f"signal {-ended.code}"
        raise StageFailed(f"{said} ({how})" if said else f"ended with {how} and no word")
    try:
        return decode(ended.stdout.strip(), wide_integers=True, what="the answer")
    except ParseError as error:
        shown = ended.stdout[:80].decode("utf-8", "replace")
        raise StageFailed(f"{error.reason}; it begins with {shown!r}") from error
