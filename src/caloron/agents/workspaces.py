"""Where an agent works: a clone that borrows the mirror's objects, whole or not there.

Once an agent has been in a workspace, git runs there only through the sandbox (`commits`), since
the agent may have planted configuration that runs programs.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

from caloron.errors import HeldByAnother
from caloron.git.command import GitError, git, git_environment, git_process
from caloron.git.mirror import CALORON_IDENTITY, Mirror

#: Caloron's own folder in a workspace; what is in it is never committed.
OWN_FOLDER = ".caloron"

_NO_PUSH = "/nonexistent/caloron-pushes-for-you"
_TRAILER_HOOK = """#!/bin/sh
git interpret-trailers --in-place --if-exists doNothing --trailer "Agent: {agent}" "$1"
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
    """A new workspace on `branch` at `start`; with `merge`, in the middle of that merge.

    With `restore`, the files are as that commit has them: what an attempt that was cut short left.
    """
    if directory.exists():
        raise HeldByAnother(
            f"the workspace {directory} exists already",
            hint="save what is in it (salvage) and remove it first",
        )
    fresh = clone(mirror, directory, identity)
    git(fresh, "checkout", "--quiet", "-B", branch, start)
    furnish(fresh, merge=merge, restore=restore, agent=agent, identity=identity)
    fresh.rename(directory)


def create_checkout(mirror: Mirror, directory: Path, commit: str) -> None:
    """A clean copy of one commit, to be verified; one that stands there already is replaced."""
    remove_workspace(directory)
    fresh = clone(mirror, directory, CALORON_IDENTITY)
    git(fresh, "checkout", "--quiet", "--detach", commit)
    fresh.rename(directory)


def furnish(
    workspace: Path, *, merge: str, restore: str, agent: str, identity: tuple[str, str]
) -> None:
    """Bring a fresh workspace into the state that its agent is to find."""
    if agent:
        hook = workspace / ".git" / "hooks" / "prepare-commit-msg"
        hook.write_text(_TRAILER_HOOK.format(agent=agent), "utf-8")
        hook.chmod(0o755)
    if merge:
        _begin_merge(workspace, merge, identity)
    elif restore:
        git(workspace, "read-tree", "-m", "-u", "HEAD", restore)


def clone(mirror: Mirror, directory: Path, identity: tuple[str, str]) -> Path:
    """Clone beside the final place, so that a workspace is either whole or not there."""
    fresh = unfinished(directory)
    remove_workspace(fresh)
    directory.parent.mkdir(parents=True, exist_ok=True)
    settings = {
        "user.name": identity[0],
        "user.email": identity[1],
        "gc.auto": "0",
        "remote.origin.pushurl": _NO_PUSH,
    }
    options = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
    git(
        directory.parent,
        *("clone", "--quiet", "--shared", "--no-checkout", "--no-tags", "--template=", *options),
        *(str(mirror.path.absolute()), str(fresh.absolute())),
    )
    if (mirror.path / "shallow").exists():
        # Of a shallow repository git makes no clone that borrows, and copies only what has a name.
        borrowed = fresh / ".git" / "objects" / "info" / "alternates"
        borrowed.write_text(f"{mirror.path.absolute() / 'objects'}\n", "utf-8")
    for name in ("info", "hooks"):
        (fresh / ".git" / name).mkdir(exist_ok=True)
    exclude(fresh, (OWN_FOLDER,))
    return fresh


def exclude(workspace: Path, folders: Iterable[str]) -> None:
    """Keep folders of ours out of what git sees as the agent's work."""
    lines = "".join(f"/{folder}/\n" for folder in folders)
    with (workspace / ".git" / "info" / "exclude").open("a", encoding="utf-8") as file:
        file.write(lines)


def _begin_merge(workspace: Path, commit: str, identity: tuple[str, str]) -> None:
    arguments = ("merge", "--no-commit", "--no-ff", "--allow-unrelated-histories", commit)
    done = git_process(workspace, *arguments, environment=git_environment(identity))
    if done.returncode != 0 and not (workspace / ".git" / "MERGE_HEAD").exists():
        raise GitError(arguments, done.returncode, done.stderr.decode("utf-8", "replace"))


def remove_workspace(directory: Path) -> None:
    """Delete a workspace, also one with folders that its agent made read-only or far too deep."""
    if directory.is_symlink():
        directory.unlink()
    elif directory.exists() and not _remove(directory):
        # What the agent may not write itself stands in the way.
        _run("chmod", "-R", "u+rwX", "--", directory)
        if not _remove(directory):
            raise OSError(f"{directory} cannot be removed")


def _remove(directory: Path) -> bool:
    # Our own library needs a descriptor, and a frame of its stack, for each folder on the way down.
    return _run("rm", "-rf", "--", directory) == 0


def _run(*argv: str | Path) -> int:
    return subprocess.run(argv, capture_output=True, check=False, process_group=0).returncode


def unfinished(directory: Path) -> Path:
    """Where a workspace is made, before it is moved to its place; no agent was ever in it."""
    return directory.with_name(f".{directory.name}.new")
