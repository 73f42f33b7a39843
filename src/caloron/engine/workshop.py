"""Puts the parts together that do the work of one sprint: sandbox, workspaces, agents, money."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

import msgspec

from caloron.agents import conventions
from caloron.agents.frameworks import runner_for
from caloron.agents.network import hosts_in
from caloron.agents.pool import Pool
from caloron.agents.processes import PROXY_VARIABLES
from caloron.agents.sandbox import Bubblewrap, NoSandbox
from caloron.agents.seeds import Seeds
from caloron.agents.trash import Trash
from caloron.agents.visible import is_there
from caloron.domain.plan import PlannedTask
from caloron.domain.sprint import State
from caloron.engine.agent_homes import AgentHomes
from caloron.engine.assignments import Assigner
from caloron.engine.bell import Bell
from caloron.engine.confining import Confining
from caloron.engine.forges import NOTE
from caloron.engine.outcomes import Outcomes
from caloron.engine.runs import RunDirs
from caloron.engine.spending import Purse
from caloron.engine.tokens import token_values
from caloron.engine.workers import Workers
from caloron.engine.workplaces import Workplaces
from caloron.errors import CaloronError, PreconditionFailed
from caloron.git.mirror import CALORON_IDENTITY, Mirror
from caloron.ledger.learnings import context_for
from caloron.ledger.ledger import Ledger
from caloron.ledger.locate import home
from caloron.ledger.projects import Project
from caloron.ledger.settings import ProjectConfig
from caloron.ledger.work import WorkQueue
from caloron.ports import AgentRunner, Sandbox
from caloron.stages.kickoff import fetch_repo_context, page, rules_page
from caloron.stages.retro_page import retro_material
from caloron.store import log
from caloron.store.redact import Redactor, learn, secrets_in

_LFS_FILTER = "filter=lfs"
#: Where a machine's administrator says which packages to use.
_PACKAGE_SETTINGS = (Path("/etc/pip.conf"), Path("/etc/npmrc"))
_PACKAGE_MANAGERS = (
    "PIP_", "UV_INDEX", "UV_DEFAULT_INDEX", "NPM_CONFIG_", "CARGO_REGISTRIES_", "GOPROXY",
    "GONOSUMDB", "GOSUMDB", "GOFLAGS", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
)  # fmt: skip


class Workshop:
    """Everything that turns queued work into commits, answers and verdicts."""

    def __init__(
        self,
        project: Project,
        state: State,
        queue: WorkQueue,
        mirror: Mirror,
        bell: Bell,
        *,
        tell: Callable[[str], None] | None = None,
        show: Callable[[str], None] | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        """`stopping`, once set, lets every part give up what it need not finish."""
        stopping = stopping or threading.Event()
        self._project, self._mirror, config = project, mirror, project.config
        #: What of the organisation's conventions was not understood.
        self.warnings: tuple[str, ...] = ()
        self.sandbox = sandbox_for(mirror.path, unsandboxed=state.sprint.unsandboxed)
        self.runner = cache(lambda name: runner(project, name))
        self.secrets = known_secrets(config)
        self.redactor = Redactor(self.secrets)
        who = identity(config)
        self._confining = Confining(config, self.sandbox)
        self.trash = Trash(project.path / "trash")
        self.pool = Pool(
            mirror,
            self.sandbox,
            project.path / "pool",
            config.pool,
            who,
            stopping=stopping,
            discard=self.trash.put,
        )
        seeds = self._seeds(project, stopping)
        if tell:
            seeds.announce = tell
        self._workplaces = Workplaces(
            config,
            mirror,
            self.sandbox,
            seeds,
            self.pool,
            who,
            lambda commit: refuse_start_from(mirror, commit),
        )
        budget = state.sprint.budget_usd or config.budget_usd
        self.purse = Purse(budget, state.sprint.spent.usd, config.run_budget_usd)
        self.meter(state)
        self.outcomes = Outcomes(
            queue,
            mirror,
            self.sandbox,
            RunDirs(project.runs),
            self.runner,
            identity=who,
            secrets=self.secrets,
            disk_mb=config.disk_mb,
        )
        self.outcomes.discard, self.outcomes.stopping = self.trash.put, stopping
        assigner = self._assigner = Assigner(
            config,
            mirror,
            self._confining,
            self._workplaces,
            self.runner,
            redactor=self.redactor,
            show=show,
        )
        assigner.lessons = lambda sprint: context_for(queue.ledger, sprint)
        assigner.repository = cache(lambda: repository_pages(queue.ledger, mirror))
        assigner.material = lambda sprint: retro_material(queue.ledger, sprint)
        self.homes = AgentHomes(project.agents, queue.ledger, queue.sprint, tell)
        assigner.opening = self.homes.opening
        self.workers = Workers(
            project,
            queue,
            assigner,
            self.outcomes,
            self.purse,
            bell,
            parallel=state.sprint.parallel,
            stopping=stopping,
        )
        self.workers.noticed = self.homes.notice

    def open(self) -> None:
        """Read the conventions that stand on main; this needs the forge."""
        on_main = self._mirror.read(self._mirror.fetch_main(), "caloron.yml") or None
        found = conventions.load(home(), on_main, self._project.workspace)
        self._assigner.conventions, self.warnings = conventions.render(found), found.warnings

    def meter(self, state: State) -> None:
        """Count what is spent from the moment on that somebody who tells it may be started."""
        if not self.purse.metered:
            plan = (*state.sprint.given_plan, *(task.plan for task in state.tasks.values()))
            names = frameworks_of(self._project, plan)
            self.purse.metered = any(map(self._tells_cost, names))

    def _tells_cost(self, framework: str) -> bool:
        try:
            return self.runner(framework).tells_cost
        except CaloronError as error:
            log.debug("a framework is not set up", error=error, framework=framework)
            # One that is not set up starts nobody; its own task says so.
            return False

    def _seeds(self, project: Project, cancelled: threading.Event) -> Seeds:
        confining, network = self._confining, self._confining.network("setup")
        env = _setup_environment()
        named = _registries(env) if network == "public" else ()
        seeds = Seeds(
            project.path / "seeds",
            self.sandbox,
            network=network,
            hosts=(*confining.allow_hosts, *named),
            caps=confining.caps,
            timeout_s=project.config.setup_timeout_s,
            read_only=(*confining.read_only, *_PACKAGE_SETTINGS),
            env=env,
        )
        seeds.cancelled, seeds.discard = cancelled, self.trash.put
        return seeds


def repository_pages(ledger: Ledger, mirror: Mirror) -> tuple[str, str]:
    """The repository in lines, and what it asks of contributors, as main is now."""
    note = json.loads(ledger.get(NOTE) or "{}")
    context = fetch_repo_context(
        mirror,
        mirror.newest_main(),
        description=note.get("description", ""),
        open_issues=note.get("open_issues"),
    )
    return page(context), rules_page(context)


def sandbox_for(mirror: Path, *, unsandboxed: bool) -> Sandbox:
    return NoSandbox() if unsandboxed else Bubblewrap(mirror=mirror)


def frameworks_of(project: Project, plan: Iterable[PlannedTask]) -> list[str]:
    """The frameworks that a project and a plan name, each once."""
    return sorted({project.config.framework} | {p.framework for p in plan if p.framework})


def runner(project: Project, framework: str) -> AgentRunner:
    """The runner of a framework, as the project has set it up."""
    config = project.config
    fixture = os.environ.get("CALORON_STUB_FIXTURE", "") or config.stub_fixture
    return runner_for(framework, stub_fixture=fixture, command=tuple(config.command))


def known_secrets(config: ProjectConfig) -> dict[str, str]:
    """The values that must appear nowhere: keys, what agents are given, tokens of the forge."""
    given = {name: os.environ[name] for name in config.pass_env if os.environ.get(name)}
    passed = secrets_in({f"{name}_KEY": value for name, value in given.items()})
    for name, value in passed.items():
        # Their names do not give them away, so the log cannot recognise them by itself.
        learn(name, value)
    return secrets_in(os.environ) | passed | token_values(config)


def cleaned_plan(plan: tuple[PlannedTask, ...], redactor: Redactor) -> tuple[PlannedTask, ...]:
    """A plan without the secrets that somebody wrote into it."""
    text = redactor.data(msgspec.json.encode(plan))
    return msgspec.json.decode(text, type=tuple[PlannedTask, ...])


def identity(config: ProjectConfig) -> tuple[str, str]:
    """Who commits: the user, as the settings or git's own configuration say."""
    name = config.git_name or _git_setting(config, "user.name")
    email = config.git_email or _git_setting(config, "user.email")
    return (name, email) if name and email else CALORON_IDENTITY


def _git_setting(config: ProjectConfig, key: str) -> str:
    """A setting of the user's own git, in the user's own repository."""
    repo = config.repo if config.forge == "local" else config.checkout
    # Unlike `Path.is_dir`, this answers for a name that is too long or is no path.
    place = ("-C", repo) if repo and os.path.isdir(repo) else ()  # noqa: PTH112
    done = subprocess.run(
        ("git", *place, "config", "--get", key), capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def refuse_start_from(mirror: Mirror, commit: str) -> None:
    """Refuse a commit that agents cannot work on, or whose conventions cannot be read.

    Submodules and LFS files are not in a clone of ours: agents would work on half a project.
    """
    conventions.load(home(), mirror.read(commit, "caloron.yml") or None)
    if modules := mirror.submodules(commit):
        raise PreconditionFailed(
            f"the repository has submodules ({', '.join(modules[:3])}), which agents cannot see",
            hint="put their files into the repository, or run the sprint in the submodule itself",
        )
    attributes = [name for name in mirror.files(commit) if name.endswith(".gitattributes")]
    for name in attributes:
        if _LFS_FILTER in mirror.read(commit, name):
            raise PreconditionFailed(
                f"the repository keeps files in Git LFS ({name}), which agents cannot see",
                hint="take those files out of LFS (git lfs migrate export), or out of the project",
            )


def _setup_environment() -> dict[str, str]:
    """Where the user's package managers look; an address with a password in it stays outside."""
    told = {
        name: value
        for name, value in os.environ.items()
        if name.upper().startswith(_PACKAGE_MANAGERS) and not value.startswith("/")
    }
    kept_back = secrets_in(told)
    return {name: value for name, value in told.items() if name not in kept_back}


def _registries(env: Mapping[str, str]) -> tuple[str, ...]:
    """Where the user's own settings look for packages: allowed also on a private address."""
    texts = [value for name, value in env.items() if name not in PROXY_VARIABLES]
    files = filter(is_there, _PACKAGE_SETTINGS)
    return hosts_in((*texts, *(file.read_text("utf-8", "replace") for file in files)))
