"""All that comes before running: read, identify, resolve, check, and ask whether it may run."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from caloron.graph.canonical import composition_id
from caloron.graph.catalogue import Catalogue
from caloron.graph.check import Checked, check
from caloron.graph.effects import CAPABILITIES, KINDS, Effects, kinds_of_words
from caloron.graph.errors import Refused
from caloron.graph.nodes import Graph, Node
from caloron.graph.parse import parse_graph
from caloron.graph.policy import (
    allow_capabilities,
    allow_cost,
    allow_effects,
    effects_of,
    warnings_of,
)
from caloron.graph.profile import STRICT, Profile
from caloron.graph.resolve import resolve


class Permissions(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller allows; nothing said allows everything."""

    #: Kinds of effects by their words (`network`, `fs-read`, …); pure counts as one.
    effects: Iterable[str] = ()
    #: Capabilities by their words.
    capabilities: Iterable[str] = ()
    budget_cents: int | None = None


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """A graph that may run, with all that is known of it before."""

    graph: Graph
    #: As authored, whatever the references were resolved to.
    composition_id: str
    #: With ids in place of references.
    root: Node
    checked: Checked
    effects: Effects
    warnings: tuple[str, ...]
    catalogue: Catalogue
    profile: Profile
    budget_cents: int | None = None
    #: Kinds of effects that were allowed; empty for all.
    allowed: frozenset[str] = frozenset()
    #: Stages given as data are refused that an example must not try.
    harmless: bool = False
    #: Capabilities that were granted; empty for all.
    granted: frozenset[str] = frozenset()


def _granted(permissions: Permissions, profile: Profile) -> frozenset[str]:
    named = kinds_of_words(permissions.capabilities, CAPABILITIES)
    return named if profile.can_grant_processes else named - {"Process"}


def prepare(
    graph: Graph | str | bytes,
    catalogue: Catalogue,
    profile: Profile = STRICT,
    permissions: Permissions | None = None,
) -> Prepared:
    """Makes a graph ready to run, or says everything that speaks against it."""
    permissions = permissions or Permissions()
    if not isinstance(graph, Graph):
        graph = parse_graph(graph, profile)
    identity = composition_id(graph)
    resolved = resolve(graph, catalogue, profile)
    root = resolved.graph.root
    checked = check(root, catalogue, profile)
    if checked.findings:
        raise Refused(checked.findings)
    called = checked.called
    granted = _granted(permissions, profile)
    allow_capabilities(root, catalogue, granted, called)
    allowed = kinds_of_words(permissions.effects, KINDS)
    allow_effects(root, catalogue, allowed, called)
    allow_cost(root, catalogue, permissions.budget_cents, called)
    return Prepared(
        graph=graph,
        composition_id=identity,
        root=root,
        checked=checked,
        effects=effects_of(root, catalogue, called),
        warnings=resolved.warnings + warnings_of(root, catalogue, profile),
        catalogue=catalogue,
        profile=profile,
        budget_cents=permissions.budget_cents,
        allowed=allowed,
        granted=granted,
    )
