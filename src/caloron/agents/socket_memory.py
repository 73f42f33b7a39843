"""Prints how many bytes the UNIX sockets of a sandbox hold: `socket_memory.py PID`.

Only the kernel knows, and it answers from within the network namespace of PID alone. To go there
takes a process of its own: one with threads cannot. Standard library only.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys

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


def enter_network(pid: int) -> None:
    """Join the network namespace of a process, and first the user namespace that owns it."""
    libc = ctypes.CDLL(None, use_errno=True)
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
    owner = fcntl.ioctl(network, _NS_GET_USERNS)
    for name, handle in (("user", owner), ("net", network)):
        here = os.stat(f"/proc/self/ns/{name}").st_ino  # noqa: PTH116
        if os.fstat(handle).st_ino != here and libc.setns(handle, 0):
            raise OSError(ctypes.get_errno(), f"cannot enter the {name} namespace of {pid}")


def held_bytes() -> int:
    """The bytes that wait in all UNIX sockets of this network namespace."""
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
    while len(attributes) >= 4:
        length, kind = struct.unpack_from("=HH", attributes)
        if kind == _MEMORY:
            return int(struct.unpack_from("=I", attributes, 4 + 4 * _SENT)[0])
        attributes = attributes[max((length + 3) & ~3, 4) :]
    return 0


if __name__ == "__main__":
    enter_network(int(sys.argv[1]))
    print(held_bytes())  # noqa: T201
