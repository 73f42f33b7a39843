"""Files in a home that an agent, or the setup of its project, could have prepared.

No link is followed and no device opened: every step from a folder of ours down to a file is
opened by itself, so that no link leads out of that home.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from caloron.agents.workspace.workspaces import remove_workspace

_NO_LINK = os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def folder_in(root: Path, *steps: str) -> Iterator[int]:
    """Open a folder below one of ours; `OSError` if a step is missing or a link."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for step in steps:
            below = os.open(step, os.O_RDONLY | os.O_DIRECTORY | _NO_LINK, dir_fd=handle)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def read_regular(folder: int, name: str, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes; `OSError` for anything else."""
    # Without NONBLOCK a named pipe would keep us waiting for a writer.
    handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _NO_LINK, dir_fd=folder)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{name} is not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(f"{name} has more than {limit} bytes")
    return data


def clear(path: Path) -> Path:
    """Remove the file, folder or link at a path, but never the target of a link."""
    if path.is_dir() and not path.is_symlink():
        remove_workspace(path)
    else:
        path.unlink(missing_ok=True)
    return path
