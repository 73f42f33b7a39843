"""Follows values forward through a graph: what a node really gets, not only what it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from caloron.graph.catalogue import Catalogue
from caloron.graph.compat import mismatch
from caloron.graph.errors import Finding, UnknownStage
from caloron.graph.jsontext import MAX_NESTING, member
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
)
from caloron.graph.resolve import lookup
from caloron.graph.spec import StageSpec, with_config
from caloron.graph.types import (
    ANY,
    BOOL,
    NULL,
    Known,
    ListOf,
    NType,
    Record,
    RecordWith,
    Refined,
    Union,
    Var,
    nullable,
    parts,
    show,
    sorted_record,
    union,
    with_parts,
)
from caloron.graph.unify import CannotUnify, Substitution, has_variables

#: A type with more parts than this says nothing that is worth following further.
_MOST_PARTS = 1_000


def follow(root: Node, given: NType, catalogue: Catalogue) -> list[Finding]:
    """What is wrong with a graph when it is given a value of this type."""
    return followed(root, given, catalogue).findings


class Followed(NamedTuple):
    """What is wrong with a graph that is given a value, what comes out, and what it will call."""

    findings: list[Finding]
    gives: NType
    #: Stages that the graph does not name but passes to a stage by a reference that is known.
    called: list[tuple[str, StageSpec]]


def followed(root: Node, given: NType, catalogue: Catalogue) -> Followed:
    """Follows a value of this type through a graph."""
    flow = _Flow(catalogue)
    gives = flow.node(root, given, ROOT)
    return Followed(flow.findings, gives, flow.called)


class _Flow:
    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.findings: list[Finding] = []
        self.called: list[tuple[str, StageSpec]] = []
        self._ops: dict[type[Any], Callable[[Any, NType, str], NType]] = {
            Stage: self._stage,
            RemoteStage: self._remote,
            Const: lambda node, _given, _path: Known(node.value),
            Sequential: self._sequential,
            Parallel: self._parallel,
            Branch: self._branch,
            Fanout: self._fanout,
            Merge: self._merge,
            Retry: lambda node, given, path: self.node(node.stage, given, f"{path}.stage"),
            Let: self._let,
        }

    def node(self, node: Node, given: NType, path: str) -> NType:
        """What comes out of a node that gets this."""
        return _bounded(self._ops[type(node)](node, given, path))

    def _edge(self, given: NType, expected: NType, path: str) -> None:
        if isinstance(given, RecordWith):
            expected = _of_known_fields(expected, given)
        reason = mismatch(given, expected)
        if reason is not None:
            wanted, found = show(expected), show(given)
            message = f"expected {wanted}, found {found}: {reason}"
            if isinstance(given, Known):
                message = reason
            self.findings.append(Finding(message, path=path, expected=wanted, found=found))

    def _stage(self, node: Stage, given: NType, path: str) -> NType:
        stage = self._catalogue.get(node.id)
        if stage is None:
            return ANY
        if not node.config:
            self._edge(given, stage.input, path)
        else:
            self._config(node.config, stage.input, path)
            self._rest(given, node.config, stage.input, path)
        for reference in _references(stage, node.config or {}, given):
            with suppress(UnknownStage):
                self.called.append((path, lookup(reference, self._catalogue)))
        if not has_variables(stage.output):
            return stage.output
        return ANY if node.config else _instance(stage.input, stage.output, given)

    def _config(self, config: Mapping[str, Any], expected: NType, path: str) -> None:
        if isinstance(expected, Record):
            for name, value in config.items():
                if name in expected.fields:
                    self._edge(Known(value), expected.fields[name], member(f"{path}.config", name))

    def _rest(self, given: NType, config: Mapping[str, Any], expected: NType, path: str) -> None:
        """What config does not give must come from the object that the node gets."""
        is_object = isinstance(given, Record | RecordWith) or (
            isinstance(given, Known) and isinstance(given.value, dict)
        )
        if not isinstance(expected, Record) or not is_object:
            return
        left = {name: of for name, of in expected.fields.items() if name not in config}
        self._edge(given, sorted_record(left), path)

    def _remote(self, node: RemoteStage, given: NType, path: str) -> NType:
        self._edge(given, node.input, path)
        return node.output

    def _sequential(self, node: Sequential, given: NType, path: str) -> NType:
        for index, stage in enumerate(node.stages):
            given = self.node(stage, given, f"{path}.stages[{index}]")
        return given

    def _parallel(self, node: Parallel, given: NType, path: str) -> NType:
        results = {
            name: self.node(branch, _branch_input(given, name), member(f"{path}.branches", name))
            for name, branch in node.branches.items()
        }
        return sorted_record(results)

    def _branch(self, node: Branch, given: NType, path: str) -> NType:
        chosen = self.node(node.predicate, given, f"{path}.predicate")
        self._edge(chosen, BOOL, f"{path}.predicate")
        return union(
            (
                self.node(node.if_true, given, f"{path}.if_true"),
                self.node(node.if_false, given, f"{path}.if_false"),
            )
        )

    def _fanout(self, node: Fanout, given: NType, path: str) -> NType:
        source = self.node(node.source, given, f"{path}.source")
        results = [
            self.node(target, source, f"{path}.targets[{index}]")
            for index, target in enumerate(node.targets)
        ]
        return ListOf(union(results))

    def _merge(self, node: Merge, given: NType, path: str) -> NType:
        results: dict[str, NType] = {}
        for index, source in enumerate(node.sources):
            name = f"source_{index}"
            taken = _source_input(given, name)
            results[name] = self.node(source, taken, f"{path}.sources[{index}]")
        return self.node(node.target, sorted_record(results), f"{path}.target")

    def _let(self, node: Let, given: NType, path: str) -> NType:
        bound = {
            name: self.node(binding, given, member(f"{path}.bindings", name))
            for name, binding in node.bindings.items()
        }
        outer = _fields_of(given)
        body: NType
        if outer is not None:
            body = sorted_record({**outer, **bound})
        else:
            # Whatever the input holds, the bindings are certain.
            known = given.fields if isinstance(given, RecordWith) else {}
            body = RecordWith({**known, **bound}, "outer")
        return self.node(node.body, body, f"{path}.body")


def _references(stage: StageSpec, config: Mapping[str, Any], given: NType) -> list[str]:
    """References to stages in the input of a stage that takes stages, as far as they are known."""
    if not isinstance(stage.input, Record):
        return []
    known: dict[str, Any] = dict(config)
    if isinstance(given, Known):
        whole = with_config(stage, config, given.value, by_field=True) if config else given.value
        known = whole if isinstance(whole, dict) else {}
    elif isinstance(given, Record | RecordWith):
        fields = given.fields.items()
        known = {name: of.value for name, of in fields if isinstance(of, Known)} | known
    listed = known.get("stages")
    values = [known.get("stage_id"), *(listed if isinstance(listed, list) else [])]
    return [value for value in values if isinstance(value, str)]


def _of_known_fields(expected: NType, given: RecordWith) -> NType:
    """What is expected of the fields that are known; the others may or may not be there."""
    match expected:
        case Record(fields):
            return sorted_record({name: of for name, of in fields.items() if name in given.fields})
        case RecordWith() | Union() | Refined():
            return ANY
    return expected


def _fields_of(given: NType) -> Mapping[str, NType] | None:
    """The fields that a value of this type has: empty for no object, None if nobody knows."""
    match given:
        case Known(dict() as value):
            return {name: Known(of) for name, of in value.items()}
        case Record(fields):
            return fields
        case RecordWith() | Union() | Var() | Refined():
            return None
    return None if given == ANY else {}


def _branch_input(given: NType, name: str) -> NType:
    """The member of that name, else the whole; unknown where both may be."""
    match given:
        case Known(dict() as value):
            return Known(value[name]) if name in value else given
        case Record(fields) | RecordWith(fields) if name in fields and not nullable(fields[name]):
            return fields[name]
        case Record() | RecordWith() | Union() | Var() | Refined():
            return ANY
    return given


def _source_input(given: NType, name: str) -> NType:
    match given:
        case Known(dict() as value):
            return Known(value[name]) if name in value else NULL
    return _branch_input(given, name)


def _instance(takes: NType, gives: NType, given: NType) -> NType:
    """What a stage with type variables gives for this input."""
    known = Substitution()
    try:
        known.unify(given, takes)
        return _closed(known.apply(gives))
    except CannotUnify:
        return ANY


def _closed(of: NType) -> NType:
    """The type with Any where a variable is still open."""
    if isinstance(of, Var | RecordWith):
        return ANY
    return with_parts(of, _closed)


def _bounded(of: NType) -> NType:
    level, seen, depth = [of], 0, 0
    while level:
        seen += len(level)
        depth += 1
        if seen > _MOST_PARTS or depth > MAX_NESTING:
            return ANY
        level = [part for one in level for part in parts(one)]
    return of
