"""Which graphs run when: the file of Noether's scheduler, read and checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from caloron.domain.cron import BadCron, Cron, parse_cron
from caloron.errors import NotFound, UsageError
from caloron.graph.errors import GraphError
from caloron.graph.jsontext import decode
from caloron.graph.spec import StageSpec
from caloron.graph.specfile import spec_of

T = TypeVar("T")

_LARGEST = 16 << 20
_LONGEST_NAME = 100


class _Job(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cron: str
    graph: str
    input: Any = None
    webhook: str | None = None
    #: Beyond what Noether's scheduler knows.
    timeout_s: float = 3600.0
    durable: bool = False


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    jobs: list[_Job]
    store_path: str | None = None
    registry_url: str | None = None
    registry_api_key: str | None = None
    grid_broker: str | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A graph, when it is due, and who is told how it went."""

    name: str
    cron_text: str
    cron: Cron
    #: The file of the graph; it is read anew for each run.
    graph: Path
    input: Any
    webhook: str
    timeout_s: float
    durable: bool


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file."""

    path: Path
    jobs: tuple[Job, ...]
    #: Stages that a store of Noether holds, for graphs that name them.
    stages: tuple[StageSpec, ...] = ()


def read_schedule(path: Path) -> Schedule:
    """The jobs of a file; a `UsageError` lists everything that is wrong with them."""
    config = _read(path)
    wrong = [
        f"{name} is not supported here: graphs run on this machine"
        for name in ("registry_url", "grid_broker")
        if getattr(config, name)
    ]
    if not config.jobs:
        wrong.append("there is no job in it")
    jobs: list[Job] = []
    for number, told in enumerate(config.jobs):
        job, found = _job(told, path.parent)
        wrong += [f"jobs[{number}] ({told.name[:_LONGEST_NAME]}): {one}" for one in found]
        if job is not None:
            jobs.append(job)
    names = [told.name for told in config.jobs]
    wrong += [
        f"two jobs are called {name!r}" for name in sorted(set(names)) if names.count(name) > 1
    ]
    if wrong:
        raise UsageError(f"{path}: " + "\n".join(wrong), hint="nothing was run")
    return Schedule(path=path, jobs=tuple(jobs), stages=_stored(config, path.parent))


def _read(path: Path) -> _Config:
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
    except FileNotFoundError as error:
        raise NotFound(f"there is no file {path}", hint="name one with --config") from error
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{str(path)[:200]} cannot be read: {error}", hint="name a file"
        ) from error
    if len(text) > _LARGEST:
        raise UsageError(f"{path} is too large", hint="the most is 16 MB")
    try:
        return msgspec.convert(decode(text, what=str(path)), _Config)
    except GraphError as error:
        raise UsageError(f"{path}: {error}", hint="correct the file; nothing was run") from error
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {error}", hint="correct the file; nothing was run") from error


def _job(told: _Job, beside: Path) -> tuple[Job | None, list[str]]:
    """The job, or everything that is wrong with it."""
    wrong: list[str] = []

    def tried(read: Callable[[], T]) -> T | None:
        try:
            return read()
        except (UsageError, NotFound) as error:
            wrong.append(str(error))
            return None

    if not told.name.strip() or len(told.name) > _LONGEST_NAME or not told.name.isprintable():
        wrong.append(f"`name` is no line of 1 to {_LONGEST_NAME} letters")
    if not 0 < told.timeout_s <= 1e6:
        wrong.append("`timeout_s` is not from 0 to 1000000")
    cron = tried(lambda: _cron(told.cron))
    graph = tried(lambda: graph_file(told.graph, beside))
    webhook = tried(lambda: _webhook(told.webhook or ""))
    if wrong or cron is None or graph is None or webhook is None:
        return None, wrong
    job = Job(
        name=told.name,
        cron_text=told.cron,
        cron=cron,
        graph=graph,
        input=told.input,
        webhook=webhook,
        timeout_s=told.timeout_s,
        durable=told.durable,
    )
    return job, []


def _cron(text: str) -> Cron:
    try:
        return parse_cron(text)
    except BadCron as error:
        raise UsageError(f"`cron` {text[:80]!r}: {error}") from error


def graph_file(named: str, beside: Path) -> Path:
    """A graph by its path, beside the file that names it or from here; or one of ours by name."""
    for place in (beside / named, Path(named)):
        try:
            if place.is_file():
                return place.absolute()
        except (OSError, ValueError):
            # No file can have this name.
            continue
    if "/" not in named and named:
        shipped = Path(str(files("caloron.stages") / "compositions" / f"{named}.json"))
        if shipped.is_file():
            return shipped
    raise NotFound(f"`graph`: there is no file {named[:200]!r}")


def _webhook(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = not url or (parts.scheme in ("http", "https") and bool(parts.hostname))
        _ = parts.port
    except ValueError:
        good = False
    if not good:
        raise UsageError(f"`webhook` {url[:80]!r} is no address")
    return url


def _stored(config: _Config, beside: Path) -> tuple[StageSpec, ...]:
    """The stages of a store of Noether; that there is none is told by graphs that need one."""
    if not config.store_path:
        return ()
    for place in (beside / config.store_path, Path(config.store_path)):
        if not place.is_file():
            continue
        try:
            told = decode(place.read_bytes(), what=str(place), wide_integers=True)
            return tuple(spec_of(one) for one in told["stages"])
        except (GraphError, KeyError, TypeError) as error:
            raise UsageError(f"{place} (store_path) is no store of stages: {error}") from error
    return ()
