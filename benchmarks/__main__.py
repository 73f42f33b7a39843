"""`python -m benchmarks [NAME …]`: runs all of them, or the named ones, and prints a table."""

from __future__ import annotations

import sys
import time
from importlib import import_module

from benchmarks import table
from benchmarks.measure import Measure

#: In the order of the table; each is a module with `run() -> list[Measure]`.
NAMES = (
    "claims",
    "dispatch",
    "dag",
    "growth",
    "ending",
    "restart",
    "memory",
    "idle",
    "startup",
    "reading",
    "live",
    "events",
    "sandbox",
    "starting",
    "many",
    "agents",
    "forges",
    "graphs",
)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(NAMES)}")
        return 2
    measures: list[Measure] = []
    began = time.monotonic()
    print(table.head(), flush=True)
    for name in names or NAMES:
        for measure in import_module(f"benchmarks.{name}").run():
            measures.append(measure)
            print(table.row(measure), flush=True)
    print(f"\n{table.summary(measures)}  ({time.monotonic() - began:.0f} s)")
    # A slow machine is no failure: the numbers are for people to judge.
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
