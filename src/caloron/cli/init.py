"""`caloron init`: a project with a forge of its own."""

from __future__ import annotations

from pathlib import Path

import click

from caloron.cli.frameworks import require_framework
from caloron.cli.options import dry_run_option, output_option
from caloron.cli.output import dry_run as answer_dry_run
from caloron.cli.output import success
from caloron.errors import AlreadyExists, NotFound
from caloron.forge.local import create_local_forge
from caloron.ledger.locate import project_path
from caloron.ledger.projects import Project, ProjectConfig, create_project, set_active


@click.command()
@click.argument("name")
@click.option(
    "--framework", "-f", metavar="F", default="stub", show_default=True, help="Who does the work."
)
@click.option("--repo", "-r", metavar="PATH", help="Start from what is checked out there.")
@click.option("--verify", metavar="LINE", default="", help="Shell line that tests a result.")
@dry_run_option
@output_option
def init(name: str, framework: str, repo: str | None, verify: str, dry_run: bool) -> int:
    """Make project NAME with its own forge, and let later commands act on it.

    Your repository is only read: the sprint's work is merged on the project's forge, from
    where `caloron take` brings it to you. In a repository, `caloron sprint` does this by itself.

    \b
    Examples:
      caloron init shop --repo ~/src/shop --verify "python3 -m unittest"
      caloron init scratch
    """
    source = _repository(repo) if repo else None
    config = ProjectConfig(
        name=name,
        framework=require_framework(framework),
        repo=str(source or ""),
        verify=verify,
    )

    if dry_run:
        return _would_make(config)

    def furnish(directory: Path) -> None:
        create_local_forge(directory, source=source, name=name).close()

    project = create_project(config, furnish)
    set_active(name)
    data = {
        "name": name,
        "path": str(project.path),
        "repo": config.repo,
        "backend": config.backend,
        "framework": config.framework,
        "active": True,
    }
    success("init", data, _text(project))
    return 0


def _would_make(config: ProjectConfig) -> int:
    place = project_path(config.name)
    if place.exists():
        raise AlreadyExists(f"{place} is there already", hint="choose another name")
    actions = [{"action": "make project", "target": str(place)}]
    if config.repo:
        actions.append({"action": "fill its forge from", "target": config.repo})
    actions.append({"action": "switch to project", "target": config.name})
    return answer_dry_run("init", actions)


def _repository(given: str) -> Path:
    try:
        path = Path(given).expanduser().absolute()
        there = path.is_dir()
    except (OSError, ValueError, RuntimeError):
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
    found = "as the files of the project tell (caloron config set verify LINE)"
    lines.append(f"  Verify     {config.verify or found}")
    lines.append('Next: caloron sprint "what you want to have"')
    return "\n".join(lines)
