"""`caloron init`: create a project on a forge of its own, or on Gitea or GitHub."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from caloron.cli.app import (
    FRAMEWORK,
    Answer,
    DryRun,
    attributes,
    command,
    exclude_each_other,
    planned,
)
from caloron.cli.commands.project.new_project import create_active, framework_or_detected
from caloron.cli.format import counted
from caloron.engine.forge import access
from caloron.engine.runs.runtime import identity
from caloron.errors import AlreadyExists, NotFound, UsageError
from caloron.forge.local.forge import create_local_forge
from caloron.git.checkout import Checkout
from caloron.git.command import git_environment
from caloron.git.mirror import Mirror
from caloron.git.repository_context import RepoContext, read_repository_context
from caloron.ledger.locate import is_clone_of, origin_of, project_path, require_id
from caloron.ledger.projects import Project
from caloron.ledger.settings import (
    SECRET_SETTINGS,
    ProjectConfig,
    parse_setting,
    printable_value,
)
from caloron.ports import Forge, Remote, RepositoryInfo

FORGES = ("local", "gitea", "github")
_FILES = ("token_file", "reviewer_token_file", "ca_file")
_FOLDERS = ("checkout",)


@command(
    dry_run=True,
    examples=[
        'caloron init shop --repo ~/src/shop --verify "python3 -m unittest"',
        "caloron init scratch",
        "caloron init shop --forge gitea --host https://git.org --repo ada/shop --token-env T",
        "caloron init shop --forge github --repo ada/shop --token-env T --reviewer-token-env T2",
    ],
)
@click.argument("name")
@click.option(
    "--framework",
    "-f",
    type=FRAMEWORK,
    metavar="NAME",
    help="Agent framework (default: detected on PATH).",
)
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
@click.option("--checkout", metavar="PATH", help="Your own clone, for `caloron apply`.")
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
    and `caloron apply` brings it to you. With Gitea or GitHub, issues and pull requests are opened
    in the repository REPO there, by the account of your token; without --token-env or --token-file
    git's credential helper is asked. Everything is checked before anything is created.
    """
    require_id(name, "project name")
    settings: dict[str, Any] = {key: value for key, value in remote.items() if value is not None}
    if forge == "local" and settings:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in settings)
        raise UsageError(
            f"the local forge takes no {flags}", hint="name the forge: --forge gitea or github"
        )
    settings = {key: parse_setting(key, value) for key, value in settings.items()}
    for key in (*_FILES, *_FOLDERS):
        if settings.get(key):
            settings[key] = _existing_path(key, settings[key], is_folder=key in _FOLDERS)
    for token in ("token", "reviewer_token"):
        pair = (f"{token}_env", f"{token}_file")
        exclude_each_other(**{key: settings.get(key) for key in pair})
    if forge != "local":
        repo = parse_setting("repo", repo or "")
    elif repo:
        repo = _existing_path("repo", repo, is_folder=True)
    config = ProjectConfig(
        name=name,
        framework=framework_or_detected(framework),
        verify=verify,
        forge=forge,  # type: ignore[arg-type]  # click has checked it
        repo=repo or "",
        **settings,
    )
    if (dry_run or forge != "local") and project_path(name).exists():
        raise AlreadyExists(f"{project_path(name)} exists already", hint="choose another name")
    if forge == "local":
        return _plan_local(config) if dry_run else _create_local(config)
    return _plan_remote(config) if dry_run else _create_remote(config)


def _existing_path(key: str, value: str, *, is_folder: bool) -> str:
    """The absolute path of a file or folder that an option names."""
    try:
        path = Path(value).expanduser().absolute()
        exists = path.is_dir() if is_folder else path.is_file()
    except (OSError, ValueError, RuntimeError):
        # No file can have this name.
        exists = False
    if not exists:
        what = "directory" if is_folder else "file"
        # Do not repeat a token that was given instead of its file.
        shown = f" {value}" if "/" in value or key not in SECRET_SETTINGS else ""
        flag = f"--{key.replace('_', '-')}"
        raise NotFound(f"{flag}{shown}: there is no such {what}", hint="check the path")
    return str(path)


def _plan_local(config: ProjectConfig) -> DryRun:
    actions = [planned("create project", str(project_path(config.name)))]
    if config.repo:
        actions.append(planned("fill its forge from", config.repo))
    return DryRun(*actions, planned("switch to project", config.name))


def _create_local(config: ProjectConfig) -> Answer:
    def populate(directory: Path) -> None:
        source = Path(config.repo) if config.repo else None
        create_local_forge(directory, source=source, name=config.name).close()

    project = create_active(config, populate)
    lines = [
        f"  Path       {project.path}",
        f"  Forge      {project.forge_git}",
        f"  Framework  {config.framework}",
    ]
    lines += [f"  Repo       {config.repo}"] if config.repo else []
    return _created(project, lines)


def _created(project: Project, lines: list[str], **more: Any) -> Answer:
    config = project.config
    data = {
        "name": project.name,
        "path": str(project.path),
        "repo": config.repo,
        "forge": config.forge,
        "backend": config.backend,
        "framework": config.framework,
        "active": True,
    }
    detected = "detected from the project's files (caloron config set verify LINE)"
    # Without a repository of the user's no folder says which project is meant.
    here = config.repo if config.forge == "local" else config.checkout
    where, option = (f"in {here}, ", "") if here else ("", f" --project {config.name}")
    text = [
        f"Project {config.name} is ready, and active.",
        *lines,
        f"  Verify     {config.verify or detected}",
        f'Next: {where}caloron sprint "what you want to have"{option}',
    ]
    return Answer(data | more, "\n".join(text))


def _plan_remote(config: ProjectConfig) -> DryRun:
    """Check everything; nothing is changed anywhere."""
    with (
        _open_remote(config) as (forge, about),
        tempfile.TemporaryDirectory(prefix="caloron-init-") as folder,
    ):
        actions: list[dict[str, Any]] = []
        if about.empty:
            actions.append(planned(f"push {_first_commit(forge)} to", about.url))
        else:
            _fetch(config, forge, about, Path(folder))
        return DryRun(
            *actions,
            planned("create project", str(project_path(config.name))),
            planned("work on", f"{about.url}, {access.review_mode(about, forge)}"),
            planned("switch to project", config.name),
        )


def _create_remote(config: ProjectConfig) -> Answer:
    """Create the project; a repository without a commit gets its first one."""
    contexts: list[RepoContext] = []
    with _open_remote(config) as (forge, about):

        def populate(directory: Path) -> None:
            if about.empty:
                _push_first_commit(config, forge, directory)
            contexts.append(_fetch(config, forge, about, directory))

        project = create_active(config, populate)
        lines = _remote_lines(config, forge, about, contexts[0])
        return _created(project, lines, **_remote_data(forge, about, contexts[0]))


@contextmanager
def _open_remote(config: ProjectConfig) -> Iterator[tuple[Forge, RepositoryInfo]]:
    """Open the forge and check the repository; refused with what has to be fixed."""
    if config.forge == "gitea" and not config.host:
        raise UsageError(
            "--forge gitea needs --host", hint="such as --host https://git.example.org"
        )
    _check_name(config)
    with closing(access.reach(config)) as forge:
        about = access.repository_info(config, forge)
        if access.tokens_of(config).reviewer and forge.reviewer == forge.author:
            raise UsageError(
                f"both tokens belong to {forge.author}, who cannot approve its own pull requests",
                hint="use the token of another account, or none: then verdicts are comments",
            )
        access.refuse_unfit(config, forge, about)
        if about.empty:
            _refuse_unrelated(config, None, "")
        yield forge, about


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


def _first_commit(forge: Forge) -> str:
    """What is pushed to a repository that has no commit."""
    return f"a first commit (README.md) on {forge.main}"


def _push_first_commit(config: ProjectConfig, forge: Forge, directory: Path) -> None:
    mirror = _mirror(forge, directory)
    readme = f"# {config.repo.partition('/')[2]}\n"
    commit = mirror.commit_readme(readme, git_environment(identity(config)))
    forge.push(mirror.path, forge.main, commit, "")


def _mirror(forge: Forge, directory: Path) -> Mirror:
    mirror = Mirror(directory / "mirror.git", forge.remote(), forge.main)
    mirror.ensure()
    return mirror


def _fetch(
    config: ProjectConfig, forge: Forge, about: RepositoryInfo, directory: Path
) -> RepoContext:
    """Fetch main, which proves that git has access too, and describe its files."""
    mirror = _mirror(forge, directory)
    commit = access.main_by_git(mirror, about.kind)
    if not about.empty:
        _refuse_unrelated(config, mirror, commit)
    return read_repository_context(
        mirror, commit, description=about.description, open_issues=about.open_issues
    )


def _remote_data(forge: Forge, about: RepositoryInfo, context: RepoContext) -> dict[str, Any]:
    rules = [attributes(rule, "kind", "path") for rule in context.rules]
    return {
        "url": about.url,
        "account": forge.author,
        "reviewer": forge.reviewer,
        "reviews": about.reviews,
        "review_mode": access.review_mode(about, forge),
        "first_commit": about.empty,
        **attributes(about, "protected", "required_checks", "required_approvals"),
        "notes": access.notes_on(forge, about),
        "repository": msgspec.to_builtins(context) | {"rules": rules},
    }


def _remote_lines(
    config: ProjectConfig, forge: Forge, about: RepositoryInfo, context: RepoContext
) -> list[str]:
    named = [f"{name} {count}" for name, count in context.languages.items()]
    languages = f" ({', '.join(named[:4])})" if named else ""
    lines = [
        f"  Forge      {config.forge}: {about.url}",
        f"  Account    {forge.author}",
        f"  Reviews    {access.review_mode(about, forge)}",
        f"  Framework  {config.framework}",
        f"  Branch     {forge.main}, {counted(context.files, 'file')}{languages}",
    ]
    if about.empty:
        lines.append(f"  Pushed     {_first_commit(forge)}: the repository had none")
    if context.ci:
        lines.append(f"  CI         {', '.join(context.ci)}")
    if context.rules:
        lines.append(f"  Rules      {', '.join(rule.path for rule in context.rules)}")
    return [*lines, *(f"  Note       {note}" for note in access.notes_on(forge, about))]
