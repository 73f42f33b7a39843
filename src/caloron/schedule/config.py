"""The schedule file, in the format of Noether's scheduler."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from caloron.errors import NotFound, UsageError
from caloron.graph.errors import GraphError
from caloron.graph.json_text import decode
from caloron.graph.stage import StageSpec
from caloron.graph.stage_file import stage_of
from caloron.ids import http_url
from caloron.schedule.cron import BadCron, Cron, parse_cron

_MAX_BYTES = 16 << 20
_MAX_NAME = 100


class JobEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the file has it."""

    name: str
    cron: str
    graph: str
    input: Any = None
    webhook: str | None = None
    #: These two are ours; Noether's scheduler does not know them.
    timeout_s: float = 3600.0
    durable: bool = False


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[JobEntry]
    store_path: str | None = None
    registry_url: str | None = None
    registry_api_key: str | None = None
    grid_broker: str | None = None


class Job(JobEntry, frozen=True, kw_only=True):
    """A checked job: a graph, when it is due, and the webhook for its outcome."""

    times: Cron
    #: The graph; it is read again for each run.
    file: Path


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of one file."""

    path: Path
    jobs: tuple[Job, ...]
    #: The stages of the store of Noether that `store_path` names.
    stages: tuple[StageSpec, ...] = ()


def read_schedule(path: Path) -> Schedule:
    """Read a file; a `UsageError` lists everything that is wrong with it."""
    config = _read(path)
    errors = [
        f"{name} is not supported here: graphs run on this machine"
        for name in ("registry_url", "grid_broker")
        if getattr(config, name)
    ]
    if not config.jobs:
        errors.append("there is no job in it")
    jobs: list[Job] = []
    for number, entry in enumerate(config.jobs):
        job, job_errors = _job(entry, path.parent)
        errors += [f"jobs[{number}] ({entry.name[:_MAX_NAME]}): {error}" for error in job_errors]
        if job is not None:
            jobs.append(job)
    names = [entry.name for entry in config.jobs]
    errors += [
        f"two jobs are called {name!r}" for name in sorted(set(names)) if names.count(name) > 1
    ]
    if errors:
        raise UsageError(f"{path}: " + "\n".join(errors), hint="nothing was run")
    return Schedule(path=path, jobs=tuple(jobs), stages=_stages_in_store(config, path.parent))


def _read(path: Path) -> _Config:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}", hint="name one with --config") from error
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{str(path)[:200]} cannot be read: {error}", hint="name a file"
        ) from error
    if len(text) > _MAX_BYTES:
        raise UsageError(f"{path} is too large", hint="the most is 16 MB")
    try:
        return msgspec.convert(decode(text, what=str(path)), _Config)
    except (GraphError, msgspec.ValidationError) as error:
        raise UsageError(f"{path}: {error}", hint="correct the file; nothing was run") from error


def _job(entry: JobEntry, beside: Path) -> tuple[Job | None, list[str]]:
    """Return the job, or everything that is wrong with it."""
    errors: list[str] = []
    if not entry.name.strip() or len(entry.name) > _MAX_NAME or not entry.name.isprintable():
        errors.append(f"`name` is no line of 1 to {_MAX_NAME} letters")
    if not 0 < entry.timeout_s <= 1e6:
        errors.append("`timeout_s` is not from 0 to 1000000")
    try:
        times = parse_cron(entry.cron)
    except BadCron as error:
        errors.append(f"`cron` {entry.cron[:80]!r}: {error}")
    try:
        file = graph_file(entry.graph, beside)
    except NotFound as error:
        errors.append(str(error))
    if entry.webhook and http_url(entry.webhook) is None:
        errors.append(f"`webhook` {entry.webhook[:80]!r} is no address")
    if errors:
        return None, errors
    return Job(**msgspec.structs.asdict(entry), times=times, file=file), []


def graph_file(named: str, beside: Path) -> Path:
    """Find a graph beside the schedule, in the current folder, or among the built-in ones."""
    for path in (beside / named, Path(named)):
        try:
            if path.is_file():
                return path.absolute()
        except (OSError, ValueError):
            # No file can have this name.
            continue
    if "/" not in named and named:
        shipped = Path(str(files("caloron.stages") / "compositions" / f"{named}.json"))
        if shipped.is_file():
            return shipped
    raise NotFound(f"`graph`: there is no file {named[:200]!r}")


def _stages_in_store(config: _Config, beside: Path) -> tuple[StageSpec, ...]:
    """Return the stages of the store of Noether; graphs that need a missing store report it."""
    if not config.store_path:
        return ()
    for path in (beside / config.store_path, Path(config.store_path)):
        if not path.is_file():
            continue
        try:
            store = decode(path.read_bytes(), what=str(path), allow_bigint=True)
            return tuple(stage_of(stage) for stage in store["stages"])
        except (GraphError, KeyError, TypeError) as error:
            raise UsageError(f"{path} (store_path) is no store of stages: {error}") from error
    return ()
