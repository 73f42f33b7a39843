"""How an agent's work leaves its workspace: as commits in a bundle, never as a repository.

The commands here run inside the sandbox, because the agent may have planted configuration, hooks,
filters or links. The output is bytes that are checked where they arrive (`git.incoming`).
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import IO

import msgspec

from caloron.agents.supervise.supervise import (
    Buffer,
    CappedFile,
    Limits,
    OutputTooLarge,
    supervise,
)
from caloron.agents.workspace.workspaces import OWN_FOLDER
from caloron.errors import CaloronError
from caloron.git.command import IDENTITY, GitError, complaint, git_environment, safe_settings
from caloron.git.incoming import BundleRefused, HandOverCancelled, Terms, receive
from caloron.git.mirror import Mirror
from caloron.git.repository import TooLarge
from caloron.ports import Sandbox, SandboxSpec
from caloron.store import log

SALVAGE_CAP_BYTES = 2 << 30

_SEAL = (Path(__file__).with_name("inside") / "seal.sh").read_text("utf-8")
_NO_HEAD = 3
_TOO_LARGE = 4
#: How a killed process shows: of the sandbox, of a command in the script, of a child of git.
_KILLED = 128 + signal.SIGKILL
_DIED = b"died of signal 9"
_TRIES = 3

#: Far more than any repository takes.
_PATIENCE_S = 900.0
_IDLE_S = 20.0
_COMPLAINT = 1000


class AgentWorkLost(CaloronError):
    """An agent destroyed the repository that it worked in."""

    def __init__(self, workspace: Path, why: str) -> None:
        super().__init__(
            f"the work in {workspace} cannot be taken: {why}",
            hint="files worth keeping may still be in the folder; the task starts again from main",
        )


class HandOver(Terms, frozen=True, kw_only=True):
    """An agent's work on its way into the mirror, where it gets a ref."""

    workspace: Path
    ref: str = ""
    bundle: Path = Path()


def hand_over(work: HandOver, sandbox: Sandbox, mirror: Mirror) -> str:
    """Take the commits since `base` into the mirror under `ref`; the head, or `base` if none.

    HEAD counts, on any branch. Uncommitted work is committed.
    """
    work = msgspec.structs.replace(work, leave_out=(OWN_FOLDER, *work.leave_out))
    work.bundle.parent.mkdir(parents=True, exist_ok=True)
    tries_left = _TRIES
    while True:
        tries_left -= 1
        try:
            return _handed_over(work, sandbox, mirror)
        except GitError as error:
            # A process of ours was killed: the agent's work is still there.
            if error.returncode >= 0 or not tries_left:
                raise
            log.warning("a process was killed; the work is taken again", error=error)
        finally:
            work.bundle.unlink(missing_ok=True)


def _handed_over(work: HandOver, sandbox: Sandbox, mirror: Mirror) -> str:
    with work.bundle.open("wb") as file:
        _seal(work, sandbox, file)
        empty = file.tell() == 0
    return work.base if empty else receive(mirror, work.bundle, work.ref, work)


def seal(
    workspace: Path,
    sandbox: Sandbox,
    message: str,
    identity: tuple[str, str] = IDENTITY,
) -> None:
    """Commit what the agent left uncommitted; an unfinished merge becomes the merge commit."""
    _seal(HandOver(workspace=workspace, message=message, identity=identity), sandbox)


def _seal(work: HandOver, sandbox: Sandbox, out: IO[bytes] | None = None) -> None:
    """Run git in a workspace where an agent has been: through the sandbox, traps overridden.

    Without `base`, nothing is printed.
    """
    workspace = work.workspace.absolute()
    _restore_access(workspace)
    git_dir = workspace / ".git"
    if git_dir.is_symlink() or not git_dir.is_dir():
        raise AgentWorkLost(workspace, "its .git folder is gone or was replaced")
    inside = sandbox.inside(workspace)
    # Named explicitly, because the agent may have set core.worktree or core.bare.
    named = {"GIT_DIR": str(inside / ".git"), "GIT_WORK_TREE": str(inside)}
    environment = git_environment(work.identity) | safe_settings() | named
    environment["GIT_NO_REPLACE_OBJECTS"] = "1"
    del environment["PATH"]
    limit = str(work.disk_mb << 20)
    script = ("sh", "-c", _SEAL, "sh", work.base, work.main, limit, work.message)
    confined = sandbox.confine(script, SandboxSpec(workspace=workspace, env=environment))
    complaints = Buffer()
    try:
        ended = supervise(
            confined,
            Limits(_PATIENCE_S, idle_s=_IDLE_S),
            stdout=CappedFile(out, work.cap_bytes) if out else Buffer(),
            stderr=complaints,
            cancelled=work.cancelled,
        )
    except OutputTooLarge as error:
        raise BundleRefused(
            f"the commits are more than the {work.cap_bytes} bytes allowed",
            hint="keep build results and large data out of the commits",
        ) from error
    if ended.cancelled:
        raise HandOverCancelled
    if ended.timed_out:
        # A filter that the agent planted may wait for ever.
        raise AgentWorkLost(workspace, "git did not come to an end there")
    _refuse_failure(work, ended.exit_code, bytes(complaints.data))


def _refuse_failure(work: HandOver, exit_code: int, complaints: bytes) -> None:
    workspace = work.workspace.absolute()
    if exit_code == _NO_HEAD:
        raise AgentWorkLost(workspace, "HEAD is not a commit any more")
    if exit_code == _TOO_LARGE:
        used = complaints.rsplit(maxsplit=1)[-1]
        raise TooLarge(
            f"the files in {workspace} take more than {work.disk_mb} MB on disk when they are"
            f" checked out: {int(used) >> 20 if used.isdigit() else '?'} MB",
            hint="keep build results and large data out of the repository, or raise disk_mb",
        )
    if exit_code == _KILLED or _DIED in complaints:
        raise GitError(("bundle", "create"), -signal.SIGKILL, f"in {workspace}")
    if exit_code != 0:
        # It may be the agent's own program that complains, and at any length.
        stderr = complaint(complaints[-_COMPLAINT:].decode("utf-8", "replace"))
        raise AgentWorkLost(workspace, stderr or f"exit code {exit_code}")


def _restore_access(workspace: Path) -> None:
    """Restore u+rwx: the agent may have removed its own permissions on the workspace."""
    if not workspace.is_symlink() and workspace.is_dir():
        workspace.chmod(workspace.stat().st_mode | 0o700)
