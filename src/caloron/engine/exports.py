"""The registry of exported files: where each file is, how its text is made, when it is written.

Writing, verifying and backing up all use this registry. A new exported file is one method of
`Exports` and its entry in `_IN_WORKSPACE`, the function of its text in `ledger/workspace_files.py`,
and one `write` in `SprintExports` at the moment it is due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from caloron.agents.clis.registry import FRAMEWORKS, model_prefix
from caloron.domain.model.plan import PlannedTask
from caloron.domain.model.sprint import State
from caloron.ledger.exports import (
    Export,
    digest,
    keep_aside,
    read,
    stored_digests,
    write,
)
from caloron.ledger.learnings import learnings_file, read_back
from caloron.ledger.ledger import SQL, Ledger, TickCommit, remember_export, remember_since
from caloron.ledger.legacy import HISTORY, VERSIONS
from caloron.ledger.projects import Project
from caloron.ledger.run_history import store_records
from caloron.ledger.state_file import kv_path, kv_text, parse_edit, state_file, write_kv
from caloron.ledger.workspace_files import (
    agent_text,
    dag_text,
    history_text,
    json_text,
    page_text,
    record_versions,
    versions_text,
)
from caloron.ports import Clock
from caloron.store import queue

if TYPE_CHECKING:
    from caloron.domain.rules.people.state_file_edit import FileEdit

DAG, SKILLS = "dag.json", "skill_store.json"


class Exports:
    """All exported files of a project."""

    def __init__(self, project: Project, ledger: Ledger) -> None:
        self.project, self.ledger = project, ledger

    def all(self) -> Iterator[Export]:
        """Return every file that was written or will be."""
        for row in self.ledger.db.rows(SQL["sprint_ids"]):
            yield state_file(self.ledger, row["id"])
        yield self.history()
        for exports in _IN_WORKSPACE.values():
            yield from exports(self)

    def history(self) -> Export:
        return Export(HISTORY, self.project.sprints_json, partial(history_text, self.ledger))

    def versions(self) -> Export:
        return self._in_workspace(VERSIONS, partial(versions_text, self.ledger))

    def skills(self) -> Export:
        """Return the skill store: ours at first, the text of any other program from then on."""

        def text() -> bytes:
            from caloron.domain.reporting.identities import default_skills

            return json_text(default_skills(FRAMEWORKS))

        def describe_edit(text: bytes) -> str:
            from caloron.domain.compat.legacy_sprints import parse_json

            if not isinstance(parse_json(text), dict):
                raise ValueError("it is not an object")
            return "it is left as it is"

        return Export(SKILLS, self.project.workspace / SKILLS, text, describe_edit)

    def plan(self, state: State) -> list[Export]:
        """Return the plan of a sprint, then the manifest of each task's agent."""
        plans = [task.plan for task in state.tasks.values()]
        framework = state.sprint.settings.framework or self.project.config.framework
        dag = self._in_workspace(DAG, partial(dag_text, plans, framework))
        return [dag, *(self._agent(plan, plan.framework or framework) for plan in plans)]

    def _agent(self, plan: PlannedTask, framework: str) -> Export:
        model = self.project.config.model
        # Manifests name a model with its maker in front.
        model = model_prefix(framework) + model if model else ""
        return self._in_workspace(
            f"agents/{plan.id}.agent", partial(agent_text, plan, framework, model)
        )

    def _last_plan(self) -> Iterable[Export]:
        row = self.ledger.db.row(SQL["planned_sprints"])
        return self.plan(self.ledger.state(row["id"]))[:1] if row else ()

    def _agents(self) -> Iterable[Export]:
        """Return the manifest of each task, of the newest sprint that has a task of that id."""
        manifests: dict[str, Export] = {}
        for row in self.ledger.db.rows(SQL["planned_sprints"]):
            for export in self.plan(self.ledger.state(row["id"]))[1:]:
                manifests.setdefault(export.name, export)
        return manifests.values()

    def retro_pages(self, sprint: str) -> tuple[Export, Export]:
        """Return the page of an ended sprint, and the page of the sprint that ended last."""
        text = partial(page_text, self.ledger, sprint)
        own, last = f"retro/sprint-{sprint}.md", "retro_report.md"
        return self._in_workspace(own, text), self._in_workspace(last, text)

    def _pages(self) -> Iterable[Export]:
        return [
            self.retro_pages(row["id"])[0] for row in self.ledger.db.rows(SQL["sprints_by_end"])
        ]

    def _last_page(self) -> Iterable[Export]:
        ended = self.ledger.db.rows(SQL["sprints_by_end"])
        return [self.retro_pages(ended[-1]["id"])[1]] if ended else ()

    def learnings(self) -> Export:
        return learnings_file(self.ledger, self.project.workspace)

    def _in_workspace(self, name: str, text: Callable[[], bytes]) -> Export:
        return Export(name, self.project.workspace / name, text)


#: Every exported file in the workspace, as a glob pattern and the function that lists them.
_IN_WORKSPACE: dict[str, Callable[[Exports], Iterable[Export]]] = {
    "learnings.json": lambda exports: [exports.learnings()],
    DAG: Exports._last_plan,
    "agents/*.agent": Exports._agents,
    VERSIONS: lambda exports: [exports.versions()],
    SKILLS: lambda exports: [exports.skills()],
    "retro/sprint-*.md": Exports._pages,
    "retro_report.md": Exports._last_page,
}


def exported_files(project: Project, sprints: Iterable[str]) -> dict[str, Path]:
    """Return the exported files on disk, with those kept aside, by their names in a backup.

    The ledger is not read: a backup must not upgrade it.
    """
    files = {HISTORY: project.sprints_json}
    for pattern in _IN_WORKSPACE:
        for path in sorted(project.workspace.glob(f"{pattern}*")):
            files[f"workspace/{path.relative_to(project.workspace)}"] = path
    for sprint in sprints:
        path = kv_path(sprint)
        files |= {f"kv/{p.name}": p for p in sorted(path.parent.glob(f"{path.name}*"))}
    return {n: p for n, p in files.items() if p.is_file() and not p.is_symlink()}


@dataclass
class SprintExports:
    """Reads back the managed files before a sprint runs, and writes its exports."""

    project: Project
    ledger: Ledger
    sprint: str
    clock: Clock
    message: Callable[[str], None]
    _written: tuple[PlannedTask, ...] = ()

    def __post_init__(self) -> None:
        self._exports = Exports(self.project, self.ledger)

    def read_edits(self, *, busy: bool) -> None:
        """Read back edited files, or keep them aside while agents work. Write missing files."""
        workspace = self.project.workspace
        if lost := self.project.lost_work_dir:
            self.message(f"work_dir {lost} is not there; {workspace} is used instead")
        self._read_state_file(busy=busy)
        messages = read_back(self.ledger, workspace, busy=busy)
        messages += write(self.ledger, self._exports.history())
        messages += write(self.ledger, self._exports.versions())
        if not self._is_edited(skills := self._exports.skills()):
            messages += write(self.ledger, skills)
        self._report(messages)

    def write_plan(self, state: State) -> None:
        """Write the plan once the sprint runs, and again when people change the tasks."""
        plan = tuple(task.plan for task in state.tasks.values())
        if state.sprint.phase in ("running", "retro") and plan and plan != self._written:
            self._report(write(self.ledger, *self._exports.plan(state)))
            self._written = plan

    def write_end(self) -> None:
        """Write the files about an ended sprint."""
        ledger, exports = self.ledger, self._exports
        store_records(ledger)
        messages = write(ledger, exports.history())
        record_versions(ledger, self.sprint, self.project.config.stall_threshold_m)
        messages += write(ledger, exports.versions())
        messages += read_back(ledger, self.project.workspace, busy=False)
        messages += write(ledger, exports.learnings())
        messages += write(ledger, *exports.retro_pages(self.sprint))
        self._report(messages)

    def _report(self, messages: Iterable[str]) -> None:
        for message in messages:
            self.message(message)

    def _is_edited(self, export: Export) -> bool:
        """True if another program wrote a readable text."""
        content = read(self.ledger, export.name, export.path)
        if content.author != "other" or export.describe_edit is None:
            return False
        try:
            return bool(export.describe_edit(content.text))
        except ValueError:
            return False

    def _read_state_file(self, *, busy: bool) -> None:
        path = kv_path(self.sprint)
        content = read(self.ledger, self.sprint, path)
        if content.author == "caloron":
            return
        if content.author == "other":
            self._apply_edit(path, content.text, busy=busy)
        text = kv_text(self.ledger.state(self.sprint), now := self.clock.now())
        with self.ledger.db.transaction("kv") as connection:
            remember_export(connection, self.sprint, digest(text))
            remember_since(connection, self.sprint, now)
        write_kv(self.sprint, text)

    def _apply_edit(self, path: Path, text: bytes, *, busy: bool) -> None:
        try:
            edit = parse_edit(text)
        except ValueError:
            kept = keep_aside(self.ledger, path, text, readable=False)
            self.message(f"the state file of the sprint is corrupt; it is kept as {kept}")
            return
        # A file from before the sprint belongs to a sprint of an older program.
        if busy or not stored_digests(self.ledger, self.sprint):
            kept = keep_aside(self.ledger, path, text)
            self.message(f"the state file of the sprint was changed; it is kept as {kept}")
        else:
            self._apply(edit)

    def _apply(self, edit: FileEdit) -> None:
        from caloron.domain.rules.people.state_file_edit import apply_file_edit

        loaded = self.ledger.load(self.sprint)
        decision, outcome = apply_file_edit(loaded.state, edit, self.clock.now())
        self.ledger.commit_tick(
            # The next tick consumes the facts that wait.
            msgspec.structs.replace(loaded, through=0),
            TickCommit(state=decision.state, actions=decision.actions, moves=decision.moves),
        )
        with self.ledger.db.transaction("import") as connection:
            payload = {"sprint": self.sprint, "changes": outcome}
            queue.append_event(connection, "state_imported", payload)
        for task, change in outcome.items():
            self.message(f"read back from the state file of the sprint: {task}: {change}")
