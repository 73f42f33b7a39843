"""Reads the bundle that an agent handed over: taken apart only if every object in it is sound."""

from __future__ import annotations

import re
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO

from caloron.errors import CaloronError
from caloron.git.command import GitError, git_argv

#: Git itself only warns of these names in a tree; no honest commit has one.
_NAMES = ("hasDot", "hasDotdot", "hasDotgit", "emptyName", "fullPathname")
_STRICT = "--strict=" + ",".join(f"{name}=error" for name in _NAMES)
_BUNDLE_HEADER_BYTES = 1 << 16
#: How often a process is looked at that a stop may end.
_LOOK_S = 0.2


class BundleRefused(CaloronError):
    """Commits that an agent handed over are too large or not sound; nothing was taken."""


class HandOverCancelled(CaloronError):
    """The sprint stops before an agent's work is taken; the work stays in its workspace."""

    def __init__(self) -> None:
        super().__init__("the work is not taken yet: the sprint is being stopped")


def never() -> bool:
    """For a hand-over that no stop cancels."""
    return False


def unpack(
    repository: Path,
    path: Path,
    cap_bytes: int,
    environment: dict[str, str],
    cancelled: Callable[[], bool] = never,
) -> str:
    """Index the objects of a bundle after checking each; the commit that it calls HEAD."""
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise BundleRefused(f"{path} is not a file")
    if status.st_size > cap_bytes:
        raise BundleRefused(
            f"the commits are {status.st_size} bytes, more than the {cap_bytes} allowed",
            hint="keep build results and large data out of the commits",
        )
    with path.open("rb", buffering=0) as file:
        head = _skip_header(file)
        # Not `git fetch`: it takes a bundle's objects unchecked before git 2.46.
        process = subprocess.Popen(
            git_argv(repository, ("index-pack", "--stdin", "--fix-thin", _STRICT)),
            stdin=file,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            process_group=0,
        )
    complaint = _wait(process, cancelled)
    if process.returncode < 0:
        raise GitError(("index-pack",), process.returncode, "it was killed")
    if process.returncode != 0:
        why = complaint.decode("utf-8", "replace").strip()
        raise BundleRefused(f"git refused the commits: {why}")
    return head


def _wait(process: subprocess.Popen[bytes], cancelled: Callable[[], bool]) -> bytes:
    """Wait for a process; what it complains about."""
    with process:
        while True:
            try:
                return process.communicate(timeout=_LOOK_S)[1]
            except subprocess.TimeoutExpired:
                if cancelled():
                    process.kill()
                    raise HandOverCancelled from None


def _skip_header(bundle: IO[bytes]) -> str:
    """Read a bundle up to its objects; the commit that it calls HEAD."""
    start = bundle.read(_BUNDLE_HEADER_BYTES)
    end = start.find(b"\n\n")
    lines = start[:end].decode("utf-8", "replace").split("\n")
    heads = [line[:-5] for line in lines[1:] if line.endswith(" HEAD") and line[0] not in "-@"]
    if end < 0 or not lines[0].endswith(" git bundle") or len(heads) != 1:
        raise BundleRefused("what was handed over is not a bundle with one HEAD")
    if not re.fullmatch(r"[0-9a-f]{40,64}", heads[0]):
        raise BundleRefused(f"the bundle's HEAD is not a commit id: {heads[0]}")
    bundle.seek(end + 2)
    return heads[0]
