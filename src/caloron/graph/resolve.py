"""From references in a graph to the ids of the stages that will run."""

from __future__ import annotations

import string

import msgspec

from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import AmbiguousStage, UnknownStage
from caloron.graph.nodes import ROOT, Graph, Node, Stage, rebuilt, walk
from caloron.graph.profile import STRICT, Profile
from caloron.graph.spec import StageSpec

_MOST_HOPS = 10
_HEX = frozenset(string.hexdigits)


class Resolved(msgspec.Struct, frozen=True):
    """A graph whose references are ids, and what the author should know about some of them."""

    graph: Graph
    warnings: tuple[str, ...]


def resolve(graph: Graph, catalogue: Catalogue, profile: Profile = STRICT) -> Resolved:
    """The graph with each reference replaced by the id of the one stage it means."""
    resolver = _Resolver(catalogue, profile)
    root = resolver.node(ROOT, graph.root)
    return Resolved(msgspec.structs.replace(graph, root=root), tuple(resolver.warnings))


def unknown(graph: Graph, catalogue: Catalogue, profile: Profile = STRICT) -> list[UnknownStage]:
    """Every reference that means no stage, for whoever wants to know all of them at once."""
    resolver = _Resolver(catalogue, profile)
    found: list[UnknownStage] = []
    for path, node in walk(graph.root):
        if isinstance(node, Stage):
            try:
                resolver.node(path, node)
            except UnknownStage as error:
                found.append(error)
    return found


def lookup(reference: str, catalogue: Catalogue, profile: Profile = STRICT) -> StageSpec:
    """The one stage that a reference means, as a node of a graph would; else UnknownStage."""
    resolved = _Resolver(catalogue, profile).node("", Stage(reference))
    assert isinstance(resolved, Stage)
    stage = catalogue.get(resolved.id)
    assert stage is not None
    return stage


class _Resolver:
    def __init__(self, catalogue: Catalogue, profile: Profile) -> None:
        self._catalogue = catalogue
        self._wide = profile.resolves_widely
        self._known: dict[tuple[str, str], str] = {}
        self.warnings: list[str] = []

    def node(self, path: str, node: Node) -> Node:
        if not isinstance(node, Stage):
            return rebuilt(node, self.node, path)
        key = (node.id, node.pinning)
        if key not in self._known:
            self._known[key] = self._pinned(self._named(node.id, path), node.pinning, path)
        return msgspec.structs.replace(node, id=self._known[key])

    def _named(self, reference: str, path: str) -> str:
        """First an id, then a unique prefix of one, then a name.

        Widely, a name comes before a prefix: a short one of hexadecimal letters begins some id.
        """
        catalogue = self._catalogue
        if reference in catalogue:
            return reference
        if self._wide and catalogue.by_signature(reference):
            return reference
        if self._wide and catalogue.by_name(reference):
            return _only(_living(catalogue.by_name(reference)), reference, path).id
        if reference and set(reference) <= _HEX:
            hits = catalogue.by_prefix(reference)
            if hits:
                return _only(hits, reference, path).id
        candidates = _living(catalogue.by_name(reference))
        if not candidates and self._wide:
            candidates = _living(catalogue.by_alias(reference))
        if not candidates:
            raise UnknownStage(f"stage reference: no stage is called {reference!r}", path=path)
        return _only(candidates, reference, path).id

    def _pinned(self, id: str, pinning: str, path: str) -> str:
        """By signature any Active stage that has it; by both exactly this one, if it is Active."""
        if pinning == "signature":
            active = [s for s in self._catalogue.by_signature(id) if _is_active(s)]
            if active:
                return active[0].id
        stage = self._catalogue.get(id)
        if stage is not None and not _is_active(stage) and self._wide and pinning == "signature":
            stage = self._successor(stage)
        if stage is None or not _is_active(stage):
            state = "not there" if stage is None else stage.lifecycle.state
            raise UnknownStage(f"stage reference: {id} cannot be used: {state}", path=path)
        return stage.id

    def _successor(self, stage: StageSpec) -> StageSpec:
        seen = {stage.id}
        for _ in range(_MOST_HOPS):
            if stage.lifecycle.state != "Deprecated":
                break
            follower = self._catalogue.get(stage.lifecycle.successor_id)
            if follower is None or follower.id in seen:
                break
            self.warnings.append(f"stage {stage.id} is deprecated; {follower.id} is used")
            seen.add(follower.id)
            stage = follower
        return stage


def _is_active(stage: StageSpec) -> bool:
    return stage.lifecycle.state == "Active"


def _living(stages: list[StageSpec]) -> list[StageSpec]:
    return [stage for stage in stages if _is_active(stage)] or stages


def _only(stages: list[StageSpec], reference: str, path: str) -> StageSpec:
    if len(stages) > 1:
        ids = ", ".join(stage.id[:12] for stage in stages)
        raise AmbiguousStage(
            f"stage reference: {reference!r} means more than one stage: {ids}", path=path
        )
    return stages[0]
