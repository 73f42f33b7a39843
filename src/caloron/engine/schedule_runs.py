"""What became of the runs of a schedule: kept, so that a dead scheduler's successor knows."""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from caloron.store.database import Database, migrations_in
from caloron.store.statements import load_statements

_HERE = Path(__file__).parent
_SQL = load_statements(_HERE / "sql" / "schedule.sql")


class LastRun(msgspec.Struct, frozen=True, kw_only=True):
    """The last run of a job; `handled` is the moment from which on the next one is looked for."""

    job: str
    cron: str
    handled: float
    due: float | None = None
    began: float | None = None
    ended: float | None = None
    attempts: int = 0
    run_id: str = ""
    ok: bool | None = None
    error: str = ""

    @property
    def cut_short(self) -> bool:
        return self.began is not None and self.ended is None


class ScheduleRuns:
    """One small database for each file of jobs."""

    def __init__(self, folder: Path, config: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.lock = folder / f"{name_of(config)}.lock"
        self._store = Database(
            folder / f"{name_of(config)}.sqlite", migrations_in(_HERE / "migrations", "schedule")
        )

    def close(self) -> None:
        self._store.close()

    def last(self, job: str) -> LastRun | None:
        row = self._store.row(_SQL["last"], {"job": job})
        if row is None:
            return None
        fields = {name: row[name] for name in LastRun.__struct_fields__}
        return LastRun(**fields | {"ok": None if row["ok"] is None else bool(row["ok"])})

    def meet(self, job: str, cron: str, now: float) -> None:
        """A job that is new, or due at other times than before: nothing of the past is due."""
        self._write("meet", {"job": job, "cron": cron, "now": now})

    def began(self, job: str, due: float, now: float, run_id: str) -> None:
        """Before it runs: whoever comes after a crash knows that it was begun."""
        self._write("began", {"job": job, "due": due, "now": now, "run_id": run_id})

    def ended(self, job: str, now: float, *, ok: bool, error: str) -> None:
        self._write("ended", {"job": job, "now": now, "ok": ok, "error": error})

    def _write(self, name: str, values: dict[str, object]) -> None:
        with self._store.transaction(f"schedule.{name}") as connection:
            connection.execute(_SQL[name], values)


def name_of(config: Path) -> str:
    """Tells one file from another, wherever it is called from."""
    digest = hashlib.sha256(os.fsencode(config.resolve())).hexdigest()
    return f"{config.stem[:40]}-{digest[:16]}"


def shown(moment: float | None) -> str | None:
    """A moment for people and machines."""
    if moment is None:
        return None
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds")
