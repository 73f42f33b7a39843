"""Workspaces prepared in advance, so that an agent starts without waiting for git.

No agent has ever been in one of these; each leaves the pool for good when it is taken.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from caloron.agents.workspace.workspaces import clone, remove_workspace
from caloron.errors import CaloronError
from caloron.git.command import git
from caloron.git.mirror import Mirror
from caloron.ports import Sandbox
from caloron.store import log


class WorkspaceSetup(Protocol):
    """Sets up the workspaces of a pool."""

    def refuse_large(self, commit: str) -> None:
        """Raise for a commit that is too large to be checked out."""
        ...

    def install_setup(self, workspace: Path, commit: str) -> str | None:
        """Put a finished setup into a new workspace, and return its key; None: there is none."""
        ...


_LET_OTHERS_S = 0.5
_CLOSING_S = 1.0


class _Ready(NamedTuple):
    folder: Path
    commit: str
    seed: str


@dataclass
class Pool:
    """Up to `size` workspaces, which a thread keeps at the newest commit of main."""

    mirror: Mirror
    sandbox: Sandbox
    folder: Path
    size: int
    identity: tuple[str, str]
    _: KW_ONLY
    setup: WorkspaceSetup | None = None
    #: Once it is set, no more workspaces are made.
    stopping: threading.Event = field(default_factory=threading.Event)
    #: Deletes workspaces.
    discard: Callable[[Path], None] = remove_workspace

    def __post_init__(self) -> None:
        self._ready: list[_Ready] = []
        self._made = 0
        self._known_main = ""
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def open(self) -> None:
        """Begin to fill; what an earlier engine left is made anew."""
        self.discard(self.folder)
        if self.size:
            self._thread = threading.Thread(target=self._fill, name="pool", daemon=True)
            self._thread.start()
            self._wanted.set()

    def close(self) -> None:
        self.stopping.set()
        self._wanted.set()
        if self._thread:
            # A clone of a large repository takes longer; nothing depends on its end.
            self._thread.join(_CLOSING_S)
        self.discard(self.folder)

    def take(self, workspace: Path, home: Path, start: str, branch: str, *, seed: str = "") -> bool:
        """Move a ready workspace and its home to these places; False if there is none.

        The workspace is on `branch` at `start`, or detached there if no branch is named. It holds
        what setup made from the lock files that `seed` stands for.
        """
        with self._lock:
            ready = [each for each in self._ready if each.seed == seed]
            same = [each for each in ready if each.commit == start]
            taken = next(iter(same or ready), None)
            if taken is not None:
                self._ready.remove(taken)
        self._wanted.set()
        if taken is None:
            return False
        workspace.parent.mkdir(parents=True, exist_ok=True)
        inside = taken.folder / "workspace"
        if taken.commit == start and branch:
            _name_branch(inside, branch, start)
            self.sandbox.give_ownership(inside / ".git")
        else:
            position = ("-B", branch) if branch else ("--detach",)
            git(inside, "checkout", "--quiet", *position, start)
            self.sandbox.give_ownership(inside)
        (taken.folder / "home").rename(home)
        inside.rename(workspace)
        taken.folder.rmdir()
        return True

    def refresh(self, main: str = "") -> None:
        """Check whether a workspace is missing or outdated; `main`: the newest commit of main."""
        self._known_main = main
        self._wanted.set()

    def _fill(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            # An agent is about to start in the workspace that was taken: that comes first.
            self.stopping.wait(_LET_OTHERS_S)
            while not self.stopping.is_set() and self._make_one():
                pass
            if self.stopping.is_set():
                return

    def _make_one(self) -> bool:
        """Make one more workspace, or replace an outdated one; False: there is nothing to do."""
        try:
            main = self._newest_main()
            with self._lock:
                full = len(self._ready) >= self.size
                old = next((r for r in self._ready if full and r.commit != main), None)
                if full and old is None:
                    return False
                if old is not None:
                    self._ready.remove(old)
            if old is not None:
                self.discard(old.folder)
            ready = self._make(main)
            if ready is None:
                return False
        except (CaloronError, OSError) as error:
            # The pool only saves time: without it a workspace is made on demand, or fails there.
            log.warning("no workspace could be prepared", error=error)
            return False
        with self._lock:
            self._ready.append(ready)
        return True

    def _newest_main(self) -> str:
        """Return the commit of main; asking the forge each time would cost two requests."""
        here = self.mirror.newest_main() if self._known_main else ""
        return here if here and here == self._known_main else self.mirror.fetch_main()

    def _make(self, commit: str) -> _Ready | None:
        if self.setup:
            self.setup.refuse_large(commit)
        self._made += 1
        folder = self.folder / str(self._made)
        home = folder / "home"
        home.mkdir(parents=True)
        fresh = clone(self.mirror, folder / "workspace", self.identity)
        git(fresh, "checkout", "--quiet", "--detach", commit)
        seed = self.setup.install_setup(fresh, commit) if self.setup else ""
        if seed is None or self.stopping.is_set():
            self.discard(folder)
            return None
        fresh.rename(folder / "workspace")
        self.sandbox.give_ownership(folder / "workspace", home)
        # Wait for the disk here, so that the next commit does not wait for these files.
        subprocess.run(("sync", "-f", folder), check=False)
        return _Ready(folder, commit, seed)


def _name_branch(workspace: Path, branch: str, commit: str) -> None:
    """Do what `git checkout -B` does when no file changes, without looking at each file."""
    ref = f"refs/heads/{branch}"
    git(workspace, "update-ref", ref, commit)
    git(workspace, "symbolic-ref", "HEAD", ref)
