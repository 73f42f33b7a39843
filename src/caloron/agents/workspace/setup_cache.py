"""A cache of the products of setup, so that setup runs once and not in every workspace.

An entry is copied from a workspace right after setup, before any agent was in it, and used wherever
the same line, lock files and tools would produce the same. It is renamed to its final name when it
is complete, so the rest of a crash is never used. Setup runs untrusted code: no link is followed
and no name is trusted.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from msgspec.structs import replace

from caloron.agents.supervise.supervise import Buffer, Ended, Limits, run, supervise
from caloron.agents.workspace.project_detection import (
    SHELL,
    ProjectCommands,
    environment,
    with_path,
)
from caloron.agents.workspace.workspaces import OWN_FOLDER, exclude, ignore_lines, remove_workspace
from caloron.errors import CaloronError, SetupCancelled, StoreError
from caloron.git.command import wait_or_end
from caloron.ports import Sandbox, SandboxedCommand, SandboxSpec
from caloron.store import log as project_log
from caloron.store.redact import Redactor, secrets_in

_KEPT = 8
_TOOL = re.compile(r"\b(python3|uv|poetry|npm|pnpm|yarn|node|cargo|rustc|go)\b")
_VERSIONS = """uname -sm
for tool in "$@"; do command -v "$tool" && { "$tool" --version || "$tool" version; }; done
exit 0"""
#: Setup may have put a link or a pipe there.
_EXCLUDE = """[ -d .git ] || exit 0
[ -f .git/info/exclude ] && [ ! -L .git/info/exclude ] || rm -rf .git/info/exclude
mkdir -p .git/info && cat >>.git/info/exclude"""
_COPY_ENV = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}
#: Folders that hold what others wrote, and files that say which version of it.
_DEPENDENCIES = re.compile(
    r"(.*/)?(\.venv|venv|node_modules|\.pnpm-store|\.yarn|\.bundle|\.husky/_|[^/]*\.egg-info"
    r"|Cargo\.lock|go\.sum|uv\.lock|poetry\.lock|package-lock\.json)\Z"
)
_NEVER = (".git", "__pycache__")


class SetupFailed(CaloronError):
    """The setup of a project failed."""

    code = "PRECONDITION_FAILED"
    exit_code = 8

    def __init__(self, line: str, why: str, log: Path) -> None:
        super().__init__(
            f"setup failed ({line}): {why}",
            hint=f"see {log}; correct the project, or choose another line with "
            "`caloron config set setup LINE` (`none`: no setup)",
        )
        self.log = log


@dataclass
class SetupCache:
    """The cached products of one project's setup."""

    folder: Path
    sandbox: Sandbox
    _: KW_ONLY
    #: What setup may see and reach, except for its folders.
    spec: SandboxSpec
    timeout_s: float
    #: Called before a setup, which may take minutes.
    announce: Callable[[str], object] = str
    #: Once it is set, a setup or a copy that is under way ends.
    cancelled: threading.Event = field(default_factory=threading.Event)
    #: Deletes folders.
    discard: Callable[[Path], None] = remove_workspace

    def __post_init__(self) -> None:
        self._redactor = Redactor(secrets_in(self.spec.env))
        self._versions: dict[tuple[str, ...], str] = {}
        self._asking = threading.Lock()
        #: Keys whose products fit one workspace alone.
        self._not_shared: set[str] = set()

    def install(
        self,
        workspace: Path,
        commands: ProjectCommands,
        *,
        lock_hash: str,
        log: Path,
        scope: str = "",
        restore_git: bool = False,
    ) -> bool:
        """Put the products of setup into a workspace, running setup once per lock hash.

        True if it ran now. The workspace must be new: only git has written to it. Its agent does
        not own it yet afterwards.
        A `scope` keeps its products apart: setup runs code of the repository, so the products of
        an agent's own branch are not for others, while those of main are for every workspace.
        With `restore_git` the repository of the workspace is afterwards as it was before: a
        reviewer must not use the configuration, hooks or history that the author's setup wrote.
        """
        if not commands.setup:
            return False
        workspace = workspace.absolute()
        if not lock_hash or self.sandbox.inside(workspace) == workspace:
            # The products contain their own path, which differs in each workspace.
            self._set_up(workspace, commands, log, restore_git=restore_git)
            return True
        keys = [self._key(commands, lock_hash, each) for each in dict.fromkeys(("", scope))]
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(self._install_entry(key, workspace) for key in keys):
            return False
        key = keys[-1]
        if key in self._not_shared:
            self._set_up(workspace, commands, log, restore_git=restore_git)
            return True
        with self._locked(key, fcntl.LOCK_EX) as lock:
            if self._copy_into(key, workspace, lock):
                return False
            made = self._set_up(workspace, commands, log, restore_git=restore_git)
            if others := not_shared(made, commands.products):
                self._not_shared.add(key)
                _add_line(log, f"not kept for other workspaces: it also made {others[0]}")
            else:
                self._keep(key, workspace, made, lock, log)
        self._tidy()
        return True

    def install_cached(self, workspace: Path, commands: ProjectCommands, *, lock_hash: str) -> bool:
        """Install the cached products of main, if there are any; never runs setup."""
        if self.sandbox.inside(workspace) == workspace or not lock_hash:
            return False
        return self._install_entry(self._key(commands, lock_hash, ""), workspace.absolute())

    def _key(self, commands: ProjectCommands, lock_hash: str, scope: str) -> str:
        tools = self._tools(tuple(sorted(set(_TOOL.findall(commands.setup)))))
        env = sorted(commands.env.items())
        inputs = [1, commands.setup, env, commands.path, lock_hash, tools, scope]
        return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:32]

    def _tools(self, names: tuple[str, ...]) -> str:
        """Return the versions of these tools, as the sandbox has them."""
        with self._asking:
            if names not in self._versions:
                self._versions[names] = self._ask_versions(names)
            return self._versions[names]

    def _ask_versions(self, names: tuple[str, ...]) -> str:
        with tempfile.TemporaryDirectory(prefix="caloron-") as folder:
            workspace = Path(folder, "workspace")
            workspace.mkdir()
            self.sandbox.give_ownership(workspace)
            printed = Buffer()
            supervise(self._offline(workspace, _VERSIONS, *names), Limits(60), stdout=printed)
            return f"{printed.data.decode('utf-8', 'replace')}{platform.libc_ver()}"

    def _offline(self, workspace: Path, script: str, *arguments: str) -> SandboxedCommand:
        """Confine a script of ours to a workspace, without network and environment."""
        spec = replace(self.spec, workspace=workspace, network="none", env={})
        return self.sandbox.confine((SHELL, "-c", script, "sh", *arguments), spec)

    def _set_up(
        self, workspace: Path, commands: ProjectCommands, log: Path, *, restore_git: bool
    ) -> list[str]:
        """Run setup in a workspace; its products, none of which is ever committed."""
        self.announce(f"setting up: {commands.setup}")
        # On disk, not in memory: package managers download whole archives to it first.
        home = workspace.with_name(f".{workspace.name}.setup-home")
        remove_workspace(home)
        (home / "tmp").mkdir(parents=True)
        before = snapshot(workspace)
        try:
            with self._git_restored(workspace) if restore_git else nullcontext():
                self.sandbox.give_ownership(workspace, home)
                ended = self._run(workspace, home, commands, log)
            self._refuse_cancelled()
            if ended.exit_code or ended.timed_out or ended.over:
                raise SetupFailed(commands.setup, self._why(ended, log), log)
            products = made_since(before, workspace)
            if why := self._exclude(workspace, products):
                raise SetupFailed(commands.setup, f"it damaged .git of the workspace: {why}", log)
        finally:
            self.discard(home)
        return products

    @contextmanager
    def _git_restored(self, workspace: Path) -> Iterator[None]:
        """Put the repository of a workspace back as it was, whatever happens to it meanwhile."""
        repository = workspace / ".git"
        kept = workspace.with_name(f".{workspace.name}.setup-git")
        remove_workspace(kept)
        self._cp("-a", "--", repository, kept)
        try:
            yield
        finally:
            remove_workspace(repository)
            kept.rename(repository)
            self.sandbox.give_ownership(workspace)

    def _refuse_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise SetupCancelled("setup was cancelled: the sprint is being stopped")

    def _run(self, workspace: Path, home: Path, commands: ProjectCommands, log: Path) -> Ended:
        from caloron.agents.supervise.transcript import LOG_CAP, Transcript
        from caloron.agents.supervise.watch import Watch

        inside = self.sandbox.inside(workspace)
        temporary = {"TMPDIR": str(self.sandbox.sandbox_home(home) / "tmp")}
        env = self.spec.env | environment(commands, inside) | temporary
        spec = replace(self.spec, workspace=workspace, home=home, env=env)
        argv = with_path(commands, inside, (SHELL, "-c", commands.setup))
        watch = Watch.of(spec.caps, workspace, home)
        return supervise(
            self.sandbox.confine(argv, spec),
            Limits(self.timeout_s, watch=watch),
            stdout=Transcript(log, LOG_CAP, self._redactor),
            cancelled=self.cancelled.is_set,
        )

    def _why(self, ended: Ended, log: Path) -> str:
        if ended.timed_out:
            return f"it did not end within {self.timeout_s:g} s"
        if ended.over:
            return f"it was ended: {ended.over}"
        from caloron.agents.supervise.transcript import last_line

        return last_line(log) or f"exit code {ended.exit_code}, and it printed nothing"

    def _exclude(self, workspace: Path, products: Sequence[str]) -> str:
        """Let git ignore the products, inside the sandbox; the reason if that fails."""
        lines = ignore_lines(products).encode()
        try:
            done = run(self._offline(workspace, _EXCLUDE), lines, timeout_s=60)
        except TimeoutError as error:
            return str(error)
        complaints = (done.stdout + done.stderr).decode("utf-8", "replace").strip().splitlines()
        return (complaints[-1] if complaints else "no answer") if done.returncode else ""

    def _install_entry(self, key: str, workspace: Path) -> bool:
        if not (self.folder / key).exists():
            return False
        with self._locked(key, fcntl.LOCK_SH) as lock:
            return self._copy_into(key, workspace, lock)

    def _copy_into(self, key: str, workspace: Path, lock: int) -> bool:
        """Copy an entry into a workspace; False if there is none."""
        entry = self.folder / key
        try:
            manifest = json.loads((entry / "seed.json").read_bytes())
        except FileNotFoundError:
            return False
        products = installable(manifest["products"], workspace)
        self._copy(entry / "files", products, workspace, lock)
        if (workspace / ".git" / "info").is_dir():
            exclude(workspace, manifest["products"])
        os.utime(entry)
        return True

    def _keep(
        self, key: str, workspace: Path, products: Sequence[str], lock: int, log: Path
    ) -> None:
        fresh = self.folder / f".new-{key}"
        try:
            remove_workspace(fresh)
            (fresh / "files").mkdir(parents=True)
            self._copy(workspace, products, fresh / "files", lock)
            (fresh / "seed.json").write_text(json.dumps({"products": list(products)}), "utf-8")
            # After a power cut, an entry with its final name must be complete.
            self._wait(subprocess.Popen(("sync", "-f", str(fresh)), env=_COPY_ENV))
            fresh.rename(self.folder / key)
        except SetupCancelled:
            self.discard(fresh)
            raise
        except (OSError, StoreError) as error:
            # This workspace is ready all the same; the next one has to run setup again.
            remove_workspace(fresh)
            project_log.warning("a prepared workspace is not kept for others", error=error)
            _add_line(log, f"not kept for other workspaces: {error}")

    def _copy(self, source: Path, products: Sequence[str], target: Path, lock: int) -> None:
        """Copy products with their places; links stay links, and owners are not kept."""
        if products:
            options = ("-a", "--no-preserve=ownership", "--reflink=auto", "--parents")
            self._cp(
                *options, f"--target-directory={target}", "--", *products, cwd=source, lock=lock
            )

    def _cp(self, *arguments: str | Path, cwd: Path | None = None, lock: int | None = None) -> None:
        """Copy files, unless setup is cancelled."""
        self._refuse_cancelled()
        process = subprocess.Popen(
            ("cp", *arguments),
            cwd=cwd,
            env=_COPY_ENV,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # It outlives us if we are killed, and keeps the lock until it has ended.
            pass_fds=() if lock is None else (lock,),
        )
        if why := self._wait(process):
            raise StoreError(
                f"cannot copy the files of a setup: {why}",
                hint="free space there; a workspace that was cut short is made again",
            )

    def _wait(self, process: subprocess.Popen[bytes]) -> str:
        """Wait for a process, or end it when setup is cancelled; return the reason of a failure."""
        errors = wait_or_end(process, self.cancelled.is_set)
        self._refuse_cancelled()
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        return (lines[-1] if lines else "it failed") if process.returncode else ""

    def _tidy(self) -> None:
        """Remove the least recently used entries, and the rest of crashes."""
        entries = [path for path in self.folder.iterdir() if path.is_dir()]
        whole = [path for path in entries if not path.name.startswith(".")]
        whole.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in (*whole[_KEPT:], *(set(entries) - set(whole))):
            self._remove(path)

    def _remove(self, path: Path) -> None:
        key = path.name.rpartition("-")[2]
        try:
            with self._locked(key, fcntl.LOCK_EX | fcntl.LOCK_NB):
                gone = self.folder / f".old-{key}"
                if path != gone:
                    remove_workspace(gone)
                    path.rename(gone)
                remove_workspace(gone)
                if not (self.folder / key).exists():
                    (self.folder / f"{key}.lock").unlink()
        except (BlockingIOError, FileNotFoundError):
            # It is in use, or another process removed it first.
            return

    @contextmanager
    def _locked(self, key: str, operation: int) -> Iterator[int]:
        """Lock an entry against other threads and processes: shared to read it, else to make it."""
        path = self.folder / f"{key}.lock"
        while True:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, operation)
                if _is_still(path, lock):
                    yield lock
                    return
            finally:
                os.close(lock)


def _is_still(path: Path, handle: int) -> bool:
    """True if a file is still the one at its path: removing an entry removes its lock too."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _add_line(log: Path, line: str) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(f"\ncaloron: {line}\n")


def snapshot(workspace: Path) -> frozenset[str]:
    """Return every path in a workspace, relative to it."""
    return frozenset(name for name, _ in _walk(workspace, None))


def made_since(before: frozenset[str], workspace: Path) -> list[str]:
    """Return the paths that are new since then; of a new folder only the folder itself."""
    # Caloron's own folder may be there already in the next workspace.
    known = before | {OWN_FOLDER}
    return sorted(name for name, new in _walk(workspace, known) if new)


def _walk(workspace: Path, known: frozenset[str] | None) -> Iterator[tuple[str, bool]]:
    """Paths and whether they are new; what is below a new folder is left out."""
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(workspace / folder) as entries:
            for entry in entries:
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.name in _NEVER or not name.isprintable():
                    continue
                new = known is not None and name not in known
                if not new and entry.is_dir(follow_symlinks=False):
                    folders.append(name)
                yield name, new


def not_shared(products: Sequence[str], declared: Sequence[str]) -> list[str]:
    """Return the products that may depend on any file of the repository, so on its commit.

    In a workspace of another commit it would be out of date, and tests would test old code.
    """
    own = f"{OWN_FOLDER}/"
    known = (name in declared or name.startswith(own) or _DEPENDENCIES.match(name)
             for name in products)  # fmt: skip
    return [name for name, is_known in zip(products, known, strict=True) if not is_known]


def installable(products: Sequence[str], workspace: Path) -> list[str]:
    """Return the products whose paths are free in the workspace."""
    return [name for name in products if _is_free(workspace, Path(name))]


def _is_free(workspace: Path, product: Path) -> bool:
    for parent in reversed(product.parents[:-1]):
        try:
            if not stat.S_ISDIR((workspace / parent).lstat().st_mode):
                return False
        except FileNotFoundError:
            return True
    return not os.path.lexists(workspace / product)
