"""The `caloron` program and its small framework: commands, groups, answers, errors."""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from caloron import __version__
from caloron.cli import output
from caloron.errors import CaloronError, UsageError
from caloron.ledger import reading
from caloron.ledger.locate import (
    ProjectPaths,
    find_project,
    found_last,
    home,
    on_fallback,
    project_names,
    repository_of,
    require_id,
)
from caloron.store import log

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)

#: Every command by section: its module below `caloron.cli.commands`, and its one-line help. The
#: help is repeated here because importing every command to list it is slow.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Start": {
        "doctor": ("project.doctor:doctor", "Check what agents need on this machine."),
        "init": ("project.init:init", "Create a project with its own forge."),
    },
    "Sprint": {
        "sprint": ("sprint.sprint:sprint", "Turn a goal into reviewed, tested, merged code."),
        "resume": ("sprint.sprint:resume", "Continue a sprint that was stopped or crashed."),
        "stop": ("sprint.stop:stop", "Stop the running sprint (resumable)."),
    },
    "Watch": {
        "attach": ("sprint.detach:attach", "Watch a running sprint; Ctrl-C leaves the view only."),
        "status": ("inspect.status:status", "Show the project and its sprint."),
        "why": ("inspect.status:why", "Show what each unfinished task waits for."),
        "logs": ("inspect.task:logs", "Show the output of the agents of a task."),
        "trace": ("inspect.task:trace", "Show every event of a task in order."),
        "agents": ("inspect.agents:agents", "List agents with attempts, time and cost."),
    },
    "Review and decide": {
        "inbox": ("inspect.report:inbox", "List what needs you, with the commands for it."),
        "issue": ("forge:issue", "Create, read, change and close issues on the forge."),
        "pr": ("forge:pr", "Read, review and merge pull requests on the forge."),
    },
    "Results": {
        "apply": ("sprint.apply:apply", "Merge finished work into your current branch."),
        "report": ("inspect.report:report", "Show the report of a sprint."),
        "show": ("inspect.outcome:show", "Show one sprint with each of its tasks."),
        "history": ("inspect.status:history", "List the sprints so far."),
        "retro": ("inspect.outcome:retro", "Show the retro of a sprint."),
        "metrics": ("inspect.outcome:metrics", "Show the numbers of all sprints together."),
        "revert": ("sprint.revert:revert", "Revert merged work of a sprint or a task."),
        "discard": ("sprint.discard:discard", "Cancel what is left of a sprint."),
    },
    "Project and settings": {
        "project": ("project.project:project", "List, switch and delete projects."),
        "config": ("project.config:config", "Show and change the settings of a project."),
        "conventions": (
            "project.conventions:conventions",
            "Create, show and check the conventions for all agents.",
        ),
        "state": ("state:state", "Show, verify, back up and restore stored data."),
        "clean": ("project.project:clean", "Remove old logs, caches, merged branches."),
    },
    "Automation": {
        "tick": ("sprint.tick:tick", "Advance a sprint once (for cron)."),
        "graph": ("graph.graph:graph", "Check, run and inspect graphs of typed stages."),
        "stage": ("graph.stage:stage", "List, run, add and test the stages of graphs."),
        "schedule": ("graph.schedule:schedule", "Run graphs at the times of a schedule."),
        "noether": ("graph.stage:noether", "Register built-in stages with Noether."),
        "serve": ("serve:serve", "Serve HTTP, and start agents for other programs."),
        "harness": ("serve:harness", "Run one agent in a clone, outside of a sprint."),
    },
    "Agent state": {
        "agent-state": (
            "agent_state.command:agent_state",
            "Keep an agent's queue, diary, dashboard and retros.",
        ),
        "cycle": ("cycle:cycle", "Number the wakes of an agent across restarts."),
    },
    "Tool": {
        "help": ("meta:help_command", "Show the help of a command."),
        "completion": ("meta:completion", "Print the completion script of your shell."),
        "introspect": ("meta:introspect", "Describe every command as data."),
        "skill": ("meta:skill", "Print a SKILL.md that teaches an agent to use Caloron."),
        "version": ("meta:version", "Print the version."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}
#: Earlier names, which are still accepted: the words of a command, or an option of one.
ALIASES = {
    "kickoff": "sprint --plan-only",
    "org": "conventions",
    "projects": "project",
    "shell": "serve",
    "take": "apply",
    "project delete --force": "--yes",
    "project delete -f": "--yes",
    "retro --sprint": "",
    "sprint --po-timeout": "--planner-timeout",
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
#: The exit code of a shell's programs that lost their reader.
CLOSED_PIPE = 141
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
        hint = f"{f'type {name}' if name else 'answer y'}, or use --yes"
        raise Failed("NOT_CONFIRMED", refusal, hint=hint)


def exclude_each_other(**flags: Any) -> None:
    """Refuse more than one of these options; each is named by its parameter."""
    used = [f"--{name.replace('_', '-')}" for name, value in flags.items() if value]
    if len(used) > 1:
        raise UsageError(f"{' and '.join(used)} exclude each other", hint="give one of them")


class Number(click.ParamType[Any]):
    """A number in a range, which the help and the errors name in words."""

    def __init__(self, least: float, most: float = 0, *, above: bool = False) -> None:
        """`above`: any finite number above `least`, else a whole number from `least` on."""
        self.least, self.most, self.above = least, most, above
        self.name = "number" if above else "integer"
        low = "a number above" if above else "a number from" if most else "a number of at least"
        self.words = f"{low} {least:.0f}" + (
            f"{', up' if above else ''} to {most:.0f}" if most else ""
        )

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            number = float(value) if self.above else int(value)
        except (ValueError, OverflowError):
            number = math.nan
        low = number > self.least if self.above else number >= self.least
        if not (low and number <= (self.most or math.inf) and math.isfinite(number)):
            self.fail(f"{value!r} is not {self.words}.", param, ctx)
        return number


class Name(click.ParamType[str]):
    """A name in the ledger or the settings, which the shell can complete."""

    def __init__(self, kind: str) -> None:
        self.name = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        # The planner of a sprint is recorded with the older name of its role.
        return "po" if self.name == "task" and value == "planner" else str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        project = ctx.params.get("project") or ctx.meta.get("caloron.project")
        # No note may come between the words that the user types.
        on_fallback.clear()
        # Without a project there is nothing to complete, and no place for a message.
        with suppress(CaloronError, OSError):
            return [CompletionItem(n) for n in self._known(project) if n.startswith(incomplete)]
        return []

    def _known(self, project: str | None) -> Iterable[str]:
        match self.name:
            case "project":
                return project_names()
            case "setting":
                from caloron.ledger.settings import FIELDS

                return FIELDS
            case "framework":
                from caloron.agents.clis.registry import FRAMEWORKS

                return FRAMEWORKS
        with reading.ledger_if_any(find_project(project)) as connection:
            rows = reading.rows(connection, f"{self.name}_names") if connection else []
            return [str(row[0]) for row in rows]


TASK, SETTING, FRAMEWORK, PROJECT, SPRINT = map(
    Name, ("task", "setting", "framework", "project", "sprint")
)


def command_name(context: click.Context) -> str:
    """A command as the envelope names it: `caloron issue list` is `issue.list`."""
    return ".".join(context.command_path.split()[1:]) or "caloron"


def _renamed(path: str, word: str) -> list[str]:
    """A word of a command line by its present name: `path` are the words of the command."""
    name, equals, value = word.partition("=")
    if (words := ALIASES.get(f"{path} {name}".lstrip())) is None:
        return [word]
    *before, last = words.split() or [""]
    return [*before, f"{last}{equals}{value}" if last else value] if equals else words.split()


def _keep(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Keep a global option for the subcommand; the last one on the command line counts."""
    key = f"caloron.{parameter.name}"
    if context.get_parameter_source(str(parameter.name)) is not ParameterSource.DEFAULT:
        context.meta[key] = value
    return context.meta.get(key, value)


def _set_output(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    kept = _keep(context, parameter, value)
    if f"caloron.{parameter.name}" not in context.meta and isinstance(context.command, click.Group):
        # The subcommand may have the option; until then the format of the raw arguments counts.
        return
    if parameter.name == "output":
        output.set_command(command_name(context), kept)
    elif parameter.name == "verbose":
        log.set_verbose(kept)
    else:
        output.set_screen(**{str(parameter.name): kept})


#: Options that every command has, before its name or after it. They are eager, so that later
#: errors use them.
_GLOBAL = [
    click.Option(
        ["--output", "-o"],
        type=click.Choice(output.FORMATS),
        default="text",
        show_default=True,
        help="Text for people (`table` is the same), or one JSON envelope for machines.",
    ),
    click.Option(
        ["--color"],
        type=click.Choice(output.COLORS),
        default="auto",
        show_default=True,
        help="Color the text; auto: on a terminal, unless NO_COLOR is set.",
    ),
    click.Option(["--no-pager"], is_flag=True, help="Print long text without a pager ($PAGER)."),
    click.Option(["--verbose"], is_flag=True, help="Log everything, also to stderr."),
]
for option in _GLOBAL:
    option.is_eager, option.expose_value, option.callback = True, False, _set_output


def project_option(help: str, metavar: str = "NAME", **attrs: Any) -> click.Option:
    """`--project`, after a command or before it."""
    attrs |= {"type": PROJECT, "metavar": metavar, "callback": _keep}
    return click.Option(["--project", "-p"], help=help, **attrs)


_PROJECT_HELP = (
    "Project to use (default: this repository's; outside of a repository the active one)."
)
_PROJECT = project_option(_PROJECT_HELP)
_PROJECT_OF_GROUP = project_option(_PROJECT_HELP, expose_value=False)
_DRY_RUN = click.Option(
    ["--dry-run"], is_flag=True, help="Print what would be done, do none of it, and exit with 9."
)
#: These paragraphs of a help text keep their lines; click expects `\b` before them.
_LISTS = re.compile(r"\n\n(?=Exit codes:)")


class Command(click.Command):
    """A command with examples and global options, also `--project` and `--dry-run` if it has them.

    A command with `project` gets `project: str | None`; one with `dry_run` gets `dry_run: bool`,
    and returns a `DryRun` if it is set.
    """

    def __init__(
        self,
        name: str | None,
        *,
        project: bool = False,
        dry_run: bool = False,
        examples: Sequence[str] = (),
        params: Sequence[click.Parameter] | None = None,
        help: str | None = None,
        **attrs: Any,
    ) -> None:
        self.examples = examples
        own = [*(params or ()), *([_DRY_RUN] if dry_run else [])]
        if project:
            own.append(_PROJECT)
        elif isinstance(self, click.Group):
            own.append(_PROJECT_OF_GROUP)
        for option in own:
            if isinstance(option, click.Option) and isinstance(option.type, Number):
                option.help = f"{(option.help or '').rstrip('.')} ({option.type.words})."
        text = _LISTS.sub("\n\n\b\n", inspect.cleandoc(help or ""))
        super().__init__(name, params=[*own, *_GLOBAL], help=text, **attrs)

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        return ["-h", "--help"]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not isinstance(self, click.Group):
            path = " ".join(ctx.command_path.split()[1:])
            until = args.index("--") if "--" in args else len(args)
            renamed = (_renamed(path, word) for word in args[:until])
            args = [word for words in renamed for word in words] + args[until:]
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        takes = isinstance(self, click.Group) or any(p.name == "project" for p in self.params)
        if not takes and ctx.meta.get("caloron.project") is not None:
            raise UsageError(
                f"`{ctx.command_path}` takes no --project", hint="leave it out; nothing was done"
            )
        if any(option is _DRY_RUN for option in self.params):
            # A pager would keep a command waiting that changes something.
            output.set_screen(no_pager=True)
        return super().invoke(ctx)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"  {line}\n" for line in self.examples))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        for heading, common in (("Options", False), ("Global options", True)):
            records = [
                p.get_help_record(ctx)
                for p in options
                if (is_global(p) or "--help" in p.opts) is common
            ]
            if rows := [record for record in records if record]:
                with formatter.section(heading):
                    formatter.write_dl(rows)


def is_global(option: click.Parameter) -> bool:
    """True for an option that every command has."""
    return option in (*_GLOBAL, _PROJECT, _PROJECT_OF_GROUP)


class Group(Command, click.Group):
    """A group of commands; `@group.command("name", …)` adds one."""

    command_class = Command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        path = " ".join(ctx.command_path.split()[1:])
        args = [*_renamed(path, args[0]), *args[1:]]
        if ctx.resilient_parsing or args[0].startswith("-") or self.get_command(ctx, args[0]):
            return super().resolve_command(ctx, args)
        hint = did_you_mean(args[0], self.list_commands(ctx)) or f"try: {ctx.command_path} --help"
        raise UsageError(f"`{ctx.command_path}` has no command {args[0]!r}", hint=hint)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The known name that is most like this one, as a hint; empty if none is."""
    from difflib import get_close_matches

    close = get_close_matches(name[:100], list(known), 1)
    return f"did you mean {close[0]}?" if close else ""


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


sprint_argument = click.argument("sprint", required=False, type=SPRINT, callback=named_sprint)


def sprint_option(help: str, **attrs: Any) -> Callable[[FC], FC]:
    """`--sprint SPRINT`."""
    return click.option(
        "--sprint",
        **{"metavar": "SPRINT"} | attrs,
        type=SPRINT,
        callback=named_sprint,
        help=help,
    )


def sprint_name(project: ProjectPaths, name: str) -> str:
    """The id of a sprint; its number alone is enough."""
    require_id(name, "sprint")
    return f"{project.name}-{int(name)}" if name.isdigit() else name


def is_text(argument: str) -> bool:
    """True if an argument is valid UTF-8: Python maps other bytes to surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in argument)


#: The choices of a user for one run of a sprint; passed on as keywords.
choice_options = add_options(
    click.option(
        "--budget",
        "budget_usd",
        type=Number(0, 1e6, above=True),
        metavar="USD",
        help="Maximum cost of the sprint (default: setting budget_usd).",
    ),
    click.option(
        "--allow-red", is_flag=True, help="Start although main fails its own verification."
    ),
    unsandboxed_option,
    click.option("--debug", is_flag=True, help="Print the prompts of agents."),
)


class LazyGroup(Group):
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
        for heading, commands in SECTIONS.items():
            with formatter.section(heading):
                width = max(map(len, COMMANDS))
                formatter.write_dl(
                    [(f"{name:{width}}", line) for name, (_, line) in commands.items()]
                )


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    examples=[
        "caloron doctor",
        'caloron sprint "Add a discount code to the basket"',
        "caloron report",
        "caloron apply",
    ],
)
@click.version_option(__version__, prog_name="caloron", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context) -> Answer | None:
    """Turn a goal into reviewed, tested code that is merged on your own forge.

    `caloron` alone shows the next step in this folder, `caloron help COMMAND` explains a command.
    """
    if context.invoked_subcommand is not None:
        return None
    from caloron.cli.commands.meta import next_step

    return next_step()


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
    except BrokenPipeError:
        # The reader, such as `head`, has enough lines.
        return CLOSED_PIPE
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
