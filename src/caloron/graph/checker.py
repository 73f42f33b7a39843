"""Checks whether the stages of a graph fit together.

The checker propagates types forward, from the input of a graph to its output. The first pass starts
with an unknown input and finds out which input the graph requires. The second pass starts with that
input, so that two parts of a graph that require contradictory inputs are reported, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import CheckError, UnknownStage
from caloron.graph.json_text import MAX_NESTING, Json, member
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
from caloron.graph.stage import StageSpec, with_config
from caloron.graph.subtyping import accepts, mismatch
from caloron.graph.types import (
    ANY,
    BOOL,
    ListOf,
    LiteralType,
    MapOf,
    NType,
    Record,
    RecordWith,
    Refined,
    Union,
    Var,
    infer,
    nullable,
    parts,
    show,
    sorted_record,
    union,
    with_parts,
)

#: Larger types are replaced by Any, so that no graph makes a type grow without end.
_MAX_PARTS = 1_000
#: Stages that a graph passes to a stage by a constant reference, each with the path of its node.
Called = Sequence[tuple[str, StageSpec]]


class Signature(msgspec.Struct, frozen=True):
    """The type that a node requires and the type that it produces."""

    input: NType
    output: NType


class CheckResult(msgspec.Struct, frozen=True):
    """The signature of a graph, every error, and the stages that it passes to other stages."""

    input: NType
    output: NType
    errors: tuple[CheckError, ...]
    called: Called = ()


def check(root: Node, catalogue: Catalogue, *, strict: bool = True) -> CheckResult:
    """Check a resolved graph; all errors are collected.

    Without `strict`, only the edges that Noether checks are checked: no constants, no values of
    `config`, and of a Branch only the predicate.
    """
    first = _Checker(catalogue, strict=strict)
    signature = first.visit(root, ANY, ROOT)
    required = _without_variables(signature.input)
    if first.errors or not strict:
        return first.result(required, signature.output)
    second = _Checker(catalogue, strict=True)
    return second.result(required, second.visit(root, required, ROOT).output)


def check_value(root: Node, value: Json, catalogue: Catalogue) -> CheckResult:
    """Check a resolved graph for one input value."""
    checker = _Checker(catalogue, strict=True, declared=False)
    signature = checker.visit(root, LiteralType(value), ROOT)
    return checker.result(signature.input, signature.output)


class _Checker:
    """Visits every node with the type that reaches it."""

    def __init__(self, catalogue: Catalogue, *, strict: bool, declared: bool = True) -> None:
        self._catalogue = catalogue
        self._strict = strict
        #: Records come from declarations, so that a branch without a member of its name is an
        #: error. A value may lack that member: then the branch gets the whole value.
        self._declared = declared
        self.errors: list[CheckError] = []
        self.called: list[tuple[str, StageSpec]] = []
        self._ops: dict[type[Any], Callable[[Any, NType, str], Signature]] = {
            Stage: self._stage,
            RemoteStage: self._remote,
            Const: self._const,
            Sequential: self._sequential,
            Parallel: self._parallel,
            Branch: self._branch,
            Fanout: self._fanout,
            Merge: self._merge,
            Retry: lambda node, produced, path: self.visit(node.stage, produced, f"{path}.stage"),
            Let: self._let,
        }

    def result(self, required: NType, output: NType) -> CheckResult:
        return CheckResult(required, output, tuple(self.errors), tuple(self.called))

    def visit(self, node: Node, produced: NType, path: str) -> Signature:
        """Check a node that gets a value of the type `produced`."""
        if not isinstance(node, Stage | RemoteStage | Const | Branch | Retry):
            inner = list(children(node))
            if len(inner) < (1 if isinstance(node, Sequential | Parallel) else 2):
                return self._refuse(f"an empty {type(node).__name__} does nothing", path)
        signature = self._ops[type(node)](node, produced, path)
        return Signature(_bounded(signature.input), _bounded(signature.output))

    def _refuse(self, message: str, path: str) -> Signature:
        self.errors.append(CheckError(message, path=path))
        return Signature(ANY, ANY)

    def _edge(self, produced: NType, expected: NType, path: str) -> None:
        if isinstance(produced, RecordWith):
            expected = _known_part(expected, produced)
        reason = mismatch(produced, expected)
        if reason is not None:
            wanted, found = show(expected), show(produced)
            message = f"expected {wanted}, found {found}: {reason}"
            if isinstance(produced, LiteralType):
                message = reason
            self.errors.append(CheckError(message, path=path, expected=wanted, found=found))

    def _stage(self, node: Stage, produced: NType, path: str) -> Signature:
        stage = self._catalogue[node.id]
        expected = remaining_input(stage.input, node.config)
        self._edge(produced, expected, path)
        if node.config and self._strict:
            self._config(node.config, stage.input, produced, path)
        for reference in _references(stage, node.config or {}, produced):
            with suppress(UnknownStage):
                self.called.append((path, self._catalogue.lookup(reference).stage))
        if not has_variables(stage.output):
            return Signature(expected, stage.output)
        output = ANY if node.config else instantiate(stage.input, stage.output, produced)
        return Signature(expected, output)

    def _config(
        self, config: Mapping[str, Json], expected: NType, produced: NType, path: str
    ) -> None:
        """Check the fields in `config`, and that the input has all others."""
        if not isinstance(expected, Record):
            return
        for name, value in config.items():
            if name in expected.fields:
                at = member(f"{path}.config", name)
                self._edge(LiteralType(value), expected.fields[name], at)
        left = {name: of for name, of in expected.fields.items() if name not in config}
        if len(left) < 2 and _is_object(produced):
            self._edge(produced, sorted_record(left), path)

    def _remote(self, node: RemoteStage, produced: NType, path: str) -> Signature:
        self._edge(produced, node.input, path)
        return Signature(node.input, node.output)

    def _const(self, node: Const, _produced: NType, _path: str) -> Signature:
        return Signature(ANY, LiteralType(node.value) if self._strict else ANY)

    def _sequential(self, node: Sequential, produced: NType, path: str) -> Signature:
        signatures: list[Signature] = []
        for at, child in children(node, path):
            signatures.append(self.visit(child, produced, at))
            produced = signatures[-1].output
        return Signature(signatures[0].input, produced)

    def _parallel(self, node: Parallel, produced: NType, path: str) -> Signature:
        branches = dict(zip(node.branches, children(node, path), strict=True))
        return self._members(branches, produced, produced, path)

    def _members(
        self, nodes: Mapping[str, tuple[str, Node]], produced: NType, otherwise: NType, path: str
    ) -> Signature:
        """Check nodes of which each gets the member of its own name, or something otherwise."""
        known = _known_fields(produced)
        is_value = isinstance(produced, LiteralType)
        signatures = {
            name: self.visit(node, known.get(name, otherwise if is_value else ANY), at)
            for name, (at, node) in nodes.items()
        }
        required = sorted_record({name: of.input for name, of in signatures.items()})
        missing = isinstance(produced, Record) and any(
            name not in produced.fields and not nullable(of) for name, of in required.fields.items()
        )
        if self._declared and (missing or _is_no_object(produced)):
            self._edge(produced, required, path)
        return Signature(
            required, sorted_record({name: of.output for name, of in signatures.items()})
        )

    def _branch(self, node: Branch, produced: NType, path: str) -> Signature:
        at = f"{path}.predicate"
        predicate = self.visit(node.predicate, produced, at)
        self._edge(predicate.output, BOOL, at)
        # Noether does not check what reaches the arms.
        arm = produced if self._strict else ANY
        if_true = self.visit(node.if_true, arm, f"{path}.if_true")
        if_false = self.visit(node.if_false, arm, f"{path}.if_false")
        required = predicate.input
        if self._strict:
            required = meet([required, if_true.input, if_false.input])
        return Signature(required, union([if_true.output, if_false.output]))

    def _fanout(self, node: Fanout, produced: NType, path: str) -> Signature:
        (at, source), *targets = children(node, path)
        signature = self.visit(source, produced, at)
        outputs = [self.visit(target, signature.output, at).output for at, target in targets]
        return Signature(signature.input, ListOf(union(outputs)))

    def _merge(self, node: Merge, produced: NType, path: str) -> Signature:
        *sources, (at, target) = children(node, path)
        named = {f"source_{index}": source for index, source in enumerate(sources)}
        # A source without a member of its name gets null.
        otherwise = LiteralType(None) if _is_object(produced) else produced
        signature = self._members(named, produced, otherwise, path)
        return Signature(signature.input, self.visit(target, signature.output, at).output)

    def _let(self, node: Let, produced: NType, path: str) -> Signature:
        *bindings, (at, body) = children(node, path)
        signatures = [self.visit(binding, produced, where) for where, binding in bindings]
        required: dict[str, NType] = {}
        for signature in signatures:
            if isinstance(signature.input, Record):
                required.update(signature.input.fields)
        bound = {name: of.output for name, of in zip(node.bindings, signatures, strict=True)}
        outer = _known_fields(produced)
        scope: NType = sorted_record({**outer, **bound})
        if produced == ANY or isinstance(produced, RecordWith | Union | Var | Refined):
            # The outer fields are unknown; the bindings and what they require are not.
            scope = RecordWith({**required, **outer, **bound}, "outer")
        result = self.visit(body, scope, at)
        if isinstance(result.input, Record):
            for name, of in result.input.fields.items():
                if name not in bound:
                    required.setdefault(name, of)
        unknown = any(not isinstance(signature.input, Record) for signature in signatures)
        expected = ANY if unknown or not required else sorted_record(required)
        return Signature(expected, result.output)


def remaining_input(expected: NType, config: Mapping[str, Json] | None) -> NType:
    """Return the input that a stage requires besides the fields in `config`."""
    if not config or not isinstance(expected, Record):
        return expected
    left = {name: of for name, of in expected.fields.items() if name not in config}
    return Record(left) if len(left) > 1 else ANY


def _references(stage: StageSpec, config: Mapping[str, Json], produced: NType) -> list[str]:
    """References to stages in the input of a stage that calls stages, as far as they are known."""
    if not isinstance(stage.input, Record):
        return []
    if config and isinstance(produced, LiteralType):
        produced = LiteralType(with_config(stage, config, produced.value))
    fields = _known_fields(produced).items()
    known = {name: of.value for name, of in fields if isinstance(of, LiteralType)} | dict(config)
    listed = known.get("stages")
    values = [known.get("stage_id"), *(listed if isinstance(listed, list) else [])]
    return [value for value in values if isinstance(value, str)]


def _is_object(produced: NType) -> bool:
    return isinstance(produced, Record | RecordWith) or (
        isinstance(produced, LiteralType) and isinstance(produced.value, dict)
    )


def _is_no_object(produced: NType) -> bool:
    """True if a value of this type is certainly no record."""
    objects = Record | RecordWith | LiteralType | Union | Var | Refined
    return produced != ANY and not isinstance(produced, objects)


def _known_part(expected: NType, produced: RecordWith) -> NType:
    """Reduce an expected record to the known fields; the other fields may or may not exist."""
    match expected:
        case Record(fields):
            return sorted_record(
                {name: of for name, of in fields.items() if name in produced.fields}
            )
        case RecordWith() | Union() | Refined():
            return ANY
    return expected


def _known_fields(produced: NType) -> Mapping[str, NType]:
    """Return the fields that a value of this type certainly has."""
    match produced:
        case LiteralType(dict() as value):
            return {name: LiteralType(of) for name, of in value.items()}
        case Record(fields) | RecordWith(fields):
            return fields
    return {}


def meet(types: Iterable[NType]) -> NType:
    """Return a type that fits all of these if one can be named, else the first."""
    first, *others = types
    for other in others:
        first = _meet(first, other)
    return first


def _meet(left: NType, right: NType) -> NType:
    if left == ANY or isinstance(left, Var):
        return right
    if isinstance(left, Record) and isinstance(right, Record):
        fields = dict(left.fields)
        for name, of in right.fields.items():
            fields[name] = _meet(fields[name], of) if name in fields else of
        return sorted_record(fields)
    return right if right != ANY and accepts(left, right) else left


def has_variables(of: NType) -> bool:
    return isinstance(of, Var | RecordWith) or any(has_variables(part) for part in parts(of))


def instantiate(expected: NType, output: NType, produced: NType) -> NType:
    """Return the output type of a stage with type variables for this input type."""
    bound: dict[str, NType] = {}
    if isinstance(produced, LiteralType):
        produced = infer(produced.value)
    _bind(expected, produced, bound)
    return _substitute(output, bound)


def _bind(expected: NType, produced: NType, bound: dict[str, NType]) -> None:
    match expected, produced:
        case Var(name), _:
            # A variable that would stand for two types stands for any.
            bound[name] = produced if bound.setdefault(name, produced) == produced else ANY
        case ListOf(item), ListOf(other) if type(expected) is type(produced):
            _bind(item, other, bound)
        case MapOf(_, value), MapOf(_, other):
            _bind(value, other, bound)
        case ((Record(fields) | RecordWith(fields)), (Record(known) | RecordWith(known))):
            for name in fields.keys() & known.keys():
                _bind(fields[name], known[name], bound)
            if isinstance(expected, RecordWith) and isinstance(produced, Record):
                others = {name: of for name, of in known.items() if name not in fields}
                bound[expected.rest] = sorted_record(others)


def _substitute(of: NType, bound: Mapping[str, NType]) -> NType:
    """Return the type with bound types in place of its variables, and Any for unbound ones."""
    if isinstance(of, Var):
        return bound.get(of.name, ANY)
    if isinstance(of, RecordWith):
        rest = bound.get(of.rest)
        if not isinstance(rest, Record):
            return ANY
        named = {name: _substitute(part, bound) for name, part in of.fields.items()}
        return sorted_record({**rest.fields, **named})
    return with_parts(of, lambda part: _substitute(part, bound))


def _without_variables(of: NType) -> NType:
    if isinstance(of, Var):
        return ANY
    return with_parts(of, _without_variables)


def _bounded(of: NType) -> NType:
    level, seen, depth = [of], 0, 0
    while level:
        seen += len(level)
        depth += 1
        if seen > _MAX_PARTS or depth > MAX_NESTING:
            return ANY
        level = [part for part_of in level for part in parts(part_of)]
    return of
