"""The files of a sprint that people and scripts read: taken in before it goes on, then written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from caloron.agents.frameworks import FRAMEWORKS
from caloron.domain.imports import Import, take_over
from caloron.domain.plan import PlannedTask
from caloron.domain.sprint import State
from caloron.ledger import projections
from caloron.ledger.history import write_history
from caloron.ledger.learnings import take_in
from caloron.ledger.ledger import Ledger, TickCommit
from caloron.ledger.projected import set_aside
from caloron.ledger.projects import Project
from caloron.ledger.workfiles import WorkFiles
from caloron.ports import Clock
from caloron.stages.retro_page import hold_retro
from caloron.store import queue as store_queue


class Bookkeeping:
    """Keeps the files of one sprint; the ledger stays the truth."""

    def __init__(
        self,
        project: Project,
        ledger: Ledger,
        sprint: str,
        clock: Clock,
        tell: Callable[[str], None],
    ) -> None:
        config = project.config
        self._project = project
        self._ledger = ledger
        self._sprint = sprint
        self._clock = clock
        self._tell = tell
        self._written: tuple[PlannedTask, ...] = ()
        self._files = WorkFiles(
            ledger,
            project.workspace,
            framework=config.framework,
            frameworks=FRAMEWORKS,
            model=config.model,
            stall_m=config.stall_threshold_m,
            tell=tell,
        )

    def take_in(self, *, busy: bool) -> None:
        """What somebody else wrote since; while agents are at work it is kept beside instead."""
        if lost := self._project.lost_work_dir:
            beside = self._project.workspace
            self._tell(f"work_dir {lost} is not there; what is in {beside} is used instead")
        self._take_in_state(busy=busy)
        # Learnings that an older Caloron or a person wrote are for the next planner too.
        for line in take_in(self._ledger, self._project.workspace, busy=busy):
            self._tell(line)
        self._files.take_in()

    def write_plan(self, state: State) -> None:
        """Once for each time that the engine runs, and when people add or change tasks.

        One that waits may still be edited or thrown away, and one that has ended was written.
        """
        plan = tuple(task.plan for task in state.tasks.values())
        if state.sprint.phase in ("running", "retro") and plan and plan != self._written:
            self._files.write_plan(state)
            self._written = plan

    def write_end(self) -> None:
        """What is read of a sprint that has ended."""
        told = write_history(self._ledger, self._project)
        self._files.write_versions(self._sprint)
        workspace = self._project.workspace
        told += hold_retro(self._ledger, workspace, self._sprint, self._clock.now())
        for line in told:
            self._tell(line)

    def _take_in_state(self, *, busy: bool) -> None:
        found = projections.look_at(self._ledger, self._sprint)
        if found.kind == "corrupt":
            self._set_aside("corrupt")
        elif found.kind == "earlier" or (found.kind == "edited" and busy):
            self._set_aside("foreign")
        elif found.kind == "edited" and found.content is not None:
            self._take_over(found.content)
        if found.kind != "ours":
            projections.write_anew(self._ledger, self._sprint, self._clock.now())

    def _set_aside(self, kind: Literal["corrupt", "foreign"]) -> None:
        kept = set_aside(self._ledger, projections.kv_path(self._sprint), kind)
        self._tell(f"the sprint's file was {kind}; it is kept as {kept}")

    def _take_over(self, content: Import) -> None:
        loaded = self._ledger.load(self._sprint)
        decision, outcome = take_over(loaded.state, content, self._clock.now())
        self._ledger.commit_tick(
            # Facts that wait are left for the tick.
            msgspec.structs.replace(loaded, through=0),
            TickCommit(state=decision.state, actions=decision.actions, moves=decision.moves),
        )
        with self._ledger.db.transaction("import") as connection:
            payload = {"sprint": self._sprint, "changes": outcome}
            store_queue.append_event(connection, "state_imported", payload)
        for task, change in outcome.items():
            self._tell(f"taken over from the sprint's file: {task}: {change}")
