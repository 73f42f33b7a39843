"""Where an agent works, and how its work leaves: as commits in a bundle, never as a repository.

A workspace borrows the objects of the mirror. Once an agent has been in it, git runs there only
through the sandbox, since the agent may have planted configuration that runs programs.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from caloron.errors import CaloronError, HeldByAnother
from caloron.git.command import GitError, git, git_argv, git_environment, git_process
from caloron.git.mirror import CALORON_IDENTITY, BundleRefused, Mirror
from caloron.ports import Sandbox

SALVAGE_CAP_BYTES = 2 << 30

#: Caloron's own folder in a workspace; what is in it is never committed.
OWN_FOLDER = ".caloron"

_NO_PUSH = "/nonexistent/caloron-pushes-for-you"
_BROKEN = ("not a git repository", "bad object", "could not parse HEAD", "unable to read")
_MARKERS = (b"<<<<<<< ", b">>>>>>> ")


class AgentWorkLost(CaloronError):
    """An agent destroyed the repository that it worked in."""

    def __init__(self, workspace: Path, why: str) -> None:
        super().__init__(
            f"the work in {workspace} cannot be taken: {why}",
            hint="look into the folder for files worth keeping; the task starts again from main",
        )


def create_workspace(
    mirror: Mirror,
    directory: Path,
    *,
    start: str,
    branch: str,
    merge: str = "",
    identity: tuple[str, str],
) -> None:
    """A new workspace on `branch` at `start`; with `merge`, in the middle of that merge."""
    if directory.exists():
        raise HeldByAnother(
            f"the workspace {directory} exists already",
            hint="save what is in it (salvage) and remove it first",
        )
    fresh = _clone(mirror, directory, identity)
    git(fresh, "checkout", "--quiet", "-B", branch, start)
    if merge:
        _begin_merge(fresh, merge, identity)
    fresh.rename(directory)


def create_checkout(mirror: Mirror, directory: Path, commit: str) -> None:
    """A clean copy of one commit, to be verified; one that stands there already is replaced."""
    remove_workspace(directory)
    fresh = _clone(mirror, directory, CALORON_IDENTITY)
    git(fresh, "checkout", "--quiet", "--detach", commit)
    fresh.rename(directory)


def _clone(mirror: Mirror, directory: Path, identity: tuple[str, str]) -> Path:
    """Clone beside the final place, so that a workspace is either whole or not there."""
    fresh = _unfinished(directory)
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
    info = fresh / ".git" / "info"
    info.mkdir(exist_ok=True)
    (info / "exclude").write_text(f"/{OWN_FOLDER}/\n", "utf-8")
    return fresh


def _begin_merge(workspace: Path, commit: str, identity: tuple[str, str]) -> None:
    arguments = ("merge", "--no-commit", "--no-ff", "--allow-unrelated-histories", commit)
    done = git_process(workspace, *arguments, environment=git_environment(identity))
    if done.returncode != 0 and not (workspace / ".git" / "MERGE_HEAD").exists():
        raise GitError(arguments, done.returncode, done.stderr.decode("utf-8", "replace"))


def seal(
    workspace: Path, sandbox: Sandbox, message: str, identity: tuple[str, str] = CALORON_IDENTITY
) -> None:
    """Commit what the agent left uncommitted; an unfinished merge becomes the merge commit."""
    inside = _Inside(workspace, sandbox, identity)
    inside.remove_stale_locks()
    inside.unpack_nested_repositories()
    inside.run("add", "--all", "--", ".")
    inside.leave_out_own_folder()
    merging = inside.succeeds("rev-parse", "--quiet", "--verify", "MERGE_HEAD")
    if merging or not inside.succeeds("diff", "--cached", "--quiet", "--no-ext-diff"):
        inside.run("commit", "--quiet", "--no-verify", "--file=-", stdin=message.encode())


def hand_over(
    workspace: Path,
    sandbox: Sandbox,
    mirror: Mirror,
    *,
    base: str,
    ref: str,
    bundle: Path,
    cap_bytes: int,
) -> str:
    """Take the commits since `base` into the mirror under `ref`; the head, or `base` if none.

    HEAD is what counts, whatever branch the agent is on.
    """
    inside = _Inside(workspace, sandbox, CALORON_IDENTITY)
    if not inside.succeeds("rev-parse", "--quiet", "--verify", "HEAD^{commit}"):
        raise AgentWorkLost(workspace, "HEAD is not a commit any more")
    if inside.run("rev-list", "--count", f"{base}..HEAD") == "0":
        return base
    if not inside.succeeds("merge-base", base, "HEAD"):
        inside.put_tree_onto(base)
    try:
        inside.bundle(bundle, ("HEAD", f"^{base}"), cap_bytes)
        return mirror.import_bundle(bundle, ref, cap_bytes)
    finally:
        bundle.unlink(missing_ok=True)


def salvage(workspace: Path, sandbox: Sandbox, mirror: Mirror, ref: str, base: str) -> str:
    """Save work that would be lost with its workspace under `ref`; its commit, or empty if none."""
    if not workspace.exists():
        return ""
    seal(workspace, sandbox, "Work saved from an attempt that did not end\n")
    bundle = workspace.with_name(f".{workspace.name}.salvage")
    head = hand_over(
        workspace,
        sandbox,
        mirror,
        base=base,
        ref=ref,
        bundle=bundle,
        cap_bytes=SALVAGE_CAP_BYTES,
    )
    return "" if head == base else head


def unresolved(workspace: Path, files: Sequence[str]) -> tuple[str, ...]:
    """The files of these that still hold conflict markers."""
    return tuple(name for name in files if _has_markers(workspace / name))


def _has_markers(path: Path) -> bool:
    try:
        # An agent may have put a link or a pipe there; neither may be followed or waited for.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return False
        at_line_start = True
        while part := file.readline(1 << 16):
            if at_line_start and part.startswith(_MARKERS):
                return True
            at_line_start = part.endswith(b"\n")
    return False


def remove_workspace(directory: Path) -> None:
    """Delete a workspace, also one with folders that its agent made read-only."""
    if directory.is_symlink():
        directory.unlink()
    elif directory.exists():
        try:
            shutil.rmtree(directory)
        except PermissionError:
            _make_writable(directory)
            shutil.rmtree(directory)


def remove_unfinished(directory: Path) -> None:
    """Delete what is left of a workspace whose making was cut short; no agent was ever in it."""
    # A git that outlived its engine may still write there: then a part of it stays.
    shutil.rmtree(_unfinished(directory), ignore_errors=True)


def _unfinished(directory: Path) -> Path:
    return directory.with_name(f".{directory.name}.new")


def _make_writable(directory: Path) -> None:
    folders = [directory]
    while folders:
        folder = folders.pop()
        folder.chmod(0o700)
        with os.scandir(folder) as entries:
            folders += [Path(e.path) for e in entries if e.is_dir(follow_symlinks=False)]


class _Inside:
    """Git in a workspace where an agent has been: through the sandbox, its traps overridden."""

    def __init__(self, workspace: Path, sandbox: Sandbox, identity: tuple[str, str]) -> None:
        self._workspace = workspace.absolute()
        self._sandbox = sandbox
        self._git_dir = self._workspace / ".git"
        if self._git_dir.is_symlink() or not self._git_dir.is_dir():
            raise AgentWorkLost(workspace, "its .git folder is gone or was replaced")
        extra = git_environment(identity) | {"GIT_NO_REPLACE_OBJECTS": "1"}
        self._environment = sandbox.environment(extra)

    def run(self, *args: str, stdin: bytes = b"") -> str:
        done = self._process(args, stdin)
        if done.returncode != 0:
            error = GitError(args, done.returncode, done.stderr.decode("utf-8", "replace"))
            if any(sign in error.stderr for sign in _BROKEN):
                raise AgentWorkLost(self._workspace, error.stderr.strip()) from error
            raise error
        return done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")

    def succeeds(self, *args: str) -> bool:
        return self._process(args, b"").returncode == 0

    def bundle(self, target: Path, revisions: tuple[str, ...], cap_bytes: int) -> None:
        """Write a bundle to a file of ours: git inside only prints it."""
        argv = self._argv(("bundle", "create", "--quiet", "-", *revisions))
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile() as stderr, target.open("wb") as file:
            with subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=self._environment,
                cwd=self._workspace,
                process_group=0,
            ) as process:
                assert process.stdout is not None
                while chunk := process.stdout.read(1 << 20):
                    if file.tell() + len(chunk) > cap_bytes:
                        process.kill()
                        raise BundleRefused(
                            f"the commits are more than the {cap_bytes} bytes allowed",
                            hint="keep build results and large data out of the commits",
                        )
                    file.write(chunk)
            if process.returncode != 0:
                stderr.seek(0)
                why = stderr.read(4096).decode("utf-8", "replace")
                raise AgentWorkLost(self._workspace, why.strip())

    def put_tree_onto(self, base: str) -> None:
        """Make what HEAD holds one commit on `base`: a history without a common commit with main
        cannot be merged, but the work in it counts."""
        message = b"The state that the agent left in a history of its own\n"
        commit = self.run("commit-tree", "HEAD^{tree}", "-p", base, stdin=message)
        self.run("update-ref", "HEAD", commit)

    def remove_stale_locks(self) -> None:
        """The agent is gone, so a lock that it left behind protects nothing."""
        for lock in (*self._git_dir.glob("*.lock"), *self._git_dir.glob("refs/**/*.lock")):
            lock.unlink(missing_ok=True)

    def leave_out_own_folder(self) -> None:
        """Unstage what is in Caloron's own folder: the agent may have changed what is ignored."""
        added = ("diff", "--cached", "--name-only", "--diff-filter=A", "-z", "--", OWN_FOLDER)
        if names := self.run(*added):
            stdin = names.encode("utf-8", "surrogateescape")
            source = ("--pathspec-from-file=-", "--pathspec-file-nul")
            self.run("--literal-pathspecs", "rm", "--quiet", "--cached", *source, stdin=stdin)

    def unpack_nested_repositories(self) -> None:
        """Make repositories that the agent created inside its workspace ordinary folders.

        Git would record each as an empty link to a commit that nobody else has. Their histories
        move to Caloron's own folder.
        """
        for number in range(100):
            others = self.run("ls-files", "-z", "--others", "--exclude-standard")
            nested = next((name for name in others.split("\0") if name.endswith("/")), "")
            if not nested:
                return
            place = f"{OWN_FOLDER}/nested-{number}-{os.getpid()}"
            script = f'mkdir -p {OWN_FOLDER} && mv -T -- "$1" "$2"'
            self._check_moved(("sh", "-c", script, "sh", f"./{nested}.git", place), nested)

    def _check_moved(self, argv: tuple[str, ...], nested: str) -> None:
        done = subprocess.run(
            self._sandbox.wrap(argv, self._workspace),
            capture_output=True,
            env=self._environment,
            cwd=self._workspace,
            check=False,
            process_group=0,
        )
        if done.returncode != 0:
            why = done.stderr.decode("utf-8", "replace").strip()
            raise AgentWorkLost(self._workspace, f"the repository in {nested} is in the way: {why}")

    def _argv(self, args: tuple[str, ...]) -> tuple[str, ...]:
        # Named explicitly, because the agent may have set core.worktree or core.bare.
        place = (f"--git-dir={self._git_dir}", f"--work-tree={self._workspace}")
        return self._sandbox.wrap(
            tuple(git_argv(self._workspace, (*place, *args))), self._workspace
        )

    def _process(self, args: tuple[str, ...], stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            self._argv(args),
            input=stdin,
            capture_output=True,
            env=self._environment,
            cwd=self._workspace,
            check=False,
            process_group=0,
        )
