"""References to stages by id, prefix and name; ambiguous, deprecated and draft stages."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from caloron.graph.catalogue import Catalogue, resolve
from caloron.graph.errors import AmbiguousStage, UnknownStage
from caloron.graph.nodes import Stage
from caloron.graph.parser import parse_graph
from caloron.graph.stage import Lifecycle, StageSpec, define
from caloron.graph.types import NUMBER, TEXT
from tests.support.noether import wrapped


def _stage(name: str, code: str = "1", **changes: Any) -> StageSpec:
    stage = define(name, TEXT, NUMBER, implementation_hash=code)
    return msgspec.structs.replace(stage, **changes) if changes else stage


def _resolved(
    catalogue: Catalogue, reference: str, strict: bool = True, **node: Any
) -> tuple[str, tuple[str, ...]]:
    graph = parse_graph(wrapped({"op": "Stage", "id": reference, **node}))
    resolved = resolve(graph, catalogue, strict=strict)
    assert isinstance(resolved.graph.root, Stage)
    return resolved.graph.root.id, resolved.warnings


@pytest.mark.parametrize("strict", [True, False])
def test_an_id_a_prefix_and_a_name_find_the_stage(strict):
    stage = _stage("one")
    catalogue = Catalogue([stage, _stage("two")])
    for reference in (stage.id, stage.id[:9], "one"):
        assert _resolved(catalogue, reference, strict) == (stage.id, ())


def test_only_strict_finds_signatures_and_aliases():
    stage = _stage("one", aliases=("uno",))
    catalogue = Catalogue([stage])
    for reference in (stage.signature_id, "uno"):
        assert _resolved(catalogue, reference) == (stage.id, ())
        with pytest.raises(UnknownStage, match="stage reference: no stage is called"):
            _resolved(catalogue, reference, False)


@pytest.mark.parametrize("reference", ["", "nobody", "abcdef0123"])
def test_an_unknown_reference_is_reported_at_its_node(reference):
    with pytest.raises(UnknownStage) as unknown:
        _resolved(Catalogue([_stage("one")]), reference)
    assert (unknown.value.path, unknown.value.exit_code) == ("$.root", 1)


def test_an_ambiguous_reference_is_refused():
    text = define("same", TEXT, TEXT, implementation_hash="1")
    number = define("same", NUMBER, TEXT, implementation_hash="1")
    catalogue = Catalogue([text, number])
    with pytest.raises(AmbiguousStage, match="'same' means more than one stage"):
        _resolved(catalogue, "same")
    stages = [_stage(f"s{index}") for index in range(40)]
    with pytest.raises(AmbiguousStage):
        _resolved(Catalogue(stages), stages[0].id[:1])


def test_a_newer_stage_replaces_the_stage_of_its_signature():
    old, new = _stage("one", "1"), _stage("one", "2")
    catalogue = Catalogue([old, new])
    retired = catalogue.get(old.id)
    assert retired is not None
    assert retired.lifecycle == Lifecycle("Deprecated", new.id)
    assert _resolved(catalogue, "one") == _resolved(catalogue, "one", False) == (new.id, ())
    # Strict follows the deprecated stage, and Noether refuses it.
    id, warnings = _resolved(catalogue, old.id)
    assert id == new.id
    assert warnings == (f"stage {old.id} is deprecated; {new.id} is used",)
    for strict, pinning in ((False, "signature"), (False, "both"), (True, "both")):
        with pytest.raises(UnknownStage, match="Deprecated"):
            _resolved(catalogue, old.id, strict, pinning=pinning)


def test_a_cycle_of_deprecations_ends():
    catalogue = Catalogue()
    one = _stage("one", signature_id="s1")
    two = _stage("two", signature_id="s2", lifecycle=Lifecycle("Deprecated", one.id))
    catalogue.add(msgspec.structs.replace(one, lifecycle=Lifecycle("Deprecated", two.id)))
    catalogue.add(two)
    with pytest.raises(UnknownStage, match="Deprecated"):
        _resolved(catalogue, one.id)


def test_a_draft_cannot_be_used_before_it_is_active():
    draft = _stage("one", lifecycle=Lifecycle("Draft"))
    catalogue = Catalogue([draft])
    with pytest.raises(UnknownStage, match="cannot be used: Draft"):
        _resolved(catalogue, "one")
    catalogue.add(_stage("one"))
    assert _resolved(catalogue, "one") == (draft.id, ())


def test_a_name_has_priority_over_an_id_prefix():
    named = _stage("f")
    stages = [_stage(f"s{number}") for number in range(64)]
    assert _resolved(Catalogue([*stages, named]), "f") == (named.id, ())
