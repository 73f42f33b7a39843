"""The stages that a user added: a file for each; of a name the newest is in use."""

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
        try:
            write_atomic(path, text.encode("utf-8"))
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error}", hint="see CALORON_HOME") from error
        return path


def _retired(stage: StageSpec, newest: str) -> StageSpec:
    if stage.id == newest or stage.lifecycle.state != "Active":
        return stage
    return msgspec.structs.replace(stage, lifecycle=Lifecycle("Deprecated", newest))
