"""The stages that graphs can refer to, found by id, by signature, by name or by prefix."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

import msgspec

from caloron.graph.errors import GraphError, UnknownStage
from caloron.graph.spec import Lifecycle, StageSpec

_ALLOWED = {("Draft", "Active"), ("Active", "Deprecated"), ("Active", "Tombstone")}


class Catalogue:
    """Stages by id; at most one Active for each signature, the newest."""

    def __init__(self, stages: Iterable[StageSpec] = ()) -> None:
        self._stages: dict[str, StageSpec] = {}
        self._sorted: list[str] = []
        self._names: dict[str, set[str]] = {}
        self._aliases: dict[str, set[str]] = {}
        self._signatures: dict[str, set[str]] = {}
        for stage in stages:
            self.add(stage)

    def __iter__(self) -> Iterator[StageSpec]:
        return iter(list(self._stages.values()))

    def __len__(self) -> int:
        return len(self._stages)

    def __contains__(self, id: object) -> bool:
        return id in self._stages

    def add(self, stage: StageSpec) -> None:
        """Takes a stage in; an Active one takes the place of others with its signature."""
        if stage.id not in self._stages:
            insort(self._sorted, stage.id)
        self._stages[stage.id] = stage
        self._names.setdefault(stage.name, set()).add(stage.id)
        self._signatures.setdefault(stage.signature_id, set()).add(stage.id)
        for alias in stage.aliases:
            self._aliases.setdefault(alias, set()).add(stage.id)
        if stage.lifecycle.state == "Active":
            self._retire_others(stage)

    def _retire_others(self, newcomer: StageSpec) -> None:
        for other in self.by_signature(newcomer.signature_id):
            if other.id != newcomer.id and other.lifecycle.state == "Active":
                self._put(other, Lifecycle("Deprecated", newcomer.id))

    def _put(self, stage: StageSpec, lifecycle: Lifecycle) -> None:
        self._stages[stage.id] = msgspec.structs.replace(stage, lifecycle=lifecycle)

    def change(self, id: str, lifecycle: Lifecycle) -> None:
        """Moves a stage on in its life: Draft to Active, Active to Deprecated or Tombstone."""
        stage = self._stages.get(id)
        if stage is None:
            raise UnknownStage(f"no stage has the id {id}")
        step = (stage.lifecycle.state, lifecycle.state)
        if step not in _ALLOWED:
            raise GraphError(f"a stage that is {step[0]} cannot become {step[1]}")
        if lifecycle.state == "Deprecated" and lifecycle.successor_id not in self._stages:
            raise UnknownStage(f"the successor {lifecycle.successor_id} is not there")
        self._put(stage, lifecycle)
        if lifecycle.state == "Active":
            self._retire_others(self._stages[id])

    def get(self, id: str) -> StageSpec | None:
        return self._stages.get(id)

    def by_name(self, name: str) -> list[StageSpec]:
        return self._all(self._names.get(name, ()))

    def by_alias(self, alias: str) -> list[StageSpec]:
        return self._all(self._aliases.get(alias, ()))

    def by_signature(self, signature_id: str) -> list[StageSpec]:
        return self._all(self._signatures.get(signature_id, ()))

    def by_prefix(self, prefix: str) -> list[StageSpec]:
        """The stages whose id starts so."""
        found: list[StageSpec] = []
        place = bisect_left(self._sorted, prefix)
        while place < len(self._sorted) and self._sorted[place].startswith(prefix):
            found.append(self._stages[self._sorted[place]])
            place += 1
        return found

    def _all(self, ids: Iterable[str]) -> list[StageSpec]:
        return [self._stages[id] for id in sorted(ids)]
