"""Where graphs run on this machine: which stages there are, who runs them, what is remembered."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from caloron.engine.discreet import DiscreetCache
from caloron.engine.run_traces import RunTraces
from caloron.engine.stage_files import StageFiles
from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import ExecutionError
from caloron.graph.foreign import Programs, Sandbox
from caloron.graph.jsontext import Json
from caloron.graph.nodes import Stage, walk
from caloron.graph.prepare import Prepared
from caloron.graph.protocols import StageRunner
from caloron.graph.run import Limits, Outcome, Settings, run
from caloron.graph.runners import Runners
from caloron.graph.spec import StageSpec
from caloron.graph.stdlib import StandardLibrary, standard_stages
from caloron.stages.catalogue import CatalogueStages, catalogue_stages

if TYPE_CHECKING:
    from caloron.graph.journal import SqliteJournal


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller decides for one run."""

    run_id: str
    durable: bool = False
    retry_failed: bool = False
    cached: bool = True
    limits: Limits = Limits()
    memoize: bool = True
    optimise: bool = True
    checks_refinements: bool = True


class GraphHome:
    """The stages of a home and what they run with; nothing of it needs a project."""

    def __init__(
        self, home: Path, *, unsandboxed: bool = False, more: Iterable[StageSpec] = ()
    ) -> None:
        self._own = home / "graph"
        self._more = tuple(more)
        self._unsandboxed = unsandboxed
        self.files = StageFiles(home / "stages")
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
        more = [one for one in self._more if one.id not in known]
        # A store of Noether holds its standard library too, perhaps an older one.
        others = (*added, *more)
        return Catalogue([*shipped, *(stage for stage in others if stage.name not in names)])

    def is_shipped(self, name: str) -> bool:
        """Whether a name belongs to a stage that comes with the program."""
        return any(self.source_of(stage) != "user" for stage in self.catalogue.by_name(name))

    def source_of(self, stage: StageSpec) -> str:
        """Where a stage comes from: `caloron`, `standard` or `user`."""
        return self._sources.get(stage.id, "user")

    @cached_property
    def _sources(self) -> dict[str, str]:
        ours = {stage.id: "caloron" for stage in catalogue_stages()}
        return ours | {stage.id: "standard" for stage in standard_stages()}

    @cached_property
    def runner(self) -> StageRunner:
        programs = Programs(
            self._own / "scripts",
            self._sandbox,
            # Ours, because it is there inside the sandbox too; `-P`: nothing beside the script.
            interpreters={"python": [sys.executable, "-P"]},
        )
        return Runners(CatalogueStages(), StandardLibrary(self._own), programs)

    @cached_property
    def _sandbox(self) -> Sandbox:
        from caloron.engine.foreign_stages import ConfinedStages

        return ConfinedStages(self._own / "calls", unsandboxed=self._unsandboxed)

    def check_sandbox(self, stages: list[StageSpec]) -> None:
        """Refuses to begin where programs among these stages could not be confined."""
        if not self._unsandboxed and any(stage.code is not None for stage in stages):
            from caloron.engine.foreign_stages import ConfinedStages

            ConfinedStages(self._own / "calls").check()

    def stages_of(self, prepared: Prepared) -> list[StageSpec]:
        """Each stage that a graph names, once, in the order of the graph."""
        ids = dict.fromkeys(n.id for _, n in walk(prepared.root) if isinstance(n, Stage))
        found = (self.catalogue.get(id) for id in ids)
        return [stage for stage in found if stage is not None]

    def run(self, prepared: Prepared, value: Json, wishes: Wishes) -> Outcome:
        """Runs a graph, and keeps the trace of it however it ends."""
        self.check_sandbox(self.stages_of(prepared))
        with ExitStack() as opened:
            settings = self._settings(prepared, wishes, opened)
            try:
                outcome = run(prepared, value, self.runner, settings)
            except ExecutionError as error:
                if error.trace is not None:
                    self.traces.keep(wishes.run_id, prepared, error.trace, error)
                raise
        self.traces.keep(wishes.run_id, prepared, outcome.trace)
        return outcome

    def forget(self, run_id: str) -> None:
        """Removes what a durable run recorded: the next one of that name begins anew."""
        with closing(self._journal()) as journal:
            journal.forget(run_id)

    def _journal(self) -> SqliteJournal:
        from caloron.engine.discreet import DiscreetJournal

        return DiscreetJournal(self._own / "runs")

    def _settings(self, prepared: Prepared, wishes: Wishes, opened: ExitStack) -> Settings:
        """What a run needs; its files are closed with `opened`."""
        # The noether profile forgets at the end of each run, as the real program does.
        kept = wishes.cached and not prepared.profile.memoizes
        cache = DiscreetCache(self._own / "cache.db") if kept else None
        journal = self._journal() if wishes.durable else None
        for one in (cache, journal):
            if one is not None:
                opened.callback(one.close)
        return Settings(
            cache=cache,
            memoize=wishes.memoize,
            journal=journal,
            run_id=wishes.run_id if wishes.durable else "",
            retry_failed=wishes.retry_failed,
            limits=wishes.limits,
            checks_refinements=wishes.checks_refinements,
            optimise=wishes.optimise,
        )
