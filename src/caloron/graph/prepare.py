"""Everything before a run: parse, identify, resolve, check, and test permissions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from caloron.graph.catalogue import Catalogue, resolve
from caloron.graph.checker import Called, CheckResult, check
from caloron.graph.errors import CheckError, Refused
from caloron.graph.nodes import (
    ROOT,
    Const,
    Graph,
    Node,
    RemoteStage,
    Sequential,
    Stage,
    children,
    composition_id,
    walk,
)
from caloron.graph.parser import parse_graph
from caloron.graph.stage import (
    CAPABILITIES,
    KINDS,
    PURE,
    REMOTE_EFFECTS,
    Effects,
    StageSpec,
    cost_of,
    effect_set,
    kinds_of_words,
)

#: Effects and capabilities of stages that examples must not run: they act on the outside world,
#: or their answer does not follow from their input.
_EFFECTS_NOT_TESTED = ("Network", "Llm", "NonDeterministic", "Process", "FsWrite", "Unknown")
_CAPABILITIES_NOT_TESTED = ("Network", "FsWrite", "Llm", "Process")


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller allows; an empty field allows everything."""

    #: Kinds of effects by their words (`network`, `fs-read`, …); pure is one of them.
    effects: Iterable[str] = ()
    #: Capabilities by their words.
    capabilities: Iterable[str] = ()
    budget_cents: int | None = None


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A graph that may run."""

    graph: Graph
    #: The id of the graph as written, before references were resolved.
    composition_id: str
    #: With ids in place of references.
    root: Node
    checked: CheckResult
    effects: Effects
    warnings: tuple[str, ...]
    catalogue: Catalogue
    #: The cents that all stages declare, each node counted once.
    cost_cents: int
    strict: bool = True
    budget_cents: int | None = None
    #: Kinds of effects that are allowed; empty for all.
    allowed: frozenset[str] = frozenset()
    #: Capabilities that are granted; empty for all.
    granted: frozenset[str] = frozenset()
    #: Refuse called stages that an example must not run.
    examples_only: bool = False


def prepare(
    graph: Graph | str | bytes,
    catalogue: Catalogue,
    permissions: Permissions | None = None,
    *,
    strict: bool = True,
) -> Prepared:
    """Make a graph ready to run; a `GraphError` lists everything that is wrong with it.

    Without `strict`, a graph is read and judged as Noether does: unknown fields are ignored, and
    fewer edges are checked.
    """
    permissions = permissions or Permissions()
    if not isinstance(graph, Graph):
        graph = parse_graph(graph, strict=strict)
    resolved = resolve(graph, catalogue, strict=strict)
    root = resolved.graph.root
    checked = check(root, catalogue, strict=strict)
    if checked.errors:
        raise Refused(checked.errors)
    stages = _stages(root, catalogue, checked.called)
    needs = [(path, stage.effects, stage.capabilities) for path, stage in stages]
    remote = [path for path, node in walk(root) if isinstance(node, RemoteStage)]
    needs += [(path, REMOTE_EFFECTS, frozenset()) for path in remote]
    granted = kinds_of_words(permissions.capabilities, CAPABILITIES)
    allowed = kinds_of_words(permissions.effects, KINDS)
    refused = [
        (kind, CheckError(reason, path=path))
        for path, effects, capabilities in needs
        for kind, reason in missing_permissions(effects, capabilities, allowed, granted)
    ]
    for kind in ("capabilities", "effects"):
        if errors := [error for of, error in refused if of == kind]:
            raise Refused(errors, kind=kind)
    cost = sum(cost_of(stage.effects) for _, stage in stages)
    _require_budget(cost, permissions.budget_cents)
    declared = [effect for _, effects, _ in needs for effect in effects]
    has_constants = any(isinstance(node, Const) for _, node in walk(root))
    return Prepared(
        graph=graph,
        composition_id=composition_id(graph),
        root=root,
        checked=checked,
        effects=effect_set(declared + [PURE] * has_constants),
        warnings=resolved.warnings + _warnings_of(root, catalogue),
        catalogue=catalogue,
        cost_cents=cost,
        strict=strict,
        budget_cents=permissions.budget_cents,
        allowed=allowed,
        granted=granted,
    )


def _stages(root: Node, catalogue: Catalogue, called: Called) -> Called:
    """Return the stage of each node, and the stages that are passed to them, with their paths."""
    nodes = [(path, node) for path, node in walk(root) if isinstance(node, Stage)]
    return [*((path, catalogue[node.id]) for path, node in nodes), *called]


def untestable_effect(stage: StageSpec) -> str:
    """The word for the effect that keeps a stage from being run on examples; empty if none."""
    for kind in _EFFECTS_NOT_TESTED:
        if stage.declares(kind):
            return KINDS[kind]
    for capability in _CAPABILITIES_NOT_TESTED:
        if capability in stage.capabilities:
            return CAPABILITIES[capability]
    # A program without effects is sandboxed; a function of this process is not (`kv_set`).
    return "" if stage.declares("Pure") or stage.code is not None else KINDS["Unknown"]


def missing_permissions(
    effects: Effects, capabilities: Iterable[str], allowed: frozenset[str], granted: frozenset[str]
) -> Iterator[tuple[str, str]]:
    """Yield the kind and the reason of each refusal; nothing named allows everything."""
    for needed in sorted(capabilities):
        if granted and needed not in granted:
            yield "capabilities", f"the capability {CAPABILITIES[needed]} is not granted"
    for effect in effects:
        if allowed and effect.kind not in allowed:
            yield "effects", f"the effect {effect.word} is not allowed"


def _require_budget(cost: int, budget_cents: int | None) -> None:
    if budget_cents is not None and cost > budget_cents:
        message = f"the stages declare to cost {cost} cents; the budget is {budget_cents}"
        raise Refused([CheckError(message, path=ROOT)], kind="budget")


def _warnings_of(root: Node, catalogue: Catalogue) -> tuple[str, ...]:
    """Warnings about sequences: failures that are not retried, caching that cannot work."""
    warnings: list[str] = []

    def spec(node: Node | None) -> StageSpec | None:
        return catalogue.get(node.id) if isinstance(node, Stage) else None

    def collect(node: Node) -> None:
        inner = [child for _, child in children(node)]
        for index, child in enumerate(inner):
            collect(child)
            stage = spec(child) if isinstance(node, Sequential) else None
            if stage is None:
                continue
            if stage.declares("Fallible"):
                warnings.append(
                    f"stage {stage.id} is Fallible but has no Retry wrapper;"
                    " failures will propagate"
                )
            fed = spec(inner[index + 1]) if index + 1 < len(inner) else None
            if stage.declares("NonDeterministic") and fed is not None and fed.declares("Pure"):
                warnings.append(
                    f"stage {stage.id} is NonDeterministic but feeds Pure stage {fed.id};"
                    " Pure caching will be bypassed"
                )

    collect(root)
    return tuple(warnings)
