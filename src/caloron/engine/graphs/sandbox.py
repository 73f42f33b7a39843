"""Runs stages that are programs in the sandbox that agents have, each call in its own."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from caloron.agents.sandbox.bubblewrap import Bubblewrap, NoSandbox
from caloron.agents.supervise.supervise import Buffer, Limits, OutputTooLarge, supervise
from caloron.agents.workspace.workspaces import remove_workspace
from caloron.errors import CaloronError
from caloron.graph.errors import Cancelled, StageFailed, StageTimedOut
from caloron.graph.runners.subprocess import ProcessResult, SandboxPolicy
from caloron.ports import Caps, SandboxedCommand, SandboxSpec

#: Far longer than any call: an older folder was left by a process that was killed.
_ABANDONED_S = 3600.0
#: A stage is a small function: what an agent may use would be far too much for it.
_CAPS = Caps(memory_mb=2048, processes=128, file_mb=256, disk_mb=1024)
_MAX_STDERR = 64 * 1024


class _Answer(Buffer):
    """Keeps a whole output, and raises `OutputTooLarge` beyond its limit."""

    def add(self, data: bytes) -> None:
        super().add(data)
        if len(self.data) == self._limit:
            raise OutputTooLarge


class StageSandbox:
    """The sandbox of the graph library, made of that of agents.

    Each call gets an empty folder to work in, which is removed after it: no stage finds a file of
    another one.
    """

    def __init__(self, folder: Path, *, unsandboxed: bool = False) -> None:
        self._folder = folder
        # Without a sandbox, a stage still gets only the environment that every agent has.
        self._sandbox = NoSandbox() if unsandboxed else Bubblewrap()
        self._clear_abandoned()

    def _clear_abandoned(self) -> None:
        for folder in self._folder.glob("call-*"):
            with suppress(FileNotFoundError):
                if time.time() - folder.lstat().st_mtime > _ABANDONED_S:
                    _remove(folder)

    def check(self) -> None:
        """Raise if stages cannot be confined here, before any of them runs."""
        self._sandbox.check()

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
        self._folder.mkdir(parents=True, exist_ok=True)
        workspace = Path(tempfile.mkdtemp(dir=self._folder, prefix="call-"))
        stdout, stderr = _Answer(max_output + 1), Buffer(_MAX_STDERR)
        try:
            ended = supervise(
                self._confined(argv, policy, workspace),
                Limits(seconds),
                stdout=stdout,
                stderr=stderr,
                stdin=stdin,
                cancelled=stopped,
            )
        except OutputTooLarge:
            raise StageFailed(f"the answer is over {max_output} bytes") from None
        finally:
            _remove(workspace)
        if ended.cancelled:
            raise Cancelled("cancelled because its result is no longer needed")
        if ended.timed_out:
            raise StageTimedOut(f"not done after {round(seconds, 2):g} s")
        return ProcessResult(ended.exit_code, bytes(stdout.data), bytes(stderr.data))

    def _confined(
        self, argv: Sequence[str], policy: SandboxPolicy, workspace: Path
    ) -> SandboxedCommand:
        spec = SandboxSpec(
            workspace=workspace,
            read_only=tuple(map(Path, policy.readable)),
            writable=tuple(map(Path, policy.writable)),
            network="public" if policy.network else "none",
            caps=_CAPS,
        )
        try:
            return self._sandbox.confine(tuple(argv), spec)
        except CaloronError as error:
            # A declared path may be missing, or not accessible for this user.
            raise StageFailed(f"it cannot be confined: {error} ({error.hint})") from error


def _remove(folder: Path) -> None:
    # A folder that cannot be removed now is tried again when it is old.
    with suppress(OSError):
        remove_workspace(folder)
