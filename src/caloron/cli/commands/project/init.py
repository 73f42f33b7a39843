"""`caloron init`: create a project on a forge of its own, or on Gitea or GitHub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from caloron.cli.app import Answer, DryRun, command, exclude_each_other, planned
from caloron.cli.commands.project.new_project import create_active, framework_or_detected
from caloron.errors import AlreadyExists, NotFound, UsageError
from caloron.ledger.locate import project_path, require_id
from caloron.ledger.projects import Project
from caloron.ledger.settings import SECRET_SETTINGS, ProjectConfig, parse_setting

FORGES = ("local", "gitea", "github")
_FILES = ("token_file", "reviewer_token_file", "ca_file")
_FOLDERS = ("checkout",)


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
    from caloron.cli.commands.project.remote import check_remote, create_remote

    if dry_run:
        return DryRun(*check_remote(config))
    project, data, lines = create_remote(config)
    return _created(project, lines, **data)


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
    from caloron.forge.local.forge import create_local_forge

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
