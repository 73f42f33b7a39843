"""`caloron config`: what the user decided about a project."""

from __future__ import annotations

import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from caloron.cli.frameworks import require_framework
from caloron.cli.options import dry_run_option, output_option, project_option
from caloron.cli.output import dry_run as answer_dry_run
from caloron.cli.output import printable, success
from caloron.cli.screen import aligned
from caloron.engine.confining import TOKEN_VARIABLES, check_setting, refuse_passing_tokens
from caloron.errors import CaloronError, NotFound, UsageError
from caloron.ledger.projects import Project, load_project, save_config
from caloron.ledger.settings import ProjectConfig, parse_setting
from caloron.store import log
from caloron.store.lock import holder

_FIXED = ("name", "created_at")
_LONGEST = 10_000
#: Typed from where the user stands, read from anywhere.
_PATHS = (
    "stub_fixture", "work_dir", "token_file", "reviewer_token_file", "ca_file", "checkout",
)  # fmt: skip


@click.group()
def config() -> None:
    """Show and change the settings of a project.

    \b
    Examples:
      caloron config list
      caloron config set verify "python3 -m unittest"
      caloron config set parallel 8
    """


@config.command("get")
@click.argument("key")
@project_option
@output_option
def get_setting(key: str, project: str | None) -> None:
    """Print one setting.

    \b
    Example:
      caloron config get verify
    """
    loaded = load_project(project)
    value, detected = _value(loaded, key), _detected(loaded)
    data = {"key": key, "value": value, "detected": detected.get(key, "")}
    success("config.get", data, _line_of(key, value, data["detected"]))


@config.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("key")
@click.argument("value")
@dry_run_option
@project_option
@output_option
def set_setting(key: str, value: str, dry_run: bool, project: str | None) -> int:
    """Change one setting; it holds from the next `sprint` or `resume` on.

    VALUE of `command` is a line of words as a shell would split it.

    \b
    Examples:
      caloron config set verify "python3 -m unittest"
      caloron config set command "my-agent --prompt-file {prompt_file}"
    """
    loaded = load_project(project)
    _value(loaded, key)
    if key in _FIXED:
        raise UsageError(f"setting {key} cannot be changed", hint="it was fixed by caloron init")
    if len(value) > _LONGEST:
        raise UsageError(f"setting {key} is at most {_LONGEST} characters long")
    parsed = parse_setting(key, value)
    if key in _PATHS and parsed:
        parsed = _place(key, parsed)
    if key == "framework":
        require_framework(parsed)
    if key == "read_only":
        parsed = [_place(key, path) for path in parsed]
    check_setting(key, parsed)
    _refuse_unfit(loaded, key, parsed)
    if dry_run:
        target = f"{key} = {_shown(parsed)} in project {loaded.name}"
        return answer_dry_run("config.set", [{"action": "set", "target": target}])
    setattr(loaded.config, key, parsed)
    save_config(loaded)
    text = f"{key} = {_shown(parsed)}  (project {loaded.name})"
    if holder(loaded.engine_lock) is not None:
        text += "\nA sprint is running; it takes this up after `caloron stop` and `caloron resume`."
    data = {"project": loaded.name, "key": key, "value": parsed}
    success("config.set", data, printable(text))
    return 0


@config.command("list")
@project_option
@output_option
def list_settings(project: str | None) -> None:
    """Print every setting.

    \b
    Example:
      caloron config list --output json
    """
    loaded = load_project(project)
    settings = msgspec.structs.asdict(loaded.config)
    detected = _detected(loaded)
    rows = [
        (key, printable(_line_of(key, value, detected.get(key, ""))))
        for key, value in settings.items()
    ]
    data = {"project": loaded.name, "settings": settings, "detected": detected}
    success("config.list", data, "\n".join(aligned(rows, head=False)))


def _detected(project: Project) -> dict[str, str]:
    """What holds for a setting that is empty, found in the files of main and in git's settings."""
    from caloron.agents.recipes import Recipe, chosen, detect
    from caloron.cli.status import forge_note
    from caloron.engine.workshop import identity
    from caloron.git.mirror import Mirror
    from caloron.ports import Remote

    settings = project.config
    name, email = identity(settings)
    commit = f"refs/heads/{forge_note(project)['main']}"
    files = Mirror(project.git_here, Remote(""))
    values = {"git_name": name, "git_email": email}
    try:
        names = files.files(commit)
        recipe = detect(names, lambda path: files.read(commit, path))
    except CaloronError as error:
        log.debug("cannot detect the setup of the project", error=error)
        # A forge that was not fetched yet: the next sprint reads its files.
        recipe, names = Recipe(), {}
    recipe = chosen(recipe, names, setup=settings.setup, verify=settings.verify)
    values |= {"setup": recipe.setup, "verify": recipe.verify}
    return {key: value for key, value in values.items() if value and not getattr(settings, key)}


def _line_of(key: str, value: Any, detected: str) -> str:
    if key == "created_at":
        from caloron.cli.looking import local_time

        # A file that was edited may have anything here.
        with suppress(ValueError):
            return local_time(value)
    return f"{detected}  (detected)" if detected else _shown(value)


def _refuse_unfit(project: Project, key: str, value: Any) -> None:
    """What is right by itself and wrong for this project."""
    changed = msgspec.structs.replace(project.config, **{key: value})
    _refuse_moving(project, key, changed)
    if key.startswith("webhook"):
        from caloron.engine.webhooks import refuse_unsigned

        refuse_unsigned(changed)
    if key in ("pass_env", *TOKEN_VARIABLES):
        refuse_passing_tokens(changed)


def _refuse_moving(project: Project, key: str, changed: ProjectConfig) -> None:
    """The sprints of a project are about the objects of one repository on one forge."""
    before = project.config
    same = getattr(before, key) == getattr(changed, key)
    # The user's own repository, which a local forge took its first commits from, may be moved.
    local_repo = key == "repo" and changed.forge == "local"
    if key not in ("forge", "host", "repo") or same or local_repo or not project.ledger.exists():
        return
    where = f"{before.repo} at {before.host}" if before.host else before.repo
    there = f" in {where}" if before.forge != "local" else ""
    place = "" if changed.forge == "local" else " --repo OWNER/NAME"
    moved = f"; if it only has another address now, write that into {project.config_file}"
    raise UsageError(
        f"project {project.name} has sprints on its {before.forge} forge{there}",
        hint="make another project for the other one:"
        f" caloron init NAME --forge {changed.forge}{place}" + ("" if key == "forge" else moved),
    )


def _place(key: str, path: str) -> str:
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError as error:
        raise UsageError(
            f"setting {key} names {path!r}, a home that is not there", hint="nothing was changed"
        ) from error


def _value(project: Project, key: str) -> Any:
    settings = msgspec.structs.asdict(project.config)
    if key not in settings:
        raise NotFound(f"there is no setting {key!r}", hint=f"known: {', '.join(settings)}")
    return settings[key]


def _shown(value: Any) -> str:
    """A value as `config set` takes it."""
    return shlex.join(value) if isinstance(value, list) else str(value)
