"""Creates the adapter of a forge on another machine; its first call sends the first request."""

from __future__ import annotations

from urllib.parse import urlsplit

from caloron.errors import UsageError
from caloron.forge.api.base import ForgeApi, address_of, repo_of
from caloron.forge.api.gitea import Gitea
from caloron.forge.api.github import GitHub
from caloron.forge.breaker import HostBreaker
from caloron.forge.http import SIZE_LIMIT, ForgeHttp
from caloron.forge.remote import git as remote_git
from caloron.forge.remote.forge import RemoteForge
from caloron.forge.tokens import Token, TokenSource
from caloron.http import HttpClient
from caloron.ports import Remote

_APIS: dict[str, type[Gitea] | type[GitHub]] = {"gitea": Gitea, "github": GitHub}


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
    """The forge of a repository; a token is given as its source, or itself.

    `git_url` is for a remote by ssh; everything else goes over the same host as the API.
    """
    if kind not in _APIS:
        raise UsageError(f"{kind!r} is no kind of forge", hint="use local, gitea or github")
    api: ForgeApi = _APIS[kind]()
    address, name = address_of(kind, host), repo_of(repo)
    breaker = HostBreaker(urlsplit(address.api).netloc)
    client = HttpClient(size_limit=SIZE_LIMIT, ca_file=ca_file)

    def account(source: TokenSource | str) -> tuple[Token, ForgeHttp]:
        secret = Token(source, address.web, api.scheme)
        return secret, ForgeHttp(address.api, name, secret, breaker, client, api.headers)

    first, http = account(token)
    second = account(reviewer_token)[1] if reviewer_token else None

    def remote() -> Remote:
        if remote_git.is_ssh(git_url):
            return remote_git.ssh_remote(git_url)
        return remote_git.https_remote(address.web, name, api.git_user, first, ca_file)

    return RemoteForge(
        http, second, api, people, web=address.web, git_remote=remote, close=client.close
    )
