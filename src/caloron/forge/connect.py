"""Makes the adapter of a forge on another machine; nothing is asked before its first call."""

from __future__ import annotations

from urllib.parse import urlsplit

from caloron.errors import UsageError
from caloron.forge import remote_git
from caloron.forge.addresses import address_of, repo_of
from caloron.forge.connection import Client
from caloron.forge.dialect import Dialect
from caloron.forge.gitea import Gitea
from caloron.forge.github import GitHub
from caloron.forge.http import Http
from caloron.forge.line import Line
from caloron.forge.remote import RemoteForge
from caloron.forge.remote_read import Reader
from caloron.forge.tokens import Token, TokenSource
from caloron.ports import Remote

_DIALECTS: dict[str, type[Gitea] | type[GitHub]] = {"gitea": Gitea, "github": GitHub}


def connect(
    kind: str,
    host: str,
    repo: str,
    token: TokenSource | str,
    reviewer_token: TokenSource | str | None = None,
    *,
    people: tuple[str, ...] = (),
    ca_file: str = "",
    git_url: str = "",
) -> RemoteForge:
    """The forge of a repository; a token is the place of one, or one itself.

    `git_url` is for a remote by ssh; everything else goes over the same host as the API.
    """
    if kind not in _DIALECTS:
        raise UsageError(f"{kind!r} is no kind of forge", hint="use local, gitea or github")
    dialect: Dialect = _DIALECTS[kind]()
    address, name = address_of(kind, host), repo_of(repo)
    line, client = Line(urlsplit(address.api).netloc), Client(ca_file)

    def account(source: TokenSource | str) -> tuple[Token, Http]:
        secret = Token(source, address.web, dialect.scheme)
        return secret, Http(address.api, name, secret, line, client, dialect.headers)

    first, http = account(token)
    second = account(reviewer_token)[1] if reviewer_token else None

    def remote() -> Remote:
        if remote_git.is_ssh(git_url):
            return remote_git.ssh_remote(git_url)
        return remote_git.https_remote(address.web, name, dialect.git_user, first, ca_file)

    reader = Reader(http, second, dialect, people)
    return RemoteForge(reader, dialect, address.web, remote, client.close)
