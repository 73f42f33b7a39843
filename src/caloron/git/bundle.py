"""Commits that an agent hands over as a bundle: taken in only if every object in it is sound."""

from __future__ import annotations

import re
import stat
import subprocess
from pathlib import Path
from typing import IO

from caloron.errors import CaloronError
from caloron.git.command import git_argv, git_environment
from caloron.git.commits import has

#: Git itself only warns of these names in a tree; no honest commit has one.
_NAMES = ("hasDot", "hasDotdot", "hasDotgit", "emptyName", "fullPathname")
_STRICT = "--strict=" + ",".join(f"{name}=error" for name in _NAMES)
_BUNDLE_HEADER_BYTES = 1 << 16


class BundleRefused(CaloronError):
    """Commits that an agent handed over are too large or not sound; nothing was taken."""


def unpack(repository: Path, path: Path, cap_bytes: int) -> str:
    """Take the objects of a bundle in after checking each; the commit that it calls HEAD."""
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
        done = subprocess.run(
            git_argv(repository, ("index-pack", "--stdin", "--fix-thin", _STRICT)),
            stdin=file,
            capture_output=True,
            env=git_environment(),
            check=False,
            process_group=0,
        )
    if done.returncode != 0 or not has(repository, head):
        why = done.stderr.decode("utf-8", "replace").strip()
        raise BundleRefused(f"git refused the commits: {why or 'HEAD is not among them'}")
    return head


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
