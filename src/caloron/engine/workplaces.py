"""Makes the places where work is done: a workspace at the right commit, set up, with a home."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import msgspec

from caloron.agents.pool import Pool
from caloron.agents.recipes import Recipe, chosen, detect, lock_hash
from caloron.agents.seeds import Seeds, SetupFailed
from caloron.agents.setup_products import excluded
from caloron.agents.workspaces import create_checkout, create_workspace, furnish
from caloron.domain.sprint import State, Task, Work
from caloron.errors import CaloronError
from caloron.git.commits import refuse_large
from caloron.git.mirror import Conflict, Mirror
from caloron.ledger.settings import ProjectConfig
from caloron.ports import Sandbox

#: Roles that judge what others wrote.
_JUDGES = ("review", "check")
#: What `caloron init` puts on a new main.
_FROM_INIT = {"README.md"}


class Workplace(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace and a home that are ready for one attempt."""

    workspace: Path
    home: Path
    #: The commit that the work starts from, what it merges in, and files in conflict with that.
    start: str
    merges: str = ""
    conflicts: tuple[str, ...] = ()
    #: The saved work of an attempt that was cut short, which the files hold.
    restored: str = ""
    recipe: Recipe = Recipe()
    #: What git overlooks there, because it is not the agent's: also if the agent lets git see it.
    products: tuple[str, ...] = ()
    #: Why setup failed, and its log.
    setup_failed: str = ""
    log: Path = Path()


class Workplaces:
    """Makes workplaces for one project."""

    def __init__(
        self,
        config: ProjectConfig,
        mirror: Mirror,
        sandbox: Sandbox,
        seeds: Seeds,
        pool: Pool,
        identity: tuple[str, str],
        refuse: Callable[[str], None],
    ) -> None:
        self._config = config
        self._mirror = mirror
        self._sandbox = sandbox
        self._seeds = seeds
        self._pool = pool
        self.identity = identity
        #: Raises for a commit that no sprint could begin with.
        self._refuse = refuse
        self._files = lru_cache(maxsize=8)(self._listed)
        pool.furnish, pool.measure = self._furnish, self._listed

    def _listed(self, commit: str) -> dict[str, str]:
        """The files of a commit; refused before any checkout if they would take too much disk."""
        refuse_large(self._mirror.path, commit, self._config.disk_mb << 20)
        return self._mirror.files(commit)

    def is_empty(self, commit: str) -> bool:
        """Whether a commit holds nothing but what `caloron init` wrote."""
        return set(self._files(commit)) <= _FROM_INIT

    def refusal(self, commit: str) -> str:
        """Why a sprint could not begin with this commit, in one line; empty: it could."""
        try:
            self._refuse(commit)
        except CaloronError as error:
            return str(error)
        return ""

    def recipe(self, commit: str) -> Recipe:
        """How a commit is set up and verified: the user's settings, else what its files tell."""
        config, files = self._config, self._files(commit)
        if config.setup and config.verify:
            found = Recipe()
        else:
            found = detect(files, lambda name: self._mirror.read(commit, name))
        return chosen(found, files, setup=config.setup, verify=config.verify)

    def _seed(self, commit: str) -> str:
        """What decides which setup a commit needs; empty: none."""
        recipe = self.recipe(commit)
        return lock_hash(recipe, self._files(commit)) if recipe.setup else ""

    def _furnish(self, workspace: Path, commit: str) -> str | None:
        recipe, seed = self.recipe(commit), self._seed(commit)
        if not recipe.setup:
            return ""
        return seed if self._seeds.plant_ready(workspace, recipe, lock_hash=seed) else None

    def checkout(self, run_dir: Path, commit: str, *, scope: str) -> Workplace:
        """A clean copy of a commit for verification."""
        workspace, home = run_dir / "workspace", run_dir / "home"
        ready = self._pool.take(workspace, home, commit, "", seed=self._seed(commit))
        if not ready:
            create_checkout(self._mirror, workspace, commit)
        return self._complete(workspace, home, commit, run_dir, scope=scope, ready=ready)

    def prepare(
        self, state: State, task: Task | None, work: Work, run_dir: Path, *, restore: bool
    ) -> Workplace:
        """A workspace for an agent, on its branch, in the state that its role is about."""
        main = self._mirror.fetch_main()
        start, merges, conflicts = self._start(state, work, main)
        restored = self._mirror.newest(f"refs/salvage/{work.item}") if restore else ""
        if restored and not merges:
            start = self._mirror.merge_base(start, restored) or start
        else:
            restored = ""
        if merges:
            self._files(merges)
        branch = task.branch if task else f"agent/{work.role}/{state.sprint.id}"
        agent = f"caloron-agent-{task.agent}" if task else ""
        workspace, home = run_dir / "workspace", run_dir / "home"
        ready = self._pool.take(workspace, home, start, branch, seed=self._seed(start))
        if ready:
            furnish(workspace, merge=merges, restore=restored, agent=agent, identity=self.identity)
            changed = workspace if merges or restored else workspace / ".git" / "hooks"
            self._sandbox.hand_to_agent(changed)
        else:
            create_workspace(
                self._mirror,
                workspace,
                start=start,
                branch=branch,
                merge=merges,
                restore=restored,
                agent=agent,
                identity=self.identity,
            )
        # What an agent's own files make is not for others.
        scope = task.id if task and (start != main or merges or restored) else ""
        judges = work.role in _JUDGES
        place = self._complete(
            workspace, home, start, run_dir, scope=scope, ready=ready, restore_git=judges
        )
        return msgspec.structs.replace(place, merges=merges, conflicts=conflicts, restored=restored)

    def _start(self, state: State, work: Work, main: str) -> tuple[str, str, tuple[str, ...]]:
        start = work.head or main
        if work.role == "resolve":
            merged = self._mirror.merge(main, start, "Merge for a look at conflicts")
            return start, main, merged.files if isinstance(merged, Conflict) else ()
        if work.onto_main:
            message = f"Merge {state.sprint.main}"
            merged = self._mirror.merge(main, start, message, self.identity)
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
    ) -> Workplace:
        """Install what the project needs, and let the agent own all of it."""
        recipe = self.recipe(commit)
        log, failed = run_dir / "setup.log", ""
        if not ready:
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            seed = self._seed(commit)
            try:
                self._seeds.plant(
                    workspace, recipe, lock_hash=seed, log=log, scope=scope, restore_git=restore_git
                )
            except SetupFailed as error:
                failed = str(error)
                self._seeds.announce(failed)
            self._sandbox.hand_to_agent(workspace, home)
        return Workplace(
            workspace=workspace,
            home=home,
            start=commit,
            recipe=recipe,
            products=excluded(workspace),
            setup_failed=failed,
            log=log,
        )
