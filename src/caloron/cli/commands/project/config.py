"""`caloron config`: show and change the settings of a project."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from caloron.agents.clis.registry import require_framework
from caloron.agents.workspace.project_detection import ProjectCommands, apply_overrides, detect
from caloron.cli.app import SETTING, Answer, DryRun, group, planned
from caloron.cli.format import local_time
from caloron.cli.project_view import known_forge
from caloron.cli.render import aligned
from caloron.engine.forge.webhooks import refuse_unsigned
from caloron.engine.runs.runtime import identity
from caloron.engine.runs.sandbox_policy import TOKEN_VARIABLES, check_setting, refuse_passing_tokens
from caloron.errors import CaloronError, UsageError
from caloron.git.mirror import Mirror
from caloron.ledger.projects import Project, load_project, save_config
from caloron.ledger.settings import ProjectConfig, parse_setting, setting_name
from caloron.ports import Remote
from caloron.store import log
from caloron.store.lock import holder

_FIXED = ("name", "created_at")
_LONGEST = 10_000
#: Paths are typed relative to the current folder, and stored absolute.
_PATHS = (
    "stub_fixture", "work_dir", "token_file", "reviewer_token_file", "ca_file", "checkout",
)  # fmt: skip


@group(
    examples=[
        "caloron config list",
        'caloron config set verify "python3 -m unittest"',
        "caloron config set parallel 8",
    ]
)
def config() -> None:
    """Show and change the settings of a project."""


@config.command("get", project=True, examples=["caloron config get verify"])
@click.argument("key", type=SETTING)
def get_setting(key: str, project: str | None) -> Answer:
    """Print one setting."""
    key, loaded = setting_name(key), load_project(project)
    value, detected = getattr(loaded.config, key), _detected(loaded)
    data = {"key": key, "value": value, "detected": detected.get(key, "")}
    return Answer(data, _line_of(key, value, data["detected"]))


@config.command(
    "set",
    context_settings={"ignore_unknown_options": True},
    project=True,
    dry_run=True,
    examples=[
        'caloron config set verify "python3 -m unittest"',
        'caloron config set command "my-agent --prompt-file {prompt_file}"',
    ],
)
@click.argument("key", type=SETTING)
@click.argument("value")
def set_setting(key: str, value: str, dry_run: bool, project: str | None) -> Answer | DryRun:
    """Change one setting; the next `sprint` or `resume` uses it.

    The VALUE of `command` is a command line, split as a shell would.
    """
    key, loaded = setting_name(key), load_project(project)
    if key in _FIXED:
        raise UsageError(f"setting {key} cannot be changed", hint="caloron init sets it once")
    if len(value) > _LONGEST:
        raise UsageError(f"setting {key} is at most {_LONGEST} characters long")
    parsed = parse_setting(key, value)
    if key in _PATHS and parsed:
        parsed = _absolute(key, parsed)
    if key == "framework":
        require_framework(parsed)
    if key == "read_only":
        parsed = [_absolute(key, path) for path in parsed]
    check_setting(key, parsed)
    _refuse_unfit(loaded, key, parsed)
    if dry_run:
        target = f"{key} = {_shown(parsed)} in project {loaded.name}"
        return DryRun(planned("set", target))
    setattr(loaded.config, key, parsed)
    save_config(loaded)
    text = f"{key} = {_shown(parsed)}  (project {loaded.name})"
    if holder(loaded.engine_lock) is not None:
        text += "\nA sprint is running; it uses this after `caloron stop` and `caloron resume`."
    data = {"project": loaded.name, "key": key, "value": parsed}
    return Answer(data, text)


@config.command("list", project=True, examples=["caloron config list --output json"])
def list_settings(project: str | None) -> Answer:
    """Print every setting."""
    loaded = load_project(project)
    settings = msgspec.structs.asdict(loaded.config)
    detected = _detected(loaded)
    rows = [(key, _line_of(key, value, detected.get(key, ""))) for key, value in settings.items()]
    data = {"project": loaded.name, "settings": settings, "detected": detected}
    return Answer(data, "\n".join(aligned(rows, head=False)))


def _detected(project: Project) -> dict[str, str]:
    """The values used for empty settings, detected from the files of main and git's settings."""
    settings = project.config
    name, email = identity(settings)
    commit = f"refs/heads/{known_forge(project)['main']}"
    files = Mirror(project.git_here, Remote(""))
    values = {"git_name": name, "git_email": email}
    try:
        names = files.files(commit)
        commands = detect(names, lambda path: files.read(commit, path))
    except CaloronError as error:
        log.debug("cannot detect the setup of the project", error=error)
        # The forge was not fetched yet; the next sprint reads its files.
        commands, names = ProjectCommands(), {}
    commands = apply_overrides(commands, names, setup=settings.setup, verify=settings.verify)
    values |= {"setup": commands.setup, "verify": commands.verify}
    return {key: value for key, value in values.items() if value and not getattr(settings, key)}


def _line_of(key: str, value: Any, detected: str) -> str:
    if key == "created_at":
        # An edited file may have any text here.
        with suppress(ValueError):
            return local_time(value)
    return f"{detected}  (detected)" if detected else _shown(value)


def _refuse_unfit(project: Project, key: str, value: Any) -> None:
    """Refuse a value that is valid by itself but not for this project."""
    changed = msgspec.structs.replace(project.config, **{key: value})
    _refuse_moving(project, key, changed)
    if key.startswith("webhook"):
        refuse_unsigned(changed)
    if key in ("pass_env", *TOKEN_VARIABLES):
        refuse_passing_tokens(changed)


def _refuse_moving(project: Project, key: str, changed: ProjectConfig) -> None:
    """Refuse another repository: the sprints of a project refer to the objects of one forge."""
    before = project.config
    same = getattr(before, key) == getattr(changed, key)
    # The user's own repository, the source of a local forge's first commits, may be moved.
    local_repo = key == "repo" and changed.forge == "local"
    if key not in ("forge", "host", "repo") or same or local_repo or not project.ledger.exists():
        return
    address = f"{before.repo} at {before.host}" if before.host else before.repo
    there = f" in {address}" if before.forge != "local" else ""
    repo = "" if changed.forge == "local" else " --repo OWNER/NAME"
    moved = f"; if only its address changed, edit {project.config_file}"
    raise UsageError(
        f"project {project.name} has sprints on its {before.forge} forge{there}",
        hint="create another project for the other one:"
        f" caloron init NAME --forge {changed.forge}{repo}" + ("" if key == "forge" else moved),
    )


def _absolute(key: str, path: str) -> str:
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError as error:
        raise UsageError(
            f"setting {key} names {path!r}, a home directory that does not exist",
            hint="nothing was changed",
        ) from error


def _shown(value: Any) -> str:
    """A value as `config set` takes it."""
    return shlex.join(value) if isinstance(value, list) else str(value)
