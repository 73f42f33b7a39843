"""The process beside each agent: it owns the lease, keeps the output and writes the result.

Started as `python -S -E shim.py RUN_DIR LOCK_FD`, it outlives the engine that started it. The lock
file stays locked for as long as this process lives; a free lock proves that it is gone.

Exit codes: 0 the result is in the ledger; 3 the lease was lost; 4 it was stopped. In the last two
cases the agent was ended and there is no result.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    # A script is compiled anew in each process that runs it, and keeps that memory: what it does
    # is in a module, which is compiled once.
    sys.path[0] = __file__.rsplit("/", 4)[0]
    from caloron.agents.supervise.attempt import main

    sys.exit(main(sys.argv[1:]))
