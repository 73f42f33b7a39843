"""The system calls that a confined process does not get, as a program for the kernel's filter.

The denied calls reach around a sandbox (other processes, mounts, namespaces, keys, kernel
interfaces); compilers, interpreters, package managers and git need none of it.
"""

from __future__ import annotations

import errno
import os
import struct

#: Where the two machines differ; the newer calls have one number everywhere.
_NEW = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "pidfd_getfd": 438, "mount_setattr": 442,
}  # fmt: skip
_X86_64 = {
    "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "mount": 165, "umount2": 166,
    "pivot_root": 155, "chroot": 161, "setns": 308, "unshare": 272, "keyctl": 250, "add_key": 248,
    "request_key": 249, "bpf": 321, "userfaultfd": 323, "perf_event_open": 298, "kexec_load": 246,
    "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176,
    "open_by_handle_at": 304,
}  # fmt: skip
_AARCH64 = {
    "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "mount": 40, "umount2": 39,
    "pivot_root": 41, "chroot": 51, "setns": 268, "unshare": 97, "keyctl": 219, "add_key": 217,
    "request_key": 218, "bpf": 280, "userfaultfd": 282, "perf_event_open": 241, "kexec_load": 104,
    "kexec_file_load": 294, "init_module": 105, "finit_module": 273, "delete_module": 106,
    "open_by_handle_at": 265,
}  # fmt: skip
#: Calls that are denied for some of their arguments only.
_X86_64_PARTLY = {"clone": 56, "clone3": 435, "ioctl": 16, "socket": 41}
_AARCH64_PARTLY = {"clone": 220, "clone3": 435, "ioctl": 29, "socket": 198}

_MACHINES = {
    "x86_64": (0xC000003E, _X86_64 | _NEW, _X86_64_PARTLY),
    "aarch64": (0xC00000B7, _AARCH64 | _NEW, _AARCH64_PARTLY),
}

_NEW_NAMESPACES = 0x7E020000
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into a terminal
#: AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. Others, as AF_VSOCK, know no network namespaces.
_FAMILIES = (1, 2, 10, 16)
#: Set in the numbers of the other ABI of x86_64.
_X32 = 0x40000000

_NUMBER, _ARCH, _FIRST_ARG, _SECOND_ARG = 0, 4, 16, 24
_LOAD, _JUMP_EQUAL, _JUMP_FROM, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000

_Instruction = tuple[int, int, int, int]


def program(machine: str = "") -> bytes:
    """Return the filter as bubblewrap takes it; empty for a machine whose calls are unknown."""
    known = _MACHINES.get(machine or os.uname().machine)
    if known is None:
        return b""
    audit, denied, partly = known
    code: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCH),
        (_JUMP_EQUAL, 1, 0, audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_FROM, 0, 1, _X32),
        (_RETURN, 0, 0, _error(errno.EPERM)),
    ]
    for number in sorted(denied.values()):
        code += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _error(errno.EPERM))]
    # A C library then falls back to `clone`, whose flags can be checked.
    code += [(_JUMP_EQUAL, 0, 1, partly["clone3"]), (_RETURN, 0, 0, _error(errno.ENOSYS))]
    code += _rule(partly["clone"], _FIRST_ARG, [
        (_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _error(errno.EPERM)),
        (_RETURN, 0, 0, _ALLOW),
    ])  # fmt: skip
    code += _rule(partly["ioctl"], _SECOND_ARG, [
        *(i for request in _TERMINAL_INPUT
          for i in ((_JUMP_EQUAL, 0, 1, request), (_RETURN, 0, 0, _error(errno.EPERM)))),
        (_RETURN, 0, 0, _ALLOW),
    ])  # fmt: skip
    code += _rule(partly["socket"], _FIRST_ARG, [
        *(i for family in _FAMILIES
          for i in ((_JUMP_EQUAL, 0, 1, family), (_RETURN, 0, 0, _ALLOW))),
        (_RETURN, 0, 0, _error(errno.EAFNOSUPPORT)),
    ])  # fmt: skip
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _rule(number: int, argument: int, then: list[_Instruction]) -> list[_Instruction]:
    """Judge one call by an argument; `then` ends with a return."""
    return [(_JUMP_EQUAL, 0, len(then) + 1, number), (_LOAD, 0, 0, argument), *then]


def _error(number: int) -> int:
    return _ERRNO | number
