"""A new project: the defaults chosen for it, and its creation as a whole or not at all."""

from __future__ import annotations

import os
import re
import shlex
import unicodedata
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from caloron.agents.clis.registry import (
    FRAMEWORKS,
    framework_on_path,
    installable,
    require_framework,
)
from caloron.agents.workspace.project_detection import ProjectCommands, detect
from caloron.cli.app import is_text
from caloron.errors import AlreadyExists, CaloronError, PreconditionFailed, UsageError
from caloron.git.checkout import Checkout
from caloron.git.mirror import Mirror
from caloron.ledger import locate
from caloron.ledger.projects import Project, create_project, set_active
from caloron.ledger.settings import ProjectConfig
from caloron.ports import Remote

if TYPE_CHECKING:
    from caloron.domain.model.plan import PlannedTask
    from caloron.engine.session import Choices

_LONGEST_NAME = 64


def framework_or_detected(name: str | None) -> str:
    """The framework of a new project: the named one, else the agent CLI on PATH."""
    if name is not None:
        return require_framework(name)
    if detected := framework_on_path():
        return detected
    agents = " or ".join(f"{info.title} (`{info.program}`)" for info in installable())
    raise PreconditionFailed(
        "no coding agent was found on PATH, and none was named",
        hint=f"install {agents}, or choose with --framework: {', '.join(FRAMEWORKS)}",
    )


def create_active(config: ProjectConfig, populate: Callable[[Path], None]) -> Project:
    """Create the project with the files that `populate` writes, and make it the active one."""
    project = create_project(config, populate)
    set_active(project.name)
    return project


class NewProject(NamedTuple):
    """A project that does not exist yet, with every default that was chosen for it."""

    project: Project
    branch: str
    commit: str
    commands: ProjectCommands
    framework_detected: bool

    def data(self) -> dict[str, Any]:
        config = self.project.config
        return {
            "name": self.project.name,
            "path": str(self.project.path),
            "repo": config.repo,
            "branch": self.branch,
            "commit": self.commit,
            "forge": config.forge,
            "framework": config.framework,
            "setup": self.commands.setup,
            "verify": self.commands.verify,
            "found": self.commands.summary,
            "network": config.network,
            "network_roles": config.network_roles,
            "budget_usd": config.budget_usd,
        }

    def remote_command(self) -> str:
        """The command for a project on the forge that the repository was cloned from, if any."""
        config = self.project.config
        options = remote_forge(locate.origin_of(Path(config.repo)))
        if not options:
            return ""
        words = ("caloron", "init", config.name, *options, "--checkout", config.repo)
        return f"{shlex.join(words)} --token-env NAME"

    def text(self, verb: str = "is", budget_usd: float | None = None) -> str:
        """The defaults, each with its reason or its consequence."""
        config, commands = self.project.config, self.commands
        at = f"branch {self.branch}" if self.branch else "no branch checked out"
        detected = ", found on PATH" if self.framework_detected else ""
        others = ", ".join(entry.replace("=", " ") for entry in config.network_roles)
        nothing = "NOTHING FOUND: results would be merged on their review alone"
        budget = f"${config.budget_usd:.2f} for each sprint"
        if budget_usd is not None:
            budget = f"${budget_usd:.2f} for this sprint; {budget} without --budget"
        lines = [
            f"Project {config.name} {verb} set up for {config.repo} ({at}, {self.commit[:9]}):",
            f"  forge      {config.forge}, in {self.project.path}; your branches are not moved",
            f"  framework  {config.framework}{detected}",
            f"  setup      {commands.setup or 'nothing to install was found'}",
            f"  verify     {commands.verify or nothing}",
            f"  network    {config.network}: agents reach only their model ({others})",
            f"  budget     {budget}",
            "Other settings: caloron config set KEY VALUE",
        ]
        return "\n".join(lines)


#: A repository over http or ssh, also in the short form of ssh: scheme, host, port, owner/name.
_REMOTE = re.compile(
    r"(?:(https?|ssh)://)?(?:[^@/]+@)?([\w.-]+)(?:(:\d+)/|[:/])([^/]+/[^/]+?)(?:\.git)?/?"
)
_GITEA_HOSTS = ("gitea", "forgejo", "codeberg")


def remote_forge(address: str) -> tuple[str, ...]:
    """The options of `init` for the forge of an address; empty if its kind is not known."""
    match = _REMOTE.fullmatch(address)
    if match is None:
        return ()
    scheme, host, port, repo = match.groups(default="")
    if host.lower() == "github.com":
        return ("--forge", "github", "--repo", repo)
    if not any(name in host.lower() for name in _GITEA_HOSTS):
        return ()
    # The port of ssh says nothing about that of the pages.
    pages = f"{scheme}://{host}{port}" if scheme.startswith("http") else f"https://{host}"
    return ("--forge", "gitea", "--host", pages, "--repo", repo)


def draft_here(framework: str | None) -> NewProject:
    """The draft of a project for the repository around the current folder."""
    try:
        checkout = Checkout.around(Path.cwd())
    except OSError:
        # The current folder was removed.
        checkout = None
    if checkout is None:
        raise _no_repository()
    return _draft(checkout, framework)


def _no_repository() -> CaloronError:
    """A sprint changes and pays for one project: outside of a repository it has to be named."""
    active = locate.find_project(locate.active_project_name())
    repository = f" for {path}" if (path := locate.repository_of(active)) else ""
    return UsageError(
        "this folder is not in a git repository, so it does not say which project is meant",
        hint=f"go to your repository, or name the project: --project {active.name} (the active"
        f" one{repository}; known projects: {', '.join(locate.project_names())})",
    )


def _draft(checkout: Checkout, framework: str | None) -> NewProject:
    if not is_text(str(checkout.top)):
        raise PreconditionFailed(
            f"the path {str(checkout.top)!r} is not UTF-8, so no setting can hold it",
            hint="rename the folder",
        )
    commit = checkout.head()
    chosen = framework_or_detected(framework)
    if chosen == "command":
        raise UsageError(
            "framework `command` needs a command line",
            hint=f"caloron init NAME --repo {checkout.top} --framework command, then "
            'caloron config set command "my-agent {prompt_file}"',
        )
    name = _free_name(checkout.top.name)
    config = ProjectConfig(name=name, framework=chosen, repo=str(checkout.top))
    files = Mirror(checkout.top, Remote(""))
    return NewProject(
        Project(name, locate.project_path(name), config),
        checkout.branch(),
        commit,
        detect(files.files(commit), lambda path: files.read(commit, path)),
        framework_detected=framework is None,
    )


def _free_name(folder: str) -> str:
    """A valid name like the folder's that no project has."""
    plain = unicodedata.normalize("NFKD", folder).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9_]+", "-", plain)[:_LONGEST_NAME].strip("-_") or "project"
    free, number = name, 1
    while os.path.lexists(locate.project_path(free)):
        number += 1
        suffix = f"-{number}"
        free = name[: _LONGEST_NAME - len(suffix)] + suffix
    return free


def create(draft: NewProject, tasks: tuple[PlannedTask, ...] | None, choices: Choices) -> bool:
    """Create the project whole, after every check that a sprint needs, or not at all.

    False if another sprint in this repository created it meanwhile.
    """
    from caloron.engine.session import check_start
    from caloron.forge.local.forge import create_local_forge

    config = draft.project.config

    def populate(directory: Path) -> None:
        source, project = Path(config.repo), Project(config.name, directory, config)
        with closing(create_local_forge(directory, source=source, name=config.name)) as forge:
            check_start(project, forge, tasks or (), unsandboxed=choices.unsandboxed)

    try:
        create_active(config, populate)
    except AlreadyExists:
        if config.name not in locate.projects_for(Path(config.repo)):
            raise
        return False
    return True
