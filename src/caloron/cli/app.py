"""The `caloron` program: finds the command, runs it, prints its answer, reports its errors."""

from __future__ import annotations

import errno
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from caloron import __version__
from caloron.cli import output
from caloron.errors import CaloronError, PreconditionFailed, UsageError
from caloron.ledger.locate import (
    ProjectPaths,
    found_last,
    home,
    on_fallback,
    repository_of,
    require_id,
)
from caloron.store import log

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)

INTERRUPTED = 130
PERMISSION_DENIED = 4
_FORMAT = "caloron.output"

#: Every command in the order of a day's work: its module below `caloron.cli.commands`, and its
#: one-line help. The help is repeated here because importing every command to list it is slow.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("project.init:init", "Create a project with its own forge."),
    "config": ("project.config:config", "Show and change the settings of a project."),
    "projects": ("project.projects:projects", "List, switch and delete projects."),
    "org": ("project.org:org", "Create, show and check the conventions for all agents."),
    "doctor": ("project.doctor:doctor", "Check what agents need on this machine."),
    "sprint": ("sprint.sprint:sprint", "Turn a goal into reviewed, tested, merged code."),
    "kickoff": ("sprint.sprint:kickoff", "Plan a goal and keep the plan for approval."),
    "status": ("inspect.status:status", "Show the project and its sprint."),
    "why": ("inspect.status:why", "Show what each unfinished task waits for."),
    "logs": ("inspect.task:logs", "Show the output of the agents of a task."),
    "trace": ("inspect.task:trace", "Show every event of a task in order."),
    "agents": ("inspect.agents:agents", "Show agents with attempts, time and cost."),
    "stop": ("sprint.stop:stop", "Stop the running sprint (resumable)."),
    "resume": ("sprint.sprint:resume", "Continue a sprint that was stopped or crashed."),
    "tick": ("sprint.tick:tick", "Advance a sprint once (for cron)."),
    "take": ("sprint.take:take", "Merge finished work into your current branch."),
    "discard": ("sprint.discard:discard", "Cancel what is left of a sprint."),
    "report": ("inspect.report:report", "Show the report of a sprint."),
    "inbox": ("inspect.report:inbox", "List what needs you, with the commands for it."),
    "history": ("inspect.history:history", "List the sprints so far."),
    "show": ("inspect.outcome:show", "Show one sprint with each of its tasks."),
    "metrics": ("inspect.outcome:metrics", "Show the numbers of all sprints together."),
    "retro": ("inspect.outcome:retro", "Show the retro of a sprint."),
    "issue": ("forge:issue", "Read, comment and close issues on the forge."),
    "pr": ("forge:pr", "Read, review and merge pull requests on the forge."),
    "graph": ("graph.graph:graph", "Check, run and inspect graphs of typed stages."),
    "stage": ("graph.stage:stage", "List, run, add and test the stages of graphs."),
    "noether": ("graph.noether:noether", "Register built-in stages with Noether."),
    "schedule": ("graph.schedule:schedule", "Run graphs at the times of a schedule."),
    "shell": ("serve:shell", "Start agents for other programs, over HTTP."),
    "harness": ("serve:harness", "Run one agent in a clone, for the shell."),
    "state": ("state:state", "Show, verify, back up and restore stored data."),
    "agent-state": (
        "agent_state.command:agent_state",
        "Keep an agent's queue, diary, dashboard and retros.",
    ),
    "cycle": ("cycle.cycle:cycle", "Track an agent's work cycles across restarts."),
    "clean": ("project.projects:clean", "Remove old logs, caches, merged branches."),
    "completion": ("meta:completion", "Print the completion script of your shell."),
    "introspect": ("meta:introspect", "Describe every command as data."),
    "skill": ("meta:skill", "Print a SKILL.md that teaches an agent to use Caloron."),
    "version": ("meta:version", "Print the version."),
}


class Failure(NamedTuple):
    """The error part of an answer: the code of the envelope, the message, and what to do."""

    code: str
    message: str
    hint: str = ""


class Answer(NamedTuple):
    """The result of a command; `main` prints it under the name of the command."""

    data: Mapping[str, Any]
    text: str = ""
    exit_code: int = 0
    failure: Failure | None = None
    #: Print the text byte for byte, for another program.
    raw: bool = False
    #: The name in the envelope, where it is not the path of the command.
    command: str = ""


class DryRun:
    """The result of `--dry-run`: the actions that the command would have taken."""

    def __init__(self, *actions: Mapping[str, Any]) -> None:
        self.actions = actions


def planned(action: str, target: str, **details: Any) -> dict[str, Any]:
    """One action of a dry run."""
    return {"action": action, "target": target, **details}


class NotConfirmed(CaloronError):
    """A person was asked to confirm, and did not."""

    code = "NOT_CONFIRMED"


def confirm(question: str) -> bool:
    """Ask on standard error; no answer means no."""
    try:
        return click.confirm(question, default=False, err=True)
    except click.Abort:
        return False


def exclude_each_other(**flags: Any) -> None:
    """Refuse more than one of these options; each is named by its parameter."""
    used = [f"--{name.replace('_', '-')}" for name, value in flags.items() if value]
    if len(used) > 1:
        raise UsageError(f"{' and '.join(used)} exclude each other", hint="give one of them")


def _set_format(context: click.Context, _parameter: click.Parameter, form: str) -> None:
    if context.get_parameter_source("output") is not ParameterSource.DEFAULT:
        context.meta[_FORMAT] = form
    elif isinstance(context.command, click.Group):
        # The subcommand may name a format; until then the one of the raw arguments is used.
        return
    output.set_command(command_name(context), context.meta.get(_FORMAT, form))


def command_name(context: click.Context) -> str:
    """A command as the envelope names it: `caloron issue list` is `issue.list`."""
    return ".".join(context.command_path.split()[1:]) or "caloron"


def _set_verbose(_context: click.Context, _parameter: click.Parameter, verbose: bool) -> None:
    if verbose:
        log.set_verbose(True)


def _verbose(*, hidden: bool) -> Callable[[FC], FC]:
    return click.option(
        "--verbose",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        hidden=hidden,
        callback=_set_verbose,
        help="Log everything, and print the log on stderr as well.",
    )


_output = click.option(
    "--output",
    "-o",
    type=click.Choice(output.FORMATS),
    default="text",
    show_default=True,
    is_eager=True,
    expose_value=False,
    callback=_set_format,
    help="Text or a table for people, or one JSON envelope for machines.",
)


def output_option(command: FC) -> FC:
    """Add `--output text|json|table`. It is eager, so that later errors use its format.

    `--verbose` is accepted after the command, too; the help shows it once, before the command.
    """
    return _output(_verbose(hidden=True)(command))


#: `--project NAME`: passed to the command as `project: str | None`.
project_option = click.option(
    "--project",
    "-p",
    metavar="NAME",
    help="Project to use (default: this repository's; outside of a repository the active one).",
)

#: `--dry-run`: passed on as `dry_run: bool`; the command then returns a `DryRun`.
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Print what would be done, do none of it, and exit with 9."
)

unsandboxed_option = click.option(
    "--unsandboxed",
    is_flag=True,
    help="Run agents without a sandbox: they can read and change all your files.",
)


def options(*, project: bool = False, dry_run: bool = False) -> Callable[[FC], FC]:
    """Add `--output`, and `--dry-run` and `--project` where the command takes them."""

    def add(command: FC) -> FC:
        command = output_option(command)
        command = project_option(command) if project else command
        return dry_run_option(command) if dry_run else command

    return add


def add_options(*decorators: Callable[[FC], FC]) -> Callable[[FC], FC]:
    """Several options as one decorator; the help lists them in this order."""

    def add(command: FC) -> FC:
        for decorate in reversed(decorators):
            command = decorate(command)
        return command

    return add


def named_sprint(
    _context: click.Context, _parameter: click.Parameter, name: str | None
) -> str | None:
    """Refuse an empty name: a variable that a script forgot to set does not mean the last one."""
    if name is not None and not name.strip():
        raise UsageError(
            f"SPRINT is {name!r}, which names no sprint",
            hint="give its id or number (caloron history), or leave it out for the last one",
        )
    return name


sprint_argument = click.argument("sprint", required=False, callback=named_sprint)


def sprint_name(project: ProjectPaths, name: str) -> str:
    """The id of a sprint; its number alone is enough."""
    require_id(name, "sprint")
    return f"{project.name}-{int(name)}" if name.isdigit() else name


def is_text(argument: str) -> bool:
    """True if an argument is valid UTF-8: Python maps other bytes to surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in argument)


class Finite(click.FloatRange):
    """A finite number in a range."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


#: What a user decides for one run of a sprint; passed on as keywords.
choice_options = add_options(
    click.option(
        "--budget",
        "budget_usd",
        type=Finite(min=0, min_open=True, max=1e6),
        metavar="USD",
        help="Maximum cost of the sprint (default: setting budget_usd).",
    ),
    click.option(
        "--allow-red", is_flag=True, help="Start although main fails its own verification."
    ),
    unsandboxed_option,
    click.option("--debug", is_flag=True, help="Print the prompts of agents."),
)


class LazyGroup(click.Group):
    """A group that imports a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(f"caloron.cli.commands.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, invoke_without_command=True)
@click.version_option(__version__, prog_name="caloron", message="%(prog)s %(version)s")
@_verbose(hidden=False)
@click.pass_context
def cli(context: click.Context) -> None:
    """A goal goes in, reviewed and tested code comes out merged on your own forge.

    \b
    Start like this, in a git repository of yours:
      caloron doctor
      caloron sprint "Add a discount code to the basket"
      caloron report
      caloron take
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit code of the program."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    output.start(words)
    # The log of the home, until the command has found its project.
    log.write_to(home() / "logs" / "caloron.log")
    log.set_verbose(False)
    on_fallback[:] = [_name_active_project]
    found_last.clear()
    try:
        log.check_level()
        return _print(cli.main(words, prog_name="caloron", standalone_mode=False))
    except CaloronError as error:
        return _report(error)
    except click.exceptions.NoArgsIsHelpError as error:
        # A group without a command asks for its help; that is no mistake.
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        return _report_usage(error)
    except click.Abort:
        return INTERRUPTED
    except OSError as error:
        return _report_os_error(error)
    except Exception as error:  # noqa: BLE001 - the last resort, which logs the whole traceback
        damage = _damage_behind(error)
        return _report(damage) if damage else report_internal_error(error)


def _print(result: Any) -> int:
    """Print what a command returned; an integer is an exit code, None is success."""
    if isinstance(result, DryRun):
        return output.dry_run(output.current_command(), result.actions)
    if not isinstance(result, Answer):
        return result if isinstance(result, int) else 0
    command = result.command or output.current_command()
    if result.failure:
        code, message, hint = result.failure
        output.failure(command, code, message, hint=hint, data=result.data)
    else:
        output.success(command, result.data, result.text, raw=result.raw)
    return result.exit_code


def _report(error: CaloronError) -> int:
    output.failure(output.current_command(), error.code, str(error), hint=error.hint)
    return error.exit_code


def _damage_behind(error: Exception) -> CaloronError | None:
    """The failure of the project's ledger that explains an unexpected error.

    A damaged page appears as an error of SQLite, or as content that no decoder accepts.
    """
    if not found_last:
        return None
    import sqlite3

    from caloron.store.database import refuse_damaged, store_error

    ledger = found_last[-1].ledger
    try:
        refuse_damaged(ledger)
    except CaloronError as damage:
        log.error("the ledger cannot be read", error=error, command=output.current_command())
        return damage
    # Other databases raise errors of ours. An error with a hint comes from the machine.
    if isinstance(error, sqlite3.Error) and (refused := store_error(ledger, error)).hint:
        return refused
    return None


def _name_active_project(project: ProjectPaths) -> None:
    """Print the project: a folder without a repository does not say which one is meant."""
    repository = repository_of(project) or "no repository of yours"
    output.note_once(
        f"Project {project.name} ({repository}): the active project, since this folder is not in a"
        " git repository."
    )


def _report_usage(error: click.ClickException) -> int:
    context = getattr(error, "ctx", None)
    command, hint = output.current_command(), "try: caloron --help"
    if context is not None:
        command, hint = command_name(context), f"try: {context.command_path} --help"
    code = "INVALID_ARGS" if error.exit_code == click.UsageError.exit_code else "GENERAL_ERROR"
    output.failure(command, code, error.format_message(), hint=hint)
    return error.exit_code


_MACHINE = {
    errno.ENOSPC: "Disk full",
    errno.EDQUOT: "Disk quota used up",
    errno.EROFS: "Read-only file system",
    errno.EMFILE: "Too many open files",
    errno.ENFILE: "Too many open files",
}


def _report_os_error(error: OSError) -> int:
    """Report errors of the machine; any other system error is a defect."""
    if error.errno in (errno.EACCES, errno.EPERM):
        hint = "make it readable and writable for you, or choose another folder with CALORON_HOME"
        output.failure(output.current_command(), "PERMISSION_DENIED", str(error), hint=hint)
        return PERMISSION_DENIED
    if what := _MACHINE.get(error.errno or 0):
        hint = "fix that and try again; everything recorded is safe"
        return _report(PreconditionFailed(f"{what}: {error}", hint=hint))
    return report_internal_error(error)


def report_internal_error(error: Exception) -> int:
    """Report a defect: short on the terminal, with the whole traceback in a file."""
    import traceback

    from caloron.store.redact import Redactor, secrets_in

    _learn_named_secrets()
    redact = Redactor(secrets_in(os.environ)).text
    arguments = " ".join(map(repr, sys.argv))
    lines = "".join(traceback.format_exception(error))
    details = redact(f"caloron {__version__}\n{arguments}\n\n{lines}")
    log.error("internal error", error=error, command=output.current_command())
    hint = "everything recorded is safe; `caloron resume` continues a sprint"
    try:
        hint = f"details: {_write_log(details)}; {hint}"
    except OSError:
        # There is no file for the details, so print them.
        click.echo(details, err=True)
    message = redact(f"Internal error, please report it: {type(error).__name__}: {error}")
    return _report(CaloronError(message, hint=hint))


def _learn_named_secrets() -> None:
    """Redact the values of variables that settings name: the names alone do not reveal them."""
    try:
        from caloron.engine.runs.sandbox_policy import TOKEN_VARIABLES
        from caloron.ledger.locate import project_names, project_path
        from caloron.ledger.settings import read_settings
        from caloron.store.redact import learn

        for project in project_names():
            try:
                settings = read_settings(project_path(project) / "config.yml")
            except CaloronError as error:
                log.debug("the settings of a project cannot be read", error=error)
                continue
            passed = settings.get("pass_env")
            names = [settings.get(key) for key in TOKEN_VARIABLES]
            for name in (*names, *(passed if isinstance(passed, list) else (passed,))):
                if isinstance(name, str) and (value := os.environ.get(name, "").strip()):
                    learn(name, value)
    except Exception as error:  # noqa: BLE001 - the defect itself must be reported in any case
        log.warning("cannot read the names of secrets from settings", error=error)


def _write_log(details: str) -> Path:
    from datetime import UTC, datetime

    directory = home() / "logs"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = directory / f"defect-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.log"
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(handle, "w", encoding="utf-8", errors="backslashreplace") as opened:  # noqa: PTH123
        opened.write(details)
    return file
