"""What a graph may do: its effects, what is allowed, its declared cost, what to warn of."""

from __future__ import annotations

from collections.abc import Iterable

from caloron.graph.catalogue import Catalogue
from caloron.graph.effects import (
    CAPABILITIES,
    FALLIBLE,
    KINDS,
    NETWORK,
    PURE,
    UNKNOWN,
    Effects,
    cost_of,
    effect_set,
)
from caloron.graph.errors import BudgetRefused, CapabilityRefused, EffectRefused, Finding
from caloron.graph.nodes import (
    Const,
    Node,
    RemoteStage,
    Retry,
    Sequential,
    Stage,
    children,
    walk,
)
from caloron.graph.profile import STRICT, Profile
from caloron.graph.spec import StageSpec


def effects_of(root: Node, catalogue: Catalogue) -> Effects:
    """Every effect that any node declares, both arms of a Branch included."""
    return effect_set(effect for _, node in walk(root) for effect in _declared(node, catalogue))


def _declared(node: Node, catalogue: Catalogue) -> Effects:
    if isinstance(node, Stage):
        stage = catalogue.get(node.id)
        return (UNKNOWN,) if stage is None else stage.effects
    if isinstance(node, RemoteStage):
        return (NETWORK, FALLIBLE)
    return (PURE,) if isinstance(node, Const) else ()


def allow_effects(root: Node, catalogue: Catalogue, allowed: Iterable[str]) -> None:
    """Refuses a graph with an effect of a kind that is not among these; none given allows all."""
    kinds = frozenset(allowed)
    findings = [
        Finding(f"the effect {KINDS[effect.kind]} is not allowed", path=path)
        for path, node in walk(root)
        for effect in (() if isinstance(node, Const) else _declared(node, catalogue))
        if kinds and effect.kind not in kinds
    ]
    if findings:
        raise EffectRefused(findings)


def allow_capabilities(root: Node, catalogue: Catalogue, allowed: Iterable[str]) -> None:
    """Refuses a graph whose stages need more than these capabilities; none given allows all."""
    granted = frozenset(allowed)
    findings = [
        Finding(f"the capability {CAPABILITIES[needed]} is not granted", path=path)
        for path, stage in _stages(root, catalogue)
        for needed in sorted(stage.capabilities)
        if granted and needed not in granted
    ]
    if findings:
        raise CapabilityRefused(findings)


def _stages(root: Node, catalogue: Catalogue) -> Iterable[tuple[str, StageSpec]]:
    for path, node in walk(root):
        stage = catalogue.get(node.id) if isinstance(node, Stage) else None
        if stage is not None:
            yield path, stage


def declared_cost(root: Node, catalogue: Catalogue) -> int:
    """The cents of every stage of a graph together, each counted once however often it runs."""
    return sum(cost_of(stage.effects) for _, stage in _stages(root, catalogue))


def allow_cost(root: Node, catalogue: Catalogue, budget_cents: int | None) -> None:
    """Refuses a graph that declares to cost more than the budget."""
    cost = declared_cost(root, catalogue)
    if budget_cents is not None and cost > budget_cents:
        message = f"the stages declare to cost {cost} cents; the budget is {budget_cents}"
        raise BudgetRefused([Finding(message, path="$.root")])


def warnings_of(root: Node, catalogue: Catalogue, profile: Profile = STRICT) -> tuple[str, ...]:
    """What is worth a second look, without being wrong."""
    collector = _Warnings(catalogue, profile)
    collector.collect(root)
    return tuple(message for message, _ in collector.told)


class _Warnings:
    def __init__(self, catalogue: Catalogue, profile: Profile) -> None:
        self._catalogue = catalogue
        self._profile = profile
        #: Each warning with the id of the fallible stage that it is about, if it is one of those.
        self.told: list[tuple[str, str]] = []

    def collect(self, node: Node) -> None:
        within = [child for _, child in children(node)]
        for index, child in enumerate(within):
            self.collect(child)
            if isinstance(node, Sequential):
                after = within[index + 1] if index + 1 < len(within) else None
                self._look(child, after)
        if self._profile.retry_takes_back_warnings and isinstance(node, Retry):
            retried = node.stage.id if isinstance(node.stage, Stage) else None
            self.told = [(message, about) for message, about in self.told if about != retried]

    def _look(self, node: Node, after: Node | None) -> None:
        stage = self._spec(node)
        if stage is None:
            return
        if stage.declares("Fallible"):
            message = f"stage {stage.id} is Fallible but has no Retry wrapper"
            self.told.append((f"{message}; failures will propagate", stage.id))
        fed = self._spec(after)
        if stage.declares("NonDeterministic") and fed is not None and fed.declares("Pure"):
            message = f"stage {stage.id} is NonDeterministic but feeds Pure stage {fed.id}"
            self.told.append((f"{message}; Pure caching will be bypassed", ""))

    def _spec(self, node: Node | None) -> StageSpec | None:
        return self._catalogue.get(node.id) if isinstance(node, Stage) else None
