"""A new project on Gitea or GitHub: the checks of its repository, and its creation."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from caloron.cli.app import planned
from caloron.cli.commands.project.new_project import create_active
from caloron.cli.format import counted
from caloron.engine.forge.access import (
    main_by_git,
    notes_on,
    reach,
    refuse_unfit,
    repository_info,
    review_mode,
    tokens_of,
)
from caloron.engine.runs.runtime import identity
from caloron.errors import UsageError
from caloron.git.checkout import Checkout
from caloron.git.command import git_environment
from caloron.git.mirror import Mirror
from caloron.git.repository_context import RepoContext, read_repository_context
from caloron.ledger.locate import is_clone_of, origin_of, project_path
from caloron.ledger.projects import Project
from caloron.ledger.settings import ProjectConfig, printable_value
from caloron.ports import Forge, Remote, RepositoryInfo


class RemoteRepository(NamedTuple):
    """A repository on a remote forge that a project can be created for."""

    forge: Forge
    about: RepositoryInfo

    @property
    def first_commit(self) -> str:
        """What is pushed to a repository that has no commit."""
        return f"a first commit (README.md) on {self.forge.main}" if self.about.empty else ""

    @property
    def review_mode(self) -> str:
        return review_mode(self.about, self.forge)

    @property
    def notes(self) -> list[str]:
        return notes_on(self.forge, self.about)


def check_remote(config: ProjectConfig) -> list[dict[str, Any]]:
    """Check everything, and return the actions of a dry run; nothing is changed anywhere."""
    with (
        _open_remote(config) as remote,
        tempfile.TemporaryDirectory(prefix="caloron-init-") as folder,
    ):
        actions: list[dict[str, Any]] = []
        if remote.first_commit:
            actions.append(planned(f"push {remote.first_commit} to", remote.about.url))
        else:
            _fetch(config, remote, Path(folder))
        return [
            *actions,
            planned("create project", str(project_path(config.name))),
            planned("work on", f"{remote.about.url}, {remote.review_mode}"),
            planned("switch to project", config.name),
        ]


def create_remote(config: ProjectConfig) -> tuple[Project, dict[str, Any], list[str]]:
    """Create the project; returns it with data and lines about its repository.

    A repository without a commit gets its first one.
    """
    contexts: list[RepoContext] = []
    with _open_remote(config) as remote:

        def populate(directory: Path) -> None:
            if remote.first_commit:
                _push_first_commit(config, remote, directory)
            contexts.append(_fetch(config, remote, directory))

        project = create_active(config, populate)
        data = _remote_data(remote, contexts[0])
        return project, data, _remote_lines(config, remote, contexts[0])


@contextmanager
def _open_remote(config: ProjectConfig) -> Iterator[RemoteRepository]:
    """Open the forge and check the repository; refused with what has to be fixed."""
    if config.forge == "gitea" and not config.host:
        raise UsageError(
            "--forge gitea needs --host", hint="such as --host https://git.example.org"
        )
    _check_name(config)
    forge = reach(config)
    try:
        about = repository_info(config, forge)
        if tokens_of(config).reviewer and forge.reviewer == forge.author:
            raise UsageError(
                f"both tokens belong to {forge.author}, who cannot approve its own pull requests",
                hint="use the token of another account, or none: then verdicts are comments",
            )
        refuse_unfit(config, forge, about)
        if about.empty:
            _refuse_unrelated(config, None, "")
        yield RemoteRepository(forge, about)
    finally:
        forge.close()


def _check_name(config: ProjectConfig) -> None:
    """Refuse what cannot be the name of a repository, and suggest what was probably meant."""
    repo = config.repo
    if not repo:
        raise UsageError(f"--forge {config.forge} needs --repo", hint="such as --repo ada/shop")
    parts = repo.removesuffix("/").removesuffix(".git").split("/")
    if repo.count("/") == 1 and all(parts) and not repo.endswith(".git"):
        return
    meant = "/".join(parts[-2:])
    is_clear = len(parts) > 1 and all(parts[-2:]) and "@" not in meant and ":" not in meant
    raise UsageError(
        f"--repo {printable_value('repo', repo)} is not the name of a repository on a forge",
        hint="give it as OWNER/NAME" + (f": --repo {meant}" if is_clear else ""),
    )


def _refuse_unrelated(config: ProjectConfig, mirror: Mirror | None, main: str) -> None:
    """Refuse a checkout that is neither a clone of the repository nor shares its first commit."""
    settings = msgspec.structs.asdict(config)
    if not config.checkout or is_clone_of(settings, origin_of(Path(config.checkout))):
        return
    checkout = Checkout.around(Path(config.checkout))
    roots = set(Mirror(checkout.top, Remote("")).roots("HEAD")) if checkout else set()
    if mirror is None or not roots & set(mirror.roots(main)):
        what = f"is not a clone of {config.repo}" if checkout else "is not a git repository"
        raise UsageError(
            f"--checkout {config.checkout} {what}", hint="give the folder of a clone of it, or none"
        )


def _push_first_commit(config: ProjectConfig, remote: RemoteRepository, directory: Path) -> None:
    mirror = _mirror(remote, directory)
    readme = f"# {config.repo.partition('/')[2]}\n"
    commit = mirror.commit_readme(readme, git_environment(identity(config)))
    remote.forge.push(mirror.path, remote.forge.main, commit, "")


def _mirror(remote: RemoteRepository, directory: Path) -> Mirror:
    mirror = Mirror(directory / "mirror.git", remote.forge.remote(), remote.forge.main)
    mirror.ensure()
    return mirror


def _fetch(config: ProjectConfig, remote: RemoteRepository, directory: Path) -> RepoContext:
    """Fetch main, which proves that git has access too, and describe its files."""
    mirror = _mirror(remote, directory)
    commit = main_by_git(mirror, remote.about.kind)
    if not remote.first_commit:
        _refuse_unrelated(config, mirror, commit)
    about = remote.about
    return read_repository_context(
        mirror, commit, description=about.description, open_issues=about.open_issues
    )


def _remote_data(remote: RemoteRepository, context: RepoContext) -> dict[str, Any]:
    repository = msgspec.to_builtins(context)
    rules = [{"kind": rule["kind"], "path": rule["path"]} for rule in repository["rules"]]
    return {
        "url": remote.about.url,
        "account": remote.forge.author,
        "reviewer": remote.forge.reviewer,
        "reviews": remote.about.reviews,
        "review_mode": remote.review_mode,
        "first_commit": bool(remote.first_commit),
        "protected": remote.about.protected,
        "required_checks": list(remote.about.required_checks),
        "required_approvals": remote.about.required_approvals,
        "notes": remote.notes,
        "repository": repository | {"rules": rules},
    }


def _remote_lines(
    config: ProjectConfig, remote: RemoteRepository, context: RepoContext
) -> list[str]:
    forge = remote.forge
    named = [f"{name} {count}" for name, count in context.languages.items()]
    languages = f" ({', '.join(named[:4])})" if named else ""
    lines = [
        f"  Forge      {config.forge}: {remote.about.url}",
        f"  Account    {forge.author}",
        f"  Reviews    {remote.review_mode}",
        f"  Framework  {config.framework}",
        f"  Branch     {forge.main}, {counted(context.files, 'file')}{languages}",
    ]
    if remote.first_commit:
        lines.append(f"  Pushed     {remote.first_commit}: the repository had none")
    if context.ci:
        lines.append(f"  CI         {', '.join(context.ci)}")
    if context.rules:
        lines.append(f"  Rules      {', '.join(rule.path for rule in context.rules)}")
    return [*lines, *(f"  Note       {note}" for note in remote.notes)]
