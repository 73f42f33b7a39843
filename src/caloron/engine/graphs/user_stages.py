"""The stages that a user added: one file each, the newest of a name is the one in use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from caloron.errors import StoreError
from caloron.graph.errors import GraphError
from caloron.graph.json_text import decode
from caloron.graph.stage import Lifecycle, StageSpec
from caloron.graph.stage_file import stage_json, stage_of
from caloron.store.files import write_atomic


class UserStages:
    """A folder of stages in their full form, each under its id.

    Which of several with one name is in use follows from when they were added; so adding a
    stage is one file written, and nothing that a crash could leave half done.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        #: What could not be read, with the reason; the other stages are there all the same.
        self.problems: list[str] = []

    def load(self) -> list[StageSpec]:
        """All stages, oldest first; of those with one name only the newest is not deprecated."""
        self.problems = []
        found = sorted(self._read(), key=lambda one: one[0])
        newest = {stage.name: stage.id for _, stage in found}
        return [_retired(stage, newest[stage.name]) for _, stage in found]

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
        """Keeps a stage, which is from now on the one that its name means."""
        path = self._folder / f"{stage.id}.json"
        added = {"added_at": datetime.now(UTC).isoformat(timespec="microseconds")}
        text = json.dumps(added | stage_json(stage), indent=1, ensure_ascii=False) + "\n"
        try:
            write_atomic(path, text.encode("utf-8"))
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error}", hint="see CALORON_HOME") from error
        return path


def _retired(stage: StageSpec, newest: str) -> StageSpec:
    if stage.id == newest or stage.lifecycle.state != "Active":
        return stage
    return msgspec.structs.replace(stage, lifecycle=Lifecycle("Deprecated", newest))
