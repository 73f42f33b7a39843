"""`caloron shell`: an HTTP service on this machine that starts agents and hears from them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from caloron.cli import output
from caloron.cli.options import dry_run_option, output_option

if TYPE_CHECKING:
    from caloron.server.http import ShellServer


@click.command()
@click.option(
    "--unsandboxed",
    is_flag=True,
    help="Let agents run as you, with all your files: only where nothing else can be done.",
)
@dry_run_option
@output_option
def shell(unsandboxed: bool, dry_run: bool) -> int:
    """Listen on 127.0.0.1 for programs that start agents, until told to stop.

    The token of CALORON_SHELL_TOKEN must come in the header X-Caloron-Token. The port is
    CALORON_SHELL_PORT (7710); repositories and worktrees lie in CALORON_SHELL_ROOT (the current
    folder). Agents live on when the shell ends, and are known again when it is back.

    \b
    Examples:
      CALORON_SHELL_TOKEN=secret caloron shell
      curl -H 'X-Caloron-Token: secret' http://127.0.0.1:7710/status
    """
    import os

    from caloron.agents.sandbox import Bubblewrap
    from caloron.ledger.locate import home
    from caloron.server.http import HOST, ShellServer
    from caloron.server.settings import shell_settings
    from caloron.server.shell import Shell
    from caloron.store.crash import this_process_is
    from caloron.store.lock import single_instance

    this_process_is("shell")
    settings = shell_settings(os.environ)
    if not unsandboxed:
        Bubblewrap().check()
    if dry_run:
        return output.dry_run(
            "shell", [{"action": "listen on", "target": f"{HOST}:{settings.port}"}]
        )
    with single_instance(home() / "shell" / "lock", "the shell of this home"):
        at = Shell(home(), settings, unsandboxed=unsandboxed, tell=_tell)
        try:
            server = ShellServer(at, settings.port, settings.token)
            data = {"url": server.url, "root": str(settings.root), "pid": os.getpid()}
            output.success("shell", data, f"Listening on {server.url} for {settings.root}.")
            _serve(server)
        finally:
            at.close()
    return 0


def _tell(line: str) -> None:
    output.aside(line.rstrip("\n"))


def _serve(server: ShellServer) -> None:
    """Until a signal: the request that is being answered is answered, agents live on."""
    import signal
    import threading

    def stop(_number: int, _frame: object) -> None:
        threading.Thread(target=server.shutdown, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    server.serve_forever(0.1)
    server.server_close()
