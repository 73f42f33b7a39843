"""Runs graphs on this machine: the stages of a home, their runners, cache, journal and traces."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import msgspec

from caloron.engine.traces import RunTraces
from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import ExecutionError, GraphError
from caloron.graph.json_text import Json, decode
from caloron.graph.nodes import Stage, walk
from caloron.graph.prepare import Prepared
from caloron.graph.runners.functions import RunnerChain
from caloron.graph.runners.subprocess import Sandbox, SubprocessRunner
from caloron.graph.runtime.protocols import CacheKey, JournalEntry, StageRunner
from caloron.graph.runtime.run import RunLimits, RunResult, Settings, run
from caloron.graph.stage import Lifecycle, StageSpec
from caloron.graph.stage_file import stage_json, stage_of
from caloron.graph.stdlib import StandardLibrary, standard_stages
from caloron.graph.storage.cache import SqliteCache
from caloron.graph.storage.journal import SqliteJournal
from caloron.stages.catalogue import CatalogueStages, catalogue_stages
from caloron.store.files import write_atomic
from caloron.store.redact import Redactor, own_redactor


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one run."""

    run_id: str
    durable: bool = False
    retry_failed: bool = False
    cached: bool = True
    limits: RunLimits = RunLimits()


class GraphRuntime:
    """The stages of a home and their runners; this needs no project."""

    def __init__(
        self, home: Path, *, unsandboxed: bool = False, more: Iterable[StageSpec] = ()
    ) -> None:
        self._own = home / "graph"
        self._more = tuple(more)
        self._unsandboxed = unsandboxed
        self.files = UserStages(home / "stages")
        self.traces = RunTraces(home / "traces")

    @cached_property
    def catalogue(self) -> Catalogue:
        """The standard library, our own stages, and what the user added."""
        shipped = [*standard_stages(), *catalogue_stages()]
        names = {stage.name for stage in shipped}
        added = self.files.load()
        for stage in added:
            # A later version may bring a stage of that name: graphs that it ships mean that one.
            if stage.name in names:
                self.files.problems.append(f"{stage.name} comes with the program now ({stage.id})")
        known = {stage.id for stage in (*shipped, *added)}
        more = [stage for stage in self._more if stage.id not in known]
        # A store of Noether contains its standard library too, perhaps an older version.
        others = (*added, *more)
        return Catalogue([*shipped, *(stage for stage in others if stage.name not in names)])

    def is_shipped(self, name: str) -> bool:
        """True if a name belongs to a stage that comes with the program."""
        return any(self.source_of(stage) != "user" for stage in self.catalogue.by_name(name))

    def source_of(self, stage: StageSpec) -> str:
        """Return the origin of a stage: `caloron`, `standard` or `user`."""
        return self._sources.get(stage.id, "user")

    @cached_property
    def _sources(self) -> dict[str, str]:
        ours = {stage.id: "caloron" for stage in catalogue_stages()}
        return ours | {stage.id: "standard" for stage in standard_stages()}

    @cached_property
    def runner(self) -> StageRunner:
        programs = SubprocessRunner(
            self._own / "scripts",
            self._sandbox,
            # Ours, because it is there inside the sandbox too; `-P`: nothing beside the script.
            interpreters={"python": [sys.executable, "-P"]},
        )
        return RunnerChain(CatalogueStages(), StandardLibrary(self._own), programs)

    @cached_property
    def _sandbox(self) -> Sandbox:
        from caloron.engine.graphs.sandbox import StageSandbox

        return StageSandbox(self._own / "calls", unsandboxed=self._unsandboxed)

    def check_sandbox(self, stages: list[StageSpec]) -> None:
        """Refuse to begin if programs among these stages could not be confined."""
        if not self._unsandboxed and any(stage.code is not None for stage in stages):
            from caloron.engine.graphs.sandbox import StageSandbox

            StageSandbox(self._own / "calls").check()

    def stages_of(self, prepared: Prepared) -> list[StageSpec]:
        """Each stage that a graph names, once, in the order of the graph."""
        ids = dict.fromkeys(n.id for _, n in walk(prepared.root) if isinstance(n, Stage))
        stages = (self.catalogue.get(id) for id in ids)
        return [stage for stage in stages if stage is not None]

    def run(self, prepared: Prepared, value: Json, options: RunOptions) -> RunResult:
        """Run a graph, and keep its trace however it ends."""
        self.check_sandbox(self.stages_of(prepared))
        with ExitStack() as opened:
            settings = self._settings(options, opened)
            try:
                outcome = run(prepared, value, self.runner, settings)
            except ExecutionError as error:
                if error.trace is not None:
                    self.traces.keep(options.run_id, prepared, error.trace, error)
                raise
        self.traces.keep(options.run_id, prepared, outcome.trace)
        return outcome

    def forget(self, run_id: str) -> None:
        """Remove the record of a durable run: the next run of that name begins anew."""
        with closing(self._journal()) as journal:
            journal.forget(run_id)

    def _journal(self) -> RedactingJournal:
        return RedactingJournal(self._own / "runs")

    def _settings(self, options: RunOptions, opened: ExitStack) -> Settings:
        """Open the files of a run; they are closed with `opened`."""
        cache = RedactingCache(self._own / "cache.db") if options.cached else None
        journal = self._journal() if options.durable else None
        for storage in (cache, journal):
            if storage is not None:
                opened.callback(storage.close)
        return Settings(
            cache=cache,
            journal=journal,
            run_id=options.run_id if options.durable else "",
            retry_failed=options.retry_failed,
            limits=options.limits,
        )


class _Redacting:
    """Keeps the secrets of this process out of what graphs leave on the disk."""

    @cached_property
    def _redactor(self) -> Redactor:
        return own_redactor(os.environ)


class RedactingCache(_Redacting, SqliteCache):
    """A cache that does not keep an answer that holds a secret."""

    def put(self, key: CacheKey, text: str) -> None:
        if not self._redactor.finds(text.encode("utf-8", "surrogatepass")):
            super().put(key, text)


class RedactingJournal(_Redacting, SqliteJournal):
    """A journal that records no secret: a call whose answer holds one is made again on resume.

    A redacted answer would be a wrong input for the next call.
    """

    def record(self, run_id: str, key: str, entry: JournalEntry) -> None:
        output = (entry.output or "").encode("utf-8", "surrogatepass")
        if self._redactor.finds(output):
            return
        if entry.failure is not None:
            name, reason = entry.failure
            entry = msgspec.structs.replace(entry, failure=(name, self._redactor.text(reason)))
        super().record(run_id, key, entry)


class UserStages:
    """A folder of stages in their full form, each under its id.

    The time at which a stage was added decides which stage of a name is in use. So adding one
    writes a single file, and a crash cannot leave half of it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: Files that could not be read, with the reason; they do not keep others from loading.
        self.problems: list[str] = []

    def load(self) -> list[StageSpec]:
        """Return all stages, oldest first; of each name all but the newest are deprecated."""
        self.problems = []
        stages = [stage for _, stage in sorted(self._read(), key=lambda dated: dated[0])]
        newest = {stage.name: stage.id for stage in stages}
        return [_retired(stage, newest[stage.name]) for stage in stages]

    def _read(self) -> Iterator[tuple[str, StageSpec]]:
        for file in sorted(self._folder.glob("*.json")):
            try:
                value = decode(file.read_bytes(), what=file.name)
                stage = stage_of(value)
                if stage.id != file.stem:
                    self.problems.append(f"{file}: holds the stage {stage.id}")
                    continue
                yield str(value.get("added_at", "")), stage
            except (GraphError, OSError) as error:
                self.problems.append(f"{file}: {error}")

    def add(self, stage: StageSpec) -> Path:
        """Keep a stage; from now on its name means this stage."""
        path = self._folder / f"{stage.id}.json"
        added = {"added_at": datetime.now(UTC).isoformat(timespec="microseconds")}
        text = json.dumps(added | stage_json(stage), indent=1, ensure_ascii=False) + "\n"
        write_atomic(path, text.encode("utf-8"))
        return path


def _retired(stage: StageSpec, newest: str) -> StageSpec:
    if stage.id == newest or stage.lifecycle.state != "Active":
        return stage
    return msgspec.structs.replace(stage, lifecycle=Lifecycle("Deprecated", newest))
