"""Runs stages that are programs in the sandbox that agents have, each call in its own."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from caloron.agents.sandbox.bubblewrap import Bubblewrap, NoSandbox
from caloron.agents.supervise.supervise import as_argv, running_sidecar
from caloron.agents.workspace.workspaces import remove_workspace
from caloron.errors import CaloronError
from caloron.graph.errors import StageFailed
from caloron.graph.runners.subprocess import SandboxPolicy
from caloron.ports import Caps, SandboxedCommand, SandboxSpec

#: Far longer than any call: what is older was left by a process that was killed.
_ABANDONED_S = 3600.0
#: A stage is a small function: what an agent may use would be far too much for it.
_CAPS = Caps(memory_mb=2048, processes=128, file_mb=256, disk_mb=1024)


class StageSandbox:
    """The sandbox of the graph library, made of ours.

    Each call gets an empty folder to work in, which goes away with it: no stage finds what
    another one left.
    """

    def __init__(self, folder: Path, *, unsandboxed: bool = False) -> None:
        self._folder = folder
        # Without a sandbox, a stage still gets only the environment that every agent has.
        self._sandbox = NoSandbox() if unsandboxed else Bubblewrap()
        self._clear_abandoned()

    def _clear_abandoned(self) -> None:
        for place in self._folder.glob("call-*"):
            with suppress(FileNotFoundError):
                if time.time() - place.lstat().st_mtime > _ABANDONED_S:
                    _remove(place)

    def check(self) -> None:
        """Says what keeps stages from being confined here, before any of them runs."""
        self._sandbox.check()

    @contextmanager
    def command(self, argv: Sequence[str], policy: SandboxPolicy) -> Iterator[Sequence[str]]:
        self._folder.mkdir(parents=True, exist_ok=True)
        workspace = Path(tempfile.mkdtemp(dir=self._folder, prefix="call-"))
        try:
            given = SandboxSpec(
                workspace=workspace,
                read_only=tuple(map(Path, policy.readable)),
                writable=tuple(map(Path, policy.writable)),
                network="public" if policy.network else "none",
                caps=_CAPS,
            )
            confined = self._confined(tuple(argv), given)
            environ = [f"{name}={value}" for name, value in confined.env.items()]
            with running_sidecar(confined):
                yield ("/usr/bin/env", "-i", *environ, *as_argv(confined))
        finally:
            _remove(workspace)

    def _confined(self, argv: tuple[str, ...], given: SandboxSpec) -> SandboxedCommand:
        """What a stage declares to reach may not be there, or not be anybody's to give."""
        try:
            return self._sandbox.confine(argv, given)
        except CaloronError as error:
            raise StageFailed(f"it cannot be confined: {error} ({error.hint})") from error


def _remove(place: Path) -> None:
    # What cannot be removed now is tried again when it is old.
    with suppress(OSError):
        remove_workspace(place)
