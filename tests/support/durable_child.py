"""A process that runs one durable graph and can be made to die at any moment of it.

`python -m tests.support.durable_child DIRECTORY KILL_AT`: each effect is a line in the file
`effects`; a moment is counted before and after each operation of the journal, and at moment
KILL_AT the process kills itself as `kill -9` does. The outcome is printed as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from caloron.graph.runtime.protocols import JournalEntry
from caloron.graph.stage import FALLIBLE, NETWORK, PURE
from caloron.graph.storage.journal import SqliteJournal
from tests.support.bench import Bench, const, parallel, retry, sequence, stage

GRAPH = sequence(
    stage("act"),
    {"op": "Let", "bindings": {"a": stage("act"), "b": stage("pure")}, "body": stage("act")},
    retry(stage("flaky"), 3),
    {"op": "Branch", "predicate": const(True), "if_true": stage("act"), "if_false": stage("pure")},
    {"op": "Merge", "sources": [stage("act"), stage("pure")], "target": stage("act")},
    {"op": "Fanout", "source": stage("act"), "targets": [stage("act"), stage("pure")]},
    stage("pure"),
    parallel(x=stage("act"), y=sequence(stage("pure"), stage("act"))),
)


class _Moments:
    def __init__(self, kill_at: int) -> None:
        self._kill_at = kill_at
        self._lock = threading.Lock()
        self.passed = 0

    def __call__(self) -> None:
        with self._lock:
            if self.passed == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.passed += 1


class _MortalJournal(SqliteJournal):
    def __init__(self, directory: Path, moment: _Moments) -> None:
        super().__init__(directory)
        self._moment = moment

    def intend(self, run_id: str, key: str) -> bool:
        self._moment()
        before = super().intend(run_id, key)
        self._moment()
        return before

    def record(self, run_id: str, key: str, entry: JournalEntry) -> None:
        self._moment()
        super().record(run_id, key, entry)
        self._moment()


def main(directory: Path, kill_at: int) -> None:
    bench, log = Bench(), directory / "effects"

    def act(value: Any, call: Any) -> Any:
        with log.open("a") as file:
            file.write(call.key + "\n")
        return [value, call.key] if len(json.dumps(value)) < 200 else ["long", call.key]

    def flaky(value: Any, call: Any) -> Any:
        act(value, call)
        if call.key.endswith("#1"):
            raise ValueError("not at first")
        return value

    bench.add("act", act, NETWORK)
    bench.add("flaky", flaky, NETWORK, FALLIBLE)
    bench.add("pure", lambda value: [value], PURE)
    moment = _Moments(kill_at)
    journal = _MortalJournal(directory, moment)
    outcome = bench.run(GRAPH, {"x": 1}, journal=journal, run_id="run")
    entries = [
        [entry.stage_id, bool(entry.failure), entry.input_hash, entry.output_hash]
        for entry in outcome.trace.stages
    ]
    sys.stdout.write(
        json.dumps({"output": outcome.output, "trace": entries, "moments": moment.passed})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
