"""How an agent's work leaves its workspace: as commits in a bundle, never as a repository.

Every command here runs inside the sandbox, because the agent may have planted configuration,
hooks, filters or links; what comes out is bytes that the mirror checks.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from caloron.agents.bounded import Printed, run_bounded
from caloron.agents.confined import as_argv
from caloron.agents.workspaces import OWN_FOLDER
from caloron.errors import CaloronError
from caloron.git.bundle import BundleRefused
from caloron.git.command import git_environment, safe_settings
from caloron.git.mirror import CALORON_IDENTITY, Mirror
from caloron.ports import Confined, Confinement, Sandbox
from caloron.store.redact import forms_of

SALVAGE_CAP_BYTES = 2 << 30

_SCRIPTS = Path(__file__).with_name("inside")
_SEAL = (_SCRIPTS / "seal.sh").read_text("utf-8")
_LOOK = (_SCRIPTS / "look.sh").read_text("utf-8")
_NO_HEAD = 3

#: Far more than any repository takes.
_PATIENCE_S = 900.0
_IDLE_S = 20.0
_COMPLAINT = 1000
_MARKERS = r"^(<<<<<<<|>>>>>>>) "


class AgentWorkLost(CaloronError):
    """An agent destroyed the repository that it worked in."""

    def __init__(self, workspace: Path, why: str) -> None:
        super().__init__(
            f"the work in {workspace} cannot be taken: {why}",
            hint="look into the folder for files worth keeping; the task starts again from main",
        )


class SecretInCommits(CaloronError):
    """An agent committed a key: nothing of it is taken."""


def seal(
    workspace: Path,
    sandbox: Sandbox,
    message: str,
    identity: tuple[str, str] = CALORON_IDENTITY,
    *,
    since: tuple[str, str] = ("", ""),
    leave_out: Sequence[str] = (),
) -> None:
    """Commit what the agent left uncommitted; an unfinished merge becomes the merge commit.

    What is in Caloron's own folder, or in a folder of `leave_out`, is not the agent's work: also
    not if the agent committed it, `since` the commit that it began with and those of main.
    """
    inside = _Inside(workspace, sandbox, identity)
    inside.script(_SEAL, *since, OWN_FOLDER, *leave_out, stdin=message.encode())


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
    if inside.script(_LOOK, base) == "0":
        return base
    try:
        inside.bundle(bundle, ("HEAD", f"^{base}"), cap_bytes)
        return mirror.import_bundle(bundle, ref, cap_bytes)
    finally:
        bundle.unlink(missing_ok=True)


def salvage(
    workspace: Path,
    sandbox: Sandbox,
    mirror: Mirror,
    ref: str,
    base: str,
    identity: tuple[str, str] = CALORON_IDENTITY,
    *,
    leave_out: Sequence[str] = (),
    secrets: Mapping[str, str] | None = None,
) -> str:
    """Save work that would be lost with its workspace under `ref`; its commit, or empty if none."""
    if not workspace.exists():
        return ""
    message = "Work saved from an attempt that did not end\n"
    since = (base, mirror.newest_main())
    seal(workspace, sandbox, message, identity, since=since, leave_out=leave_out)
    if name := named_secret(workspace, sandbox, base, secrets or {}):
        raise SecretInCommits(f"it holds the value of {name}")
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


def named_secret(workspace: Path, sandbox: Sandbox, base: str, secrets: Mapping[str, str]) -> str:
    """The name of a secret whose value the commits since `base` hold; empty: of none."""
    wanted = [(form, name) for name, value in secrets.items() for form in forms_of(value)]
    if not wanted:
        return ""
    inside = _Inside(workspace, sandbox, CALORON_IDENTITY)
    longest = max(len(form) for form, _ in wanted)
    held = b""
    for chunk in inside.patches(base):
        held += chunk
        for form, name in wanted:
            if form in held:
                return name
        held = held[-longest:]
    return ""


def unresolved(workspace: Path, sandbox: Sandbox, files: Sequence[str]) -> tuple[str, ...]:
    """The files of these that still hold conflict markers."""
    if not files:
        return ()
    inside = _Inside(workspace, sandbox, CALORON_IDENTITY)
    return tuple(name for name in files if inside.has_conflict_markers(name))


class _Inside:
    """Git in a workspace where an agent has been: through the sandbox, its traps overridden."""

    def __init__(self, workspace: Path, sandbox: Sandbox, identity: tuple[str, str]) -> None:
        self._workspace = workspace.absolute()
        self._sandbox = sandbox
        _open(self._workspace)
        git_dir = self._workspace / ".git"
        if git_dir.is_symlink() or not git_dir.is_dir():
            raise AgentWorkLost(workspace, "its .git folder is gone or was replaced")
        place = sandbox.inside(self._workspace)
        # Named explicitly, because the agent may have set core.worktree or core.bare.
        named = {"GIT_DIR": str(place / ".git"), "GIT_WORK_TREE": str(place)}
        environment = git_environment(identity) | safe_settings() | named
        del environment["PATH"]
        self._environment = environment | {"GIT_NO_REPLACE_OBJECTS": "1"}

    def script(self, script: str, *arguments: str, stdin: bytes = b"") -> str:
        """Run a script of ours inside; what it printed."""
        done = self._tool("sh", "-c", script, "sh", *arguments, stdin=stdin)
        if done.code == _NO_HEAD:
            raise AgentWorkLost(self._workspace, "HEAD is not a commit any more")
        if done.code != 0:
            # It may be the agent's own program that complains, and at any length.
            stderr = done.err[-_COMPLAINT:].decode("utf-8", "replace").strip()
            raise AgentWorkLost(self._workspace, stderr or f"exit code {done.code}")
        return done.out.decode("utf-8", "replace").strip()

    def has_conflict_markers(self, name: str) -> bool:
        """Links and pipes are neither followed nor waited for."""
        regular = ("find", "-P", f"./{name}", "-maxdepth", "0", "-type", "f")
        grep = ("-exec", "grep", "-q", "-a", "-E", _MARKERS, "{}", ";", "-print")
        return bool(self._tool(*regular, *grep).out)

    def bundle(self, target: Path, revisions: tuple[str, ...], cap_bytes: int) -> None:
        """Write a bundle to a file of ours: git inside only prints it."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile() as stderr, target.open("wb") as file:
            with self._printing(
                "bundle", "create", "--quiet", "-", *revisions, stderr=stderr
            ) as git:
                assert git.stdout is not None
                while chunk := git.stdout.read(1 << 20):
                    if file.tell() + len(chunk) > cap_bytes:
                        git.kill()
                        raise BundleRefused(
                            f"the commits are more than the {cap_bytes} bytes allowed",
                            hint="keep build results and large data out of the commits",
                        )
                    file.write(chunk)
            if git.returncode != 0:
                stderr.seek(0)
                why = stderr.read(4096).decode("utf-8", "replace")
                raise AgentWorkLost(self._workspace, why.strip())

    def patches(self, base: str) -> Iterator[bytes]:
        """What the commits since `base` changed, and all that they say about themselves."""
        # Each of these overrides a setting by which an agent could hide something.
        everything = ("--pretty=raw", "--encoding=UTF-8", "--patch", "--root", "--text")
        plain = ("--no-ext-diff", "--no-textconv", "--no-color")
        with self._printing(
            "log", *everything, *plain, "-m", f"{base}..HEAD", "--", stderr=subprocess.DEVNULL
        ) as git:
            assert git.stdout is not None
            try:
                while chunk := git.stdout.read(1 << 20):
                    yield chunk
            finally:
                git.kill()

    def _printing(self, *args: str, stderr: IO[bytes] | int) -> subprocess.Popen[bytes]:
        confined = self._confine(("git", *args))
        return subprocess.Popen(
            as_argv(confined),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=confined.env,
            cwd=confined.cwd,
            process_group=0,
        )

    def _confine(self, argv: tuple[str, ...]) -> Confined:
        given = Confinement(workspace=self._workspace, env=self._environment)
        return self._sandbox.confine(argv, given)

    def _tool(self, *argv: str, stdin: bytes = b"") -> Printed:
        confined = self._confine(argv)
        try:
            return run_bounded(confined, stdin, longest_s=_PATIENCE_S, idle_s=_IDLE_S)
        except TimeoutError as error:
            # A filter that the agent planted may wait for ever.
            raise AgentWorkLost(self._workspace, "git did not come to an end there") from error


def _open(workspace: Path) -> None:
    """An agent may have shut the door of its own workspace behind itself."""
    if not workspace.is_symlink() and workspace.is_dir():
        workspace.chmod(workspace.stat().st_mode | 0o700)
