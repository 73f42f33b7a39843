"""Prepares workspaces: at the right commit, set up, with a private home."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from caloron.agents.workspace.pool import Pool
from caloron.agents.workspace.project_detection import (
    ProjectCommands,
    apply_overrides,
    detect,
    lock_hash,
)
from caloron.agents.workspace.workspaces import (
    create_checkout,
    create_workspace,
    excluded,
    prepare_workspace,
)
from caloron.domain.model.roles import ROLES
from caloron.domain.model.sprint import State
from caloron.domain.model.task import Task, Work
from caloron.errors import CaloronError
from caloron.git.mirror import Conflict, Mirror
from caloron.ledger.settings import ProjectConfig
from caloron.ports import Sandbox

if TYPE_CHECKING:
    from caloron.agents.workspace.setup_cache import SetupCache

#: The files that `caloron init` puts on a new main.
_FROM_INIT = {"README.md"}


class PreparedWorkspace(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace and a home that are ready for one attempt."""

    workspace: Path
    home: Path
    #: The commit that the work starts from, what it merges in, and files in conflict with that.
    start: str
    merges: str = ""
    conflicts: tuple[str, ...] = ()
    #: The saved work of an attempt that was cut short, which the files hold.
    restored: str = ""
    commands: ProjectCommands = ProjectCommands()
    #: Paths that git ignores because setup made them, even if the agent stops ignoring them.
    products: tuple[str, ...] = ()
    #: Why setup failed, and its log.
    setup_failed: str = ""
    log: Path = Path()


@dataclass
class CommitSetup:
    """Answers how each commit of a project is set up and verified."""

    config: ProjectConfig
    mirror: Mirror
    open_cache: Callable[[], SetupCache]
    #: Raises for a commit that no sprint could begin with.
    refuse: Callable[[str], None]
    _cache: SetupCache | None = None
    _opening: threading.Lock = field(default_factory=threading.Lock)

    @property
    def cache(self) -> SetupCache:
        """The cache of the project's setups, opened for the first commit that has a setup."""
        with self._opening:
            if self._cache is None:
                self._cache = self.open_cache()
            return self._cache

    def files(self, commit: str) -> dict[str, str]:
        """List the files of a commit; refuse one that would take too much disk."""
        return self.mirror.files(commit, self.config.disk_mb << 20)

    def refuse_large(self, commit: str) -> None:
        self.files(commit)

    def is_empty(self, commit: str) -> bool:
        """True if a commit holds only what `caloron init` wrote."""
        return set(self.files(commit)) <= _FROM_INIT

    def refusal(self, commit: str) -> str:
        """Return the reason why no sprint could begin with this commit; empty if one could."""
        try:
            self.refuse(commit)
        except CaloronError as error:
            return str(error)
        return ""

    def commands(self, commit: str) -> ProjectCommands:
        """Return the commands that set up and verify a commit: from the settings, else detected."""
        config, files = self.config, self.files(commit)
        if config.setup and config.verify:
            detected = ProjectCommands()
        else:
            detected = detect(files, lambda name: self.mirror.read(commit, name))
        return apply_overrides(detected, files, setup=config.setup, verify=config.verify)

    def seed(self, commit: str) -> str:
        """The key of the setup that a commit needs; empty if it needs none."""
        commands = self.commands(commit)
        return lock_hash(commands, self.files(commit)) if commands.setup else ""

    def install_setup(self, workspace: Path, commit: str) -> str | None:
        """Put a finished setup into a new workspace; None if there is none yet."""
        commands, seed = self.commands(commit), self.seed(commit)
        if not commands.setup:
            return ""
        return seed if self.cache.install_cached(workspace, commands, lock_hash=seed) else None


@dataclass
class WorkspacePreparer:
    """Prepares workspaces for one project."""

    mirror: Mirror
    sandbox: Sandbox
    setup: CommitSetup
    pool: Pool
    #: The author of commits.
    identity: tuple[str, str]

    def checkout(self, run_dir: Path, commit: str, *, scope: str) -> PreparedWorkspace:
        """Prepare a clean copy of a commit for verification."""
        workspace, home = run_dir / "workspace", run_dir / "home"
        ready = self.pool.take(workspace, home, commit, "", seed=self.setup.seed(commit))
        if not ready:
            create_checkout(self.mirror, workspace, commit)
        return self._complete(workspace, home, commit, run_dir, scope=scope, ready=ready)

    def prepare(
        self, state: State, task: Task | None, work: Work, run_dir: Path, *, restore: bool
    ) -> PreparedWorkspace:
        """Prepare a workspace for an agent, on its branch, at the commit that its role works on."""
        main = self.mirror.fetch_main()
        start, merges, conflicts = self._start(state, work, main)
        restored = self.mirror.newest_numbered(f"refs/salvage/{work.item}") if restore else ""
        if restored and not merges:
            start = self.mirror.merge_base(start, restored) or start
        else:
            restored = ""
        if merges:
            self.setup.refuse_large(merges)
        branch = task.change.branch if task else f"agent/{work.role}/{state.sprint.id}"
        agent = f"caloron-agent-{task.agent}" if task else ""
        workspace, home = run_dir / "workspace", run_dir / "home"
        ready = self.pool.take(workspace, home, start, branch, seed=self.setup.seed(start))
        if ready:
            prepare_workspace(
                workspace, merge=merges, restore=restored, agent=agent, identity=self.identity
            )
            changed = workspace if merges or restored else workspace / ".git" / "hooks"
            self.sandbox.give_ownership(changed)
        else:
            create_workspace(
                self.mirror,
                workspace,
                start=start,
                branch=branch,
                merge=merges,
                restore=restored,
                agent=agent,
                identity=self.identity,
            )
        # Setup results that depend on an agent's own files are not shared.
        scope = task.id if task and (start != main or merges or restored) else ""
        judges = ROLES[work.role].gives_verdict
        place = self._complete(
            workspace, home, start, run_dir, scope=scope, ready=ready, restore_git=judges
        )
        return msgspec.structs.replace(place, merges=merges, conflicts=conflicts, restored=restored)

    def _start(self, state: State, work: Work, main: str) -> tuple[str, str, tuple[str, ...]]:
        start = work.head or main
        if work.role == "resolve":
            merged = self.mirror.merge(main, start, "Merge to find conflicts")
            return start, main, merged.files if isinstance(merged, Conflict) else ()
        if work.onto_main:
            message = f"Merge {state.sprint.settings.main_branch}"
            merged = self.mirror.merge(main, start, message, self.identity)
            start = start if isinstance(merged, Conflict) else merged.commit
        return start, "", ()

    def _complete(
        self,
        workspace: Path,
        home: Path,
        commit: str,
        run_dir: Path,
        *,
        scope: str,
        ready: bool,
        restore_git: bool = False,
    ) -> PreparedWorkspace:
        """Install what the project needs, and let the agent own all of it."""
        commands = self.setup.commands(commit)
        log, failed = run_dir / "setup.log", ""
        if not ready:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            if commands.setup:
                failed = self._set_up(workspace, commit, log, scope=scope, restore_git=restore_git)
            self.sandbox.give_ownership(workspace, home)
        return PreparedWorkspace(
            workspace=workspace,
            home=home,
            start=commit,
            commands=commands,
            products=excluded(workspace),
            setup_failed=failed,
            log=log,
        )

    def _set_up(
        self, workspace: Path, commit: str, log: Path, *, scope: str, restore_git: bool
    ) -> str:
        """Install the products of setup; return why it failed, or an empty string."""
        from caloron.agents.workspace.setup_cache import SetupFailed

        cache = self.setup.cache
        try:
            cache.install(
                workspace,
                self.setup.commands(commit),
                lock_hash=self.setup.seed(commit),
                log=log,
                scope=scope,
                restore_git=restore_git,
            )
        except SetupFailed as error:
            cache.announce(str(error))
            return str(error)
        return ""
