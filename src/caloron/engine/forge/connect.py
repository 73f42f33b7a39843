"""Opens the forge of a project; `access.py` has what only forges on the network need."""

from __future__ import annotations

import json

from caloron.forge.local.forge import LocalForge, create_local_forge
from caloron.git.mirror import Mirror
from caloron.ledger.ledger import Ledger
from caloron.ledger.projects import Project
from caloron.ports import Forge, RepositoryInfo

#: The key of what the ledger remembers about the forge, for commands that do not ask the forge.
NOTE = "forge"


def open_forge(project: Project) -> Forge:
    """Return the forge of a project, with the account of Caloron or of the token."""
    if not project.is_remote:
        return LocalForge(project.path, actor="caloron")
    # This import loads the API of forges, which a local forge does not need.
    from caloron.engine.forge.access import reach

    return reach(project.config)


def open_mirror(project: Project, forge: Forge) -> Mirror:
    """Return our own repository that follows the forge, and create it if it is missing."""
    mirror = Mirror(project.mirror, forge.remote(), forge.main)
    mirror.ensure()
    return mirror


def forge_of_session(project: Project, ledger: Ledger, messages: list[str]) -> Forge:
    """Return the forge to run sprints on, and create one for a project of an older Caloron."""
    made = project.forge_git.exists() and project.forge_sqlite.exists()
    if project.is_remote or made or ledger.has_sprints():
        # A lost forge must not be replaced silently.
        return open_forge(project)
    source = project.repository
    begins = f"main begins as {source}" if source else "main is empty but for a README"
    messages.append(f"{project.name} had no forge of its own and got one; its {begins}")
    if project.config.repo and source is None:
        messages.append(
            f"repo {project.config.repo!r} is a name on a forge, and this project's forge is"
            " local: to work on that repository, make a project for it (caloron init NAME --forge"
            " gitea|github), or name a clone with `caloron config set repo PATH`"
        )
    return create_local_forge(project.path, source=source, name=project.name)


def catch_up(project: Project, forge: Forge) -> bool:
    """Bring a local forge up to the user's own repository; False if the two have diverged.

    To a forge on the network users push themselves.
    """
    if isinstance(forge, LocalForge) and (repository := project.repository):
        return forge.fast_forward_from(repository)
    return True


def remember(ledger: Ledger, forge: Forge, about: RepositoryInfo) -> None:
    """Keep what `status` and `report` say of the forge, so that they need no network."""
    note = {
        "kind": about.kind,
        "description": about.description,
        "open_issues": about.open_issues,
        "url": about.url,
        "main": forge.main,
        "author": forge.author,
        "reviewer": forge.reviewer,
        "reviews": about.reviews,
        # All pages of issues have the same beginning, and those of pull requests theirs.
        "pages": forge.url(0).removesuffix("0"),
        "pull_pages": forge.url(0, pull=True).removesuffix("0"),
    }
    text = json.dumps(note)
    if ledger.get(NOTE) != text:
        ledger.put(NOTE, text)
