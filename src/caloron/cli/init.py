"""`caloron init`: a project on a forge of its own, or on one that is there already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from caloron.cli.frameworks import framework_or_found
from caloron.cli.options import dry_run_option, output_option
from caloron.cli.output import dry_run as answer_dry_run
from caloron.cli.output import printable, success
from caloron.errors import AlreadyExists, NotFound, UsageError
from caloron.ledger.given import NAMES_OF_SECRETS
from caloron.ledger.locate import project_path, require_id
from caloron.ledger.projects import Project, create_project, set_active
from caloron.ledger.settings import ProjectConfig, parse_setting

FORGES = ("local", "gitea", "github")
#: What only a forge on the network has.
_REMOTE = (
    "host", "token_env", "token_file", "reviewer_token_env", "reviewer_token_file", "ca_file",
    "git_url", "checkout",
)  # fmt: skip
_PATHS = ("token_file", "reviewer_token_file", "ca_file", "checkout")


@click.command()
@click.argument("name")
@click.option("--framework", "-f", metavar="F", help="Agent framework (default: detected on PATH).")
@click.option(
    "--repo", "-r", metavar="REPO", help="A folder on this disk (local), else OWNER/NAME there."
)
@click.option("--verify", metavar="LINE", default="", help="Shell line that tests a result.")
@click.option("--forge", type=click.Choice(FORGES), default="local", show_default=True)
@click.option("--host", metavar="URL", help="Where the forge is: its address or its API root.")
@click.option("--token-env", metavar="VAR", help="The variable that holds your token.")
@click.option("--token-file", metavar="FILE", help="The file that holds your token.")
@click.option("--reviewer-token-env", metavar="VAR", help="The token of a second account.")
@click.option("--reviewer-token-file", metavar="FILE", help="The same, in a file.")
@click.option("--ca-file", metavar="FILE", help="Certificates that the forge's is signed by.")
@click.option("--git-url", metavar="URL", help="Where git fetches and pushes, such as over SSH.")
@click.option("--checkout", metavar="PATH", help="Your own clone, for `caloron take`.")
@dry_run_option
@output_option
def init(
    name: str,
    framework: str | None,
    repo: str | None,
    verify: str,
    forge: str,
    dry_run: bool,
    **remote: str | None,
) -> int:
    """Make project NAME, and let later commands act on it.

    With the local forge your repository is only read: work is merged on the project's own forge,
    and `caloron take` brings it to you. With Gitea or GitHub, issues and pull requests are made in
    the repository REPO there, by the account of your token: without --token-env or --token-file
    git's credential helper is asked. Everything is checked before anything is made.

    \b
    Examples:
      caloron init shop --repo ~/src/shop --verify "python3 -m unittest"
      caloron init scratch
      caloron init shop --forge gitea --host https://git.example.org --repo ada/shop --token-env T
      caloron init shop --forge github --repo ada/shop --token-env T --reviewer-token-env T2
    """
    require_id(name, "project name")
    given = {key: value for key, value in remote.items() if value is not None}
    if forge != "local":
        return _init_remote(name, framework, repo, verify, forge, given, dry_run=dry_run)
    if given:
        flags = ", ".join(f"--{key.replace('_', '-')}" for key in given)
        raise UsageError(
            f"the local forge takes no {flags}", hint="say which forge: --forge gitea or github"
        )
    source = _repository(repo) if repo else None
    config = ProjectConfig(
        name=name,
        framework=framework_or_found(framework),
        repo=str(source or ""),
        verify=verify,
    )
    if dry_run:
        return _would_make(config)

    def furnish(directory: Path) -> None:
        from caloron.forge.local import create_local_forge

        create_local_forge(directory, source=source, name=name).close()

    project = create_project(config, furnish)
    set_active(name)
    success("init", init_data(project), _text(project))
    return 0


def _init_remote(
    name: str,
    framework: str | None,
    repo: str | None,
    verify: str,
    forge: str,
    given: dict[str, str],
    *,
    dry_run: bool,
) -> int:
    from caloron.cli.init_remote import make, would_make

    settings: dict[str, Any] = {
        key: parse_setting(key, value)
        for key, value in {"repo": repo or "", "forge": forge, **given}.items()
    }
    for key in _PATHS:
        if settings.get(key):
            settings[key] = str(_path(key, settings[key]))
    for one in ("token", "reviewer_token"):
        if settings.get(f"{one}_env") and settings.get(f"{one}_file"):
            flag = one.replace("_", "-")
            raise UsageError(
                f"--{flag}-env and --{flag}-file exclude each other", hint="give one of them"
            )
    config = ProjectConfig(
        name=name, framework=framework_or_found(framework), verify=verify, **settings
    )
    _refuse_taken(config)
    return would_make(config) if dry_run else make(config)


def _path(key: str, given: str) -> Path:
    flag = f"--{key.replace('_', '-')}"
    try:
        path = Path(given).expanduser().absolute()
        there = path.is_dir() if key == "checkout" else path.is_file()
    except (OSError, ValueError, RuntimeError):
        # No file can have this name.
        there = False
    if not there:
        what = "directory" if key == "checkout" else "file"
        # Whoever gave the token itself does not want to see it again.
        named = f" {given}" if "/" in given or key not in NAMES_OF_SECRETS else ""
        raise NotFound(f"{flag}{named}: there is no such {what}", hint="check the path")
    return path


def init_data(project: Project) -> dict[str, Any]:
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


def _refuse_taken(config: ProjectConfig) -> None:
    place = project_path(config.name)
    if place.exists():
        raise AlreadyExists(f"{place} is there already", hint="choose another name")


def _would_make(config: ProjectConfig) -> int:
    _refuse_taken(config)
    actions = [{"action": "make project", "target": str(project_path(config.name))}]
    if config.repo:
        actions.append({"action": "fill its forge from", "target": config.repo})
    actions.append({"action": "switch to project", "target": config.name})
    return answer_dry_run("init", actions)


def _repository(given: str) -> Path:
    try:
        path = Path(given).expanduser().absolute()
        there = path.is_dir()
    except (OSError, ValueError, RuntimeError):
        # No directory can have this name.
        there = False
    if not there:
        raise NotFound(f"--repo {given}: there is no such directory", hint="check the path")
    return path


def _text(project: Project) -> str:
    config = project.config
    lines = [
        f"Project {project.name} is ready, and active.",
        f"  Path       {project.path}",
        f"  Forge      {project.forge_git}",
        f"  Framework  {config.framework}",
    ]
    if config.repo:
        lines.append(f"  Repo       {config.repo}")
    return printable("\n".join([*lines, *last_lines(config)]))


def last_lines(config: ProjectConfig) -> list[str]:
    """How results are verified, and what to do next."""
    found = "as the files of the project tell (caloron config set verify LINE)"
    # Without a repository of the user's no folder says which project is meant.
    here = config.repo if config.forge == "local" else config.checkout
    where, option = (f"in {here}, ", "") if here else ("", f" --project {config.name}")
    return [
        f"  Verify     {config.verify or found}",
        f'Next: {where}caloron sprint "what you want to have"{option}',
    ]
