"""How an agent's work leaves its workspace: as commits in a bundle, never as a repository.

The commands here run inside the sandbox, because the agent may have planted configuration, hooks,
filters or links. What comes out is bytes that are checked where they arrive (`git.arrival`).
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from caloron.agents.bounded import TooMuch, run_bounded
from caloron.agents.workspaces import OWN_FOLDER
from caloron.errors import CaloronError
from caloron.git.arrival import Terms, receive
from caloron.git.bundle import BundleRefused, never
from caloron.git.command import GitError, complaint, git_environment, safe_settings
from caloron.git.commits import TooLarge
from caloron.git.mirror import CALORON_IDENTITY, Mirror
from caloron.ports import Caps, Confinement, Sandbox
from caloron.store import log
from caloron.store.redact import forms_of

SALVAGE_CAP_BYTES = 2 << 30

_SEAL = (Path(__file__).with_name("inside") / "seal.sh").read_text("utf-8")
_NO_HEAD = 3
_TOO_LARGE = 4
#: How a killed process shows: of the sandbox, of a command in the script, of a child of git.
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
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
            hint="look into the folder for files worth keeping; the task starts again from main",
        )


class HandOver(msgspec.Struct, frozen=True, kw_only=True):
    """An agent's work on its way into the mirror: what it is called there, what it may hold."""

    workspace: Path
    #: The commit that the agent began with, and that of main.
    base: str
    main: str
    #: The message of what it did not commit itself.
    message: str
    identity: tuple[str, str] = CALORON_IDENTITY
    #: The `Agent:` line that its commits must have; empty: none.
    agent: str = ""
    #: Besides Caloron's own folder: folders whose new files are not its work.
    leave_out: Sequence[str] = ()
    secrets: Mapping[str, str] = {}
    ref: str
    bundle: Path
    cap_bytes: int = 512 << 20
    disk_mb: int = Caps().disk_mb
    #: Whether to give up and leave the work where it is.
    cancelled: Callable[[], bool] = never


def hand_over(work: HandOver, sandbox: Sandbox, mirror: Mirror) -> str:
    """Take the commits since `base` into the mirror under `ref`; the head, or `base` if none.

    HEAD is what counts, whatever branch the agent is on. What it left uncommitted is committed.
    """
    terms = Terms(
        base=work.base,
        main=work.main,
        message=work.message,
        identity=work.identity,
        agent=work.agent,
        leave_out=(OWN_FOLDER, *work.leave_out),
        secrets=[(form, name) for name, value in work.secrets.items() for form in forms_of(value)],
        cap_bytes=work.cap_bytes,
        disk_bytes=work.disk_mb << 20,
        cancelled=work.cancelled,
    )
    work.bundle.parent.mkdir(parents=True, exist_ok=True)
    tries_left = _TRIES
    while True:
        tries_left -= 1
        try:
            return _handed_over(work, sandbox, mirror, terms)
        except GitError as error:
            # A process of ours was killed: the agent's work is still there.
            if error.returncode >= 0 or not tries_left:
                raise
            log.warning("a process was killed; the work is taken again", error=error)
        finally:
            work.bundle.unlink(missing_ok=True)


def _handed_over(work: HandOver, sandbox: Sandbox, mirror: Mirror, terms: Terms) -> str:
    with work.bundle.open("wb") as file:
        _seal(work, sandbox, file)
        empty = file.tell() == 0
    return work.base if empty else receive(mirror, work.bundle, work.ref, terms)


def seal(
    workspace: Path,
    sandbox: Sandbox,
    message: str,
    identity: tuple[str, str] = CALORON_IDENTITY,
) -> None:
    """Commit what the agent left uncommitted; an unfinished merge becomes the merge commit."""
    work = HandOver(
        workspace=workspace,
        base="",
        main="",
        message=message,
        identity=identity,
        ref="",
        bundle=Path(),
    )
    _seal(work, sandbox)


def _seal(work: HandOver, sandbox: Sandbox, out: IO[bytes] | None = None) -> None:
    """Run git in a workspace where an agent has been: through the sandbox, traps overridden.

    Without `base`, nothing is printed.
    """
    workspace = work.workspace.absolute()
    _open(workspace)
    git_dir = workspace / ".git"
    if git_dir.is_symlink() or not git_dir.is_dir():
        raise AgentWorkLost(workspace, "its .git folder is gone or was replaced")
    place = sandbox.inside(workspace)
    # Named explicitly, because the agent may have set core.worktree or core.bare.
    named = {"GIT_DIR": str(place / ".git"), "GIT_WORK_TREE": str(place)}
    environment = git_environment(work.identity) | safe_settings() | named
    environment["GIT_NO_REPLACE_OBJECTS"] = "1"
    del environment["PATH"]
    script = ("sh", "-c", _SEAL, "sh", work.base, work.main, str(work.disk_mb << 20))
    confined = sandbox.confine(script, Confinement(workspace=workspace, env=environment))
    try:
        done = run_bounded(
            confined,
            work.message.encode(),
            longest_s=_PATIENCE_S,
            idle_s=_IDLE_S,
            out=out,
            cap_bytes=work.cap_bytes,
            cancelled=work.cancelled,
        )
    except TimeoutError as error:
        # A filter that the agent planted may wait for ever.
        raise AgentWorkLost(workspace, "git did not come to an end there") from error
    except TooMuch as error:
        raise BundleRefused(
            f"the commits are more than the {work.cap_bytes} bytes allowed",
            hint="keep build results and large data out of the commits",
        ) from error
    if done.code == _NO_HEAD:
        raise AgentWorkLost(workspace, "HEAD is not a commit any more")
    if done.code == _TOO_LARGE:
        used = done.err.rsplit(maxsplit=1)[-1]
        raise TooLarge(
            f"the files in {workspace} take more than {work.disk_mb} MB on disk when they are"
            f" checked out: {int(used) >> 20 if used.isdigit() else '?'} MB",
            hint="keep build results and large data out of the repository, or raise disk_mb",
        )
    if done.code in _KILLED or _DIED in done.err:
        raise GitError(("bundle", "create"), -signal.SIGKILL, f"in {workspace}")
    if done.code != 0:
        # It may be the agent's own program that complains, and at any length.
        stderr = complaint(done.err[-_COMPLAINT:].decode("utf-8", "replace"))
        raise AgentWorkLost(workspace, stderr or f"exit code {done.code}")


def _open(workspace: Path) -> None:
    """An agent may have shut the door of its own workspace behind itself."""
    if not workspace.is_symlink() and workspace.is_dir():
        workspace.chmod(workspace.stat().st_mode | 0o700)
