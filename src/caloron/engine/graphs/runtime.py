"""Runs graphs on this machine: the stages of a home, their runners, cache, journal and traces."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from caloron.engine.graphs.redacting_cache import RedactingCache
from caloron.engine.graphs.user_stages import UserStages
from caloron.engine.traces import RunTraces
from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import ExecutionError
from caloron.graph.json_text import Json
from caloron.graph.nodes import Stage, walk
from caloron.graph.prepare import Prepared
from caloron.graph.runners.functions import RunnerChain
from caloron.graph.runners.subprocess import Sandbox, SubprocessRunner
from caloron.graph.runtime.protocols import StageRunner
from caloron.graph.runtime.run import RunLimits, RunResult, Settings, run
from caloron.graph.stage import StageSpec
from caloron.graph.stdlib import StandardLibrary, standard_stages
from caloron.stages.catalogue import CatalogueStages, catalogue_stages

if TYPE_CHECKING:
    from caloron.graph.storage.journal import SqliteJournal


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

    def _journal(self) -> SqliteJournal:
        from caloron.engine.graphs.redacting_cache import RedactingJournal

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
