"""The checker: the verdicts of the real program, and the further errors of strict."""

from __future__ import annotations

import json
from typing import Any

import pytest

from caloron.graph.catalogue import Catalogue, resolve
from caloron.graph.checker import check, check_value
from caloron.graph.errors import GraphError, Refused
from caloron.graph.parser import parse_graph
from caloron.graph.planning import plan
from caloron.graph.prepare import Permissions, Prepared, prepare
from caloron.graph.runners.functions import FunctionRunner
from caloron.graph.runtime.run import run
from caloron.graph.stage import define
from caloron.graph.types import NULL, NUMBER, TEXT, Record, RecordWith, Union, Var, record, show
from tests.support.bench import Bench, const, sequence, stage
from tests.support.noether import VECTORS, catalogue, permissions, wrapped

STAGES = catalogue()
_DOUBLE, _INC = stage("double_n"), stage("inc_n")
_UPPER, _BIG = stage("text_upper"), stage("is_big")


def _prepare(root: Any, *, strict: bool = True) -> Prepared:
    return prepare(wrapped(root), STAGES, strict=strict)


def _errors(root: Any, *, strict: bool = True) -> list[tuple[str, str | None, str | None]]:
    with pytest.raises(Refused) as refused:
        _prepare(root, strict=strict)
    assert refused.value.exit_code == 2
    return [(error.path, error.expected, error.found) for error in refused.value.errors]


def _let(body: dict[str, Any], **bindings: Any) -> dict[str, Any]:
    return {"op": "Let", "bindings": bindings, "body": body}


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
    assert _errors(sequence(_DOUBLE, _UPPER, _DOUBLE), strict=False) == [
        ("$.root.stages[1]", "Text", "Record { n: Number }"),
        ("$.root.stages[2]", "Record { n: Number }", "Text"),
    ]


def test_strict_checks_the_arms_of_a_branch():
    branch = {"op": "Branch", "predicate": _BIG, "if_true": _UPPER, "if_false": _INC}
    _prepare(sequence(_DOUBLE, branch), strict=False)
    assert _errors(sequence(_DOUBLE, branch)) == [
        ("$.root.stages[1].if_true", "Text", "Record { n: Number }")
    ]


def test_strict_adds_the_input_of_the_arms_to_that_of_a_branch():
    wide = stage("three_fields")
    branch = {"op": "Branch", "predicate": _BIG, "if_true": wide, "if_false": _INC}
    assert show(_prepare(branch).checked.input) == (
        "Record { a: Text, b: Text, c: Number, n: Number }"
    )
    assert show(_prepare(branch, strict=False).checked.input) == "Record { n: Number }"


def test_strict_checks_constants():
    root = sequence(const(5), _UPPER)
    _prepare(root, strict=False)
    assert _errors(root) == [("$.root.stages[1]", "Text", "Number")]
    _prepare(sequence(const("five"), _UPPER))


def test_strict_checks_the_values_of_config():
    root = stage("text_split", config={"delimiter": 7})
    _prepare(root, strict=False)
    assert _errors(root) == [("$.root.config.delimiter", "Text", "Number")]


@pytest.mark.parametrize(
    ("bindings", "takes"),
    [
        ({"a": _DOUBLE}, "Record { n: Number }"),
        ({"a": _DOUBLE, "b": stage("echo_any")}, "Any"),
        ({"a": _UPPER}, "Any"),
        ({"a": const(1)}, "Any"),
    ],
)
def test_a_let_takes_a_record_only_if_every_binding_does(bindings, takes):
    root = _let(stage("echo_any"), **bindings)
    assert show(_prepare(root, strict=False).checked.input) == takes


def test_a_wrong_binding_is_reported_at_the_body_of_the_let():
    root = _let(_DOUBLE, n=_UPPER)
    assert _errors(root, strict=False) == [
        ("$.root.body", "Record { n: Number }", "Record { n: Text, ...<outer> }")
    ]


@pytest.mark.parametrize("words", ["pure", ["pure"], "PURE,cost"])
def test_a_forbidden_effect_is_reported_at_its_node(words):
    root = sequence(_DOUBLE, stage("to_text"), stage("netty"))
    with pytest.raises(GraphError) as refused:
        prepare(wrapped(root), STAGES, Permissions(effects=words))
    assert (refused.value.kind, refused.value.exit_code) == ("effects", 2)
    assert "$.root.stages[2]: the effect network is not allowed" in str(refused.value)


def test_a_missing_capability_is_reported():
    with pytest.raises(GraphError) as refused:
        prepare(wrapped(stage("http_get")), STAGES, Permissions(capabilities="fs-read"))
    assert (refused.value.kind, refused.value.exit_code) == ("capabilities", 2)


def test_a_declared_cost_over_the_budget_is_refused_before_anything_runs():
    ask = stage("llm_complete")
    both = {"op": "Parallel", "branches": {"a": ask, "b": ask}}
    prepare(wrapped(both), STAGES, Permissions(budget_cents=10))
    with pytest.raises(GraphError, match="10 cents; the budget is 9") as refused:
        prepare(wrapped(both), STAGES, Permissions(budget_cents=9))
    assert (refused.value.kind, refused.value.exit_code) == ("budget", 2)


def test_checking_a_value_of_growing_depth_ends():
    identity = stage("identity")
    root = sequence(*[{"op": "Fanout", "source": identity, "targets": [identity]}] * 600)
    resolved = resolve(parse_graph(wrapped(root)), STAGES).graph.root
    assert check(resolved, STAGES).errors == ()


def test_a_missing_source_is_null():
    merge = {"op": "Merge", "sources": [_UPPER], "target": stage("to_text")}
    prepared = _prepare(merge)
    errors = check_value(prepared.root, {"other": 1}, STAGES).errors
    assert [(error.path, error.expected, error.found) for error in errors] == [
        ("$.root.sources[0]", "Text", "Null")
    ]


def test_the_output_of_a_generic_stage_with_config_is_unknown():
    generic = stage("identity", config={"n": 1})
    _prepare(sequence(const("x"), generic, _DOUBLE))


def test_a_plan_has_dependencies_groups_and_costs():
    root = sequence(
        _DOUBLE,
        _INC,
        _let(stage("echo_any"), a=_DOUBLE, b=_INC),
    )
    planned = plan(_prepare(root).root, STAGES)
    assert [step.depends_on for step in planned.steps] == [(), (0,), (1,), (1,), (2, 3)]
    assert planned.groups == ((2, 3),)
    assert plan(_prepare(sequence(_DOUBLE, _INC)).root, STAGES).groups == ((0, 1),)
    planned = plan(_prepare(stage("llm_extract")).root, STAGES)
    cost = planned.cost
    assert (cost.time_ms_p50, cost.tokens_est, cost.memory_mb) == (300, 800, 10)


def test_a_generic_last_stage_has_the_type_of_its_input():
    let = _let(stage("identity"), again=_DOUBLE)
    result = show(_prepare(sequence(_DOUBLE, let)).checked.output)
    assert result == "Record { again: Record { n: Number }, n: Number }"


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.add("wants_number", lambda inputs: inputs["x"], input=record(x=NUMBER), output=NUMBER)
    bench.add("wants_both", lambda inputs: inputs, input=record(x=NUMBER, y=TEXT))
    bench.add("echo", lambda value: value)
    return bench


def test_a_binding_is_checked_also_where_the_input_is_unknown(bench):
    with pytest.raises(Refused, match=r"\$\.root\.stages\[1\]\.body"):
        prepare(
            wrapped(sequence(stage("echo"), _let(stage("wants_number"), x=const("text")))),
            bench.catalogue,
        )


def test_a_binding_of_an_outer_let_is_known_in_an_inner_one(bench):
    inner = _let(stage("wants_both"), y=const("text"))
    good = sequence(stage("echo"), _let(inner, x=const(1)))
    assert bench.run(good, {}).output == {"x": 1, "y": "text"}
    with pytest.raises(Refused, match="expected Number"):
        prepare(wrapped(sequence(stage("echo"), _let(inner, x=const("text")))), bench.catalogue)
    # An unknown input may have the missing field.
    open_graph = sequence(stage("echo"), _let(stage("wants_both"), x=const(1)))
    assert bench.run(open_graph, {"y": "text"}).output == {"x": 1, "y": "text"}


def test_the_order_in_which_a_union_is_written_does_not_count(bench):
    gives = Record({"a": Union((TEXT, NULL)), "b": NUMBER})
    takes = RecordWith({"a": Union((NULL, TEXT))}, "R")
    bench.add("gives", lambda _value: {"a": None, "b": 1}, output=gives)
    bench.add("takes", lambda value: value, input=takes, output=takes)
    graph = sequence(stage("gives"), stage("takes"))
    assert bench.run(graph, 0).output == {"a": None, "b": 1}


def test_a_printed_type_names_no_internal_variable(bench):
    bench.add("same", lambda value: value, input=Var("T"), output=Var("T"))
    checked = prepare(wrapped(sequence(stage("same"), stage("echo"))), bench.catalogue).checked
    assert show(checked.input) == "Any"


def test_a_default_of_a_function_is_not_replaced_by_the_call():
    multiply = define("multiply", NUMBER, NUMBER, implementation_hash="1")
    catalogue, functions = Catalogue([multiply]), FunctionRunner()
    functions.add(multiply, lambda inputs, factor=2: inputs * factor)
    prepared = prepare(wrapped(stage("multiply")), catalogue)
    assert run(prepared, 21, functions).output == 42
