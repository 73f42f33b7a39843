"""A project for the repository that one stands in: its first sprint makes it, and says how."""

from __future__ import annotations

import os
import re
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from caloron.agents.recipes import Recipe, detect
from caloron.cli.frameworks import framework_or_found, require_framework
from caloron.cli.options import is_text
from caloron.errors import AlreadyExists, CaloronError, PreconditionFailed, UsageError
from caloron.git.checkout import Checkout
from caloron.git.mirror import Mirror
from caloron.ledger.locate import (
    active_project_name,
    find_project,
    project_here,
    project_names,
    project_path,
    projects_for,
    repository_of,
)
from caloron.ledger.projects import Project, create_project, load_project, set_active
from caloron.ledger.settings import ProjectConfig
from caloron.ports import Remote

if TYPE_CHECKING:
    from caloron.domain.plan import PlannedTask
    from caloron.engine.session import Choices

_LONGEST_NAME = 64


class NewProject(NamedTuple):
    """A project that is not there yet, with every default that was chosen for it."""

    project: Project
    branch: str
    commit: str
    recipe: Recipe
    #: Whether the framework was found, and not asked for.
    found_framework: bool

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
            "setup": self.recipe.setup,
            "verify": self.recipe.verify,
            "found": self.recipe.found,
            "network": config.network,
            "network_roles": config.network_roles,
            "budget_usd": config.budget_usd,
        }

    def text(self, verb: str = "is", budget_usd: float | None = None) -> str:
        """The defaults, each with its reason or its consequence."""
        config, recipe = self.project.config, self.recipe
        at = f"branch {self.branch}" if self.branch else "no branch checked out"
        found = ", found on PATH" if self.found_framework else ""
        others = ", ".join(entry.replace("=", " ") for entry in config.network_roles)
        nothing = "NOTHING FOUND: results would be merged on their review alone"
        budget = f"${config.budget_usd:.2f} for each sprint"
        if budget_usd is not None:
            budget = f"${budget_usd:.2f} for this sprint; {budget} without --budget"
        lines = [
            f"Project {config.name} {verb} set up for {config.repo} ({at}, {self.commit[:9]}):",
            f"  forge      {config.forge}, in {self.project.path}; your branches are not moved",
            f"  framework  {config.framework}{found}",
            f"  setup      {recipe.setup or 'nothing to install was found'}",
            f"  verify     {recipe.verify or nothing}",
            f"  network    {config.network}: agents reach only their model ({others})",
            f"  budget     {budget}",
            "Other settings: caloron config set KEY VALUE",
        ]
        return "\n".join(lines)


def find_or_choose(name: str | None, framework: str | None) -> tuple[Project, NewProject | None]:
    """The project to act on; for a repository that has none, one that can be made."""
    if framework is not None:
        require_framework(framework)
    own = name if name is not None else project_here()
    if own is not None:
        return _existing(load_project(own), framework), None
    checkout = _checkout_here()
    if checkout is None:
        raise _no_repository()
    new = _choose(checkout, framework)
    return new.project, new


def _no_repository() -> CaloronError:
    """A sprint changes and pays for one project: outside of a repository it has to be named."""
    active = find_project(active_project_name())
    repository = f" for {place}" if (place := repository_of(active)) else ""
    return UsageError(
        "this folder is not in a git repository, so it does not say which project is meant",
        hint=f"go to your repository, or name the project: --project {active.name} (the active"
        f" one{repository}; known projects: {', '.join(project_names())})",
    )


def _checkout_here() -> Checkout | None:
    try:
        here = Path.cwd()
    except OSError:
        # The current folder was removed.
        return None
    return Checkout.around(here)


def _existing(found: Project, framework: str | None) -> Project:
    if framework in (None, found.config.framework):
        return found
    raise UsageError(
        f"project {found.name} works with {found.config.framework}, not with {framework}",
        hint=f"caloron config set framework {framework} --project {found.name}",
    )


def _choose(checkout: Checkout, framework: str | None) -> NewProject:
    if not is_text(str(checkout.top)):
        raise PreconditionFailed(
            f"the path {str(checkout.top)!r} is not text in UTF-8, so no setting can hold it",
            hint="rename the folder",
        )
    commit = checkout.head()
    chosen = framework_or_found(framework)
    if chosen == "command":
        raise UsageError(
            "a project whose agent is a command of yours must be told which command",
            hint=f"caloron init NAME --repo {checkout.top} --framework command, then "
            'caloron config set command "my-agent {prompt_file}"',
        )
    name = _free_name(checkout.top.name)
    config = ProjectConfig(name=name, framework=chosen, repo=str(checkout.top))
    files = Mirror(checkout.top, Remote(""))
    return NewProject(
        Project(name, project_path(name), config),
        checkout.branch(),
        commit,
        detect(files.files(commit), lambda path: files.read(commit, path)),
        framework is None,
    )


def _free_name(folder: str) -> str:
    """A valid name like the folder's that no project has."""
    plain = unicodedata.normalize("NFKD", folder).encode("ascii", "ignore").decode().lower()
    name = re.sub(r"[^a-z0-9_]+", "-", plain)[:_LONGEST_NAME].strip("-_") or "project"
    tried, number = name, 1
    while os.path.lexists(project_path(tried)):
        number += 1
        end = f"-{number}"
        tried = name[: _LONGEST_NAME - len(end)] + end
    return tried


def make(
    new: NewProject, tasks: tuple[PlannedTask, ...] | None, choices: Choices
) -> tuple[Project, bool]:
    """Make it whole, with everything checked that a sprint needs, or not at all.

    The second value is False if another sprint here was quicker and made one.
    """
    from caloron.engine.session import check_start
    from caloron.forge.local import create_local_forge

    config = new.project.config

    def furnish(directory: Path) -> None:
        forge = create_local_forge(directory, source=Path(config.repo), name=config.name)
        try:
            check_start(
                Project(config.name, directory, config),
                forge,
                tasks or (),
                unsandboxed=choices.unsandboxed,
            )
        finally:
            forge.close()

    try:
        made = create_project(config, furnish)
    except AlreadyExists:
        if config.name not in projects_for(Path(config.repo)):
            raise
        return load_project(config.name), False
    set_active(made.name)
    return made, True
