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
from caloron.graph.checker.subtyping import accepts, mismatch
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
    StreamOf,
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
        return CheckResult(required, signature.output, tuple(first.errors), tuple(first.called))
    second = _Checker(catalogue, strict=True)
    output = second.visit(root, required, ROOT).output
    return CheckResult(required, output, tuple(second.errors), tuple(second.called))


def check_value(root: Node, value: Json, catalogue: Catalogue) -> CheckResult:
    """Check a resolved graph for one input value."""
    checker = _Checker(catalogue, strict=True, declared=False)
    signature = checker.visit(root, LiteralType(value), ROOT)
    return CheckResult(
        signature.input, signature.output, tuple(checker.errors), tuple(checker.called)
    )


_UNKNOWN = Signature(ANY, ANY)


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
            Retry: lambda node, given, path: self.visit(node.stage, given, f"{path}.stage"),
            Let: self._let,
        }

    def visit(self, node: Node, given: NType, path: str) -> Signature:
        """Check a node that gets a value of the type `given`."""
        if not isinstance(node, Stage | RemoteStage | Const | Branch | Retry):
            held = [child for _, child in children(node)]
            if len(held) < (1 if isinstance(node, Sequential | Parallel) else 2):
                message = f"an empty {type(node).__name__} does nothing"
                self.errors.append(CheckError(message, path=path))
                return _UNKNOWN
        found = self._ops[type(node)](node, given, path)
        return Signature(_bounded(found.input), _bounded(found.output))

    def _edge(self, given: NType, expected: NType, path: str) -> None:
        if isinstance(given, RecordWith):
            expected = _known_part(expected, given)
        reason = mismatch(given, expected)
        if reason is not None:
            wanted, produced = show(expected), show(given)
            message = f"expected {wanted}, found {produced}: {reason}"
            if isinstance(given, LiteralType):
                message = reason
            self.errors.append(CheckError(message, path=path, expected=wanted, found=produced))

    def _stage(self, node: Stage, given: NType, path: str) -> Signature:
        stage = self._catalogue.get(node.id)
        if stage is None:
            message = f"the stage {node.id} is not in the catalogue"
            self.errors.append(CheckError(message, path=path))
            return _UNKNOWN
        takes = remaining_input(stage.input, node.config)
        self._edge(given, takes, path)
        if node.config and self._strict:
            self._config(node.config, stage.input, given, path)
        for reference in _references(stage, node.config or {}, given):
            with suppress(UnknownStage):
                self.called.append((path, self._catalogue.lookup(reference).stage))
        if not has_variables(stage.output):
            return Signature(takes, stage.output)
        output = ANY if node.config else instantiate(stage.input, stage.output, given)
        return Signature(takes, output)

    def _config(self, config: Mapping[str, Json], expected: NType, given: NType, path: str) -> None:
        """Check the fields that `config` gives, and that the input has all others."""
        if not isinstance(expected, Record):
            return
        for name, value in config.items():
            if name in expected.fields:
                at = member(f"{path}.config", name)
                self._edge(LiteralType(value), expected.fields[name], at)
        left = {name: of for name, of in expected.fields.items() if name not in config}
        if len(left) < 2 and _is_object(given):
            self._edge(given, sorted_record(left), path)

    def _remote(self, node: RemoteStage, given: NType, path: str) -> Signature:
        self._edge(given, node.input, path)
        return Signature(node.input, node.output)

    def _const(self, node: Const, _given: NType, _path: str) -> Signature:
        return Signature(ANY, LiteralType(node.value) if self._strict else ANY)

    def _sequential(self, node: Sequential, given: NType, path: str) -> Signature:
        signatures: list[Signature] = []
        for at, child in children(node, path):
            signatures.append(self.visit(child, given, at))
            given = signatures[-1].output
        return Signature(signatures[0].input, given)

    def _parallel(self, node: Parallel, given: NType, path: str) -> Signature:
        branches = dict(zip(node.branches, children(node, path), strict=True))
        return self._members(branches, given, path, _branch_input)

    def _members(
        self,
        nodes: Mapping[str, tuple[str, Node]],
        given: NType,
        path: str,
        choose: Callable[[NType, str], NType],
    ) -> Signature:
        """Check nodes of which each gets the member of its own name."""
        signatures = {
            name: self.visit(node, choose(given, name), at) for name, (at, node) in nodes.items()
        }
        required = sorted_record({name: of.input for name, of in signatures.items()})
        missing = isinstance(given, Record) and any(
            name not in given.fields and not nullable(of) for name, of in required.fields.items()
        )
        if self._declared and (missing or _is_no_object(given)):
            self._edge(given, required, path)
        return Signature(
            required, sorted_record({name: of.output for name, of in signatures.items()})
        )

    def _branch(self, node: Branch, given: NType, path: str) -> Signature:
        at = f"{path}.predicate"
        predicate = self.visit(node.predicate, given, at)
        self._edge(predicate.output, BOOL, at)
        # Noether does not check what reaches the arms.
        arm = given if self._strict else ANY
        if_true = self.visit(node.if_true, arm, f"{path}.if_true")
        if_false = self.visit(node.if_false, arm, f"{path}.if_false")
        required = predicate.input
        if self._strict:
            required = meet([required, if_true.input, if_false.input])
        return Signature(required, union([if_true.output, if_false.output]))

    def _fanout(self, node: Fanout, given: NType, path: str) -> Signature:
        (at, source), *targets = children(node, path)
        produced = self.visit(source, given, at)
        outputs = [self.visit(target, produced.output, at).output for at, target in targets]
        return Signature(produced.input, ListOf(union(outputs)))

    def _merge(self, node: Merge, given: NType, path: str) -> Signature:
        *sources, (at, target) = children(node, path)
        named = {f"source_{index}": source for index, source in enumerate(sources)}
        signature = self._members(named, given, path, _source_input)
        return Signature(signature.input, self.visit(target, signature.output, at).output)

    def _let(self, node: Let, given: NType, path: str) -> Signature:
        *bindings, (at, body) = children(node, path)
        signatures = [self.visit(binding, given, where) for where, binding in bindings]
        required: dict[str, NType] = {}
        for signature in signatures:
            if isinstance(signature.input, Record):
                required.update(signature.input.fields)
        bound = {name: of.output for name, of in zip(node.bindings, signatures, strict=True)}
        outer = _fields_of(given)
        scope: NType
        if outer is not None:
            scope = sorted_record({**outer, **bound})
        else:
            # The outer fields are unknown; the bindings and what they require are not.
            known = given.fields if isinstance(given, RecordWith) else {}
            scope = RecordWith({**required, **known, **bound}, "outer")
        result = self.visit(body, scope, at)
        if isinstance(result.input, Record):
            for name, of in result.input.fields.items():
                if name not in bound:
                    required.setdefault(name, of)
        unknown = any(not isinstance(signature.input, Record) for signature in signatures)
        takes = ANY if unknown or not required else sorted_record(required)
        return Signature(takes, result.output)


def remaining_input(expected: NType, config: Mapping[str, Json] | None) -> NType:
    """Return the input that a stage still requires when `config` gives some of its fields."""
    if not config or not isinstance(expected, Record):
        return expected
    left = {name: of for name, of in expected.fields.items() if name not in config}
    return Record(left) if len(left) > 1 else ANY


def _references(stage: StageSpec, config: Mapping[str, Json], given: NType) -> list[str]:
    """References to stages in the input of a stage that calls stages, as far as they are known."""
    if not isinstance(stage.input, Record):
        return []
    known: dict[str, Json] = dict(config)
    if isinstance(given, LiteralType):
        whole = with_config(stage, config, given.value) if config else given.value
        known = whole if isinstance(whole, dict) else {}
    elif isinstance(given, Record | RecordWith):
        fields = given.fields.items()
        known = {name: of.value for name, of in fields if isinstance(of, LiteralType)} | known
    listed = known.get("stages")
    values = [known.get("stage_id"), *(listed if isinstance(listed, list) else [])]
    return [value for value in values if isinstance(value, str)]


def _is_object(given: NType) -> bool:
    return isinstance(given, Record | RecordWith) or (
        isinstance(given, LiteralType) and isinstance(given.value, dict)
    )


def _is_no_object(given: NType) -> bool:
    """True if a value of this type is certainly no record."""
    objects = Record | RecordWith | LiteralType | Union | Var | Refined
    return given != ANY and not isinstance(given, objects)


def _known_part(expected: NType, given: RecordWith) -> NType:
    """Reduce an expected record to the known fields; the other fields may or may not exist."""
    match expected:
        case Record(fields):
            return sorted_record({name: of for name, of in fields.items() if name in given.fields})
        case RecordWith() | Union() | Refined():
            return ANY
    return expected


def _fields_of(given: NType) -> Mapping[str, NType] | None:
    """The fields of a value of this type: empty if it is no object, None if they are unknown."""
    match given:
        case LiteralType(dict() as value):
            return {name: LiteralType(of) for name, of in value.items()}
        case Record(fields):
            return fields
        case RecordWith() | Union() | Var() | Refined():
            return None
    return None if given == ANY else {}


def _branch_input(given: NType, name: str) -> NType:
    """The input of a branch: the member of its name, else the whole; Any if that is unknown."""
    match given:
        case LiteralType(dict() as value):
            return LiteralType(value[name]) if name in value else given
        case Record(fields) | RecordWith(fields) if name in fields:
            return fields[name]
        case LiteralType():
            return given
    return ANY


def _source_input(given: NType, name: str) -> NType:
    """The input of a source: the member of its name, else null."""
    match given:
        case LiteralType(dict() as value) if name not in value:
            return LiteralType(None)
    return _branch_input(given, name)


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


def instantiate(takes: NType, gives: NType, given: NType) -> NType:
    """Return the output type of a stage with type variables for this input type."""
    bound: dict[str, NType] = {}
    _bind(takes, infer(given.value) if isinstance(given, LiteralType) else given, bound)
    return _substitute(gives, bound)


def _bind(takes: NType, given: NType, bound: dict[str, NType]) -> None:
    match takes, given:
        case Var(name), _:
            # A variable that would stand for two types stands for any.
            bound[name] = given if bound.setdefault(name, given) == given else ANY
        case (ListOf(item), ListOf(other)) | (StreamOf(item), StreamOf(other)):
            _bind(item, other, bound)
        case MapOf(_, value), MapOf(_, other):
            _bind(value, other, bound)
        case ((Record(fields) | RecordWith(fields)), (Record(known) | RecordWith(known))):
            for name in fields.keys() & known.keys():
                _bind(fields[name], known[name], bound)
            if isinstance(takes, RecordWith) and isinstance(given, Record):
                others = {name: of for name, of in known.items() if name not in fields}
                bound[takes.rest] = sorted_record(others)


def _substitute(of: NType, bound: Mapping[str, NType]) -> NType:
    """The type with the bound types in place of variables, and Any for unbound ones."""
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
