"""`caloron serve` serves HTTP and starts agents; `caloron harness` runs one agent."""

from __future__ import annotations

import os
import signal
import threading

import click

from caloron.agents.sandbox.bubblewrap import Bubblewrap
from caloron.cli import output
from caloron.cli.app import (
    Answer,
    DryRun,
    Failed,
    Number,
    command,
    group,
    planned,
    unsandboxed_option,
)
from caloron.ledger.locate import home
from caloron.server.agents import AgentServer
from caloron.server.harness import Harness, HarnessOptions
from caloron.server.http import HOST, ShellServer
from caloron.server.settings import harness_settings, shell_settings
from caloron.store.crash import this_process_is
from caloron.store.lock import single_instance


@command(
    dry_run=True,
    examples=[
        "CALORON_SHELL_TOKEN=secret caloron serve",
        "curl -H 'X-Caloron-Token: secret' http://127.0.0.1:7710/status",
    ],
)
@unsandboxed_option
def serve(unsandboxed: bool, dry_run: bool) -> DryRun | None:
    """Serve HTTP on 127.0.0.1 and start agents for other programs, until a signal.

    Requests need the token of CALORON_SHELL_TOKEN in the header X-Caloron-Token. The port is
    CALORON_SHELL_PORT (7710); repositories and worktrees are in CALORON_SHELL_ROOT (the current
    folder). Agents keep running when the shell ends, and it finds them again when it restarts.
    """
    this_process_is("shell")
    settings = shell_settings(os.environ)
    if not unsandboxed:
        Bubblewrap().check()
    if dry_run:
        return DryRun(planned("listen on", f"{HOST}:{settings.port}"))
    with single_instance(home() / "shell" / "lock", "the shell of this home"):
        agents = AgentServer(home(), settings, unsandboxed=unsandboxed, log_line=_note)
        try:
            server = ShellServer(agents, settings.port, settings.token)
            data = {"url": server.url, "root": str(settings.root), "pid": os.getpid()}
            # Printed before it serves: clients wait for the address.
            output.success("serve", data, f"Listening on {server.url} for {settings.root}.")
            _serve(server)
        finally:
            agents.close()
    return None


def _note(line: str) -> None:
    output.note(line.rstrip("\n"))


def _serve(server: ShellServer) -> None:
    """Serve until a signal; the current request is finished, agents keep running."""

    def stop(_number: int, _frame: object) -> None:
        threading.Thread(target=server.shutdown, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    server.serve_forever(0.1)
    server.server_close()


_SECONDS = Number(0, 1e6, above=True)


@group(
    examples=[
        "CALORON_TASK_DESCRIPTION='Add a README' CALORON_WORKTREE=clone caloron harness start"
    ]
)
def harness() -> None:
    """Run one agent outside a sprint: in a sandbox, with heartbeats, its work kept as commits."""


@harness.command(
    dry_run=True,
    examples=[
        "CALORON_TASK_DESCRIPTION='Add a README' caloron harness start",
        "CALORON_FRAMEWORK_CMD=my-agent caloron harness start --network none",
    ],
)
@unsandboxed_option
@click.option(
    "--every",
    type=_SECONDS,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    envvar="CALORON_HEARTBEAT_S",
    help="Seconds between heartbeats to the shell (CALORON_HEARTBEAT_S).",
)
@click.option(
    "--timeout",
    type=_SECONDS,
    default=7200.0,
    show_default=True,
    metavar="SECONDS",
    envvar="CALORON_AGENT_TIMEOUT_S",
    help="Time limit of the agent (CALORON_AGENT_TIMEOUT_S).",
)
@click.option(
    "--network",
    type=click.Choice(["model", "none", "public", "full"]),
    default="model",
    show_default=True,
    envvar="CALORON_NETWORK",
    help="Network access (CALORON_NETWORK): its model, nothing, public hosts, all.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="HOST",
    envvar="CALORON_ALLOW_HOSTS",
    help="With `model` or `public`, also this host; repeatable (CALORON_ALLOW_HOSTS).",
)
def start(
    unsandboxed: bool,
    every: float,
    timeout: float,
    network: str,
    hosts: tuple[str, ...],
    dry_run: bool,
) -> Answer | DryRun:
    """Run the agent that the environment describes, and exit with its result.

    CALORON_WORKTREE is a clone (default: the current folder), CALORON_TASK_DESCRIPTION the task,
    CALORON_FRAMEWORK a framework (default: claude-code), or CALORON_FRAMEWORK_CMD and
    CALORON_FRAMEWORK_ARGS any program; CALORON_SHELL_URL and CALORON_SHELL_TOKEN name the shell
    that gets heartbeats. The documentation of the shell lists all variables.
    """
    this_process_is("harness")
    settings = harness_settings(os.environ, home() / "harness")
    if dry_run:
        target = f"{settings.agent} ({settings.framework}) in {settings.worktree}"
        return DryRun(planned("run", target))
    harness_options = HarnessOptions(
        unsandboxed=unsandboxed,
        every_s=every,
        timeout_s=timeout,
        network=network,  # type: ignore[arg-type]  # click has checked it
        hosts=hosts,
    )
    run = Harness(settings, harness_options)
    run.check()
    result = run.run()
    data = {"agent_id": settings.agent, "sprint_id": settings.sprint, "task_id": settings.task}
    data |= {name: getattr(result, name) for name in result.__struct_fields__}
    if result.exit_code:
        hint = f"its output is in {settings.run_dir / 'output.log'}"
        failure = Failed("AGENT_FAILED", result.reason, hint=hint, data=data)
        failure.exit_code = result.exit_code
        raise failure
    head = f", last commit {result.head[:12]}" if result.head else ""
    return Answer(data, f"{settings.agent} is done{head}.")
