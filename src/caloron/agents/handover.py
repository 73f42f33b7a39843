"""Gives folders to the user id of one agent, so that a root does not run agents as root."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

#: User ids that no system gives out; each folder of an agent has one of them.
_FIRST_UID = 1_900_000_000
_UIDS = 100_000_000
#: Nobody but an agent goes deeper, and what an agent made is its own already.
_DEEPEST = 200

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def agent_uid(folder: Path) -> int:
    """The user id of the agent that owns a folder, or shall own it."""
    owner = folder.lstat().st_uid
    if _FIRST_UID <= owner < _FIRST_UID + _UIDS:
        return owner
    digest = hashlib.blake2b(bytes(folder.absolute()), digest_size=8).digest()
    return _FIRST_UID + int.from_bytes(digest, "big") % _UIDS


def is_given(folder: Path, uid: int) -> bool:
    return folder.lstat().st_uid == uid


def give(folder: Path, uid: int) -> None:
    """Make a user own a folder and all that is in it; links are given, never followed.

    The folder itself comes last: it tells that all of it was given.
    """
    handle = os.open(folder, _FOLDER)
    try:
        _give_content(handle, uid, 0)
        os.fchown(handle, uid, uid)
    finally:
        os.close(handle)


def _give_content(folder: int, uid: int, depth: int) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.stat(follow_symlinks=False).st_uid != uid:
                os.chown(entry.name, uid, uid, dir_fd=folder, follow_symlinks=False)
            if depth < _DEEPEST and entry.is_dir(follow_symlinks=False):
                inner = os.open(entry.name, _FOLDER, dir_fd=folder)
                try:
                    _give_content(inner, uid, depth + 1)
                finally:
                    os.close(inner)
