"""Reads objects and refs of a repository through one long-lived git process.

`git cat-file` reads refs anew for each request and looks for new packs before it reports an object
as missing, so that its answers are as current as those of a process per question. The process ends
with its standard input: with this object, and with Caloron, however Caloron ends. `close_all` ends
the processes before a command leaves, so that none is seen after it.
"""

from __future__ import annotations

import re
import subprocess
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from caloron.git.command import GitError, git_argv, git_environment, git_process
from caloron.store import log

_HEADER = re.compile(rb"([0-9a-f]{40,64}) (blob|tree|commit|tag) ([0-9]+)\n")


_readers: weakref.WeakSet[ObjectReader] = weakref.WeakSet()


def close_all() -> None:
    """End every process of this module, without waiting for threads that still read."""
    for reader in tuple(_readers):
        reader.end_process()


class ObjectInfo(NamedTuple):
    """The id, the type and the size of an object."""

    id: str
    type: str
    size: int


class ObjectReader:
    """Answers for several threads, one request at a time."""

    def __init__(self, repository: Path, options: Sequence[str] = ()) -> None:
        self._repository = repository
        self._options = tuple(options)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[..., ObjectReader] | None = None
        _readers.add(self)

    def info(self, name: str) -> ObjectInfo | None:
        """The object that a revision or a path such as `main:README.md` names; None: none."""
        if "\n" in name:
            # The protocol has one request per line. No caller needs such a name.
            return None
        with self._lock:
            for last in (False, True):
                try:
                    return self._exchange(f"{name}\n".encode("utf-8", "surrogateescape"))
                except (OSError, EOFError) as error:
                    self._stop()
                    if last:
                        raise self._failure(name) from error
                    log.debug("git cat-file is started again", repository=self._repository)
        raise AssertionError("the second try returns or raises")

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _exchange(self, request: bytes) -> ObjectInfo | None:
        process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(request)
        process.stdin.flush()
        line = process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        header = _HEADER.fullmatch(line)
        if header is None:
            # "missing" or "ambiguous".
            return None
        return ObjectInfo(header[1].decode(), header[2].decode(), int(header[3]))

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            arguments = (*self._options, "cat-file", "--batch-check")
            self._process = subprocess.Popen(
                git_argv(self._repository, arguments),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=git_environment(),
                process_group=0,
            )
            self._finalizer = weakref.finalize(self, _end, self._process)
        return self._process

    def end_process(self) -> None:
        if (finalizer := self._finalizer) is not None:
            finalizer()

    def _stop(self) -> None:
        self.end_process()
        self._process = self._finalizer = None

    def _failure(self, name: str) -> GitError:
        """The reason why git cannot read an object, from a process for this object alone."""
        arguments = (*self._options, "cat-file", "-t", name)
        done = git_process(self._repository, *arguments)
        stderr = done.stderr.decode("utf-8", "replace") or "git cat-file ended without an answer"
        return GitError(arguments, done.returncode, stderr)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            try:
                stream.close()
            except OSError as error:
                log.debug("the process is gone already", error=error)
    process.wait()
