"""Run `caloron` commands in processes that are forked from one with every module imported.

A command of an acceptance test is a real process with its own environment, folder, standard streams
and exit code. Importing the program costs more than most commands do, so one server per test
process imports it once and forks a child for each command.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

_STATUS = struct.Struct("i")
_ROOT = Path(__file__).parents[2]


class Server:
    """The side of the tests: starts the server and sends it one command at a time."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = (sys.executable, str(Path(__file__)), str(theirs.fileno()))
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("CALORON_", "GIT_"))
        }
        self._process = subprocess.Popen(
            argv, pass_fds=(theirs.fileno(),), env=environment, stdin=subprocess.DEVNULL, cwd=_ROOT
        )
        theirs.close()
        atexit.register(self.close)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def run(
        self,
        arguments: Sequence[str],
        *,
        stdin: str,
        env: dict[str, str],
        cwd: Path,
        timeout: float,
    ) -> tuple[int, str, str]:
        """Run one command to its end: its exit code and what it printed."""
        with (
            tempfile.TemporaryFile() as input_file,
            tempfile.TemporaryFile() as out,
            tempfile.TemporaryFile() as err,
        ):
            input_file.write(stdin.encode())
            input_file.seek(0)
            request = json.dumps({"argv": list(arguments), "env": env, "cwd": str(cwd)}).encode()
            size = len(request) + 4096
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
            status, written = os.pipe()
            try:
                streams = [input_file.fileno(), out.fileno(), err.fileno(), written]
                socket.send_fds(self._socket, [request], streams)
                os.close(written)
                code = _wait(status, timeout, arguments)
            finally:
                os.close(status)
            return code, _text(out), _text(err)


def _wait(status: int, timeout: float, arguments: Sequence[str]) -> int:
    pid = _read(status, timeout)
    assert pid is not None, "the server of commands is gone"
    code = _read(status, timeout)
    if code is None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        raise subprocess.TimeoutExpired(list(arguments), timeout)
    return code


def _read(status: int, timeout: float) -> int | None:
    if not select.select([status], [], [], timeout)[0]:
        return None
    data = os.read(status, _STATUS.size)
    return int(_STATUS.unpack(data)[0]) if data else None


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    # As in a pipe that is read as text.
    return file.read().decode().replace("\r\n", "\n").replace("\r", "\n")


_server: Server | None = None


def server() -> Server:
    """The server of this process, started when the first command needs it."""
    global _server  # noqa: PLW0603 - one per process, like the modules it has imported
    if _server is None:
        _server = Server()
    return _server


# The server's own process


def _serve(requests: socket.socket) -> None:
    children: dict[int, int] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready, _, _ = select.select([requests.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 512)
            _reap(children)
        if requests.fileno() in ready:
            # A message carries its four descriptors, so its length has no smaller bound.
            message, streams, _, _ = socket.recv_fds(requests, 1 << 22, 4)
            if not message:
                return
            pid = os.fork()
            if pid == 0:
                requests.close()
                _become(json.loads(message), streams)
            children[pid] = streams[3]
            _report(streams[3], pid)
            for stream in streams[:3]:
                os.close(stream)


def _reap(children: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pid, status = ended
            _report(children[pid], os.waitstatus_to_exitcode(status))
            os.close(children.pop(pid))


def _report(stream: int, number: int) -> None:
    # A test that has waited too long has closed its end.
    with suppress(BrokenPipeError):
        os.write(stream, _STATUS.pack(number))


def _become(request: dict[str, object], streams: list[int]) -> None:
    """Turn this child into the command; it never returns."""
    import random

    from caloron.cli.start import run

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams[:3]):
        os.dup2(stream, number)
    for stream in streams:
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[call-overload]
    time.tzset()
    os.chdir(str(request["cwd"]))
    random.seed()
    sys.argv = ["caloron", *request["argv"]]  # type: ignore[misc]
    try:
        run()
    finally:
        os._exit(1)


def _import_everything() -> None:
    import gc
    import importlib
    import pkgutil

    import caloron

    for module in pkgutil.walk_packages(caloron.__path__, "caloron."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    gc.freeze()


if __name__ == "__main__":
    sys.path[0] = str(_ROOT / "src")
    _import_everything()
    with socket.socket(fileno=int(sys.argv[1])) as mine:
        _serve(mine)
