"""The `caloron` program and its small framework: commands, groups, answers, errors."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from caloron import __version__
from caloron.cli import output
from caloron.errors import CaloronError, UsageError
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
    "revert": ("sprint.revert:revert", "Revert merged work of a sprint or a task."),
    "discard": ("sprint.discard:discard", "Cancel what is left of a sprint."),
    "report": ("inspect.report:report", "Show the report of a sprint."),
    "inbox": ("inspect.report:inbox", "List what needs you, with the commands for it."),
    "history": ("inspect.status:history", "List the sprints so far."),
    "show": ("inspect.outcome:show", "Show one sprint with each of its tasks."),
    "metrics": ("inspect.outcome:metrics", "Show the numbers of all sprints together."),
    "retro": ("inspect.outcome:retro", "Show the retro of a sprint."),
    "issue": ("forge:issue", "Create, read, change and close issues on the forge."),
    "pr": ("forge:pr", "Read, review and merge pull requests on the forge."),
    "graph": ("graph.graph:graph", "Check, run and inspect graphs of typed stages."),
    "stage": ("graph.stage:stage", "List, run, add and test the stages of graphs."),
    "noether": ("graph.stage:noether", "Register built-in stages with Noether."),
    "schedule": ("graph.schedule:schedule", "Run graphs at the times of a schedule."),
    "shell": ("serve:shell", "Start agents for other programs, over HTTP."),
    "harness": ("serve:harness", "Run one agent in a clone, for the shell."),
    "state": ("state:state", "Show, verify, back up and restore stored data."),
    "agent-state": (
        "agent_state.command:agent_state",
        "Keep an agent's queue, diary, dashboard and retros.",
    ),
    "cycle": ("cycle:cycle", "Track an agent's work cycles across restarts."),
    "clean": ("project.projects:clean", "Remove old logs, caches, merged branches."),
    "completion": ("meta:completion", "Print the completion script of your shell."),
    "introspect": ("meta:introspect", "Describe every command as data."),
    "skill": ("meta:skill", "Print a SKILL.md that teaches an agent to use Caloron."),
    "version": ("meta:version", "Print the version."),
}


#: The meaning of each exit code.
EXIT_CODES = {
    0: ("SUCCESS", "done; of a sprint: every task is Done"),
    1: ("GENERAL_ERROR", "an internal error, with its log; or you did not confirm"),
    2: ("INVALID_ARGS", "usage: an argument, a plan, a fixture, a setting"),
    3: ("NOT_FOUND", "a project, sprint, task, issue, pull request or file does not exist"),
    4: ("PERMISSION_DENIED", "you may not read or write something"),
    5: ("CONFLICT", "in use by another process, or it exists already"),
    7: ("UPSTREAM_ERROR", "the forge failed"),
    8: ("PRECONDITION_FAILED", "something must be fixed first"),
    9: ("DRY_RUN", "a dry run: nothing was done"),
    10: ("TASKS_NOT_DONE", "the sprint ended with tasks not done"),
    11: ("STOPPED", "the sprint was stopped and can be resumed"),
    12: ("GRAPH_FAILED", "a graph or a stage failed while it ran, or its examples did"),
    130: ("INTERRUPTED", "Ctrl-C"),
}
_EXIT_CODE_OF = {name: number for number, (name, _) in EXIT_CODES.items()}


class Failed(CaloronError):
    """A failure whose envelope also has data."""

    def __init__(
        self, code: str, message: str, *, hint: str = "", data: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.exit_code = _EXIT_CODE_OF.get(code, self.exit_code)
        self.data = data


class Answer(NamedTuple):
    """The result of a command; `main` prints it under the name of the command."""

    data: Mapping[str, Any]
    text: output.Text = ""
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


def attributes(value: object, *names: str) -> dict[str, Any]:
    """These attributes of a value as data."""
    return {name: getattr(value, name) for name in names}


def confirm(question: str, refusal: str, *, name: str = "") -> None:
    """Ask on standard error, for yes or for a name; no answer means no, which is refused."""
    try:
        if name:
            agreed = click.prompt(question, default="", show_default=False, err=True) == name
        else:
            agreed = click.confirm(question, default=False, err=True)
    except click.Abort:
        agreed = False
    if not agreed:
        hint = f"type {name}, or use --force" if name else "answer y, or use --yes"
        raise Failed("NOT_CONFIRMED", refusal, hint=hint)


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


def _verbose(*, hidden: bool) -> click.Option:
    return click.Option(
        ["--verbose"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        hidden=hidden,
        callback=_set_verbose,
        help="Log everything, and print the log on stderr as well.",
    )


#: Options that every command has. They are eager, so that later errors use their format.
#: `--verbose` is accepted after the command, too; the help shows it once, before the command.
_ALWAYS = [
    click.Option(
        ["--output", "-o"],
        type=click.Choice(output.FORMATS),
        default="text",
        show_default=True,
        is_eager=True,
        expose_value=False,
        callback=_set_format,
        help="Text or a table for people, or one JSON envelope for machines.",
    ),
    _verbose(hidden=True),
]
_PROJECT = click.Option(
    ["--project", "-p"],
    metavar="NAME",
    help="Project to use (default: this repository's; outside of a repository the active one).",
)
_DRY_RUN = click.Option(
    ["--dry-run"], is_flag=True, help="Print what would be done, do none of it, and exit with 9."
)
#: These paragraphs of a help text keep their lines; click expects `\b` before them.
_LISTS = re.compile(r"\n\n(?=(?:Examples?|Exit codes):)")


class Command(click.Command):
    """A command with `--output`, and with `--project` and `--dry-run` if it declares them.

    A command with `project` gets `project: str | None`; one with `dry_run` gets `dry_run: bool`,
    and returns a `DryRun` if it is set.
    """

    def __init__(
        self,
        name: str | None,
        *,
        project: bool = False,
        dry_run: bool = False,
        params: Sequence[click.Parameter] | None = None,
        help: str | None = None,
        **attrs: Any,
    ) -> None:
        common = [_DRY_RUN] if dry_run else []
        common += [_PROJECT] if project else []
        if not isinstance(self, click.Group) or attrs.get("invoke_without_command"):
            common += _ALWAYS
        text = _LISTS.sub("\n\n\b\n", inspect.cleandoc(help or ""))
        super().__init__(name, params=[*(params or ()), *common], help=text, **attrs)


class Group(Command, click.Group):
    """A group of commands; `@group.command("name", …)` adds one."""

    command_class = Command


def command(name: str | None = None, **attrs: Any) -> Callable[[Callable[..., Any]], Command]:
    """Make a command of a function that returns an `Answer`, a `DryRun` or an exit code."""
    return click.command(name, cls=Command, **attrs)


def group(name: str | None = None, **attrs: Any) -> Callable[[Callable[..., Any]], Group]:
    """Make a group of commands of a function."""
    return click.group(name, cls=Group, **attrs)


unsandboxed_option = click.option(
    "--unsandboxed",
    is_flag=True,
    help="Run agents without a sandbox: they can read and change all your files.",
)


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


def sprint_option(help: str, **attrs: Any) -> Callable[[FC], FC]:
    """`--sprint SPRINT`."""
    return click.option(
        "--sprint", **{"metavar": "SPRINT"} | attrs, callback=named_sprint, help=help
    )


def sprint_name(project: ProjectPaths, name: str) -> str:
    """The id of a sprint; its number alone is enough."""
    require_id(name, "sprint")
    return f"{project.name}-{int(name)}" if name.isdigit() else name


def is_text(argument: str) -> bool:
    """True if an argument is valid UTF-8: Python maps other bytes to surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in argument)


class Positive(click.FloatRange):
    """A finite number above 0."""

    name = "number"

    def __init__(self, max: float) -> None:
        super().__init__(min=0, min_open=True, max=max)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


#: The choices of a user for one run of a sprint; passed on as keywords.
choice_options = add_options(
    click.option(
        "--budget",
        "budget_usd",
        type=Positive(max=1e6),
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


cli.params.append(_verbose(hidden=False))


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
    except click.exceptions.NoArgsIsHelpError as error:
        # A group without a command asks for its help; that is no mistake.
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        return _report_usage(error)
    except click.Abort:
        return _EXIT_CODE_OF["INTERRUPTED"]
    except CaloronError as error:
        return report(error)
    except Exception as error:  # noqa: BLE001 - the last resort, which logs the whole traceback
        from caloron.cli.failures import failure_behind

        return report(failure_behind(error))


def _print(result: Any) -> int:
    """Print what a command returned; an integer is an exit code, None is success."""
    if isinstance(result, DryRun):
        return output.dry_run(output.current_command(), result.actions)
    if not isinstance(result, Answer):
        return result if isinstance(result, int) else 0
    command = result.command or output.current_command()
    output.success(command, result.data, result.text, raw=result.raw)
    return 0


def report(error: CaloronError) -> int:
    """Print an error; returns its exit code."""
    data = getattr(error, "data", None)
    command = output.current_command()
    output.failure(command, error.code, str(error), hint=error.hint, data=data)
    return error.exit_code


def _report_usage(error: click.ClickException) -> int:
    context = getattr(error, "ctx", None)
    command, hint = output.current_command(), "try: caloron --help"
    if context is not None:
        command, hint = command_name(context), f"try: {context.command_path} --help"
    code = "INVALID_ARGS" if error.exit_code == click.UsageError.exit_code else "GENERAL_ERROR"
    output.failure(command, code, error.format_message(), hint=hint)
    return error.exit_code


def _name_active_project(project: ProjectPaths) -> None:
    """Print the project: a folder without a repository does not say which one is meant."""
    repository = repository_of(project) or "no repository of yours"
    output.note_once(
        f"Project {project.name} ({repository}): the active project, since this folder is not in a"
        " git repository."
    )
