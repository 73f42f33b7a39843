"""Access to a forge on the network: its tokens, what our account may do there, and by git."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

from caloron.domain.model.sprint import BRANCHES
from caloron.errors import CaloronError, ForgeError, ForgeUnavailable, NotFound, PreconditionFailed
from caloron.forge.api.base import SCOPES, address_of
from caloron.forge.tokens import TokenSource, read_token
from caloron.git.command import GitError, complaint
from caloron.git.mirror import Mirror
from caloron.ledger.settings import ProjectConfig
from caloron.ports import Forge, RepositoryInfo
from caloron.store import log

GITHUB = "https://api.github.com"
_NAMES = {"gitea": "Gitea", "github": "GitHub"}
#: The branches that we push to, as a rule would name them.
_PATTERNS = " and ".join(f"{name.partition('/')[0]}/**" for name in BRANCHES)
_NAME = re.compile(r"[\w.-]+/[\w.-]+")


class Tokens(NamedTuple):
    """The places of the tokens of our account and of the second account, which reviews."""

    own: TokenSource
    reviewer: TokenSource | None


def tokens_of(config: ProjectConfig) -> Tokens:
    """Return the places that the settings name; without one, git's credential helper is asked."""
    reviewer = TokenSource(config.reviewer_token_env, config.reviewer_token_file)
    return Tokens(
        TokenSource(config.token_env, config.token_file),
        reviewer if reviewer.env or reviewer.file else None,
    )


def token_values(config: ProjectConfig) -> dict[str, str]:
    """Return every token that can be read now, by a name for it; none may be written down."""
    own, reviewer = tokens_of(config)
    named = {config.token_env or "forge_token": own}
    if reviewer:
        named[config.reviewer_token_env or "reviewer_token"] = reviewer
    host = config.host or GITHUB
    values = {name: _value(source, config.forge, host) for name, source in named.items()}
    if config.webhook_secret_env:
        values[config.webhook_secret_env] = os.environ.get(config.webhook_secret_env, "")
    return {name: value for name, value in values.items() if value}


def _value(source: TokenSource, kind: str, host: str) -> str:
    """Return a token; empty if it cannot be read yet (`read_token` tells redactors later)."""
    if source.env:
        return os.environ.get(source.env, "").strip()
    try:
        return _read_once(source, address_of(kind, host).web)
    except CaloronError as error:
        log.warning("a token of the forge cannot be read yet", error=error)
        return ""


@lru_cache(maxsize=8)
def _read_once(source: TokenSource, host: str) -> str:
    """Read a token once: a credential helper may be slow."""
    return read_token(source, host)


def reach(config: ProjectConfig) -> Forge:
    """Return the forge that the settings name; the first call asks it."""
    # This import loads the HTTP client, which the tokens alone do not need.
    from caloron.forge.connect import connect

    if not _NAME.fullmatch(config.repo):
        raise PreconditionFailed(
            f"repo {config.repo!r} is no repository on a forge",
            hint="say which one: caloron config set repo OWNER/NAME",
        )
    if config.forge == "gitea" and not config.host:
        raise PreconditionFailed(
            "a project on Gitea needs its address", hint="caloron config set host https://…"
        )
    own, reviewer = tokens_of(config)
    return connect(
        config.forge,
        config.host or GITHUB,
        config.repo,
        own,
        reviewer,
        people=tuple(config.people),
        ca_file=config.ca_file,
        git_url=config.git_url,
    )


def forge_clock(forge: Forge) -> float | None:
    """Return the forge's time in seconds since 1970; None: its answers carry no time."""
    from caloron.forge.remote.forge import RemoteForge

    return forge.http.get("").date_s if isinstance(forge, RemoteForge) else None


def repository_info(config: ProjectConfig, forge: Forge) -> RepositoryInfo:
    """Return the repository as our account sees it; errors say what the user has to set up."""
    from caloron.forge.remote.forge import RemoteForge

    site, kind = config.host or GITHUB, _NAMES[config.forge]
    made = f"{_token_page(config)}, with the scopes {SCOPES[config.forge]}"
    scopes = f"a token needs the scopes {SCOPES[config.forge]}"
    no_forge = f"{site} is no {kind}: it has no API where {kind} has it"
    with _explained(no_forge, "give the address of its pages, or that of its API", scopes):
        try:
            who = forge.author
        except PreconditionFailed as error:
            about_token = "token" in f"{error} {error.hint}"
            page = f"tokens are made at {made}" if about_token else ""
            hint = "; ".join(filter(None, (error.hint, page)))
            raise PreconditionFailed(str(error), hint=hint) from error
    nothing = f"{site} has no repository {config.repo} that {who} may see"
    with _explained(nothing, f"check the name, and whether {who} has access to it", scopes):
        about = forge.about()
        if isinstance(forge, RemoteForge):
            forge.check_scopes()
    return about


def _token_page(config: ProjectConfig) -> str:
    """Return the page where a user makes a token."""
    web = address_of(config.forge, config.host or GITHUB).web
    return f"{web}/{'user/settings/applications' if config.forge == 'gitea' else 'settings/tokens'}"


@contextmanager
def _explained(missing: str, hint: str, scopes: str) -> Iterator[None]:
    """Raise an error of the forge as an error of the set-up."""
    try:
        yield
    except NotFound as error:
        raise NotFound(missing, hint=hint) from error
    except ForgeUnavailable:
        raise
    except ForgeError as error:
        raise PreconditionFailed(str(error), hint=scopes) from error


def main_by_git(mirror: Mirror, kind: str) -> str:
    """Return main's newest commit; checks that git may fetch and push."""
    try:
        commit = mirror.fetch_main()
        mirror.check_push_access(commit)
    except GitError as error:
        reason = " ".join(complaint(error.stderr).split())
        raise PreconditionFailed(
            f"git may not fetch from and push to {mirror.remote.url}: {reason}",
            hint=f"a token needs the scopes {SCOPES[kind]}; another way for git, such as SSH, is"
            " named with --git-url, later with the setting git_url",
        ) from error
    return commit


def refuse_unfit(config: ProjectConfig, forge: Forge, about: RepositoryInfo) -> None:
    """Refuse a repository that nothing could be merged in, and say exactly what to grant."""
    who, repo, main = forge.author, config.repo, forge.main
    access = "collaboration" if about.kind == "gitea" else "access"
    if about.archived:
        raise PreconditionFailed(
            f"{repo} is archived: nothing can be changed in it",
            hint=f"bring it back from the archive: {about.url}/settings",
        )
    if not about.can_push:
        raise PreconditionFailed(
            f"{who}, whose token this is, may not push to {repo}",
            hint=f"give {who} write access: {about.url}/settings/{access}",
        )
    if about.switched_off:
        off = " and ".join(about.switched_off)
        raise PreconditionFailed(
            f"{repo} has its {off} switched off, and a sprint happens in them",
            hint=f"switch them on: {about.url}/settings",
        )
    if not about.reviewer_can_push:
        raise PreconditionFailed(
            f"{forge.reviewer}, the second account that reviews, may not write to {repo}",
            hint=f"give {forge.reviewer} write access: {about.url}/settings/{access}",
        )
    branches = f"{about.url}/settings/branches"
    _refuse_closed(who, repo, about)
    if about.protected and not about.can_merge:
        grant = (
            f"in the rule for {main} allow {who} to merge (merge whitelist)"
            if about.kind == "gitea"
            else f"in the rule for {main} let {who} push, or bypass the rule"
        )
        raise PreconditionFailed(
            f"{main} of {repo} is protected, and {who} may not merge into it",
            hint=f"{grant}: {branches}",
        )
    if about.required_approvals > 0 and about.reviews != "review":
        raise PreconditionFailed(
            f"{main} of {repo} requires {counted(about.required_approvals, 'approval')}, and {who}"
            " cannot approve its own pull requests",
            hint="give the token of a second account that may write there (--reviewer-token-env,"
            f" setting reviewer_token_env), or lower the required approvals: {branches}",
        )


def _refuse_closed(who: str, repo: str, about: RepositoryInfo) -> None:
    """Refuse rules for branches that would throw away what agents made."""
    page = f"{about.url}/settings/{'branches' if about.kind == 'gitea' else 'rules'}"
    if about.push_blocked_by:
        grant = (
            f"let {who} push in that rule (push whitelist)"
            if about.kind == "gitea"
            else f"let {who} bypass it, or take {_PATTERNS} out of what it is for"
        )
        raise PreconditionFailed(
            f"{who} may not push to {_PATTERNS} of {repo}, where the changes of tasks are: the rule"
            f" {', '.join(about.push_blocked_by)} forbids it",
            hint=f"{grant}: {page}",
        )
    if about.signatures_required_by:
        raise PreconditionFailed(
            f"{repo} takes only signed commits (the rule"
            f" {', '.join(about.signatures_required_by)}), and those of agents are not signed",
            hint=f"do not require signed commits in that rule: {page}",
        )
    if about.up_to_date_required_by:
        raise PreconditionFailed(
            f"{repo} merges nothing that is behind main (the rule"
            f" {', '.join(about.up_to_date_required_by)}), and of tasks that are done side by side"
            " the second always is",
            hint="do not block outdated pull requests in that rule; each change is verified on the"
            f" newest main before it is merged: {page}",
        )


def counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def notes_on(forge: Forge, about: RepositoryInfo) -> list[str]:
    """Return what a user should know about the repository, in lines."""
    notes = []
    if about.protected:
        notes.append(f"{forge.main} is protected; {forge.author} may merge into it")
    if about.required_checks:
        named = ", ".join(about.required_checks)
        notes.append(f"each change waits for the forge's own checks: {named}")
    if not about.sees_rules:
        notes.append(
            f"{forge.author} may not look at rules for branches: whether one keeps it from pushing"
            f" to {_PATTERNS}, or wants signed commits, is known with the first push"
        )
    if not about.sees_check_runs:
        notes.append(
            "the token may not read check runs, as those of GitHub Actions: only commit statuses"
            " are waited for; a classic token may"
        )
    if about.required_approvals > 1:
        more = counted(about.required_approvals - 1, "approval")
        notes.append(f"each change waits for {more} by people besides {forge.reviewer}'s")
    return notes


def review_mode(about: RepositoryInfo, forge: Forge) -> str:
    """Describe how verdicts are posted on this forge."""
    if about.reviews == "review":
        return f"reviews by the second account {forge.reviewer}"
    return f"verdict comments by {forge.author} and the commit status caloron/review"
