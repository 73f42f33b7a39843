"""Runs git so that neither the user's configuration nor the repository's own can run anything."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TypeVar

from caloron.errors import CaloronError, ForgeUnavailable, PreconditionFailed
from caloron.ports import Remote
from caloron.store import log

T = TypeVar("T")

#: The author of commits that neither an agent nor a person made.
IDENTITY = ("Caloron", "caloron@localhost")
_COMMIT_ID = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")

_SAFE = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.pager": "cat",
    # As root, each workspace belongs to an account of its own.
    "safe.directory": "*",
    "diff.external": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.ext.allow": "never",
    "commit.gpgSign": "false",
    "init.defaultBranch": "main",
    "advice.detachedHead": "false",
    "merge.conflictStyle": "merge",
}
_OPTIONS = tuple(word for key, value in _SAFE.items() for word in ("-c", f"{key}={value}"))


#: Messages of git when the other side did not answer, or stopped answering half-way.
_UNREACHABLE = (
    "Could not resolve host",
    "Failed to connect",
    "Couldn't connect",
    "Connection refused",
    "Connection reset",
    "Connection timed out",
    "Connection closed by",
    "Operation timed out",
    "Operation too slow",
    "Network is unreachable",
    "No route to host",
    "Temporary failure in name resolution",
    "Empty reply from server",
    "the remote end hung up unexpectedly",
    "early EOF",
    "RPC failed",
    "gnutls_handshake",
    "SSL_ERROR_SYSCALL",
    "The requested URL returned error: 429",
    "The requested URL returned error: 5",
)


_LOCKED = ("cannot lock ref", "Unable to create", "could not lock config file")
#: Lines of git's stderr whose text was written by the other side.
_SERVER_SENT = re.compile(r"^.*\bremote(?: error)?:.*$", re.MULTILINE)
#: How often a wait for a process checks whether it was cancelled.
_CANCEL_CHECK_S = 0.1
_LOCK_TRIES = 40
_LOCK_PAUSE_S = 0.025
#: Our git commands lock for milliseconds: an old lock was left by a machine that went down.
_LOCK_ABANDONED_S = 60.0

#: Failures on this side, after which the other one hangs up as well.
_OUR_OWN = ("bad object", "does not match any", "not a valid object")


class GitError(CaloronError):
    """A git command failed."""

    def __init__(self, argv: Sequence[str], code: int, stderr: str) -> None:
        super().__init__(f"git {' '.join(argv)} failed ({code}): {complaint(stderr)}")
        self.returncode = code
        self.stderr = stderr


_HINT = re.compile(r"^(remote: *)?hint:.*\n?", re.MULTILINE)


def complaint(stderr: str) -> str:
    """The error text of git without its hints: they advise a person at a prompt."""
    return _HINT.sub("", stderr).strip()


def error_line(stderr: str) -> str:
    """The one line of git's error text that names the cause: the other side's line goes first."""
    lines = [" ".join(line.split()) for line in complaint(stderr).splitlines()]
    lines = [line for line in lines if line and not line.startswith("To ")]
    theirs = [line.removeprefix("remote:").strip() for line in lines if line.startswith("remote:")]
    rejected = [line for line in lines if "rejected]" in line]
    ours = [line for line in lines if line.startswith(("fatal:", "error:"))]
    kinds = ([line for line in theirs if line], rejected, ours, lines)
    return next((kind[0] for kind in kinds if kind), "")[:300]


def git_environment(identity: tuple[str, str] = IDENTITY) -> dict[str, str]:
    """The environment of every git process of ours: no configuration of others, no prompt."""
    name, email = identity
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_TERMINAL_PROMPT": "0",
        # Newer versions of git choose another format, which older ones on a machine cannot read.
        "GIT_DEFAULT_REF_FORMAT": "files",
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": email,
        "GIT_COMMITTER_NAME": name,
        "GIT_COMMITTER_EMAIL": email,
    }


#: Messages of git about a repository in a newer format than it knows.
_TOO_NEW = ("unknown repository extension", "invalid value for 'extensions.", "git repo version <=")


def refuse_newer_format(folder: Path, stderr: str) -> None:
    """Refuse a repository that the git of this machine is too old for."""
    if any(sign in stderr for sign in _TOO_NEW):
        reason = " ".join(complaint(stderr).split()).removeprefix("fatal: ")
        raise PreconditionFailed(
            f"the git of this machine is too old for the repository {folder}: {reason}",
            hint="install a newer git (2.45 or newer reads reftable), or convert the repository"
            " with it: git refs migrate --ref-format=files",
        )


def safe_settings() -> dict[str, str]:
    """The same settings as environment, for a script that calls git."""
    return _in_environment(_SAFE)


def _in_environment(settings: Mapping[str, str]) -> dict[str, str]:
    environment = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (key, value) in enumerate(settings.items()):
        environment |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return environment


def git_argv(repository: Path, args: Sequence[str]) -> list[str]:
    return ["git", *_OPTIONS, "-C", str(repository), *args]


def git(
    repository: Path,
    *args: str,
    check: bool = True,
    stdin: bytes | None = None,
    environment: dict[str, str] | None = None,
) -> str:
    """Run git in a repository and return what it printed, without the last newline."""
    printed = git_bytes(repository, *args, check=check, stdin=stdin, environment=environment)
    return printed.decode("utf-8", "replace").rstrip("\n")


def git_bytes(
    repository: Path,
    *args: str,
    check: bool = True,
    stdin: bytes | IO[bytes] | None = None,
    stdout: IO[bytes] | None = None,
    environment: dict[str, str] | None = None,
) -> bytes:
    """Run git and return what it printed, or write that to `stdout`."""
    done = git_process(repository, *args, stdin=stdin, stdout=stdout, environment=environment)
    if check and done.returncode != 0:
        raise GitError(args, done.returncode, done.stderr.decode("utf-8", "replace"))
    return done.stdout or b""


def git_process(
    repository: Path,
    *args: str,
    stdin: bytes | IO[bytes] | None = None,
    stdout: IO[bytes] | None = None,
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run git and return its output and exit code."""
    return subprocess.run(
        git_argv(repository, args),
        input=stdin if isinstance(stdin, bytes) else None,
        stdin=None if isinstance(stdin, bytes) else stdin or subprocess.DEVNULL,
        stdout=stdout or subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment or git_environment(),
        check=False,
        # Ctrl-C on the terminal is for Caloron; it must not end git half-way.
        process_group=0,
    )


def start_git(
    repository: Path,
    args: Sequence[str],
    environment: dict[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen[bytes]:
    """Start git to read its output piece by piece."""
    return subprocess.Popen(
        git_argv(repository, args),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment or git_environment(),
        process_group=0,
    )


def wait_or_end(process: subprocess.Popen[bytes], cancelled: Callable[[], bool]) -> bytes:
    """Wait for a process, and kill it when it is cancelled; return its error output."""
    with process:
        while True:
            try:
                return process.communicate(timeout=_CANCEL_CHECK_S)[1] or b""
            except subprocess.TimeoutExpired:
                if cancelled():
                    process.kill()


def git_remote(repository: Path, remote: Remote, command: str, *args: str) -> str:
    """Run a git command that talks to a remote: `command [options] <url> <the last argument>`."""
    *options, last = args
    environment = git_environment() | _in_environment(remote.settings) | remote.env
    try:
        return git(repository, command, *options, remote.url, last, environment=environment)
    except GitError as error:
        ours = any(sign in error.stderr for sign in _OUR_OWN)
        if not ours and any(sign in error.stderr for sign in _UNREACHABLE):
            raise ForgeUnavailable(
                f"{remote.url} did not answer git {command}: {error_line(error.stderr)}",
                hint="is it running, and reachable from here? It is asked again by itself",
            ) from None
        raise


def is_commit_id(text: str) -> bool:
    return _COMMIT_ID.fullmatch(text) is not None


def retry_on_lock(repository: Path, command: Callable[[], T]) -> T:
    """Run a git command of a bare repository again while another one holds the lock it needs."""
    for attempt in range(_LOCK_TRIES):
        try:
            return command()
        except GitError as error:
            own = _SERVER_SENT.sub("", error.stderr)
            if not any(text in own for text in _LOCKED):
                raise
            if attempt == 0:
                log.warning("git is retried: a lock is held", error=error, repository=repository)
            remove_abandoned_locks(repository)
            time.sleep(_LOCK_PAUSE_S)
    return command()


def remove_abandoned_locks(repository: Path) -> None:
    """Remove old lock files of this repository.

    The folders are searched, because git's message also contains text of the server, which must
    never name a file to delete.
    """
    for lock in _locks_in(repository):
        try:
            if time.time() - lock.lstat().st_mtime > _LOCK_ABANDONED_S:
                lock.unlink()
                log.warning("an abandoned lock of git is removed", path=lock)
        except FileNotFoundError:
            continue


def _locks_in(repository: Path) -> Iterator[Path]:
    # Links are not followed: they may lead out of the repository.
    for folder, folders, files in os.walk(repository, followlinks=False):
        if Path(folder) == repository / "objects":
            folders[:] = [name for name in folders if name in ("info", "pack")]
        yield from (Path(folder, name) for name in files if name.endswith(".lock"))
