"""What a repository is before anybody plans work in it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from caloron.git.mirror import Mirror
from caloron.graph.jsontext import Json
from caloron.ports import Forge
from caloron.stages.catalogue.alone import alone
from caloron.stages.catalogue.at_forge import the_forge
from caloron.stages.catalogue.shapes import plain
from caloron.stages.kickoff import RepoContext, fetch_repo_context

_TOLD = ("description", "open_issues", "recent_commits", "languages", "default_branch", "ci")


def execute(given: Json) -> Json:
    with the_forge(given) as forge, TemporaryDirectory(prefix="caloron-context-") as place:
        context = plain(_context(forge, Path(place)))
    return {name: context[name] for name in _TOLD}


def _context(forge: Forge, place: Path) -> RepoContext:
    about = forge.about()
    if about.empty:
        return RepoContext(description=about.description, default_branch=forge.main)
    mirror = Mirror(place / "mirror.git", forge.remote(), forge.main)
    mirror.ensure()
    return fetch_repo_context(
        mirror, mirror.fetch_main(), description=about.description, open_issues=about.open_issues
    )


if __name__ == "__main__":
    alone(execute)
