"""Builds the parts that do the work of one sprint: sandbox, workspaces, agents, budget."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from caloron.agents import conventions
from caloron.agents.clis.registry import agent_cli
from caloron.agents.sandbox.bubblewrap import Bubblewrap, NoSandbox
from caloron.agents.sandbox.mounts import is_there
from caloron.agents.supervise.processes import PROXY_VARIABLES
from caloron.agents.workspace.pool import Pool
from caloron.agents.workspace.workspaces import Trash
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.sprint import State
from caloron.engine.agent_dirs import AgentDirs
from caloron.engine.runs.budget import BudgetGuard
from caloron.engine.runs.collect import AttemptCollector
from caloron.engine.runs.prepare import AttemptPreparer, PromptContext
from caloron.engine.runs.run_dirs import RunDirs
from caloron.engine.runs.sandbox_policy import SandboxPolicy
from caloron.engine.runs.workers import Workers
from caloron.engine.runs.workspaces import CommitSetup, WorkspacePreparer
from caloron.engine.signals import LoopSignal
from caloron.errors import CaloronError, PreconditionFailed
from caloron.git.command import IDENTITY
from caloron.git.mirror import Mirror
from caloron.ledger.locate import home
from caloron.ledger.projects import Project
from caloron.ledger.settings import ProjectConfig
from caloron.ledger.work_queue import WorkQueue
from caloron.ports import AgentCli, Sandbox, SandboxSpec
from caloron.store import log
from caloron.store.redact import Redactor, learn, secrets_in

if TYPE_CHECKING:
    from caloron.agents.workspace.setup_cache import SetupCache

_LFS_FILTER = "filter=lfs"
#: Where a machine's administrator says which packages to use.
_PACKAGE_SETTINGS = (Path("/etc/pip.conf"), Path("/etc/npmrc"))
_PACKAGE_MANAGERS = (
    "PIP_", "UV_INDEX", "UV_DEFAULT_INDEX", "NPM_CONFIG_", "CARGO_REGISTRIES_", "GOPROXY",
    "GONOSUMDB", "GOSUMDB", "GOFLAGS", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
)  # fmt: skip


class SprintRuntime:
    """Everything that turns queued work into commits, answers and verdicts."""

    def __init__(
        self,
        project: Project,
        state: State,
        queue: WorkQueue,
        mirror: Mirror,
        signal: LoopSignal,
        *,
        message: Callable[[str], object] = str,
        show_prompt: Callable[[str], None] | None = None,
        stopping: threading.Event | None = None,
    ) -> None:
        """Once `stopping` is set, every part gives up what it need not finish."""
        stopping = stopping or threading.Event()
        config, ledger = project.config, queue.ledger
        self._project = project
        self._runner = cache(lambda name: runner(project, name))
        self.sandbox = sandbox_for(mirror.path, unsandboxed=state.sprint.settings.unsandboxed)
        self.secrets = known_secrets(config)
        self.redactor = Redactor(self.secrets)
        self.trash = Trash(project.path / "trash")
        who, policy = identity(config), SandboxPolicy(config, self.sandbox)
        setup = CommitSetup(
            config,
            mirror,
            lambda: _open_cache(project, policy, message, stopping, self.trash.put),
            lambda commit: refuse_start_from(mirror, commit),
        )
        self.pool = Pool(
            mirror,
            self.sandbox,
            project.path / "pool",
            config.pool,
            who,
            setup=setup,
            stopping=stopping,
            discard=self.trash.put,
        )
        self.budget = BudgetGuard(
            state.sprint.settings.budget_usd or config.budget_usd,
            state.sprint.usage.spent.usd,
            config.run_budget_usd,
        )
        self.meter(state)
        self.agent_dirs = AgentDirs(project.agents, ledger, queue.sprint, message)
        self.context = PromptContext(project, ledger, mirror, self.agent_dirs)
        preparer = AttemptPreparer(
            config=config,
            mirror=mirror,
            policy=policy,
            workspaces=WorkspacePreparer(mirror, self.sandbox, setup, self.pool, who),
            runner=self._runner,
            context=self.context,
            redactor=self.redactor,
            show_prompt=show_prompt,
        )
        runs = RunDirs(project.runs)
        self.collector = AttemptCollector(
            queue=queue,
            mirror=mirror,
            sandbox=self.sandbox,
            runs=runs,
            runner=self._runner,
            identity=who,
            secrets=self.secrets,
            disk_mb=config.disk_mb,
            discard=self.trash.put,
            stopping=stopping,
        )
        self.workers = Workers(
            project=project,
            queue=queue,
            preparer=preparer,
            collector=self.collector,
            budget=self.budget,
            signal=signal,
            runs=runs,
            stopping=stopping,
        )

    def meter(self, state: State) -> None:
        """Enable metering as soon as a framework that reports its cost may be started."""
        if not self.budget.is_metered:
            plan = (
                *state.sprint.planning.given_plan,
                *(task.plan for task in state.tasks.values()),
            )
            names = frameworks_of(self._project, plan)
            self.budget.is_metered = any(map(self._reports_cost, names))

    def _reports_cost(self, framework: str) -> bool:
        try:
            return self._runner(framework).info.reports_cost
        except CaloronError as error:
            # A framework that is not set up starts no agent; its own task reports that.
            log.debug("a framework is not set up", error=error, framework=framework)
            return False


def _open_cache(
    project: Project,
    policy: SandboxPolicy,
    announce: Callable[[str], object],
    cancelled: threading.Event,
    discard: Callable[[Path], None],
) -> SetupCache:
    from caloron.agents.workspace.setup_cache import SetupCache

    env, network = _setup_environment(), policy.network("setup")
    registries = _registries(env) if network == "public" else ()
    spec = SandboxSpec(
        workspace=project.path,
        read_only=(*policy.read_only, *_PACKAGE_SETTINGS),
        network=network,
        hosts=(*policy.allow_hosts, *registries),
        env=env,
        caps=policy.caps,
    )
    return SetupCache(
        project.path / "seeds",
        policy.sandbox,
        spec=spec,
        timeout_s=project.config.setup_timeout_s,
        announce=announce,
        cancelled=cancelled,
        discard=discard,
    )


def sandbox_for(mirror: Path, *, unsandboxed: bool) -> Sandbox:
    return NoSandbox() if unsandboxed else Bubblewrap(mirror=mirror)


def frameworks_of(project: Project, plan: Iterable[PlannedTask]) -> list[str]:
    """Return the frameworks that a project and a plan name, each once."""
    return sorted({project.config.framework} | {p.framework for p in plan if p.framework})


def runner(project: Project, framework: str) -> AgentCli:
    """Return the agent CLI of a framework, with the settings of the project."""
    config = project.config
    fixture = os.environ.get("CALORON_STUB_FIXTURE", "") or config.stub_fixture
    return agent_cli(framework, stub_fixture=fixture, command=tuple(config.command))


def known_secrets(config: ProjectConfig) -> dict[str, str]:
    """Return the values that may be written nowhere: keys, `pass_env`, tokens of the forge."""
    passed_on = {name: os.environ[name] for name in config.pass_env if os.environ.get(name)}
    passed = secrets_in({f"{name}_KEY": value for name, value in passed_on.items()})
    for name, value in passed.items():
        # The names do not show that these are secrets, so the log cannot recognise them by itself.
        learn(name, value)
    secrets = secrets_in(os.environ) | passed
    if config.forge == "local":
        return secrets
    from caloron.engine.forge.access import token_values

    return secrets | token_values(config)


def cleaned_plan(plan: tuple[PlannedTask, ...], redactor: Redactor) -> tuple[PlannedTask, ...]:
    """Return a plan without the secrets in its texts."""
    text = redactor.data(msgspec.json.encode(plan))
    return msgspec.json.decode(text, type=tuple[PlannedTask, ...])


def identity(config: ProjectConfig) -> tuple[str, str]:
    """Return the author of commits: the user, from the settings or git's own configuration."""
    name = config.git_name or _git_setting(config, "user.name")
    email = config.git_email or _git_setting(config, "user.email")
    return (name, email) if name and email else IDENTITY


def _git_setting(config: ProjectConfig, key: str) -> str:
    """Return a setting of the user's own git, in the user's own repository."""
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
    """Return the settings of the user's package managers, without addresses with a password."""
    settings = {
        name: value
        for name, value in os.environ.items()
        if name.upper().startswith(_PACKAGE_MANAGERS) and not value.startswith("/")
    }
    kept_back = secrets_in(settings)
    return {name: value for name, value in settings.items() if name not in kept_back}


def _registries(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts of the user's own package settings: also private addresses are allowed."""
    texts = [value for name, value in env.items() if name not in PROXY_VARIABLES]
    texts += [file.read_text("utf-8", "replace") for file in filter(is_there, _PACKAGE_SETTINGS)]
    if not texts:
        return ()
    from caloron.agents.sandbox.network import hosts_in

    return hosts_in(texts)
