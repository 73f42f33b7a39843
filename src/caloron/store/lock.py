"""One at a time, and who lives: short turns on a file, and proof that a process is gone."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from caloron.errors import HeldByAnother, StoreError

_PATIENCE_S = 10.0
_PAUSE_S = 0.005


def boot_id() -> str:
    """Tells one boot of this machine from another; empty where the system does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


class Holder(NamedTuple):
    """A process, told from every other that ever has its number."""

    pid: int
    started: str
    boot: str
    #: Numbers mean the same only within one.
    namespace: str
    host: str

    @property
    def is_gone(self) -> bool | None:
        """Whether it has ended; None where that cannot be known from here."""
        if not self.started or (self.host, self.namespace) != (_host(), _namespace()):
            return None
        return self.boot != boot_id() or _started(self.pid) != self.started


def this_holder(pid: int | None = None) -> Holder:
    """This process, or another one of this machine."""
    number = os.getpid() if pid is None else pid
    return Holder(number, _started(number), boot_id(), _namespace(), _host())


def _host() -> str:
    return os.uname().nodename


def _namespace() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process was started, as the kernel counts; empty if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    fields = stat[stat.rindex(b")") + 2 :].split()
    return "" if fields[0] in (b"Z", b"X") else fields[19].decode()


@contextmanager
def turn(path: Path) -> Iterator[int]:
    """A short while alone on what the lock file stands for; gives the file's descriptor."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(
            f"cannot open {path}: {error.strerror}",
            hint="make the file and its directory writable for you",
        ) from error
    try:
        _wait_for(handle, path)
        yield handle
    finally:
        os.close(handle)


def _wait_for(handle: int, path: Path) -> None:
    give_up = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise HeldByAnother(
                    f"another process is busy with {path}", hint="try again in a moment"
                ) from None
            time.sleep(_PAUSE_S)
        else:
            return
