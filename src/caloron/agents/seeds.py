"""What setup made, kept so that it runs once and not in every workspace.

A seed is taken from a workspace right after setup, before any agent was in it, and used wherever
the same line, lock files and tools would make the same. It is moved to its place whole, so what a
crash leaves behind is never used.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from caloron.agents.foreground import Ended, run_confined
from caloron.agents.recipes import SHELL, Recipe, environment, with_path
from caloron.agents.setup_products import ignore_lines, made_since, not_shared, plantable, snapshot
from caloron.agents.transcript import last_line
from caloron.agents.watch import Watch
from caloron.agents.workspaces import remove_workspace
from caloron.errors import CaloronError, StoreError
from caloron.ports import Caps, Confinement, Network, Sandbox
from caloron.store import log as project_log
from caloron.store.redact import Redactor, secrets_in

_KEPT = 8
_LOOK_UP_S = 0.1
_TOOL = re.compile(r"\b(python3|uv|poetry|npm|pnpm|yarn|node|cargo|rustc|go)\b")
_VERSIONS = """uname -sm
for tool in "$@"; do command -v "$tool" && { "$tool" --version || "$tool" version; }; done
exit 0"""
#: Setup may have put a link or a pipe there.
_EXCLUDE = """[ -d .git ] || exit 0
[ -f .git/info/exclude ] && [ ! -L .git/info/exclude ] || rm -rf .git/info/exclude
mkdir -p .git/info && cat >>.git/info/exclude"""
_COPY_ENV = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"}


class SetupCancelled(CaloronError):
    """The sprint is being stopped: what a project needs is not installed any more."""


class SetupFailed(CaloronError):
    """What a project needs could not be installed."""

    code = "PRECONDITION_FAILED"
    exit_code = 8

    def __init__(self, line: str, why: str, log: Path) -> None:
        super().__init__(
            f"setup failed ({line}): {why}",
            hint=f"see {log}; correct the project, or choose another line with "
            "`caloron config set setup LINE` (`none`: no setup)",
        )
        self.log = log


class Seeds:
    """The seeds of one project."""

    def __init__(
        self,
        folder: Path,
        sandbox: Sandbox,
        *,
        network: Network,
        hosts: tuple[str, ...],
        caps: Caps,
        timeout_s: float,
        read_only: tuple[Path, ...],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        self._sandbox = sandbox
        self._network = network
        self._hosts = hosts
        self._caps = caps
        self._timeout_s = timeout_s
        self._read_only = read_only
        self._env = dict(env or {})
        #: Hears of a setup that begins: it may take minutes.
        self.announce: Callable[[str], object] = str
        #: Ends a setup or a copy that is under way.
        self.cancelled = threading.Event()
        #: Deletes what that left.
        self.discard: Callable[[Path], None] = remove_workspace
        self._redactor = Redactor(secrets_in(self._env))
        self._versions: dict[tuple[str, ...], str] = {}
        self._asking = threading.Lock()
        #: Keys whose setup makes what is for one workspace alone.
        self._not_shared: set[str] = set()

    def plant(
        self,
        workspace: Path,
        recipe: Recipe,
        *,
        lock_hash: str,
        log: Path,
        scope: str = "",
        restore_git: bool = False,
    ) -> bool:
        """Put the products of setup into a workspace, running setup once per lock hash.

        True if it ran now. The workspace must be new: nobody but git has written to it. Afterwards
        it is still to be handed to its agent.
        A `scope` keeps what is made here apart: setup runs code of the repository, so what came
        of an agent's own branch is not for others, while what came of main is for everybody.
        With `restore_git` the repository of the workspace is afterwards what it was before: a
        judge must not use the configuration, hooks or history that the author's setup wrote.
        """
        if not recipe.setup:
            return False
        workspace = workspace.absolute()
        if not lock_hash or self._sandbox.inside(workspace) == workspace:
            # What is made names its own place, which is another one in each workspace.
            self._set_up(workspace, recipe, log, restore_git=restore_git)
            return True
        keys = [self._key(recipe, lock_hash, each) for each in dict.fromkeys(("", scope))]
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(self._take(key, workspace) for key in keys):
            return False
        key = keys[-1]
        if key in self._not_shared:
            self._set_up(workspace, recipe, log, restore_git=restore_git)
            return True
        with self._hold(key, fcntl.LOCK_EX) as lock:
            if self._copy_into(key, workspace, lock):
                return False
            made = self._set_up(workspace, recipe, log, restore_git=restore_git)
            if others := not_shared(made, recipe.products):
                self._not_shared.add(key)
                _add_line(log, f"not kept for other workspaces: it also made {others[0]}")
            else:
                self._keep(key, workspace, made, lock, log)
        self._tidy()
        return True

    def plant_ready(self, workspace: Path, recipe: Recipe, *, lock_hash: str) -> bool:
        """Put in what main's setup made, if that is there; never runs setup."""
        if self._sandbox.inside(workspace) == workspace or not lock_hash:
            return False
        return self._take(self._key(recipe, lock_hash, ""), workspace.absolute())

    def _key(self, recipe: Recipe, lock_hash: str, scope: str) -> str:
        tools = self._tools(tuple(sorted(set(_TOOL.findall(recipe.setup)))))
        told = [1, recipe.setup, sorted(recipe.env.items()), recipe.path, lock_hash, tools, scope]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]

    def _tools(self, names: tuple[str, ...]) -> str:
        """The versions of these tools, as the sandbox has them."""
        with self._asking:
            if names not in self._versions:
                self._versions[names] = self._ask_versions(names)
            return self._versions[names]

    def _ask_versions(self, names: tuple[str, ...]) -> str:
        with tempfile.TemporaryDirectory(prefix="caloron-") as place:
            workspace, log = Path(place, "workspace"), Path(place, "log")
            workspace.mkdir()
            self._sandbox.hand_to_agent(workspace)
            given = self._confinement(workspace, None, "none", {})
            argv = (SHELL, "-c", _VERSIONS, "sh", *names)
            run_confined(self._sandbox.confine(argv, given), log, limit_s=60)
            return f"{log.read_text('utf-8', 'replace')}{platform.libc_ver()}"

    def _confinement(
        self, workspace: Path, home: Path | None, network: Network, env: dict[str, str]
    ) -> Confinement:
        return Confinement(
            workspace=workspace,
            home=home,
            read_only=self._read_only,
            network=network,
            hosts=self._hosts,
            env=env,
            caps=self._caps,
        )

    def _set_up(
        self, workspace: Path, recipe: Recipe, log: Path, *, restore_git: bool
    ) -> list[str]:
        """Run setup in a workspace; what it made, none of which is ever committed."""
        self.announce(f"setting up: {recipe.setup}")
        # On disk, not in memory: package managers download whole archives to it first.
        home = workspace.with_name(f".{workspace.name}.setup-home")
        remove_workspace(home)
        (home / "tmp").mkdir(parents=True)
        before = snapshot(workspace)
        try:
            with self._git_restored(workspace) if restore_git else nullcontext():
                self._sandbox.hand_to_agent(workspace, home)
                ended = self._run(workspace, home, recipe, log)
            self._refuse_cancelled()
            if ended.exit_code or ended.timed_out or ended.over:
                raise SetupFailed(recipe.setup, self._why(ended, log), log)
            products = made_since(before, workspace)
            if why := self._exclude(workspace, home, products):
                raise SetupFailed(recipe.setup, f"it damaged .git of the workspace: {why}", log)
        finally:
            self.discard(home)
        return products

    @contextmanager
    def _git_restored(self, workspace: Path) -> Iterator[None]:
        """Put the repository of a workspace back as it was, whatever happens to it meanwhile."""
        repository = workspace / ".git"
        kept = workspace.with_name(f".{workspace.name}.setup-git")
        remove_workspace(kept)
        argv = ("cp", "-a", "--", repository, kept)
        done = subprocess.run(argv, env=_COPY_ENV, capture_output=True, check=False)
        if done.returncode != 0:
            raise StoreError(
                f"cannot copy {repository}: {done.stderr.decode('utf-8', 'replace').strip()}",
                hint="free space there; a workspace that was cut short is made again",
            )
        try:
            yield
        finally:
            remove_workspace(repository)
            kept.rename(repository)
            self._sandbox.hand_to_agent(workspace)

    def _refuse_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise SetupCancelled("setup was cancelled: the sprint is being stopped")

    def _run(self, workspace: Path, home: Path, recipe: Recipe, log: Path) -> Ended:
        inside = self._sandbox.inside(workspace)
        temporary = {"TMPDIR": str(self._sandbox.home_inside(home) / "tmp")}
        env = self._env | environment(recipe, inside) | temporary
        given = self._confinement(workspace, home, self._network, env)
        argv = with_path(recipe, inside, (SHELL, "-c", recipe.setup))
        watch = Watch(
            memory_mb=self._caps.memory_mb,
            processes=self._caps.processes,
            disk_mb=self._caps.disk_mb,
            folders=[str(workspace), str(home)],
        )
        return run_confined(
            self._sandbox.confine(argv, given),
            log,
            limit_s=self._timeout_s,
            watch=watch,
            redactor=self._redactor,
            cancelled=self.cancelled,
        )

    def _why(self, ended: Ended, log: Path) -> str:
        if ended.timed_out:
            return f"it did not end within {self._timeout_s:g} s"
        if ended.over:
            return f"it was ended: {ended.over}"
        return last_line(log) or f"exit code {ended.exit_code}, and it said nothing"

    def _exclude(self, workspace: Path, home: Path, products: Sequence[str]) -> str:
        """Let git overlook the products: inside, whatever setup did; why it failed, if so."""
        remove_workspace(home)
        home.mkdir()
        lines, log = home / "exclude", home / "log"
        lines.write_text(ignore_lines(products), "utf-8")
        given = self._confinement(workspace, None, "none", {})
        confined = self._sandbox.confine((SHELL, "-c", _EXCLUDE), given)
        ended = run_confined(confined, log, limit_s=60, stdin=lines)
        return last_line(log) or "no answer" if ended.exit_code else ""

    def _take(self, key: str, workspace: Path) -> bool:
        if not (self._folder / key).exists():
            return False
        with self._hold(key, fcntl.LOCK_SH) as lock:
            return self._copy_into(key, workspace, lock)

    def _copy_into(self, key: str, workspace: Path, lock: int) -> bool:
        """Copy a seed into a workspace; False if there is none."""
        seed = self._folder / key
        try:
            told = json.loads((seed / "seed.json").read_bytes())
        except FileNotFoundError:
            return False
        products = plantable(told["products"], workspace)
        self._copy(seed / "files", products, workspace, lock)
        exclude = workspace / ".git" / "info" / "exclude"
        if exclude.parent.is_dir():
            with exclude.open("a", encoding="utf-8") as file:
                file.write(ignore_lines(told["products"]))
        os.utime(seed)
        return True

    def _keep(
        self, key: str, workspace: Path, products: Sequence[str], lock: int, log: Path
    ) -> None:
        fresh = self._folder / f".new-{key}"
        try:
            remove_workspace(fresh)
            (fresh / "files").mkdir(parents=True)
            self._copy(workspace, products, fresh / "files", lock)
            (fresh / "seed.json").write_text(json.dumps({"products": list(products)}), "utf-8")
            # What a power cut would lose must not be behind a name that promises it.
            self._wait(subprocess.Popen(("sync", "-f", str(fresh)), env=_COPY_ENV))
            fresh.rename(self._folder / key)
        except SetupCancelled:
            self.discard(fresh)
            raise
        except (OSError, StoreError) as error:
            # This workspace is ready all the same; the next one has to run setup again.
            remove_workspace(fresh)
            project_log.warning("a prepared workspace is not kept for others", error=error)
            _add_line(log, f"not kept for other workspaces: {error}")

    def _copy(self, source: Path, products: Sequence[str], target: Path, lock: int) -> None:
        """Copy products with their places; links stay links, and nobody's ownership is kept."""
        if not products:
            return
        options = ("-a", "--no-preserve=ownership", "--reflink=auto", "--parents")
        self._refuse_cancelled()
        process = subprocess.Popen(
            ("cp", *options, f"--target-directory={target}", "--", *products),
            cwd=source,
            env=_COPY_ENV,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            # It lives on when we are killed, and holds the seed until it has ended.
            pass_fds=(lock,),
        )
        if why := self._wait(process):
            raise StoreError(
                f"cannot copy what setup made to {target}: {why}",
                hint="free space there; a workspace that was cut short is made again",
            )

    def _wait(self, process: subprocess.Popen[bytes]) -> str:
        """Wait for a process, or end it when setup is cancelled; why it failed, if it did."""
        while True:
            try:
                said = process.communicate(timeout=_LOOK_UP_S)[1]
            except subprocess.TimeoutExpired:
                if self.cancelled.is_set():
                    process.kill()
                continue
            self._refuse_cancelled()
            lines = (said or b"").decode("utf-8", "replace").strip().splitlines()
            return (lines[-1] if lines else "it failed") if process.returncode else ""

    def _tidy(self) -> None:
        """Remove the seeds that were not used for longest, and what crashes left behind."""
        seeds = [path for path in self._folder.iterdir() if path.is_dir()]
        whole = [path for path in seeds if not path.name.startswith(".")]
        whole.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        for path in (*whole[_KEPT:], *(set(seeds) - set(whole))):
            self._remove(path)

    def _remove(self, path: Path) -> None:
        key = path.name.rpartition("-")[2]
        try:
            with self._hold(key, fcntl.LOCK_EX | fcntl.LOCK_NB):
                gone = self._folder / f".old-{key}"
                if path != gone:
                    remove_workspace(gone)
                    path.rename(gone)
                remove_workspace(gone)
                if not (self._folder / key).exists():
                    (self._folder / f"{key}.lock").unlink()
        except (BlockingIOError, FileNotFoundError):
            # Somebody uses it, or removed it first.
            return

    @contextmanager
    def _hold(self, key: str, operation: int) -> Iterator[int]:
        """Hold a seed against other threads and processes: shared to read it, else to make it."""
        path = self._folder / f"{key}.lock"
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
    """Whether a file is still the one at its path: who removed a seed removed its lock too."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _add_line(log: Path, line: str) -> None:
    with log.open("a", encoding="utf-8") as file:
        file.write(f"\ncaloron: {line}\n")
