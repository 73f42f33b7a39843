"""Deletes workspaces in the background: a workspace with its dependencies can take many seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

from caloron.agents.workspaces import remove_workspace
from caloron.store import log

_LOOK_S = 0.05


class Trash:
    """A folder of things to delete; what is left there when this process ends goes next time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._news, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="trash", daemon=True)

    def open(self) -> None:
        """Begin to delete, also what an earlier process left."""
        self._thread.start()
        self._news.set()

    def put(self, path: Path) -> None:
        """Take a file or folder away at once; its content is deleted later."""
        if not os.path.lexists(path):
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.rename(self._folder / f"{time.time_ns()}-{path.name}")
        except OSError as error:
            log.debug("cannot rename what is not needed any more", error=error, path=path)
            # It lies on another file system, or nothing can be written.
            remove_workspace(path)
        self._news.set()

    def close(self, patience_s: float = 0.0) -> None:
        """Delete no more, after this time at most."""
        give_up = time.monotonic() + patience_s
        while time.monotonic() < give_up and self._thread.is_alive() and self._left():
            time.sleep(_LOOK_S)
        self._closing.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()
        # Fails if something is left, which the next start deletes.
        with suppress(OSError):
            self._folder.rmdir()

    def _left(self) -> list[Path]:
        return sorted(self._folder.iterdir()) if self._folder.is_dir() else []

    def _run(self) -> None:
        while not self._closing.is_set():
            self._news.wait()
            self._news.clear()
            for path in self._left():
                self._delete(path)
                if self._closing.is_set():
                    return

    def _delete(self, path: Path) -> None:
        if self._ended_well("rm", "-rf", "--", path) or self._closing.is_set():
            return
        # Its agent may have removed its own permissions.
        self._ended_well("chmod", "-R", "u+rwX", "--", path)
        if not (self._closing.is_set() or self._ended_well("rm", "-rf", "--", path)):
            log.warning("cannot delete what is not needed any more", path=path)

    def _ended_well(self, *argv: str | Path) -> bool:
        process = subprocess.Popen(
            argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
        )
        while True:
            with suppress(subprocess.TimeoutExpired):
                return process.wait(_LOOK_S) == 0
            if self._closing.is_set():
                process.send_signal(signal.SIGKILL)
