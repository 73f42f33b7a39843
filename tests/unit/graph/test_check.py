"""The checker: the verdicts of the real program, and the further errors of strict."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caloron.graph.catalogue import resolve
from caloron.graph.checker.checker import check, check_value
from caloron.graph.errors import GraphError, Refused
from caloron.graph.parser import parse_graph
from caloron.graph.planning import plan
from caloron.graph.prepare import Permissions, Prepared, prepare
from caloron.graph.types import show
from tests.support.noether import VECTORS, catalogue, permissions, wrapped

STAGES = catalogue()
_DOUBLE, _INC = {"op": "Stage", "id": "double_n"}, {"op": "Stage", "id": "inc_n"}
_UPPER, _BIG = {"op": "Stage", "id": "text_upper"}, {"op": "Stage", "id": "is_big"}


def _prepare(root: Any, *, strict: bool = True) -> Prepared:
    return prepare(wrapped(root), STAGES, strict=strict)


def _errors(root: Any, *, strict: bool = True) -> list[tuple[str, str | None, str | None]]:
    with pytest.raises(Refused) as refused:
        _prepare(root, strict=strict)
    assert refused.value.exit_code == 2
    return [(error.path, error.expected, error.found) for error in refused.value.errors]


def _sequence(*roots: Any) -> Any:
    return {"op": "Sequential", "stages": list(roots)}


_VERDICTS = [v for v in VECTORS["runs"] if v["name"] != "generic identity twice at two types"]


@pytest.mark.parametrize("vector", _VERDICTS, ids=lambda v: v["name"])
def test_a_graph_is_accepted_or_refused_as_by_the_real_program(vector):
    text = json.dumps(vector["graph"])
    if vector["exit"] in (0, 3):
        prepared = prepare(text, STAGES, permissions(vector["flags"]), strict=False)
        if vector["exit"] == 0:
            assert [effect.word for effect in prepared.effects] == vector["effects"]
            assert list(prepared.warnings) == vector["warnings"]
    else:
        with pytest.raises(GraphError) as refused:
            prepare(text, STAGES, permissions(vector["flags"]), strict=False)
        assert refused.value.exit_code == vector["exit"]
        assert refused.value.kind == vector["error_kind"]


@pytest.mark.parametrize("vector", VECTORS["checks"], ids=lambda v: v["name"])
def test_a_plan_equals_that_of_the_real_program(vector):
    prepared = prepare(json.dumps(vector["graph"]), STAGES, strict=False)
    planned = plan(prepared.root, STAGES)
    data = vector["data"]
    assert data["type_check"] == {
        "input": show(prepared.checked.input),
        "output": show(prepared.checked.output),
    }
    if not data["optimizer"]["passes_applied"]:
        assert data["plan"]["steps"] == len(planned.steps)
        assert data["plan"]["parallel_groups"] == len(planned.groups)
    assert data["plan"]["cost"]["total_time_ms_p50"] == planned.cost.time_ms_p50
    assert data["effects"] == [effect.word for effect in prepared.effects]
    assert data["warnings"] == list(prepared.warnings)


def test_all_errors_are_reported_together_with_path_expected_and_found():
    assert _errors(_sequence(_DOUBLE, _UPPER, _DOUBLE), strict=False) == [
        ("$.root.stages[1]", "Text", "Record { n: Number }"),
        ("$.root.stages[2]", "Record { n: Number }", "Text"),
    ]


def test_strict_checks_the_arms_of_a_branch():
    branch = {"op": "Branch", "predicate": _BIG, "if_true": _UPPER, "if_false": _INC}
    _prepare(_sequence(_DOUBLE, branch), strict=False)
    assert _errors(_sequence(_DOUBLE, branch)) == [
        ("$.root.stages[1].if_true", "Text", "Record { n: Number }")
    ]


def test_strict_adds_the_input_of_the_arms_to_that_of_a_branch():
    wide = {"op": "Stage", "id": "three_fields"}
    branch = {"op": "Branch", "predicate": _BIG, "if_true": wide, "if_false": _INC}
    assert show(_prepare(branch).checked.input) == (
        "Record { a: Text, b: Text, c: Number, n: Number }"
    )
    assert show(_prepare(branch, strict=False).checked.input) == "Record { n: Number }"


def test_strict_checks_constants():
    root = _sequence({"op": "Const", "value": 5}, _UPPER)
    _prepare(root, strict=False)
    assert _errors(root) == [("$.root.stages[1]", "Text", "Number")]
    _prepare(_sequence({"op": "Const", "value": "five"}, _UPPER))


def test_strict_checks_the_values_of_config():
    root = {"op": "Stage", "id": "text_split", "config": {"delimiter": 7}}
    _prepare(root, strict=False)
    assert _errors(root) == [("$.root.config.delimiter", "Text", "Number")]


@pytest.mark.parametrize(
    ("bindings", "takes"),
    [
        ({"a": _DOUBLE}, "Record { n: Number }"),
        ({"a": _DOUBLE, "b": {"op": "Stage", "id": "echo_any"}}, "Any"),
        ({"a": _UPPER}, "Any"),
        ({"a": {"op": "Const", "value": 1}}, "Any"),
    ],
)
def test_a_let_takes_a_record_only_if_every_binding_does(bindings, takes):
    root = {"op": "Let", "bindings": bindings, "body": {"op": "Stage", "id": "echo_any"}}
    assert show(_prepare(root, strict=False).checked.input) == takes


def test_a_wrong_binding_is_reported_at_the_body_of_the_let():
    root = {"op": "Let", "bindings": {"n": _UPPER}, "body": _DOUBLE}
    assert _errors(root, strict=False) == [
        ("$.root.body", "Record { n: Number }", "Record { n: Text, ...<outer> }")
    ]


@pytest.mark.parametrize("words", ["pure", ["pure"], "PURE,cost"])
def test_a_forbidden_effect_is_reported_at_its_node(words):
    root = _sequence(_DOUBLE, {"op": "Stage", "id": "to_text"}, {"op": "Stage", "id": "netty"})
    with pytest.raises(GraphError) as refused:
        prepare(wrapped(root), STAGES, Permissions(effects=words))
    assert (refused.value.kind, refused.value.exit_code) == ("effects", 2)
    assert "$.root.stages[2]: the effect network is not allowed" in str(refused.value)


def test_a_missing_capability_is_reported():
    with pytest.raises(GraphError) as refused:
        prepare(
            wrapped({"op": "Stage", "id": "http_get"}),
            STAGES,
            Permissions(capabilities="fs-read"),
        )
    assert (refused.value.kind, refused.value.exit_code) == ("capabilities", 2)


def test_a_declared_cost_over_the_budget_is_refused_before_anything_runs():
    ask = {"op": "Stage", "id": "llm_complete"}
    both = {"op": "Parallel", "branches": {"a": ask, "b": ask}}
    prepare(wrapped(both), STAGES, Permissions(budget_cents=10))
    with pytest.raises(GraphError, match="10 cents; the budget is 9") as refused:
        prepare(wrapped(both), STAGES, Permissions(budget_cents=9))
    assert (refused.value.kind, refused.value.exit_code) == ("budget", 2)


def test_checking_a_value_of_growing_depth_ends():
    identity = {"op": "Stage", "id": "identity"}
    root = _sequence(*[{"op": "Fanout", "source": identity, "targets": [identity]}] * 600)
    resolved = resolve(parse_graph(wrapped(root)), STAGES).graph.root
    assert check(resolved, STAGES).errors == ()


def test_a_missing_source_is_null():
    merge = {"op": "Merge", "sources": [_UPPER], "target": {"op": "Stage", "id": "to_text"}}
    prepared = _prepare(merge)
    errors = check_value(prepared.root, {"other": 1}, STAGES).errors
    assert [(error.path, error.expected, error.found) for error in errors] == [
        ("$.root.sources[0]", "Text", "Null")
    ]


def test_the_output_of_a_generic_stage_with_config_is_unknown():
    generic = {"op": "Stage", "id": "identity", "config": {"n": 1}}
    _prepare(_sequence({"op": "Const", "value": "x"}, generic, _DOUBLE))


def test_a_plan_has_dependencies_groups_and_costs():
    root = _sequence(
        _DOUBLE,
        _INC,
        {
            "op": "Let",
            "bindings": {"a": _DOUBLE, "b": _INC},
            "body": {"op": "Stage", "id": "echo_any"},
        },
    )
    planned = plan(_prepare(root).root, STAGES)
    assert [step.depends_on for step in planned.steps] == [(), (0,), (1,), (1,), (2, 3)]
    assert planned.groups == ((2, 3),)
    assert plan(_prepare(_sequence(_DOUBLE, _INC)).root, STAGES).groups == ((0, 1),)
    planned = plan(_prepare({"op": "Stage", "id": "llm_extract"}).root, STAGES)
    assert (planned.cost.time_ms_p50, planned.cost.tokens_est, planned.cost.memory_mb) == (
        300,
        800,
        10,
    )


def test_a_parsed_graph_can_replace_its_text():
    graph = parse_graph(wrapped(_DOUBLE))
    assert prepare(graph, STAGES).composition_id == _prepare(_DOUBLE).composition_id


def test_a_generic_last_stage_has_the_type_of_its_input():
    let = {"op": "Let", "bindings": {"again": _DOUBLE}, "body": {"op": "Stage", "id": "identity"}}
    result = show(_prepare(_sequence(_DOUBLE, let)).checked.output)
    assert result == "Record { again: Record { n: Number }, n: Number }"
