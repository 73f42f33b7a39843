"""Opens the forge of a project, and checks whether our account can work there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

from caloron.domain.model.sprint import BRANCHES
from caloron.errors import CaloronError, ForgeError, ForgeUnavailable, NotFound, PreconditionFailed
from caloron.forge.api.base import SCOPES, address_of
from caloron.forge.local.forge import LocalForge, create_local_forge
from caloron.forge.tokens import TokenSource, read_token
from caloron.git.command import GitError, complaint
from caloron.git.mirror import Mirror
from caloron.ledger.ledger import Ledger
from caloron.ledger.projects import Project
from caloron.ledger.settings import ProjectConfig
from caloron.ports import Forge, RepositoryInfo
from caloron.store import log

GITHUB = "https://api.github.com"


class Tokens(NamedTuple):
    """Where the tokens are: that of our account, and that of the second one which reviews."""

    own: TokenSource
    reviewer: TokenSource | None


def tokens_of(config: ProjectConfig) -> Tokens:
    """The places that the settings name; none for our own account: git's credential helper."""
    reviewer = TokenSource(config.reviewer_token_env, config.reviewer_token_file)
    return Tokens(
        TokenSource(config.token_env, config.token_file),
        reviewer if reviewer.env or reviewer.file else None,
    )


def token_values(config: ProjectConfig) -> dict[str, str]:
    """Every token that can be read now, by a name for it: none of them may be written down."""
    if config.forge == "local":
        return {}
    own, reviewer = tokens_of(config)
    named = {config.token_env or "forge_token": own}
    if reviewer:
        named[config.reviewer_token_env or "reviewer_token"] = reviewer
    host = config.host or GITHUB
    found = {name: _value(source, config.forge, host) for name, source in named.items()}
    if config.webhook_secret_env:
        found[config.webhook_secret_env] = os.environ.get(config.webhook_secret_env, "")
    return {name: value for name, value in found.items() if value}


def _value(source: TokenSource, kind: str, host: str) -> str:
    """Empty if it cannot be read now: `read_token` makes it known to redactors once it can be."""
    if source.env:
        return os.environ.get(source.env, "").strip()
    try:
        return _read_once(source, address_of(kind, host).web)
    except CaloronError as error:
        log.warning("a token of the forge cannot be read yet", error=error)
        return ""


@lru_cache(maxsize=8)
def _read_once(source: TokenSource, host: str) -> str:
    """A credential helper may take its time."""
    return read_token(source, host)


#: The key of what the ledger remembers about the forge, for those who look without asking it.
NOTE = "forge"

_NAMES = {"gitea": "Gitea", "github": "GitHub"}
#: The branches that we push to, as a rule would name them.
_PATTERNS = " and ".join(f"{name.partition('/')[0]}/**" for name in BRANCHES)
_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def open_forge(project: Project, *, actor: str = "caloron") -> Forge:
    """The forge of a project; `actor` is who acts on a local one, elsewhere the token says it."""
    if not project.is_remote:
        return LocalForge(project.path, actor=actor)
    return reach(project.config)


def reach(config: ProjectConfig) -> Forge:
    """The forge on the network that the settings name; it is asked with the first call."""
    # It loads the HTTP client, which nobody with a local forge needs.
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


def forge_of_session(project: Project, ledger: Ledger, told: list[str]) -> Forge:
    """The forge to run sprints on; a project of an older Caloron has none, and gets one now."""
    made = project.forge_git.exists() and project.forge_sqlite.exists()
    if project.is_remote or made or ledger.has_sprints():
        # A forge that is lost is not replaced in silence.
        return open_forge(project)
    source = project.repository
    begins = f"main begins as {source}" if source else "main is empty but for a README"
    told.append(f"{project.name} had no forge of its own and got one; its {begins}")
    if project.config.repo and source is None:
        told.append(
            f"repo {project.config.repo!r} is a name on a forge, and this project's forge is"
            " local: to work on that repository, make a project for it (caloron init NAME --forge"
            " gitea|github), or name a clone with `caloron config set repo PATH`"
        )
    return create_local_forge(project.path, source=source, name=project.name)


def forge_clock(forge: Forge) -> float | None:
    """What time it is there, in seconds since 1970; None: it does not tell."""
    from caloron.forge.remote.forge import RemoteForge

    return forge.http.get("").date_s if isinstance(forge, RemoteForge) else None


def catch_up(project: Project, forge: Forge) -> bool:
    """Bring a local forge up to the user's own repository; False if the two have diverged.

    Elsewhere the forge is where the user pushes to, and nobody else does that for them.
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


def look(config: ProjectConfig, forge: Forge) -> RepositoryInfo:
    """The repository as our account sees it; whatever is in the way is said in words."""
    if config.forge == "local":
        return forge.about()
    from caloron.forge.remote.forge import RemoteForge

    site, kind = config.host or GITHUB, _NAMES[config.forge]
    made = f"{_token_page(config)}, with the scopes {SCOPES[config.forge]}"
    scopes = f"a token needs the scopes {SCOPES[config.forge]}"
    no_forge = f"{site} is no {kind}: it has no API where {kind} has it"
    with _told(no_forge, "give the address of its pages, or that of its API", scopes):
        try:
            who = forge.author
        except PreconditionFailed as error:
            about_token = "token" in f"{error} {error.hint}"
            page = f"tokens are made at {made}" if about_token else ""
            hint = "; ".join(filter(None, (error.hint, page)))
            raise PreconditionFailed(str(error), hint=hint) from error
    nothing = f"{site} has no repository {config.repo} that {who} may see"
    with _told(nothing, f"check the name, and whether {who} has access to it", scopes):
        about = forge.about()
        if isinstance(forge, RemoteForge):
            forge.check_scopes()
    return about


def _token_page(config: ProjectConfig) -> str:
    """Where the user makes a token."""
    web = address_of(config.forge, config.host or GITHUB).web
    return f"{web}/{'user/settings/applications' if config.forge == 'gitea' else 'settings/tokens'}"


@contextmanager
def _told(missing: str, hint: str, scopes: str) -> Iterator[None]:
    """What is not there, and what is refused, in the words of a user who sets something up."""
    try:
        yield
    except NotFound as error:
        raise NotFound(missing, hint=hint) from error
    except ForgeUnavailable:
        raise
    except ForgeError as error:
        raise PreconditionFailed(str(error), hint=scopes) from error


def main_by_git(mirror: Mirror, kind: str) -> str:
    """Main's newest commit; on the network this shows that git is let in, to push as well."""
    if kind == "local":
        return mirror.fetch_main()
    try:
        commit = mirror.fetch_main()
        mirror.check_push_access(commit)
    except GitError as error:
        said = " ".join(complaint(error.stderr).split())
        raise PreconditionFailed(
            f"git may not fetch from and push to {mirror.remote.url}: {said}",
            hint=f"a token needs the scopes {SCOPES[kind]}; another way for git, such as SSH, is"
            " named with --git-url, later with the setting git_url",
        ) from error
    return commit


def refuse_unfit(config: ProjectConfig, forge: Forge, about: RepositoryInfo) -> None:
    """Refuse a repository that nothing could be merged in, and say exactly what to grant."""
    if about.kind == "local":
        return
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
    """What a user should know of the repository besides, in lines."""
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
    """How verdicts are told on this forge, in words."""
    if about.kind == "local":
        return "reviews on the local forge"
    if about.reviews == "review":
        return f"reviews by the second account {forge.reviewer}"
    return f"verdict comments by {forge.author} and the commit status caloron/review"
