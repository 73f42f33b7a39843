"""What a graph may do: its effects, what is allowed, its declared cost, what to warn of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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

#: Stages that a graph passes to a stage by a constant reference (`Checked.called`).
Called = Iterable[tuple[str, StageSpec]]


def effects_of(root: Node, catalogue: Catalogue, called: Called = ()) -> Effects:
    """Every effect that any node declares, both arms of a Branch included."""
    declared = _declared(root, catalogue, called)
    return effect_set(effect for _, effects in declared for effect in effects)


def _declared(root: Node, catalogue: Catalogue, called: Called) -> Iterator[tuple[str, Effects]]:
    for path, node in walk(root):
        yield path, _effects_of_node(node, catalogue)
    for path, stage in called:
        yield path, stage.effects


def _effects_of_node(node: Node, catalogue: Catalogue) -> Effects:
    if isinstance(node, Stage):
        stage = catalogue.get(node.id)
        return (UNKNOWN,) if stage is None else stage.effects
    if isinstance(node, RemoteStage):
        return (NETWORK, FALLIBLE)
    return (PURE,) if isinstance(node, Const) else ()


#: What such a stage answers is not settled by its input, or trying it would do something.
_NOT_TRIED = ("Network", "Llm", "NonDeterministic", "Process", "FsWrite", "Unknown")
_NOT_GRANTED = ("Network", "FsWrite", "Llm", "Process")


def reaches(stage: StageSpec) -> str:
    """The word for what keeps a stage from being tried on an example; empty if nothing does."""
    for kind in _NOT_TRIED:
        if stage.declares(kind):
            return KINDS[kind]
    for capability in _NOT_GRANTED:
        if capability in stage.capabilities:
            return CAPABILITIES[capability]
    # A program without effects is shut in; a function of this process is not (`kv_set`).
    return "" if stage.declares("Pure") or stage.code is not None else KINDS["Unknown"]


def allow_effects(
    root: Node, catalogue: Catalogue, allowed: Iterable[str], called: Called = ()
) -> None:
    """Refuses a graph with an effect of a kind that is not among these; none given allows all."""
    kinds = frozenset(allowed)
    constants = {path for path, node in walk(root) if isinstance(node, Const)}
    findings = [
        Finding(f"the effect {KINDS[effect.kind]} is not allowed", path=path)
        for path, effects in _declared(root, catalogue, called)
        for effect in (() if path in constants else effects)
        if kinds and effect.kind not in kinds
    ]
    if findings:
        raise EffectRefused(findings)


def allow_capabilities(
    root: Node, catalogue: Catalogue, allowed: Iterable[str], called: Called = ()
) -> None:
    """Refuses a graph whose stages need more than these capabilities; none given allows all."""
    granted = frozenset(allowed)
    findings = [
        Finding(f"the capability {CAPABILITIES[needed]} is not granted", path=path)
        for path, stage in (*_stages(root, catalogue), *called)
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


def declared_cost(root: Node, catalogue: Catalogue, called: Called = ()) -> int:
    """The cents of every stage of a graph together, each counted once however often it runs."""
    stages = (*_stages(root, catalogue), *called)
    return sum(cost_of(stage.effects) for _, stage in stages)


def allow_cost(
    root: Node, catalogue: Catalogue, budget_cents: int | None, called: Called = ()
) -> None:
    """Refuses a graph that declares to cost more than the budget."""
    cost = declared_cost(root, catalogue, called)
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
