"""`caloron harness`: what the shell starts for each agent; it can be started by hand too."""

from __future__ import annotations

import click

from caloron.cli import output
from caloron.cli.options import Finite, dry_run_option, output_option

_SECONDS = Finite(min=0, min_open=True, max=1e6)


@click.group()
def harness() -> None:
    """Run one agent outside a sprint: confined, with heartbeats, its work kept as commits.

    \b
    Example:
      CALORON_TASK_DESCRIPTION='Add a README' CALORON_WORKTREE=clone caloron harness start
    """


@harness.command()
@click.option(
    "--unsandboxed",
    is_flag=True,
    help="Let the agent run as you, with all your files: only where nothing else can be done.",
)
@click.option(
    "--every",
    type=_SECONDS,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    envvar="CALORON_HEARTBEAT_S",
    help="How often the shell is told that the agent lives (CALORON_HEARTBEAT_S).",
)
@click.option(
    "--timeout",
    type=_SECONDS,
    default=7200.0,
    show_default=True,
    metavar="SECONDS",
    envvar="CALORON_AGENT_TIMEOUT_S",
    help="How long the agent may take (CALORON_AGENT_TIMEOUT_S).",
)
@click.option(
    "--network",
    type=click.Choice(["model", "none", "public", "full"]),
    default="model",
    show_default=True,
    envvar="CALORON_NETWORK",
    help="What the agent may reach (CALORON_NETWORK): its model, nothing, public hosts, all.",
)
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="HOST",
    envvar="CALORON_ALLOW_HOSTS",
    help="With `model` or `public`, also this one; may be repeated (CALORON_ALLOW_HOSTS).",
)
@dry_run_option
@output_option
def start(
    unsandboxed: bool,
    every: float,
    timeout: float,
    network: str,
    hosts: tuple[str, ...],
    dry_run: bool,
) -> int:
    """Run the agent that the environment describes, and exit as it ended.

    CALORON_WORKTREE is a clone (the current folder), CALORON_TASK_DESCRIPTION what is asked,
    CALORON_FRAMEWORK one of our frameworks (claude-code) or CALORON_FRAMEWORK_CMD and
    CALORON_FRAMEWORK_ARGS any program; with CALORON_SHELL_URL and CALORON_SHELL_TOKEN the shell
    is told. All variables are in the documentation of the shell.

    \b
    Examples:
      CALORON_TASK_DESCRIPTION='Add a README' caloron harness start
      CALORON_FRAMEWORK_CMD=my-agent caloron harness start --network none
    """
    import os

    from caloron.engine.harness import Harness, Wishes
    from caloron.engine.harness_settings import harness_settings
    from caloron.ledger.locate import home
    from caloron.store.crash import this_process_is

    this_process_is("harness")
    settings = harness_settings(os.environ, home() / "harness")
    if dry_run:
        target = f"{settings.agent} ({settings.framework}) in {settings.worktree}"
        return output.dry_run("harness.start", [{"action": "run", "target": target}])
    wishes = Wishes(
        unsandboxed=unsandboxed,
        every_s=every,
        timeout_s=timeout,
        network=network,  # type: ignore[arg-type]  # click has checked it
        hosts=hosts,
    )
    run = Harness(settings, wishes)
    run.check()
    result = run.run()
    data = {"agent_id": settings.agent, "sprint_id": settings.sprint, "task_id": settings.task}
    data |= {name: getattr(result, name) for name in result.__struct_fields__}
    if result.exit_code:
        hint = f"what it printed is in {settings.run_dir / 'output.log'}"
        output.failure("harness.start", "AGENT_FAILED", result.reason, hint=hint, data=data)
    else:
        head = f", last commit {result.head[:12]}" if result.head else ""
        output.success("harness.start", data, f"{settings.agent} is done{head}.")
    return result.exit_code
