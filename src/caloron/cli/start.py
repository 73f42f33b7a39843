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
    from caloron.cli.main import main

    gc.freeze()
    gc.enable()
    code = main()
    # Whoever read what was written may be gone.
    with suppress(BrokenPipeError):
        sys.stdout.flush()
        sys.stderr.flush()
    # Everything is recorded by now; Python would take itself apart first.
    os._exit(code)
