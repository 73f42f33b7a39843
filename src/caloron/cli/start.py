"""The `caloron` script: starts as fast as Python can, and exits at once."""

from __future__ import annotations

import gc
import io
import os
import sys
from contextlib import suppress


def run() -> None:
    """Run the command line of this process, and end the process with the exit code."""
    # Imported modules never become garbage, so collecting during the start is wasted time.
    gc.disable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal may lack a letter of a goal.
            stream.reconfigure(errors="replace")
    code = _agent_state() if sys.argv[1:2] == ["agent-state"] else _any_command()
    if git_objects := sys.modules.get("caloron.git.objects"):
        git_objects.close_all()
    # The reader of our output may have exited.
    with suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    # All state is saved; skip interpreter shutdown, which costs about 20 ms.
    os._exit(code)


def _any_command() -> int:
    from caloron.cli.app import main

    gc.freeze()
    gc.enable()
    return main()


def _agent_state() -> int:
    """Run `agent-state` without the command-line library: agents call it for every message."""
    words = sys.argv[2:]
    if words[:1] and words[0].startswith("-") and words[0] not in ("-h", "--help"):
        return _any_command()
    from caloron.cli.commands.agent_state.main import main

    try:
        return main(words)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - the last resort, which logs the whole traceback
        from caloron.cli.app import report
        from caloron.cli.failures import failure_behind

        return report(failure_behind(error))
