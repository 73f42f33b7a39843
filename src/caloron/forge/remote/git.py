"""Git over the network: addresses, credentials, and pushes that cannot overwrite."""

from __future__ import annotations

import os
from pathlib import Path

from caloron.errors import ForgeError, ForgeUnavailable
from caloron.forge.tokens import Token
from caloron.forge.validate import stale_head
from caloron.git.command import GitError, error_line, git_remote
from caloron.ports import Remote

_TOKEN = "CALORON_GIT_TOKEN"
#: Answers git with the token from the environment; it can neither store nor erase a token.
_HELPER = '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" {user} "${token}"; }; f'
_STALLED = {"http.lowSpeedLimit": "1", "http.lowSpeedTime": "60"}
_SSH = "ssh -o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=15"


def https_remote(web: str, repo: str, user: str, token: Token, ca_file: str) -> Remote:
    """A remote whose token is only in the environment of git, and only for this host."""
    helper = _HELPER.replace("{user}", user).replace("{token}", "{" + _TOKEN + "}")
    settings = {**_STALLED, f"credential.{web}.helper": helper}
    if ca_file:
        settings["http.sslCAInfo"] = ca_file
    return Remote(f"{web}/{repo}.git", settings, token.environment(_TOKEN))


def ssh_remote(url: str) -> Remote:
    """A remote for the user's own ssh: its keys, its agent, its known hosts; it never asks."""
    passed = {name: os.environ[name] for name in ("HOME", "SSH_AUTH_SOCK") if name in os.environ}
    return Remote(url, {}, passed | {"GIT_SSH_COMMAND": os.environ.get("GIT_SSH_COMMAND", _SSH)})


def is_ssh(url: str) -> bool:
    return url.startswith("ssh://") or (
        "://" not in url and ":" in url.partition("/")[0] and not url.startswith("/")
    )


def push(remote: Remote, source: Path, branch: str, new: str, old: str) -> None:
    """Move a branch from `old` (empty: it must not exist) to `new`, or raise `StaleHead`."""
    ref = f"refs/heads/{branch}"
    lease = f"--force-with-lease={ref}:{old}"
    try:
        git_remote(source, remote, "push", "--quiet", lease, f"{new}:{ref}")
    except (GitError, ForgeUnavailable) as error:
        # Whatever went wrong, the commit of the branch now decides.
        tip = _tip(remote, source, ref, error)
        if tip == new:
            return
        if tip != old:
            raise stale_head(branch, tip, old) from None
        if isinstance(error, ForgeUnavailable):
            raise
        raise _refused(remote, branch, error) from None


def _tip(remote: Remote, source: Path, ref: str, error: Exception) -> str:
    try:
        listed = git_remote(source, remote, "ls-remote", "--refs", ref)
    except (GitError, ForgeError) as second:
        if isinstance(second, ForgeUnavailable) or isinstance(error, ForgeUnavailable):
            raise ForgeUnavailable(
                f"whether {ref} was pushed is unknown: {second}", hint="it is checked again"
            ) from None
        raise _refused(remote, ref.removeprefix("refs/heads/"), error) from None
    return listed.split()[0] if listed else ""


def _refused(remote: Remote, branch: str, error: Exception) -> ForgeError:
    reason = error.stderr if isinstance(error, GitError) else str(error)
    return ForgeError(
        f"{remote.url}: git push failed, {branch} was not taken: {error_line(reason)}",
        hint="the account needs write access, and no rule of the repository against the branch",
    )
