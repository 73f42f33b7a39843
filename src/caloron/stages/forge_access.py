"""Opens the forge that a stage names, and writes to it at most once per key."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from caloron.domain.reporting.forge_texts import comment_body
from caloron.graph.json_text import Json, compact, sha256
from caloron.ledger.locate import require_id
from caloron.ledger.projects import load_project
from caloron.ports import Forge
from caloron.store.redact import Redactor, secrets_in

_GITHUB = "https://api.github.com"
_TOKEN_ENV = "GITHUB_TOKEN"
#: As `host`: the forge of the project that `repo` names, on this machine.
LOCAL = "local"


@contextmanager
def open_forge(inputs: Json) -> Iterator[Forge]:
    """Open the forge that an input names; the token itself is never an input."""
    forge = _forge(inputs)
    try:
        yield forge
    finally:
        forge.close()


def _forge(inputs: Json) -> Forge:
    host, repo = (inputs.get("host") or "").rstrip("/"), inputs.get("repo") or ""
    if host == LOCAL:
        return _of_project(repo)
    if not host and not repo and inputs.get("sprint_id"):
        # The id of a sprint begins with the name of its project.
        return _of_project(require_id(inputs["sprint_id"], "sprint").rpartition("-")[0])
    from caloron.forge.connect import connect
    from caloron.forge.tokens import TokenSource

    token = TokenSource(env=inputs.get("token_env") or _TOKEN_ENV)
    return connect(kind_of(host or _GITHUB), host or _GITHUB, repo, token)


def _of_project(name: str) -> Forge:
    """Open the forge of a project of this machine."""
    project = load_project(require_id(name, "project name"))
    config = project.config
    if not project.is_remote:
        from caloron.forge.local.forge import LocalForge

        return LocalForge(project.path)
    from caloron.forge.connect import connect
    from caloron.forge.tokens import TokenSource

    token = TokenSource(config.token_env, config.token_file)
    return connect(
        config.forge, config.host or _GITHUB, config.repo, token, ca_file=config.ca_file,
        people=tuple(config.people), git_url=config.git_url,
    )  # fmt: skip


def kind_of(host: str) -> str:
    """Return the kind of forge at an address: GitHub for its own hosts, else Gitea."""
    parts = urlsplit(host)
    name = parts.hostname or ""
    github = name in ("github.com", "api.github.com") or name.endswith(".ghe.com")
    return "github" if github or parts.path.endswith("/api/v3") else "gitea"


#: No key of a sprint begins so, so objects of graphs are never taken for objects of a task.
_OURS = "graph"
_DIGITS = 32


def key_of(kind: str, inputs: Json, *fields: str) -> str:
    """Return the key of an object to write: the input `key`, else one made of these fields."""
    key = inputs.get("key") or compact([inputs.get(field) for field in fields])
    return f"{_OURS}/{kind}/{sha256(str(key))[:_DIGITS]}"


def redactor() -> Callable[[str], str]:
    """Return a function that removes the secrets of this process' environment from a text."""
    return Redactor(secrets_in(os.environ)).text


def marked_text(key: str, text: str) -> str:
    """Return a text for the forge: without secrets, with the marker that finds it again."""
    return comment_body(redactor()(text), key)
