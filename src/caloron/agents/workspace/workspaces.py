"""Workspaces of agents: clones that borrow the mirror's objects, complete or not there.

Once an agent has been in a workspace, git runs there only through the sandbox (`commits`), since
the agent may have planted configuration that runs programs.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from caloron.domain.reporting.forge_texts import co_author
from caloron.errors import InUse
from caloron.git.command import IDENTITY, GitError, git, git_environment, git_process
from caloron.git.mirror import Mirror
from caloron.store import log

#: Caloron's own folder in a workspace; what is in it is never committed.
OWN_FOLDER = ".caloron"

_NO_PUSH = "/nonexistent/caloron-pushes-for-you"
_TRAILER_HOOK = """#!/bin/sh
git interpret-trailers --in-place --if-exists doNothing --trailer "Agent: {agent}" \
    --if-exists addIfDifferent --trailer "{co_author}" "$1"
"""


def create_workspace(
    mirror: Mirror,
    directory: Path,
    *,
    start: str,
    branch: str,
    merge: str = "",
    restore: str = "",
    agent: str = "",
    identity: tuple[str, str],
) -> None:
    """Create a workspace on `branch` at `start`; with `merge`, in the middle of that merge.

    With `restore`, the files are as that commit has them: what an attempt that was cut short left.
    """
    if directory.exists():
        raise InUse(
            f"the workspace {directory} exists already",
            hint="save what is in it (salvage) and remove it first",
        )
    fresh = clone(mirror, directory, identity)
    git(fresh, "checkout", "--quiet", "-B", branch, start)
    prepare_workspace(fresh, merge=merge, restore=restore, agent=agent, identity=identity)
    fresh.rename(directory)


def create_checkout(mirror: Mirror, directory: Path, commit: str) -> None:
    """Create a clean copy of one commit, to be verified; it replaces an earlier one."""
    remove_workspace(directory)
    fresh = clone(mirror, directory, IDENTITY)
    git(fresh, "checkout", "--quiet", "--detach", commit)
    fresh.rename(directory)


def prepare_workspace(
    workspace: Path, *, merge: str, restore: str, agent: str, identity: tuple[str, str]
) -> None:
    """Bring a fresh workspace into the state in which its agent starts."""
    if agent:
        hook = workspace / ".git" / "hooks" / "prepare-commit-msg"
        hook.write_text(_TRAILER_HOOK.format(agent=agent, co_author=co_author(agent)), "utf-8")
        hook.chmod(0o755)
    if merge:
        _begin_merge(workspace, merge, identity)
    elif restore:
        git(workspace, "read-tree", "-m", "-u", "HEAD", restore)


def clone(mirror: Mirror, directory: Path, identity: tuple[str, str]) -> Path:
    """Clone beside the final path, so that a workspace is either complete or not there."""
    fresh = unfinished(directory)
    remove_workspace(fresh)
    directory.parent.mkdir(parents=True, exist_ok=True)
    main = mirror.newest_main()
    # Not `git clone`: it starts two more processes, and of a shallow repository it copies objects.
    object_format = "sha256" if len(main) == 64 else "sha1"
    options = ("--quiet", "--template=", f"--object-format={object_format}")
    git(directory.parent, "init", *options, str(fresh.absolute()))
    inside = fresh / ".git"
    with (inside / "config").open("a", encoding="utf-8") as file:
        file.write(
            f"[user]\n\tname = {_quoted(identity[0])}\n\temail = {_quoted(identity[1])}\n"
            '[gc]\n\tauto = 0\n[remote "origin"]\n'
            f"\turl = {_quoted(str(mirror.path.absolute()))}\n\tpushurl = {_quoted(_NO_PUSH)}\n"
            "\tfetch = +refs/heads/*:refs/remotes/origin/*\n"
            f"[branch {_quoted(mirror.main)}]\n\tremote = origin\n"
            f"\tmerge = {_quoted(f'refs/heads/{mirror.main}')}\n"
        )
    (inside / "HEAD").write_text(f"ref: refs/heads/{mirror.main}\n", "utf-8")
    refs = (f"refs/heads/{mirror.main}", f"refs/remotes/origin/{mirror.main}")
    (inside / "packed-refs").write_text("".join(f"{main} {ref}\n" for ref in refs), "utf-8")
    alternates = inside / "objects" / "info" / "alternates"
    alternates.write_text(f"{mirror.path.absolute() / 'objects'}\n", "utf-8")
    if (mirror.path / "shallow").exists():
        shutil.copy(mirror.path / "shallow", inside / "shallow")
    for name in ("info", "hooks"):
        (fresh / ".git" / name).mkdir(exist_ok=True)
    exclude(fresh, (OWN_FOLDER,))
    return fresh


def _quoted(value: str) -> str:
    """Quote a value for a configuration file of git."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def exclude(workspace: Path, names: Iterable[str]) -> None:
    """Let git ignore these paths of a workspace where no agent has been yet."""
    with (workspace / ".git" / "info" / "exclude").open("a", encoding="utf-8") as file:
        file.write(ignore_lines(names))


def _begin_merge(workspace: Path, commit: str, identity: tuple[str, str]) -> None:
    arguments = ("merge", "--no-commit", "--no-ff", "--allow-unrelated-histories", commit)
    done = git_process(workspace, *arguments, environment=git_environment(identity))
    if done.returncode != 0 and not (workspace / ".git" / "MERGE_HEAD").exists():
        raise GitError(arguments, done.returncode, done.stderr.decode("utf-8", "replace"))


#: Python's own way needs a descriptor, and a frame of its stack, for each folder on the way down.
#: The agent may have made folders read-only.
_DELETE = 'rm -rf -- "$1" || { chmod -R u+rwX -- "$1"; exec rm -rf -- "$1"; }'


def remove_workspace(directory: Path) -> None:
    """Delete a workspace, also one with read-only or very deep folders of its agent."""
    if directory.is_symlink():
        directory.unlink()
    elif directory.exists() and _deletion(directory).wait() != 0:
        raise OSError(f"{directory} cannot be removed")


def _deletion(path: Path) -> subprocess.Popen[bytes]:
    """Begin to delete a file or folder."""
    nothing = subprocess.DEVNULL
    # Root needs no permissions, so no shell has to wait for a first try.
    is_root = os.geteuid() == 0
    argv = ("rm", "-rf", "--", path) if is_root else ("/bin/sh", "-c", _DELETE, "sh", path)
    return subprocess.Popen(argv, stdout=nothing, stderr=nothing, process_group=0)


def unfinished(directory: Path) -> Path:
    """Return the path where a workspace is made before it is renamed; no agent was ever in it."""
    return directory.with_name(f".{directory.name}.new")


class Trash:
    """A folder of things to delete; what is left there when this process ends goes next time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._deletions: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def open(self) -> None:
        """Begin to delete what an earlier process left."""
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            self._delete(path)

    def put(self, path: Path) -> None:
        """Take a file or folder away at once; its content is deleted in the background."""
        if not os.path.lexists(path):
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._delete(path.rename(self._folder / f"{time.time_ns()}-{path.name}"))
        except OSError as error:
            log.debug("cannot rename what is not needed any more", error=error, path=path)
            # It lies on another file system, or nothing can be written.
            remove_workspace(path)

    def close(self, patience_s: float = 0.0) -> None:
        """Delete no more, after this time at most."""
        give_up = time.monotonic() + patience_s
        for deletion in self._deletions:
            try:
                deletion.wait(max(give_up - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                os.killpg(deletion.pid, signal.SIGKILL)
                deletion.wait()
        if any(deletion.returncode > 0 for deletion in self._deletions):
            log.warning("cannot delete what is not needed any more", folder=self._folder)
        # Fails if something is left, which the next start deletes.
        with suppress(OSError):
            self._folder.rmdir()

    def _delete(self, path: Path) -> None:
        with self._lock:
            self._deletions = [each for each in self._deletions if each.poll() != 0]
            self._deletions.append(_deletion(path))


# Files that an agent, or the setup of its project, could have prepared. No link is followed and
# no device opened: every step from a folder of ours down to a file is opened by itself.
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


# Characters with a meaning in the files that name what git ignores.
_SPECIAL = re.compile(r"([\\*?\[\]!# ])")
_ESCAPED = r"\\\1"
_ESCAPE = re.compile(r"\\(.)")
_EXCLUDE_LIMIT = 1 << 24


def excluded(workspace: Path) -> tuple[str, ...]:
    """Return the paths that git ignores in a workspace where no agent has been yet."""
    with folder_in(workspace, ".git", "info") as folder:
        lines = read_regular(folder, "exclude", _EXCLUDE_LIMIT).decode("utf-8", "replace")
    named = (line.removesuffix("/") for line in lines.splitlines() if line.startswith("/"))
    return tuple(_ESCAPE.sub(r"\1", name[1:]) for name in named)


def ignore_lines(names: Iterable[str]) -> str:
    """Return the lines by which git ignores these paths."""
    return "".join(f"/{_SPECIAL.sub(_ESCAPED, name)}\n" for name in names)
