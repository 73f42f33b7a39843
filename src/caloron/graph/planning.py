"""The steps that a graph would run, their order and their declared cost."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from caloron.graph.catalogue import Catalogue
from caloron.graph.nodes import (
    Branch,
    Fanout,
    Let,
    Merge,
    Node,
    Parallel,
    Retry,
    Sequential,
    Stage,
)
from caloron.graph.stage import CostEstimate


class Step(msgspec.Struct, frozen=True):
    """One call of a stage, and the steps that come before it."""

    index: int
    stage_id: str
    depends_on: tuple[int, ...]


class Plan(msgspec.Struct, frozen=True):
    """All steps, the groups of steps that may run at once, and the declared costs."""

    steps: tuple[Step, ...]
    groups: tuple[tuple[int, ...], ...]
    cost: CostEstimate


def plan(root: Node, catalogue: Catalogue) -> Plan:
    """Return the steps of a resolved graph; both arms of a Branch count."""
    planner = _Planner(catalogue)
    planner.add(root, ())
    return Plan(tuple(planner.steps), tuple(planner.groups), planner.cost())


Indices = tuple[int, ...]


class _Planner:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.steps: list[Step] = []
        self.groups: list[Indices] = []

    def add(self, node: Node, after: Indices) -> Indices:
        """Add the steps of a node; return those for which the next steps wait."""
        match node:
            case Stage(id):
                self.steps.append(Step(len(self.steps), id, after))
                return (len(self.steps) - 1,)
            case Sequential(stages):
                return self._chain(stages, after)
            case Parallel(branches):
                return self._at_once(branches.values(), after)
            case Branch(predicate, if_true, if_false):
                decided = self.add(predicate, after)
                return self.add(if_true, decided) + self.add(if_false, decided)
            case Fanout(source, targets):
                return self._at_once(targets, self.add(source, after))
            case Merge(sources, last) | Let(sources, last):
                inner = sources if isinstance(sources, tuple) else sources.values()
                return self.add(last, self._at_once(inner, after))
        return self.add(node.stage, after) if isinstance(node, Retry) else after

    def _chain(self, stages: tuple[Node, ...], after: Indices) -> Indices:
        first = len(self.steps)
        for stage in stages:
            after = self.add(stage, after)
        # Noether counts a sequence of pure stages as a group.
        if len(stages) > 1 and all(self._is_pure(stage) for stage in stages):
            self.groups.append(tuple(range(first, len(self.steps))))
        return after

    def _is_pure(self, node: Node) -> bool:
        stage = self._catalogue.get(node.id) if isinstance(node, Stage) else None
        return stage is not None and stage.declares("Pure")

    def _at_once(self, nodes: Iterable[Node], after: Indices) -> Indices:
        ends: list[Indices] = [self.add(node, after) for node in nodes]
        group = tuple(end[0] for end in ends if end)
        if len(group) > 1:
            self.groups.append(group)
        return tuple(index for end in ends for index in end)

    def cost(self) -> CostEstimate:
        """Time and tokens add up, memory is the maximum; None if no stage declares any."""
        costs = [self._catalogue[step.stage_id].cost for step in self.steps]
        return CostEstimate(
            sum(cost.time_ms_p50 or 0 for cost in costs) or None,
            sum(cost.tokens_est or 0 for cost in costs) or None,
            max((cost.memory_mb or 0 for cost in costs), default=0) or None,
        )
