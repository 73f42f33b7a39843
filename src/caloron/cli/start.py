"""The `caloron` script: begins as fast as Python can, and leaves at once."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import suppress


def run() -> None:
    """Run the command line of this process, and end it with the exit code."""
    # Nothing that is imported becomes garbage, and to look for it takes a while.
    gc.disable()
    code = _agent_state() if sys.argv[1:2] == ["agent-state"] else _any_command()
    # Whoever read what was written may be gone.
    with suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Everything is recorded by now; Python would take itself apart first.
    os._exit(code)


def _any_command() -> int:
    from caloron.cli.main import main

    gc.freeze()
    gc.enable()
    return main()


def _agent_state() -> int:
    """Agents and hosts call this for every message: it needs no command-line library."""
    words = sys.argv[2:]
    if words[:1] and words[0].startswith("-") and words[0] not in ("-h", "--help"):
        return _any_command()
    from caloron.cli.agent_state import main

    try:
        return main(words)
    except KeyboardInterrupt:
        return 130
    except Exception as error:  # noqa: BLE001 - the last resort, which keeps the whole story
        from caloron.cli.main import apologise

        return apologise(error)
