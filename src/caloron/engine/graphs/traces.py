"""What runs of graphs did: one file for each run, the latest few hundred of them."""

from __future__ import annotations

import json
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from caloron.engine.graphs.redacting_cache import redactor
from caloron.errors import NotFound, StoreError
from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import ExecutionError
from caloron.graph.prepare import Prepared
from caloron.graph.runtime.protocols import StageTrace, Trace
from caloron.ids import is_valid_id
from caloron.store import log
from caloron.store.files import write_atomic

_MOST = 500


def new_run_id() -> str:
    """A name for a run that nobody named; in the order of time."""
    return f"run-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


class RunTraces:
    """A folder of traces, found by run id or by the id of the graph."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(
        self, run_id: str, prepared: Prepared, trace: Trace, error: ExecutionError | None = None
    ) -> Path:
        path = self._folder / f"{run_id}.json"
        is_new = not path.exists()
        told = _told(run_id, prepared, trace, error)
        try:
            # Failures repeat what stages said, and a stage may say a key.
            clean = redactor().text(json.dumps(told, indent=1))
            write_atomic(path, (clean + "\n").encode(), durable=False)
        except OSError as failed:
            raise StoreError(f"cannot write {path}: {failed}", hint="see CALORON_HOME") from failed
        if is_new:
            self._forget_oldest()
        return path

    def _forget_oldest(self) -> None:
        files = list(self._folder.glob("*.json"))
        if len(files) > _MOST:
            files.sort(key=_age)
            for file in files[: len(files) - _MOST]:
                with log.ignored(OSError, message="cannot remove an old trace", path=file):
                    file.unlink(missing_ok=True)

    def find(self, wanted: str) -> dict[str, Any]:
        """The trace of a run; by the id of a graph, that of its latest run."""
        if is_valid_id(wanted):
            found = self._read(self._folder / f"{wanted}.json")
            if found is not None:
                return found
            for one in self.latest():
                if one["composition_id"] == wanted:
                    return one
        raise NotFound(
            f"no run of a graph is called {wanted!r}",
            hint="caloron graph trace lists the runs whose traces are kept",
        )

    def latest(self) -> list[dict[str, Any]]:
        """All traces that are kept, the newest first."""
        read = (self._read(file) for file in self._folder.glob("*.json"))
        return sorted((one for one in read if one), key=lambda one: one["started_at"], reverse=True)

    def _read(self, file: Path) -> dict[str, Any] | None:
        try:
            found = json.loads(file.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            # A trace is only told; one that a full disk cut short is as good as none.
            return None
        return found if isinstance(found, dict) and "run_id" in found else None


def _age(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        # Another process made room at the same time.
        return 0


def _told(
    run_id: str, prepared: Prepared, trace: Trace, error: ExecutionError | None
) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "composition_id": trace.composition_id,
        "description": prepared.graph.description,
        "profile": "strict" if prepared.strict else "noether",
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
