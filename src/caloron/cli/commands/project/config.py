"""`caloron config`: show and change the settings of a project."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from caloron.agents.clis.registry import require_framework
from caloron.agents.workspace.project_detection import ProjectCommands, apply_overrides, detect
from caloron.cli import output
from caloron.cli.app import SETTING, Answer, DryRun, group, planned
from caloron.cli.format import local_time
from caloron.cli.project_view import known_forge
from caloron.cli.render import aligned
from caloron.engine.forge.webhooks import refuse_unsigned
from caloron.engine.runs.runtime import identity
from caloron.engine.runs.sandbox_policy import TOKEN_VARIABLES, check_setting, refuse_passing_tokens
from caloron.errors import CaloronError, PreconditionFailed, UsageError
from caloron.git.mirror import Mirror
from caloron.ledger.projects import Project, load_project, save_config
from caloron.ledger.settings import (
    DESCRIPTIONS,
    ProjectConfig,
    parse_setting,
    read_settings,
    setting_name,
    typed,
)
from caloron.ports import Remote
from caloron.store import log
from caloron.store.files import write_atomic
from caloron.store.lock import holder

_FIXED = ("name", "created_at")
_LONGEST = 10_000
#: How a line of an edited file begins that names its problem.
_PROBLEM = "# NOT SAVED: "
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
    _refuse_fixed(key)
    if len(value) > _LONGEST:
        raise UsageError(f"setting {key} is at most {_LONGEST} characters long")
    return _change(loaded, key, parse_setting(key, value), "set", dry_run=dry_run)


@config.command(project=True, dry_run=True, examples=["caloron config unset verify"])
@click.argument("key", type=SETTING)
def unset(key: str, dry_run: bool, project: str | None) -> Answer | DryRun:
    """Give one setting its default value again."""
    key, loaded = setting_name(key), load_project(project)
    _refuse_fixed(key)
    default = getattr(ProjectConfig(name=loaded.name), key)
    return _change(loaded, key, default, "unset", dry_run=dry_run)


def _refuse_fixed(key: str) -> None:
    if key in _FIXED:
        raise UsageError(f"setting {key} cannot be changed", hint="caloron init sets it once")


def _change(project: Project, key: str, value: Any, verb: str, *, dry_run: bool) -> Answer | DryRun:
    value = _fit(project, project.config, key, value)
    if dry_run:
        return DryRun(planned(verb, f"{key} = {_shown(value)} in project {project.name}"))
    setattr(project.config, key, value)
    data = {"project": project.name, "key": key, "value": value}
    return _save(project, f"{key} = {_shown(value)}  (project {project.name})", data)


def _save(project: Project, text: str, data: dict[str, Any]) -> Answer:
    save_config(project)
    if holder(project.engine_lock) is not None:
        text += "\nA sprint is running; it uses this after `caloron stop` and `caloron resume`."
    return Answer(data, text)


def _fit(project: Project, config: ProjectConfig, key: str, value: Any) -> Any:
    """A value as it is stored; refused if it is wrong beside the other settings of `config`."""
    if key in _PATHS and value:
        value = _absolute(key, value)
    if key == "framework":
        require_framework(value)
    if key == "read_only":
        value = [_absolute(key, path) for path in value]
    check_setting(key, value)
    changed = msgspec.structs.replace(config, **{key: value})
    _refuse_moving(project, key, changed)
    if key.startswith("webhook"):
        refuse_unsigned(changed)
    if key in ("pass_env", *TOKEN_VARIABLES):
        refuse_passing_tokens(changed)
    return value


@config.command(
    project=True, dry_run=True, examples=["caloron config edit", "EDITOR=nano caloron config edit"]
)
def edit(dry_run: bool, project: str | None) -> Answer | DryRun:
    """Edit all settings in $VISUAL or $EDITOR.

    A value that cannot be used is named at the top of the file, and what you typed is kept.
    """
    loaded = load_project(project)
    if dry_run:
        return DryRun(planned("edit", str(loaded.config_file)))
    asks = output.is_terminal() and sys.stdin is not None and sys.stdin.isatty()
    if not (asks or os.environ.get("VISUAL") or os.environ.get("EDITOR")):
        raise PreconditionFailed(
            "without a terminal, EDITOR has to name an editor", hint="caloron config set KEY VALUE"
        )
    kept = loaded.path / "config.edit.yml"
    text = (kept if kept.exists() else loaded.config_file).read_text("utf-8", "replace")
    problem = head = ""
    while (typed_text := click.edit(head + text, extension=".yml")) is not None:
        lines = typed_text.splitlines(keepends=True)
        text = "".join(line for line in lines if not line.startswith(_PROBLEM))
        write_atomic(kept, text.encode())
        try:
            config, changed = _edited(loaded, kept)
        except CaloronError as error:
            problem = f"{error}; {error.hint}" if error.hint else str(error)
            head = "".join(f"{_PROBLEM}{line}\n" for line in problem.splitlines())
            if asks:
                continue
            break
        names = f"Changed: {', '.join(changed)}" if changed else "Nothing was changed."
        data = {"project": loaded.name, "changed": changed}
        answer = _save(dataclasses.replace(loaded, config=config), names, data)
        kept.unlink()
        return answer
    if not problem:
        return Answer({"project": loaded.name, "changed": []}, "Nothing was changed.")
    hint = f"nothing was changed; your edit is kept in {kept}: edit again to correct it"
    raise UsageError(problem, hint=hint)


def _edited(project: Project, file: Path) -> tuple[ProjectConfig, list[str]]:
    """The settings of an edited file, and the names of the changed ones."""
    raw, before = read_settings(file), read_settings(project.config_file)
    for key in raw.keys() - before.keys():
        setting_name(str(key))
    # A setting whose line was deleted gets its default value.
    edited, changed = typed({"name": project.name} | raw, file), list[str]()
    for key, old in msgspec.structs.asdict(project.config).items():
        if (value := getattr(edited, key)) != old:
            _refuse_fixed(key)
            setattr(edited, key, _fit(project, edited, key, value))
            changed.append(key)
    return edited, changed


@config.command("list", project=True, examples=["caloron config list --output json"])
def list_settings(project: str | None) -> Answer:
    """List every setting with its value and its meaning."""
    loaded = load_project(project)
    settings = msgspec.structs.asdict(loaded.config)
    detected = _detected(loaded)
    rows = [
        (key, _line_of(key, value, detected.get(key, "")) or "-", DESCRIPTIONS[key])
        for key, value in settings.items()
    ]
    data = {"project": loaded.name, "settings": settings, "detected": detected}
    return Answer(data | {"descriptions": DESCRIPTIONS}, lambda: aligned(rows, head=False))


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
