"""What type variables stand for, found by making two types equal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

from caloron.graph.jsontext import MAX_NESTING
from caloron.graph.types import (
    ANY,
    Known,
    ListOf,
    MapOf,
    NType,
    Record,
    RecordWith,
    Refined,
    StreamOf,
    Union,
    Var,
    infer,
    parts,
    show,
    sorted_record,
    union,
    with_parts,
)

_FRESH = "_any_"
#: A type with more parts than this is not one that anybody wrote.
_MOST_PARTS = 10_000


class CannotUnify(Exception):
    """Two types that nothing put for their variables makes equal."""


def has_variables(of: NType) -> bool:
    """Whether an edge with this type is unified instead of compared."""
    if isinstance(of, Var | RecordWith):
        return True
    # The base of a refined type is not looked into, as in 0.8.2.
    return not isinstance(of, Refined) and any(has_variables(part) for part in parts(of))


def renamed(of: NType, suffix: str) -> NType:
    """The type with variables of its own, so that one use of a stage does not bind another."""
    match of:
        case Var(name):
            return Var(name + suffix)
        case RecordWith(fields, rest):
            of = RecordWith(fields, rest + suffix)
    return with_parts(of, lambda part: renamed(part, suffix))


class _Parts:
    """Counts the parts that one step has looked at, so that no type can grow without end."""

    def __init__(self) -> None:
        self._left = _MOST_PARTS
        self._depth = 0

    @contextmanager
    def within(self) -> Iterator[None]:
        """Around one part and what is in it."""
        self._left -= 1
        self._depth += 1
        if self._left < 0 or self._depth > MAX_NESTING:
            raise CannotUnify("the type grows without end")
        yield
        self._depth -= 1


class Substitution:
    """What variables stand for so far; grows with every edge of a graph."""

    def __init__(self, *, by_position: bool = False) -> None:
        #: Members of two unions are compared in the order in which they are written, as in 0.8.2.
        self._by_position = by_position
        self._bound: dict[str, NType] = {}
        self._fresh = count()
        #: What the step under way has overwritten, to be put back if it fails.
        self._undo: list[tuple[str, NType | None]] = []

    def apply(self, of: NType) -> NType:
        """The type with everything in place of its variables that is known."""
        return self._applied(of, _Parts()) if self._bound else of

    def _applied(self, of: NType, seen: _Parts) -> NType:
        with seen.within():
            return self._replaced(of, seen)

    def _replaced(self, of: NType, seen: _Parts) -> NType:
        match of:
            case Var(name):
                found = self._follow(name)
                return found if isinstance(found, Var) else self._applied(found, seen)
            case Refined():
                return of
        inner = with_parts(of, lambda part: self._applied(part, seen))
        if isinstance(inner, RecordWith):
            return self._with_row(inner, seen)
        return union(inner.members) if isinstance(inner, Union) else inner

    def _with_row(self, of: RecordWith, seen: _Parts) -> NType:
        row = self._follow(of.rest)
        if not isinstance(row, Record):
            return of
        rest = self._applied(row, seen)
        assert isinstance(rest, Record)
        return sorted_record({**rest.fields, **of.fields})

    def _follow(self, name: str) -> NType:
        """What a variable leads to, however many others lie between."""
        passed: list[str] = []
        found: NType = Var(name)
        while isinstance(found, Var) and found.name in self._bound:
            passed.append(found.name)
            found = self._bound[found.name]
        for one in passed[:-1]:
            self._write(one, found)
        return found

    def _write(self, name: str, of: NType) -> None:
        self._undo.append((name, self._bound.get(name)))
        self._bound[name] = of

    def unify(self, one: NType, other: NType) -> None:
        """Learns what makes both equal, or raises and has learnt nothing."""
        self._undo = []
        try:
            self._unify(self._plain(one), self._plain(other), _Parts())
        except CannotUnify:
            for name, before in reversed(self._undo):
                if before is None:
                    del self._bound[name]
                else:
                    self._bound[name] = before
            raise

    def _plain(self, of: NType) -> NType:
        """Any becomes a variable of its own, a refined type its base."""
        if of == ANY:
            return Var(f"{_FRESH}{next(self._fresh)}")
        if isinstance(of, Refined):
            return self._plain(of.base)
        if isinstance(of, Known):
            return self._plain(infer(of.value))
        return with_parts(of, self._plain)

    def _unify(self, one: NType, other: NType, seen: _Parts) -> None:
        with seen.within():
            self._equate(self._known(one, seen), self._known(other, seen), seen)

    def _equate(self, one: NType, other: NType, seen: _Parts) -> None:
        match one, other:
            case Var(name), Var(same) if name == same:
                return
            case (Var(name), of) | (of, Var(name)):
                self._bind(name, of, seen)
            case (
                (ListOf(), ListOf())
                | (StreamOf(), StreamOf())
                | (MapOf(), MapOf())
                | (Union(), Union())
            ):
                self._unify_parts(one, other, seen)
            case (RecordWith(), _) | (_, RecordWith()) | (Record(), Record()):
                self._unify_records(one, other, seen)
            case _ if one != other:
                raise CannotUnify(f"{show(one)} is not {show(other)}")

    def _unify_parts(self, one: NType, other: NType, seen: _Parts) -> None:
        mine, yours = list(parts(one)), list(parts(other))
        if isinstance(one, Union) and not self._by_position:
            mine, yours = _without_common(mine, yours), _without_common(yours, mine)
        if len(mine) != len(yours):
            raise CannotUnify(f"{show(one)} is not {show(other)}")
        for left, right in zip(mine, yours, strict=True):
            self._unify(left, right, seen)

    def _known(self, of: NType, seen: _Parts) -> NType:
        if isinstance(of, Var):
            return self._follow(of.name)
        return self._with_row(of, seen) if isinstance(of, RecordWith) else of

    def _bind(self, name: str, of: NType, seen: _Parts) -> None:
        if self._occurs(name, of, seen):
            raise CannotUnify(f"{show(Var(name))} would hold itself: {show(of)}")
        self._write(name, of)

    def _occurs(self, name: str, of: NType, seen: _Parts) -> bool:
        if isinstance(of, Var):
            of = self._follow(of.name)
        if isinstance(of, Var):
            return of.name == name
        if isinstance(of, RecordWith) and of.rest == name:
            return True
        with seen.within():
            return any(self._occurs(name, part, seen) for part in parts(of))

    def _unify_records(self, one: NType, other: NType, seen: _Parts) -> None:
        match one, other:
            case Record(mine), Record(yours):
                odd = ", ".join(sorted(set(mine) ^ set(yours)))
                if odd:
                    raise CannotUnify(f"the records differ in: {odd}")
                for name in sorted(mine):
                    self._unify(mine[name], yours[name], seen)
            case (Record(whole), RecordWith() as some) | (RecordWith() as some, Record(whole)):
                self._unify_row(Record(whole), some, seen)
            case _:
                raise CannotUnify(f"{show(one)} is not {show(other)}")

    def _unify_row(self, whole: Record, some: RecordWith, seen: _Parts) -> None:
        """The fields that both name are made equal; the others are what the row stands for."""
        for name in sorted(some.fields):
            if name not in whole.fields:
                raise CannotUnify(f"the field `{name}` is missing")
            self._unify(whole.fields[name], some.fields[name], seen)
        others = {name: of for name, of in whole.fields.items() if name not in some.fields}
        self._bind(some.rest, Record(others), seen)


def _without_common(members: list[NType], others: list[NType]) -> list[NType]:
    return [member for member in members if member not in others]


def without_fresh(of: NType) -> NType:
    """The type with Any where unification put a variable of its own for it."""
    if isinstance(of, Var) and of.name.startswith(_FRESH):
        return ANY
    return with_parts(of, without_fresh)
