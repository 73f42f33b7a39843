"""The traces of graph runs and of ticks: one file for each, the latest few hundred of them.

Every tick writes one, so this module imports the graph library only where it reads or runs graphs.
"""

from __future__ import annotations

import json
import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from caloron.errors import NotFound
from caloron.ids import is_valid_id
from caloron.store import log
from caloron.store.files import write_atomic
from caloron.store.redact import own_redactor

if TYPE_CHECKING:
    from caloron.graph.catalogue import Catalogue
    from caloron.graph.errors import ExecutionError
    from caloron.graph.prepare import Prepared
    from caloron.graph.runtime.protocols import StageTrace, Trace

_KEPT_TRACES = 500


def new_run_id() -> str:
    """Return a new name for a run; names sort in the order of time."""
    return f"run-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


class RunTraces:
    """A folder of traces, found by run id or by the id of the graph."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(
        self, run_id: str, prepared: Prepared, trace: Trace, error: ExecutionError | None = None
    ) -> None:
        """Write the trace of a graph's run."""
        self.write(run_id, _record(prepared, trace, error))

    def write(self, run_id: str, record: dict[str, Any]) -> None:
        """Write a trace; one without a graph is that of a tick."""
        path = self._folder / f"{run_id}.json"
        is_new = not path.exists()
        # Failures repeat the output of stages, which may contain a key.
        clean = own_redactor(os.environ).text(json.dumps({"run_id": run_id, **record}, indent=1))
        write_atomic(path, (clean + "\n").encode(), durable=False)
        if is_new:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        files = list(self._folder.glob("*.json"))
        if len(files) > _KEPT_TRACES:
            files.sort(key=_age)
            for file in files[: len(files) - _KEPT_TRACES]:
                with log.ignored(OSError, message="cannot remove an old trace", path=file):
                    file.unlink(missing_ok=True)

    def find(self, wanted: str) -> dict[str, Any]:
        """Return the trace of a run; by the id of a graph, that of its latest run."""
        if is_valid_id(wanted):
            trace = self._read(self._folder / f"{wanted}.json")
            if trace is not None:
                return trace
            for trace in self.latest():
                if trace["composition_id"] == wanted:
                    return trace
        raise NotFound(
            f"no run of a graph is called {wanted!r}",
            hint="caloron graph trace lists the runs whose traces are kept",
        )

    def latest(self) -> list[dict[str, Any]]:
        """Return all traces, the newest first."""
        traces = filter(None, (self._read(file) for file in self._folder.glob("*.json")))
        return sorted(traces, key=lambda trace: str(trace["started_at"]), reverse=True)

    def _read(self, file: Path) -> dict[str, Any] | None:
        try:
            trace = json.loads(file.read_bytes())
        except (FileNotFoundError, ValueError):
            # A full disk may cut a file short; nothing depends on a trace.
            return None
        if not isinstance(trace, dict) or "run_id" not in trace:
            return None
        return trace if "composition_id" in trace else _with_tick_graph(trace)


def _age(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        # Another process made room at the same time.
        return 0


def _with_tick_graph(trace: dict[str, Any]) -> dict[str, Any]:
    """Add what a tick does not know of its graph, because it runs without the graph library."""
    from caloron.engine.graphs.tick_graph import tick_graph

    return {"run_id": trace["run_id"], **_described(tick_graph()), **trace}


def _described(prepared: Prepared) -> dict[str, Any]:
    return {
        "composition_id": prepared.composition_id,
        "description": prepared.graph.description,
        "profile": "strict" if prepared.strict else "noether",
    }


def _record(prepared: Prepared, trace: Trace, error: ExecutionError | None) -> dict[str, Any]:
    return {
        **_described(prepared),
        "started_at": trace.started_at,
        "duration_ms": trace.duration_ms,
        "status": trace.status,
        "error": None if error is None else {"path": error.path, "message": error.reason},
        "stages": [_call(call, prepared.catalogue) for call in trace.stages],
    }


def _call(call: StageTrace, catalogue: Catalogue) -> dict[str, Any]:
    stage = catalogue.get(call.stage_id)
    return {
        "path": call.path,
        "stage": (stage.name if stage else "") or call.stage_id,
        "stage_id": call.stage_id,
        "step_index": call.step_index,
        "status": "Failed" if call.failure else "Ok",
        "source": call.source,
        "duration_ms": call.duration_ms,
        "input_hash": call.input_hash,
        "output_hash": call.output_hash,
        "failure": call.failure,
    }
