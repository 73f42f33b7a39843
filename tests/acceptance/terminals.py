"""`caloron` at a terminal of its own; a test reads the screen and types."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections import Counter
from pathlib import Path

from tests.support.home import Home

_STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def _take_terminal() -> None:
    """Make standard output the controlling terminal: it is what /dev/tty means then."""
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)


class Terminal:
    """A command in a pseudo-terminal of this size."""

    def __init__(
        self,
        home: Home,
        *arguments: str,
        cwd: Path | None = None,
        columns: int = 120,
        stdin: Path | None = None,
        **env: str,
    ) -> None:
        """`stdin`: the file that is piped in; the terminal stays the controlling one."""
        words = arguments if cwd else home.naming_project(arguments)
        self._handle, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self._process = subprocess.Popen(
            (sys.executable, "-m", "caloron.cli", *words),
            stdin=stdin.open("rb") if stdin else other,
            stdout=other,
            stderr=other,
            env=home.environment | {"TERM": "xterm", "PAGER": "cat"} | env,
            cwd=cwd or home.root,
            start_new_session=True,
            preexec_fn=_take_terminal if stdin else None,  # noqa: PLW1509 (no other thread runs)
        )
        os.close(other)
        self._shown = ""
        #: Everything that was sent to the terminal, as it was sent.
        self.raw = b""

    def read_until(self, words: str, *, times: int = 1) -> None:
        """Read on until these words were seen so often."""
        give_up = time.monotonic() + 60
        while self._shown.count(words) < times:
            assert time.monotonic() < give_up, self._shown
            assert self._read(), f"the program ended without {words!r}: {self._shown}"

    def type(self, text: str) -> None:
        os.write(self._handle, text.encode())

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def hang_up(self) -> int:
        """Close the terminal as its window does, and return the exit code of the program."""
        os.close(self._handle)
        # The kernel and the shell both send one.
        for _ in range(2):
            self._process.send_signal(signal.SIGHUP)
        return self._process.wait(60)

    def end(self, *dialogue: tuple[str, str]) -> tuple[int, str]:
        """Answer these questions in turn, and return the exit code and the text of the screen."""
        asked: Counter[str] = Counter()
        for question, answer in dialogue:
            asked[question] += 1
            self.read_until(question, times=asked[question])
            self.type(f"{answer}\n")
        while self._read():
            pass
        os.close(self._handle)
        return self._process.wait(), self._shown

    def lines(self) -> list[str]:
        """Every line as it was drawn, also those that were drawn over."""
        return re.split(r"[\r\n]+", _STEERING.sub("", self.raw.decode("utf-8", "replace")))

    def _read(self) -> bool:
        select.select([self._handle], [], [], 60)
        try:
            data = os.read(self._handle, 1 << 16)
        except OSError:  # a terminal that no process has open any more
            return False
        self.raw += data
        self._shown = _STEERING.sub("", self.raw.decode("utf-8", "replace")).replace("\r", "")
        return bool(data)
