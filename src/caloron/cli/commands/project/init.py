"""`caloron init`: create a project on a forge of its own, or on Gitea or GitHub."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from caloron.cli.app import Answer, DryRun, command, exclude_each_other, planned
from caloron.cli.commands.project.new_project import create_active, framework_or_detected
from caloron.cli.format import counted
from caloron.errors import AlreadyExists, NotFound, UsageError
from caloron.ledger.locate import is_clone_of, origin_of, project_path, require_id
from caloron.ledger.projects import Project
from caloron.ledger.settings import (
    SECRET_SETTINGS,
    ProjectConfig,
    parse_setting,
    printable_value,
)

if TYPE_CHECKING:
    from caloron.git.mirror import Mirror
    from caloron.git.repository_context import RepoContext
    from caloron.ports import Forge, RepositoryInfo

FORGES = ("local", "gitea", "github")
_PATHS = ("token_file", "reviewer_token_file", "ca_file", "checkout")


@command(dry_run=True)
@click.argument("name")
@click.option("--framework", "-f", metavar="F", help="Agent framework (default: detected on PATH).")
@click.option(
    "--repo", "-r", metavar="REPO", help="A folder on this disk (local), else OWNER/NAME there."
)
@click.option("--verify", metavar="LINE", default="", help="Shell line that tests a result.")
@click.option("--forge", type=click.Choice(FORGES), default="local", show_default=True)
@click.option("--host", metavar="URL", help="Address of the forge, or its API root.")
@click.option("--token-env", metavar="VAR", help="Variable that holds your token.")
@click.option("--token-file", metavar="FILE", help="File that holds your token.")
@click.option("--reviewer-token-env", metavar="VAR", help="Variable with a second account's token.")
@click.option("--reviewer-token-file", metavar="FILE", help="File with a second account's token.")
@click.option("--ca-file", metavar="FILE", help="CA certificates for the forge.")
@click.option("--git-url", metavar="URL", help="Address for git fetch and push, such as over SSH.")
@click.option("--checkout", metavar="PATH", help="Your own clone, for `caloron take`.")
def init(
    name: str,
    framework: str | None,
    repo: str | None,
    verify: str,
    forge: str,
    dry_run: bool,
    **remote: str | None,
) -> Answer | DryRun:
    """Create project NAME and make it the active one.

    With the local forge your repository is only read: work is merged on the project's own forge,
    and `caloron take` brings it to you. With Gitea or GitHub, issues and pull requests are opened
    in the repository REPO there, by the account of your token; without --token-env or --token-file
    git's credential helper is asked. Everything is checked before anything is created.

    Examples:
      caloron init shop --repo ~/src/shop --verify "python3 -m unittest"
      caloron init scratch
      caloron init shop --forge gitea --host https://git.example.org --repo ada/shop --token-env T
      caloron init shop --forge github --repo ada/shop --token-env T --reviewer-token-env T2
    """
    require_id(name, "project name")
    settings = {key: value for key, value in remote.items() if value is not None}
    if forge != "local":
        config = _remote_config(
            name, framework, verify, {"repo": repo or "", "forge": forge} | settings
        )
        return _plan_remote(config) if dry_run else _create_remote(config)
    if settings:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in settings)
        raise UsageError(
            f"the local forge takes no {flags}", hint="name the forge: --forge gitea or github"
        )
    source = _existing_path("repo", repo) if repo else None
    config = ProjectConfig(
        name=name,
        framework=framework_or_detected(framework),
        repo=str(source or ""),
        verify=verify,
    )
    return _plan_local(config) if dry_run else _create_local(config, source)


def _plan_local(config: ProjectConfig) -> DryRun:
    _refuse_existing(config)
    actions = [planned("create project", str(project_path(config.name)))]
    if config.repo:
        actions.append(planned("fill its forge from", config.repo))
    return DryRun(*actions, planned("switch to project", config.name))


def _create_local(config: ProjectConfig, source: Path | None) -> Answer:
    def populate(directory: Path) -> None:
        from caloron.forge.local.forge import create_local_forge

        create_local_forge(directory, source=source, name=config.name).close()

    project = create_active(config, populate)
    lines = [
        f"  Path       {project.path}",
        f"  Forge      {project.forge_git}",
        f"  Framework  {config.framework}",
        *([f"  Repo       {config.repo}"] if config.repo else []),
    ]
    return Answer(_data(project), _text(config, lines))


def _remote_config(
    name: str, framework: str | None, verify: str, values: dict[str, str]
) -> ProjectConfig:
    settings: dict[str, Any] = {key: parse_setting(key, value) for key, value in values.items()}
    for key in _PATHS:
        if settings.get(key):
            settings[key] = str(_existing_path(key, settings[key]))
    for token in ("token", "reviewer_token"):
        pair = (f"{token}_env", f"{token}_file")
        exclude_each_other(**{key: settings.get(key) for key in pair})
    config = ProjectConfig(
        name=name, framework=framework_or_detected(framework), verify=verify, **settings
    )
    _refuse_existing(config)
    return config


def _existing_path(key: str, value: str) -> Path:
    """The absolute path of a file or directory that an option names."""
    is_directory = key in ("checkout", "repo")
    try:
        path = Path(value).expanduser().absolute()
        exists = path.is_dir() if is_directory else path.is_file()
    except (OSError, ValueError, RuntimeError):
        # No file can have this name.
        exists = False
    if not exists:
        what = "directory" if is_directory else "file"
        # Do not repeat a token that was given instead of its file.
        shown = f" {value}" if "/" in value or key not in SECRET_SETTINGS else ""
        flag = f"--{key.replace('_', '-')}"
        raise NotFound(f"{flag}{shown}: there is no such {what}", hint="check the path")
    return path


def _refuse_existing(config: ProjectConfig) -> None:
    path = project_path(config.name)
    if path.exists():
        raise AlreadyExists(f"{path} exists already", hint="choose another name")


def _data(project: Project) -> dict[str, Any]:
    config = project.config
    return {
        "name": project.name,
        "path": str(project.path),
        "repo": config.repo,
        "forge": config.forge,
        "backend": config.backend,
        "framework": config.framework,
        "active": True,
    }


def _text(config: ProjectConfig, lines: list[str]) -> str:
    detected = "detected from the project's files (caloron config set verify LINE)"
    # Without a repository of the user's no folder says which project is meant.
    here = config.repo if config.forge == "local" else config.checkout
    where, option = (f"in {here}, ", "") if here else ("", f" --project {config.name}")
    return "\n".join(
        [
            f"Project {config.name} is ready, and active.",
            *lines,
            f"  Verify     {config.verify or detected}",
            f'Next: {where}caloron sprint "what you want to have"{option}',
        ]
    )


class RemoteRepository(NamedTuple):
    """A repository on a remote forge that a project can be created for."""

    forge: Forge
    about: RepositoryInfo

    @property
    def first_commit(self) -> str:
        """What is pushed to a repository that has no commit."""
        return f"a first commit (README.md) on {self.forge.main}" if self.about.empty else ""


@contextmanager
def _open_remote(config: ProjectConfig) -> Iterator[RemoteRepository]:
    """Open the forge and check the repository; refused with what has to be fixed."""
    from caloron.engine.forge.access import look, reach, refuse_unfit, tokens_of

    if config.forge == "gitea" and not config.host:
        raise UsageError(
            "--forge gitea needs --host", hint="such as --host https://git.example.org"
        )
    _check_name(config)
    forge = reach(config)
    try:
        about = look(config, forge)
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
    import msgspec

    from caloron.git.checkout import Checkout
    from caloron.git.mirror import Mirror
    from caloron.ports import Remote

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


def _plan_remote(config: ProjectConfig) -> DryRun:
    """Check everything, and change nothing here or there."""
    import tempfile

    from caloron.engine.forge.access import review_mode

    with (
        _open_remote(config) as remote,
        tempfile.TemporaryDirectory(prefix="caloron-init-") as folder,
    ):
        actions: list[dict[str, Any]] = []
        if remote.first_commit:
            actions.append(planned(f"push {remote.first_commit} to", remote.about.url))
        else:
            _fetch(config, remote, Path(folder))
        mode = review_mode(remote.about, remote.forge)
        actions += [
            planned("create project", str(project_path(config.name))),
            planned("work on", f"{remote.about.url}, {mode}"),
            planned("switch to project", config.name),
        ]
    return DryRun(*actions)


def _create_remote(config: ProjectConfig) -> Answer:
    """Create the project; a repository without a commit gets its first one."""
    contexts: list[RepoContext] = []
    with _open_remote(config) as remote:

        def populate(directory: Path) -> None:
            if remote.first_commit:
                _push_first_commit(config, remote, directory)
            contexts.append(_fetch(config, remote, directory))

        project = create_active(config, populate)
        data = _data(project) | _remote_data(remote, contexts[0])
        return Answer(data, _text(config, _remote_lines(config, remote, contexts[0])))


def _push_first_commit(config: ProjectConfig, remote: RemoteRepository, directory: Path) -> None:
    from caloron.engine.runs.runtime import identity
    from caloron.git.command import git_environment

    mirror = _mirror(remote, directory)
    readme = f"# {config.repo.partition('/')[2]}\n"
    commit = mirror.commit_readme(readme, git_environment(identity(config)))
    remote.forge.push(mirror.path, remote.forge.main, commit, "")


def _mirror(remote: RemoteRepository, directory: Path) -> Mirror:
    from caloron.git.mirror import Mirror

    mirror = Mirror(directory / "mirror.git", remote.forge.remote(), remote.forge.main)
    mirror.ensure()
    return mirror


def _fetch(config: ProjectConfig, remote: RemoteRepository, directory: Path) -> RepoContext:
    """Fetch main, which proves that git has access too, and describe its files."""
    from caloron.engine.forge.access import main_by_git
    from caloron.git.repository_context import read_repository_context

    mirror = _mirror(remote, directory)
    commit = main_by_git(mirror, remote.about.kind)
    if not remote.first_commit:
        _refuse_unrelated(config, mirror, commit)
    about = remote.about
    return read_repository_context(
        mirror, commit, description=about.description, open_issues=about.open_issues
    )


def _remote_data(remote: RemoteRepository, context: RepoContext) -> dict[str, Any]:
    import msgspec

    from caloron.engine.forge.access import notes_on, review_mode

    repository = msgspec.to_builtins(context)
    rules = [{"kind": rule["kind"], "path": rule["path"]} for rule in repository["rules"]]
    return {
        "url": remote.about.url,
        "account": remote.forge.author,
        "reviewer": remote.forge.reviewer,
        "reviews": remote.about.reviews,
        "review_mode": review_mode(remote.about, remote.forge),
        "first_commit": bool(remote.first_commit),
        "protected": remote.about.protected,
        "required_checks": list(remote.about.required_checks),
        "required_approvals": remote.about.required_approvals,
        "notes": notes_on(remote.forge, remote.about),
        "repository": repository | {"rules": rules},
    }


def _remote_lines(
    config: ProjectConfig, remote: RemoteRepository, context: RepoContext
) -> list[str]:
    from caloron.engine.forge.access import notes_on, review_mode

    forge = remote.forge
    named = [f"{name} {count}" for name, count in context.languages.items()]
    languages = f" ({', '.join(named[:4])})" if named else ""
    lines = [
        f"  Forge      {config.forge}: {remote.about.url}",
        f"  Account    {forge.author}",
        f"  Reviews    {review_mode(remote.about, forge)}",
        f"  Framework  {config.framework}",
        f"  Branch     {forge.main}, {counted(context.files, 'file')}{languages}",
    ]
    if remote.first_commit:
        lines.append(f"  Pushed     {remote.first_commit}: the repository had none")
    if context.ci:
        lines.append(f"  CI         {', '.join(context.ci)}")
    if context.rules:
        lines.append(f"  Rules      {', '.join(rule.path for rule in context.rules)}")
    return [*lines, *(f"  Note       {note}" for note in notes_on(forge, remote.about))]
