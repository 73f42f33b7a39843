"""The forge that a stage is told to look at: by its address, its repository and its token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from caloron.graph.jsontext import Json
from caloron.ledger.locate import require_id
from caloron.ledger.projects import load_project
from caloron.ports import Forge

_GITHUB = "https://api.github.com"
_TOKEN_ENV = "GITHUB_TOKEN"
#: As `host`: the forge of the project that `repo` names, on this machine.
LOCAL = "local"


@contextmanager
def the_forge(given: Json) -> Iterator[Forge]:
    """Connected with the first call, let go of at the end; the token itself is never an input."""
    found = _forge(given)
    try:
        yield found
    finally:
        found.close()


def _forge(given: Json) -> Forge:
    host, repo = (given.get("host") or "").rstrip("/"), given.get("repo") or ""
    if host == LOCAL:
        return _of_project(repo)
    if not host and not repo and given.get("sprint_id"):
        # A sprint is called after its project.
        return _of_project(require_id(given["sprint_id"], "sprint").rpartition("-")[0])
    from caloron.forge.connect import connect
    from caloron.forge.tokens import TokenSource

    token = TokenSource(env=given.get("token_env") or _TOKEN_ENV)
    return connect(kind_of(host or _GITHUB), host or _GITHUB, repo, token)


def _of_project(name: str) -> Forge:
    """The forge of a project on this machine, wherever that forge is."""
    project = load_project(require_id(name, "project name"))
    config = project.config
    if not project.is_remote:
        from caloron.forge.local import LocalForge

        return LocalForge(project.path)
    from caloron.forge.connect import connect
    from caloron.forge.tokens import TokenSource

    token = TokenSource(config.token_env, config.token_file)
    return connect(
        config.forge, config.host or _GITHUB, config.repo, token, ca_file=config.ca_file,
        people=tuple(config.people), git_url=config.git_url,
    )  # fmt: skip


def kind_of(host: str) -> str:
    """What speaks at an address: GitHub at its own and at those of its servers, else Gitea."""
    parts = urlsplit(host)
    name = parts.hostname or ""
    github = name in ("github.com", "api.github.com") or name.endswith(".ghe.com")
    return "github" if github or parts.path.endswith("/api/v3") else "gitea"
