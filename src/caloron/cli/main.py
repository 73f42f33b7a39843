"""The `caloron` program: finds the command, runs it, and answers for whatever goes wrong."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from caloron import __version__
from caloron.cli import output
from caloron.cli.options import command_name, verbose_option
from caloron.errors import CaloronError, PreconditionFailed
from caloron.ledger.locate import ProjectPaths, found_last, home, on_fallback, repository_of
from caloron.store import log

INTERRUPTED = 130
PERMISSION_DENIED = 4

#: Every command in the order of a day's work: where it is, and what it does in one line.
#: They stand here as text, because importing the commands only to list them takes time.
COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("caloron.cli.init:init", "Make a project with its own forge."),
    "config": ("caloron.cli.config:config", "Show and change the settings of a project."),
    "projects": ("caloron.cli.projects:projects", "List, switch and delete projects."),
    "org": ("caloron.cli.org:org", "Make, show and check what every agent is told."),
    "doctor": ("caloron.cli.doctor:doctor", "Check what this machine offers to agents."),
    "sprint": ("caloron.cli.sprint:sprint", "Turn a goal into reviewed, tested, merged code."),
    "kickoff": ("caloron.cli.kickoff:kickoff", "Plan a goal and hold the plan for approval."),
    "status": ("caloron.cli.status:status", "Show the project and its sprint."),
    "why": ("caloron.cli.why:why", "Say what each unfinished task waits for."),
    "logs": ("caloron.cli.logs:logs", "Show what the agents of a task wrote."),
    "trace": ("caloron.cli.trace:trace", "Show everything that happened to a task."),
    "agents": ("caloron.cli.agents:agents", "Show who worked, and what it took."),
    "stop": ("caloron.cli.stop:stop", "Save and stop the running sprint."),
    "resume": ("caloron.cli.sprint:resume", "Go on with a sprint that was stopped or crashed."),
    "tick": ("caloron.cli.tick:tick", "Drive a sprint for a moment, as cron does."),
    "take": ("caloron.cli.take:take", "Bring what was merged into your branch."),
    "discard": ("caloron.cli.discard:discard", "Throw away what is left of a sprint."),
    "report": ("caloron.cli.report:report", "Show what a sprint came to: the morning page."),
    "inbox": ("caloron.cli.inbox:inbox", "List only what needs you, with the commands for it."),
    "history": ("caloron.cli.history:history", "List the sprints so far."),
    "show": ("caloron.cli.show:show", "Show one sprint with each of its tasks."),
    "metrics": ("caloron.cli.metrics:metrics", "Show the numbers of all sprints together."),
    "retro": ("caloron.cli.retro:retro", "Show what a sprint teaches."),
    "issue": ("caloron.cli.issue:issue", "Read, comment and close issues on the forge."),
    "pr": ("caloron.cli.pr:pr", "Read, review and merge pull requests on the forge."),
    "graph": ("caloron.cli.graph:graph", "Check, run and look at graphs of typed stages."),
    "stage": ("caloron.cli.stage:stage", "List, run, add and test the stages of graphs."),
    "noether": ("caloron.cli.noether:noether", "Put our stages into the store of Noether."),
    "schedule": ("caloron.cli.schedule:schedule", "Run graphs at the times of a schedule."),
    "shell": ("caloron.cli.shell:shell", "Start agents for other programs, over HTTP."),
    "harness": ("caloron.cli.harness:harness", "Run one agent in a worktree, for the shell."),
    "state": ("caloron.cli.state:state", "Show, verify, back up and restore what is kept."),
    "agent-state": (
        "caloron.cli.agent_state_command:agent_state",
        "Keep an agent's queue, diary, dashboard and retros.",
    ),
    "cycle": ("caloron.cli.cycle:cycle", "Number an agent's wakes; each knows what the last did."),
    "clean": ("caloron.cli.clean:clean", "Remove old logs, caches, merged branches."),
    "completion": ("caloron.cli.completion:completion", "Let your shell complete commands."),
    "introspect": ("caloron.cli.introspect:introspect", "Describe every command as data."),
    "skill": ("caloron.cli.skill:skill", "Print a SKILL.md that teaches an agent to use this."),
    "version": ("caloron.cli.version:version", "Print the version."),
}


class LazyGroup(click.Group):
    """A group that imports a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, invoke_without_command=True)
@click.version_option(__version__, prog_name="caloron", message="%(prog)s %(version)s")
@verbose_option
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
    """Run one command line; the result is the exit code of the program."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    output.begin(given)
    # Until a command names its project.
    log.write_to(home() / "logs" / "caloron.log")
    log.set_verbose(False)
    on_fallback[:] = [_name_active_project]
    found_last.clear()
    try:
        log.check_level()
        return _exit_code(cli.main(given, prog_name="caloron", standalone_mode=False))
    except CaloronError as error:
        return _failed(error)
    except click.exceptions.NoArgsIsHelpError as error:
        # A group without a command is a question for its commands, not a mistake.
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        return _refuse(error)
    except click.Abort:
        return INTERRUPTED
    except OSError as error:
        return _refused_by_machine(error)
    except Exception as error:  # noqa: BLE001 - the last resort, which keeps the whole story
        damage = _damage_behind(error)
        return _failed(damage) if damage else apologise(error)


def _failed(error: CaloronError) -> int:
    output.failure(output.current_command(), error.code, str(error), hint=error.hint)
    return error.exit_code


def _damage_behind(error: Exception) -> CaloronError | None:
    """The failure of the project's ledger that explains an unexpected error.

    A damaged page shows itself as an error of SQLite, or as content that no decoder accepts.
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
    # All other databases answer with errors of ours. An error with a hint is one of the machine.
    if isinstance(error, sqlite3.Error) and (refused := store_error(ledger, error)).hint:
        return refused
    return None


def _name_active_project(project: ProjectPaths) -> None:
    """A folder without a project does not say which project is meant: print it."""
    repository = repository_of(project) or "no repository of yours"
    output.aside_once(
        f"Project {project.name} ({repository}): the active project, since this folder is not in a"
        " git repository."
    )


def _exit_code(result: Any) -> int:
    """A command returns its exit code, or nothing when all went well."""
    return result if isinstance(result, int) else 0


def _refuse(error: click.ClickException) -> int:
    """Answer a command line that cannot be taken."""
    context = getattr(error, "ctx", None)
    command, hint = output.current_command(), "try: caloron --help"
    if context is not None:
        command, hint = command_name(context), f"try: {context.command_path} --help"
    code = "INVALID_ARGS" if error.exit_code == click.UsageError.exit_code else "GENERAL_ERROR"
    output.failure(command, code, error.format_message(), hint=hint)
    return error.exit_code


def _refused_by_machine(error: OSError) -> int:
    """Answer what no code of ours can put right; any other failure of the system is a defect."""
    if error.errno in (errno.EACCES, errno.EPERM):
        hint = "make that readable and writable for you, or choose another place with CALORON_HOME"
        output.failure(output.current_command(), "PERMISSION_DENIED", str(error), hint=hint)
        return PERMISSION_DENIED
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE):
        message = f"the machine refused: {error}"
        hint = "put that right and try again; what was recorded is safe"
        output.failure(output.current_command(), PreconditionFailed.code, message, hint=hint)
        return PreconditionFailed.exit_code
    return apologise(error)


def apologise(error: Exception) -> int:
    """Answer a defect of ours: short on the terminal, whole in a file."""
    import traceback

    from caloron.store.redact import Redactor, secrets_in

    _learn_named_secrets()
    clean = Redactor(secrets_in(os.environ)).text
    arguments = " ".join(map(repr, sys.argv))
    lines = "".join(traceback.format_exception(error))
    story = clean(f"caloron {__version__}\n{arguments}\n\n{lines}")
    log.error("internal error", error=error, command=output.current_command())
    hint = "nothing that was recorded is lost; `caloron resume` goes on with a sprint"
    try:
        hint = f"the details are in {_write_log(story)}; {hint}"
    except OSError:
        # Without a file for it, the user has to see it.
        click.echo(story, err=True)
    message = clean(f"sorry, that is a defect in Caloron: {type(error).__name__}: {error}")
    output.failure(output.current_command(), CaloronError.code, message, hint=hint)
    return CaloronError.exit_code


def _learn_named_secrets() -> None:
    """Hide the values of variables that settings name: these names may look like any other."""
    try:
        from caloron.engine.confining import TOKEN_VARIABLES
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
    except Exception as error:  # noqa: BLE001 - the defect itself has to be reported in any case
        log.warning("the secrets that settings name are not known", error=error)


def _write_log(story: str) -> Path:
    from datetime import UTC, datetime

    directory = home() / "logs"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = directory / f"defect-{datetime.now(UTC):%Y%m%dT%H%M%S%f}.log"
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(handle, "w", encoding="utf-8", errors="backslashreplace") as opened:  # noqa: PTH123
        opened.write(story)
    return file
