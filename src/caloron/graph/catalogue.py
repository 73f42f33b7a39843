"""The stages that graphs can refer to, and the one look-up of a reference."""

from __future__ import annotations

import string
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

from caloron.graph.errors import AmbiguousStage, UnknownStage
from caloron.graph.nodes import ROOT, Graph, Node, Stage, rebuilt, walk
from caloron.graph.stage import Lifecycle, StageSpec

_MAX_HOPS = 10
_HEX = frozenset(string.hexdigits)


class Resolution(NamedTuple):
    """The stage that a reference means, and warnings for the author of the reference."""

    stage: StageSpec
    warnings: tuple[str, ...] = ()


class Catalogue:
    """Stages by id; at most one stage of a signature is Active, the newest."""

    def __init__(self, stages: Iterable[StageSpec] = ()) -> None:
        self._stages: dict[str, StageSpec] = {}
        #: The ids of the stages of a name, of an alias, of a signature.
        self._names: defaultdict[str, set[str]] = defaultdict(set)
        self._aliases: defaultdict[str, set[str]] = defaultdict(set)
        self._signatures: defaultdict[str, set[str]] = defaultdict(set)
        for stage in stages:
            self.add(stage)

    def __iter__(self) -> Iterator[StageSpec]:
        return iter(list(self._stages.values()))

    def __contains__(self, id: object) -> bool:
        return id in self._stages

    def add(self, stage: StageSpec) -> None:
        """Add a stage; an Active one deprecates the others of its signature."""
        self._stages[stage.id] = stage
        self._names[stage.name].add(stage.id)
        self._signatures[stage.signature_id].add(stage.id)
        for alias in stage.aliases:
            self._aliases[alias].add(stage.id)
        if not _is_active(stage):
            return
        for other in self.by_signature(stage.signature_id):
            if other.id != stage.id and _is_active(other):
                deprecated = Lifecycle("Deprecated", stage.id)
                self._stages[other.id] = msgspec.structs.replace(other, lifecycle=deprecated)

    def __getitem__(self, id: str) -> StageSpec:
        return self._stages[id]

    def get(self, id: str) -> StageSpec | None:
        return self._stages.get(id)

    def by_name(self, name: str) -> list[StageSpec]:
        return self._all(self._names.get(name, ()))

    def by_signature(self, signature_id: str) -> list[StageSpec]:
        return self._all(self._signatures.get(signature_id, ()))

    def _all(self, ids: Iterable[str]) -> list[StageSpec]:
        return [self._stages[id] for id in sorted(ids)]

    def lookup(
        self,
        reference: str,
        *,
        pinning: Literal["signature", "both"] = "signature",
        strict: bool = True,
        path: str = "",
    ) -> Resolution:
        """Return the one stage that a reference means.

        A reference is an id, a unique prefix of one, or a name; with `strict` also a signature id
        or an alias. Pinning by signature selects the Active stage of that signature, pinning by
        both selects exactly the stage that is named.
        """
        id = self._id_of(reference, strict=strict, path=path)
        if pinning == "signature":
            active = [stage for stage in self.by_signature(id) if _is_active(stage)]
            if active:
                return Resolution(active[0])
        stage = self.get(id)
        warnings: tuple[str, ...] = ()
        if stage is not None and not _is_active(stage) and strict and pinning == "signature":
            stage, warnings = self._successor(stage)
        if stage is None or not _is_active(stage):
            state = "not there" if stage is None else stage.lifecycle.state
            raise UnknownStage(f"stage reference: {id} cannot be used: {state}", path=path)
        return Resolution(stage, warnings)

    def _id_of(self, reference: str, *, strict: bool, path: str) -> str:
        """Return the id or the signature id that a reference means.

        With `strict`, a name comes before a prefix: a short name of hexadecimal letters could be
        the beginning of some id.
        """
        if reference in self or (strict and self.by_signature(reference)):
            return reference
        named = _active_or_all(self.by_name(reference))
        is_prefix = bool(reference) and set(reference) <= _HEX
        prefixed = self._all(id for id in self._stages if is_prefix and id.startswith(reference))
        aliased = _active_or_all(self._all(self._aliases.get(reference, ()))) if strict else []
        order = (named, prefixed, aliased) if strict else (prefixed, named)
        stages = next(filter(None, order), None)
        if stages is None:
            raise UnknownStage(f"stage reference: no stage is called {reference!r}", path=path)
        if len(stages) > 1:
            ids = ", ".join(stage.id[:12] for stage in stages)
            raise AmbiguousStage(
                f"stage reference: {reference!r} means more than one stage: {ids}", path=path
            )
        return stages[0].id

    def _successor(self, stage: StageSpec) -> Resolution:
        """Follow a deprecated stage to the stage that replaced it."""
        warnings: list[str] = []
        seen = {stage.id}
        while stage.lifecycle.state == "Deprecated" and len(seen) <= _MAX_HOPS:
            successor = self.get(stage.lifecycle.successor_id)
            if successor is None or successor.id in seen:
                break
            warnings.append(f"stage {stage.id} is deprecated; {successor.id} is used")
            seen.add(successor.id)
            stage = successor
        return Resolution(stage, tuple(warnings))


def _is_active(stage: StageSpec) -> bool:
    return stage.lifecycle.state == "Active"


def _active_or_all(stages: list[StageSpec]) -> list[StageSpec]:
    return [stage for stage in stages if _is_active(stage)] or stages


class ResolvedGraph(NamedTuple):
    """A graph whose references are ids, and warnings for its author."""

    graph: Graph
    warnings: tuple[str, ...]


def resolve(graph: Graph, catalogue: Catalogue, *, strict: bool = True) -> ResolvedGraph:
    """Replace each reference of a graph by the id of the stage that it means."""
    known: dict[tuple[str, str], str] = {}
    warnings: list[str] = []

    def resolved(path: str, node: Node) -> Node:
        if not isinstance(node, Stage):
            return rebuilt(node, resolved, path)
        key = (node.id, node.pinning)
        if key not in known:
            stage, new = catalogue.lookup(node.id, pinning=node.pinning, strict=strict, path=path)
            known[key] = stage.id
            warnings.extend(new)
        return msgspec.structs.replace(node, id=known[key])

    root = resolved(ROOT, graph.root)
    return ResolvedGraph(msgspec.structs.replace(graph, root=root), tuple(warnings))


def unknown_references(
    graph: Graph, catalogue: Catalogue, *, strict: bool = True
) -> list[UnknownStage]:
    """Return an error for every reference of a graph that means no stage."""
    errors: list[UnknownStage] = []
    for path, node in walk(graph.root):
        if isinstance(node, Stage):
            try:
                catalogue.lookup(node.id, pinning=node.pinning, strict=strict, path=path)
            except UnknownStage as error:
                errors.append(error)
    return errors
