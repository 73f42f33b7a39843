"""Whether the stages of a graph fit together, told before anything runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from caloron.graph.catalogue import Catalogue
from caloron.graph.compat import accepts, mismatch
from caloron.graph.errors import Finding
from caloron.graph.flow import followed
from caloron.graph.jsontext import member
from caloron.graph.nodes import (
    ROOT,
    Branch,
    Const,
    Fanout,
    Let,
    Merge,
    Node,
    Parallel,
    RemoteStage,
    Retry,
    Sequential,
    Stage,
    children,
)
from caloron.graph.profile import STRICT, Profile
from caloron.graph.spec import StageSpec
from caloron.graph.types import (
    ANY,
    BOOL,
    ListOf,
    NType,
    Record,
    Var,
    show,
    sorted_record,
    union,
)
from caloron.graph.unify import CannotUnify, Substitution, has_variables, renamed, without_fresh

_JOINTS = re.compile(r"[.\[]")


class Ends(msgspec.Struct, frozen=True):
    """What a node takes and what it gives."""

    input: NType
    output: NType


class Checked(msgspec.Struct, frozen=True):
    """The ends of a graph, and everything that is wrong with it."""

    input: NType
    output: NType
    findings: tuple[Finding, ...]
    #: Stages that the graph passes to a stage by a constant reference, each with its node.
    called: tuple[tuple[str, StageSpec], ...] = ()


def check(root: Node, catalogue: Catalogue, profile: Profile = STRICT) -> Checked:
    """Follows every edge of a resolved graph; collects all findings instead of stopping."""
    checker = _Checker(catalogue, profile)
    ends = checker.ends(root, ROOT)
    if ends is None:
        ends = Ends(ANY, ANY)
    else:
        ends = Ends(checker.applied(ends.input, ROOT), checker.applied(ends.output, ROOT))
    findings = checker.findings
    called: list[tuple[str, StageSpec]] = []
    if profile.follows_values:
        found, gives, called = followed(root, ends.input if not findings else ANY, catalogue)
        told = {finding.path for finding in findings}
        findings = findings + [new for new in found if not _is_told(new.path, told)]
        if not findings and has_variables(ends.output):
            # What a stage passes on as it comes is known only from what it gets.
            ends = Ends(ends.input, gives)
        ends = Ends(without_fresh(ends.input), without_fresh(ends.output))
    return Checked(ends.input, ends.output, tuple(findings), tuple(called))


def _is_told(path: str, told: set[str]) -> bool:
    """Whether something is already said about this node or one around it."""
    return path in told or any(path[: end.start()] in told for end in _JOINTS.finditer(path))


def stage_input(stage_input: NType, config: Mapping[str, Any] | None) -> NType:
    """What is left to be given to a stage whose config gives some fields in advance."""
    if not config or not isinstance(stage_input, Record):
        return stage_input
    left = {name: of for name, of in stage_input.fields.items() if name not in config}
    return Record(left) if len(left) > 1 else ANY


class _Checker:
    def __init__(self, catalogue: Catalogue, profile: Profile) -> None:
        self._catalogue = catalogue
        self._profile = profile
        self._known = Substitution(by_position=not profile.follows_values)
        self._uses = 0
        self.findings: list[Finding] = []
        self._ops: dict[type[Any], Callable[[Any, str], Ends | None]] = {
            Stage: self._stage,
            RemoteStage: lambda node, _: Ends(node.input, node.output),
            Const: lambda _node, _path: Ends(ANY, ANY),
            Sequential: self._sequential,
            Parallel: self._parallel,
            Branch: self._branch,
            Fanout: self._fanout,
            Merge: self._merge,
            Retry: lambda node, path: self.ends(node.stage, f"{path}.stage"),
            Let: self._let,
        }

    def ends(self, node: Node, path: str) -> Ends | None:
        """What a node takes and gives; None if something within is so wrong that nobody knows."""
        return self._ops[type(node)](node, path)

    def applied(self, of: NType, path: str) -> NType:
        try:
            return self._known.apply(of)
        except CannotUnify as error:
            self._find(str(error), path)
            return ANY

    def _find(self, message: str, path: str, **sides: str) -> None:
        self.findings.append(Finding(message, path=path, **sides))

    def _edge(self, produced: NType, expected: NType, path: str) -> None:
        """Unifies where variables are left, else compares."""
        produced, expected = self.applied(produced, path), self.applied(expected, path)
        if has_variables(produced) or has_variables(expected):
            try:
                self._known.unify(produced, expected)
                return
            except CannotUnify as error:
                reason: str | None = str(error)
        else:
            reason = mismatch(produced, expected)
        if reason is not None:
            sides = {"expected": show(expected), "found": show(produced)}
            self._find(
                f"expected {sides['expected']}, found {sides['found']}: {reason}", path, **sides
            )

    def _within(self, node: Node, path: str) -> list[tuple[str, Ends | None]]:
        found = []
        for at, child in children(node, path):
            ends = self.ends(child, at)
            found.append((at, self._applied_ends(ends, at)))
        return found

    def _applied_ends(self, ends: Ends | None, path: str) -> Ends | None:
        if ends is None:
            return None
        return Ends(self.applied(ends.input, path), self.applied(ends.output, path))

    def _empty(self, node: Node, holds: object, path: str) -> bool:
        if not holds:
            self._find(f"an empty {type(node).__name__} does nothing", path)
        return not holds

    def _stage(self, node: Stage, path: str) -> Ends | None:
        stage = self._catalogue.get(node.id)
        if stage is None:
            self._find(f"the stage {node.id} is not in the catalogue", path)
            return None
        takes, gives = stage.input, stage.output
        if self._profile.renames_variables and (has_variables(takes) or has_variables(gives)):
            self._uses += 1
            takes, gives = renamed(takes, f"#{self._uses}"), renamed(gives, f"#{self._uses}")
        return Ends(stage_input(takes, node.config), gives)

    def _sequential(self, node: Sequential, path: str) -> Ends | None:
        if self._empty(node, node.stages, path):
            return None
        within = self._within(node, path)
        for (_, before), (at, after) in pairwise(within):
            if before is not None and after is not None:
                self._edge(before.output, after.input, at)
        first, last = within[0][1], within[-1][1]
        if first is None or last is None:
            return None
        return Ends(self.applied(first.input, path), self.applied(last.output, path))

    def _parallel(self, node: Parallel, path: str) -> Ends | None:
        if self._empty(node, node.branches, path):
            return None
        found = [ends for _, ends in self._within(node, path)]
        named = {name: e for name, e in zip(node.branches, found, strict=True) if e is not None}
        if len(named) < len(found):
            return None
        return Ends(
            sorted_record({name: ends.input for name, ends in named.items()}),
            sorted_record({name: ends.output for name, ends in named.items()}),
        )

    def _branch(self, node: Branch, path: str) -> Ends | None:
        (at, predicate), (_, if_true), (_, if_false) = (
            (at, self.ends(child, at)) for at, child in children(node, path)
        )
        if predicate is not None:
            self._edge(predicate.output, BOOL, at)
        if predicate is None or if_true is None or if_false is None:
            return None
        takes = predicate.input
        if self._profile.follows_values:
            takes = meet([takes, if_true.input, if_false.input])
        return Ends(takes, union([if_true.output, if_false.output]))

    def _fanout(self, node: Fanout, path: str) -> Ends | None:
        if self._empty(node, node.targets, path):
            return None
        (_, source), *targets = self._within(node, path)
        if source is not None:
            for at, target in targets:
                if target is not None:
                    self._edge(source.output, target.input, at)
        outputs = [target.output for _, target in targets if target is not None]
        if source is None or len(outputs) < len(targets):
            return None
        return Ends(source.input, ListOf(outputs[0] if len(outputs) == 1 else union(outputs)))

    def _merge(self, node: Merge, path: str) -> Ends | None:
        if self._empty(node, node.sources, path):
            return None
        *sources, (at, target) = self._within(node, path)
        known = {f"source_{i}": ends for i, (_, ends) in enumerate(sources) if ends is not None}
        if target is None:
            return None
        given = sorted_record({name: ends.output for name, ends in known.items()})
        self._edge(given, target.input, at)
        return Ends(sorted_record({n: ends.input for n, ends in known.items()}), target.output)

    def _let(self, node: Let, path: str) -> Ends | None:
        if self._empty(node, node.bindings, path):
            return None
        *bindings, (at, body) = self._within(node, path)
        bound = {
            name: ends
            for name, (_, ends) in zip(node.bindings, bindings, strict=True)
            if ends is not None
        }
        if body is None or len(bound) < len(bindings):
            return None
        needed: dict[str, NType] = {}
        for ends in bound.values():
            if isinstance(ends.input, Record):
                needed.update(ends.input.fields)
        given = needed | {name: ends.output for name, ends in bound.items()}
        if isinstance(body.input, Record):
            for name, expected in body.input.fields.items():
                if name in given:
                    self._edge(given[name], expected, member(f"{at}.input", name))
                else:
                    needed[name] = expected
        open_input = any(not isinstance(ends.input, Record) for ends in bound.values())
        takes = ANY if open_input or not needed else sorted_record(needed)
        return Ends(takes, body.output)


def meet(types: Sequence[NType]) -> NType:
    """One type that fits all of these, where that can be said; else the first."""
    first, *others = types
    for other in others:
        first = _meet(first, other)
    return first


def _meet(one: NType, other: NType) -> NType:
    if one == ANY or isinstance(one, Var):
        return other
    if isinstance(one, Record) and isinstance(other, Record):
        fields = dict(one.fields)
        for name, of in other.fields.items():
            fields[name] = _meet(fields[name], of) if name in fields else of
        return sorted_record(fields)
    return other if other != ANY and accepts(one, other) else one
