"""The resources that an agent and all its children use together.

The kernel's own limits are per process. Standard library only, because the shim runs on it.

Run as `watch.py PID`, it prints how many bytes the UNIX sockets of a sandbox hold: the kernel
answers that only within the network namespace of PID, and a process with threads cannot enter it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Iterable, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    from caloron.ports import Caps

_LEAST_PAUSE_S = 1.0
#: Measuring takes at most this part of the time: counting a large workspace is not free.
_SHARE = 0.04
_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Folders of a sandbox that are in memory, and what the kernel takes for a file of no length.
_IN_MEMORY = ("tmp", "dev/shm")
_INODE_BYTES = 1024
_QUEUES = ("tcp", "tcp6", "udp", "udp6")
#: One message may go beyond the limit of a socket.
_LONGEST_MESSAGE = 1 << 18
_MEASURE = __file__
_MEASURE_S = 20.0
_CGROUPS = "/sys/fs/cgroup"
#: How long systemd may take to make a scope.
_SCOPE_S, _SCOPE_STEP_S = 5.0, 0.01
_NS_GET_USERNS = 0xB701
_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_SHOW_MEMORY = 0x20
_MEMORY = 5
#: Of the numbers about memory, that of bytes which were sent and not received yet.
_SENT = 2
_ERROR, _DONE = 2, 3
_HEAD, _ANSWER = 16, 32


class _TooDeep(Exception):
    """A folder that has no path."""


class Watch:
    """Measures a family of processes, and the folders that they write to, now and then."""

    def __init__(self, *, memory_mb: int, processes: int, disk_mb: int, folders: list[str]) -> None:
        self._memory_mb = memory_mb
        self._processes = processes
        self._disk_mb = disk_mb
        self._folders = folders
        self.due_at = 0.0
        #: Readable once the kernel has acted on the limits of the family's own cgroup.
        self.alarm = select.epoll()
        self._events = -1
        self._by_kernel = ""

    @classmethod
    def of(cls, caps: Caps, *folders: Path) -> Watch:
        """Return the watch of a sandbox that may write to these folders."""
        limits = {"memory_mb": caps.memory_mb, "processes": caps.processes, "disk_mb": caps.disk_mb}
        return cls(**limits, folders=list(map(str, folders)))

    def follow(self, pid: int, argv: Sequence[str]) -> None:
        """Wait until a command is in its systemd scope, then listen for events of the kernel."""
        from caloron.agents.supervise.processes import read_process

        if not argv[0].endswith("/systemd-run"):
            return
        here, give_up = _cgroup("self"), time.monotonic() + _SCOPE_S
        while (cgroup := _cgroup(pid)) == here:
            leader = read_process(pid)
            if leader is None or leader.state in "ZX" or time.monotonic() > give_up:
                return
            time.sleep(_SCOPE_STEP_S)
        try:
            self._events = os.open(f"{_CGROUPS}{cgroup}/memory.events", os.O_RDONLY)
        except OSError:
            # It has ended meanwhile.
            return
        self.alarm.register(self._events, select.EPOLLPRI)

    def ended_by_kernel(self) -> str:
        """Return the limit for which the kernel ended a process of the family; empty: none."""
        if self._events < 0:
            return self._by_kernel
        try:
            events = os.pread(self._events, 4096, 0).splitlines()
        except OSError:
            # The cgroup is gone, with every process in it.
            self.alarm.unregister(self._events)
            os.close(self._events)
            self._events = -1
            return self._by_kernel
        if any(line.startswith(b"oom_kill ") and line != b"oom_kill 0" for line in events):
            allowed = self._memory_mb
            self._by_kernel = f"over {allowed} MB of memory, of {allowed} allowed by the kernel"
            self.due_at = 0.0
        return self._by_kernel

    def check(self, family: Iterable[int]) -> str:
        """Return the limit that the family is over, in one line; empty: none."""
        began = time.monotonic()
        over = self.ended_by_kernel() or self._over(list(family))
        now = time.monotonic()
        self.due_at = now + max(_LEAST_PAUSE_S, (now - began) / _SHARE)
        return over

    def _over(self, family: list[int]) -> str:
        if len(family) > self._processes:
            return f"{len(family)} processes, of {self._processes} allowed"
        nameless_memory, nameless_disk = _nameless(family)
        used = sum(map(_own_memory, family)) + nameless_memory
        memory = (used + _kernel_memory(family, (self._memory_mb << 20) - used)) >> 20
        if memory > self._memory_mb:
            return f"{memory} MB of memory, of {self._memory_mb} allowed"
        try:
            disk = (sum(map(_size, self._folders)) + nameless_disk) >> 20
        except _TooDeep:
            return "folders in folders, too deep to be measured"
        if disk > self._disk_mb:
            return f"{disk} MB on disk, of {self._disk_mb} allowed"
        return ""


def _cgroup(pid: int | str) -> str:
    """The cgroup (version 2) of a process; empty: none."""
    lines = _read(f"/proc/{pid}/cgroup").splitlines()
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def _own_memory(pid: int) -> int:
    """Return the bytes that a process does not share; forks with the same pages are cheap."""
    fields = _read(f"/proc/{pid}/statm").split()
    return (int(fields[1]) - int(fields[2])) * _PAGE if len(fields) > 2 else 0


def _kernel_memory(family: list[int], room: int) -> int:
    """Bytes that the kernel holds for a family in sandboxes: inodes in memory, and sockets.

    A namespace that the family shares with us holds more than what is its own: it is left out.
    """
    total = 0
    known = {_namespace("self", "mnt"), _namespace("self", "net"), ""}
    for pid in family:
        if (mounts := _namespace(pid, "mnt")) not in known:
            known.add(mounts)
            total += sum(_inodes(pid, name) for name in _IN_MEMORY) * _INODE_BYTES
        if (network := _namespace(pid, "net")) not in known:
            known.add(network)
            total += _socket_memory(pid, room - total)
    return total


def _namespace(pid: int | str, kind: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")  # noqa: PTH115
    except OSError:
        # The process has ended.
        return ""


def _inodes(pid: int, folder: str) -> int:
    """Count the inodes of a sandbox's folder that is in memory."""
    try:
        handle = os.open(f"/proc/{pid}/root/{folder}", os.O_PATH | os.O_DIRECTORY)
    except OSError:
        # The process has ended.
        return 0
    try:
        # A sandbox that is being made has our folders for a moment, before it has its own.
        if os.fstat(handle).st_dev == os.stat(f"/{folder}").st_dev:  # noqa: PTH116
            return 0
        usage = os.fstatvfs(handle)
    except OSError:
        # The process has ended.
        return 0
    finally:
        os.close(handle)
    return usage.f_files - usage.f_ffree


def _socket_memory(pid: int, room: int) -> int:
    """Bytes in the sockets of a network; those of UNIX are measured if they could be too many."""
    total = sum(sum(map(_queued, _lines(f"/proc/{pid}/net/{name}"))) for name in _QUEUES)
    most = len(_lines(f"/proc/{pid}/net/unix")) * (2 * _send_limit() + _LONGEST_MESSAGE)
    if total + most <= room:
        return total
    measured = _measured(pid)
    return total + (most if measured is None else measured)


def _lines(path: str) -> list[str]:
    """The lines of a table of the kernel, without its head."""
    return _read(path).splitlines()[1:]


def _read(path: str) -> str:
    """Read a file of the kernel; empty if the process has ended, or there is no such file."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        # Processes end at any moment, and kernels differ in their tables.
        return ""


def _queued(line: str) -> int:
    sent, _, received = line.split()[4].partition(":")
    return int(sent, 16) + int(received, 16)


def _send_limit() -> int:
    limit = _read("/proc/sys/net/core/wmem_max").strip()
    # Too much rather than too little: then it is measured.
    return int(limit) if limit.isdigit() else 1 << 30


def _measured(pid: int) -> int | None:
    """Measure the UNIX sockets of a network; None if the kernel does not answer."""
    reader, writer = os.pipe()
    streams = [
        (os.POSIX_SPAWN_DUP2, writer, 1),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    argv = [sys.executable, "-S", "-E", _MEASURE, str(pid)]
    try:
        child = os.posix_spawn(argv[0], argv, {}, file_actions=streams)
    except OSError:
        # Not measured: the caller counts the most that it can be.
        os.close(reader)
        return None
    finally:
        os.close(writer)
    try:
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        if not poll.poll(_MEASURE_S * 1000):
            os.kill(child, signal.SIGKILL)
        answer = os.read(reader, 100).strip()
        return int(answer) if answer.isdigit() else None
    finally:
        os.close(reader)
        os.waitpid(child, 0)


def _nameless(family: list[int]) -> tuple[int, int]:
    """Bytes in memory and on disk of files that are open and in no folder."""
    memory, disk = 0, 0
    known: set[tuple[int, int]] = set()
    for pid in family:
        for link in _open_files(pid):
            try:
                status = os.stat(link)  # noqa: PTH116
                same = status.st_dev, status.st_ino
                if status.st_nlink or not stat.S_ISREG(status.st_mode) or same in known:
                    continue
                known.add(same)
                if os.readlink(link).startswith("/memfd:"):  # noqa: PTH115
                    memory += status.st_blocks * 512
                else:
                    disk += status.st_blocks * 512
            except OSError:
                # It was closed meanwhile.
                continue
    return memory, disk


def _open_files(pid: int) -> list[str]:
    try:
        return [f"/proc/{pid}/fd/{name}" for name in os.listdir(f"/proc/{pid}/fd")]  # noqa: PTH208
    except OSError:
        # The process has ended.
        return []


def _size(folder: str) -> int:
    """Return the bytes that a folder takes on disk; a file that vanishes meanwhile takes none."""
    total = 0
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += _blocks(entry)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                # Its size cannot be measured any more.
                raise _TooDeep from error
    return total


def _blocks(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except OSError:
        # It was removed meanwhile.
        return 0


def enter_network(pid: int) -> None:
    """Join the network namespace of a process, and first the user namespace that owns it."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    owner = fcntl.ioctl(network, _NS_GET_USERNS)
    for name, handle in (("user", owner), ("net", network)):
        here = os.stat(f"/proc/self/ns/{name}").st_ino  # noqa: PTH116
        if os.fstat(handle).st_ino != here and libc.setns(handle, 0):
            raise OSError(ctypes.get_errno(), f"cannot enter the {name} namespace of {pid}")


def held_bytes() -> int:
    """Return the bytes that wait in all UNIX sockets of this network namespace."""
    import socket
    import struct

    everything = struct.pack("=BBHIIIII", socket.AF_UNIX, 0, 0, 2**32 - 1, 0, _SHOW_MEMORY, 0, 0)
    head = struct.pack("=IHHII", _HEAD + len(everything), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, 1, 0)
    total = 0
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as kernel:
        kernel.send(head + everything)
        while True:
            data = kernel.recv(1 << 20)
            while data:
                size, kind = struct.unpack_from("=IH", data)
                if kind == _DONE:
                    return total
                if kind == _ERROR:
                    raise OSError(-struct.unpack_from("=i", data, _HEAD)[0], "no answer")
                total += _sent(data[_ANSWER:size])
                data = data[(size + 3) & ~3 :]


def _sent(attributes: bytes) -> int:
    import struct

    while len(attributes) >= 4:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == _MEMORY:
            return int(struct.unpack_from("=I", attributes, 4 + 4 * _SENT)[0])
        attributes = attributes[max((length + 3) & ~3, 4) :]
    return 0


if __name__ == "__main__":
    enter_network(int(sys.argv[1]))
    print(held_bytes())  # noqa: T201
