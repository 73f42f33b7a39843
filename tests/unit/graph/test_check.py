"""The checker: the verdicts of the real program, and what strict finds beyond them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from caloron.graph.canonical import optimise
from caloron.graph.errors import GraphError, Refused
from caloron.graph.flow import follow
from caloron.graph.parse import parse_graph
from caloron.graph.plan import plan
from caloron.graph.prepare import Permissions, Prepared, prepare
from caloron.graph.profile import NOETHER, STRICT, Profile
from caloron.graph.resolve import resolve
from caloron.graph.types import NUMBER, Known, show
from tests.support.graphs import CONSTANTS, nodes, stages
from tests.support.noether import VECTORS, catalogue, permissions, wrapped

STAGES = catalogue()
_DOUBLE, _INC = {"op": "Stage", "id": "double_n"}, {"op": "Stage", "id": "inc_n"}
_UPPER, _BIG = {"op": "Stage", "id": "text_upper"}, {"op": "Stage", "id": "is_big"}


def _prepare(root: Any, profile: Profile = STRICT) -> Prepared:
    return prepare(wrapped(root), STAGES, profile)


def _sequence(*roots: Any) -> Any:
    return {"op": "Sequential", "stages": list(roots)}


@pytest.mark.parametrize("vector", VECTORS["runs"], ids=lambda v: v["name"])
def test_a_graph_may_run_or_not_as_the_real_program_says(vector):
    text = json.dumps(vector["graph"])
    if vector["exit"] in (0, 3):
        prepared = prepare(text, STAGES, NOETHER, permissions(vector["flags"]))
        if vector["exit"] == 0:
            assert [effect.word for effect in prepared.effects] == vector["effects"]
            assert list(prepared.warnings) == vector["warnings"]
    else:
        with pytest.raises(GraphError) as refused:
            prepare(text, STAGES, NOETHER, permissions(vector["flags"]))
        assert refused.value.exit_code == vector["exit"]
        assert refused.value.kind == vector["error_kind"]


@pytest.mark.parametrize("vector", VECTORS["checks"], ids=lambda v: v["name"])
def test_a_dry_run_tells_what_the_real_program_tells(vector):
    prepared = prepare(json.dumps(vector["graph"]), STAGES, NOETHER)
    optimised = optimise(prepared.root)
    planned = plan(optimised.root, STAGES)
    data = vector["data"]
    assert data["type_check"] == {
        "input": show(prepared.checked.input),
        "output": show(prepared.checked.output),
    }
    assert data["optimizer"] == {
        "hit_cap": optimised.hit_cap,
        "iterations": optimised.rounds,
        "passes_applied": list(optimised.passes),
    }
    assert data["plan"]["steps"] == len(planned.steps)
    assert data["plan"]["parallel_groups"] == len(planned.groups)
    assert data["plan"]["cost"]["total_time_ms_p50"] == planned.cost.time_ms_p50
    assert data["effects"] == [effect.word for effect in prepared.effects]
    assert data["warnings"] == list(prepared.warnings)


def _findings(root: Any, profile: Profile = STRICT) -> list[tuple[str, str | None, str | None]]:
    with pytest.raises(Refused) as refused:
        _prepare(root, profile)
    assert refused.value.exit_code == 2
    return [(one.path, one.expected, one.found) for one in refused.value.findings]


def test_all_findings_are_told_together_with_path_expected_and_found():
    assert _findings(_sequence(_DOUBLE, _UPPER, _DOUBLE), NOETHER) == [
        ("$.root.stages[1]", "Text", "Record { n: Number }"),
        ("$.root.stages[2]", "Record { n: Number }", "Text"),
    ]


def test_strict_looks_into_the_arms_of_a_branch():
    branch = {"op": "Branch", "predicate": _BIG, "if_true": _UPPER, "if_false": _INC}
    _prepare(_sequence(_DOUBLE, branch), NOETHER)
    assert _findings(_sequence(_DOUBLE, branch)) == [
        ("$.root.stages[1].if_true", "Text", "Record { n: Number }")
    ]


def test_strict_asks_a_branch_for_what_its_arms_need_too():
    wide = {"op": "Stage", "id": "three_fields"}
    branch = {"op": "Branch", "predicate": _BIG, "if_true": wide, "if_false": _INC}
    assert show(_prepare(branch).checked.input) == (
        "Record { a: Text, b: Text, c: Number, n: Number }"
    )
    assert show(_prepare(branch, NOETHER).checked.input) == "Record { n: Number }"


def test_strict_looks_at_constants():
    root = _sequence({"op": "Const", "value": 5}, _UPPER)
    _prepare(root, NOETHER)
    assert _findings(root) == [("$.root.stages[1]", "Text", "Number")]
    _prepare(_sequence({"op": "Const", "value": "five"}, _UPPER))


def test_strict_looks_at_the_values_of_config():
    root = {"op": "Stage", "id": "text_split", "config": {"delimiter": 7}}
    _prepare(root, NOETHER)
    assert _findings(root) == [("$.root.config.delimiter", "Text", "Number")]


def test_strict_gives_each_use_of_a_stage_its_own_variables():
    one = {"op": "Stage", "id": "identity"}
    root = _sequence(one, _DOUBLE, _BIG, one)
    assert show(_prepare(root).checked.output) == "Bool"
    assert _findings(root, NOETHER) == [("$.root.stages[3]", "Record { n: Number }", "Bool")]


def test_strict_follows_names_that_noether_does_not():
    root = {"op": "Stage", "id": VECTORS["stages"][0]["signature_id"]}
    assert _prepare(root).root == _prepare(_DOUBLE).root
    with pytest.raises(GraphError, match="stage reference"):
        _prepare(root, NOETHER)


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
    assert show(_prepare(root, NOETHER).checked.input) == takes


def test_an_unreached_mistake_is_told_at_the_field_of_the_let():
    root = {"op": "Let", "bindings": {"n": _UPPER}, "body": _DOUBLE}
    assert _findings(root, NOETHER) == [("$.root.body.input.n", "Number", "Text")]


@pytest.mark.parametrize("words", ["pure", ["pure"], "PURE,cost"])
def test_an_effect_that_is_not_allowed_is_told_at_its_node(words):
    root = _sequence(_DOUBLE, {"op": "Stage", "id": "to_text"}, {"op": "Stage", "id": "netty"})
    with pytest.raises(GraphError) as refused:
        prepare(wrapped(root), STAGES, STRICT, Permissions(effects=words))
    assert (refused.value.kind, refused.value.exit_code) == ("effects", 2)
    assert "$.root.stages[2]: the effect network is not allowed" in str(refused.value)


def test_a_capability_that_is_not_granted_is_told():
    with pytest.raises(GraphError) as refused:
        prepare(
            wrapped({"op": "Stage", "id": "http_get"}),
            STAGES,
            NOETHER,
            Permissions(capabilities="fs-read"),
        )
    assert (refused.value.kind, refused.value.exit_code) == ("capabilities", 2)


def test_a_declared_cost_over_the_budget_is_refused_before_anything_runs():
    ask = {"op": "Stage", "id": "llm_complete"}
    both = {"op": "Parallel", "branches": {"a": ask, "b": ask}}
    prepare(wrapped(both), STAGES, NOETHER, Permissions(budget_cents=10))
    with pytest.raises(GraphError, match="10 cents; the budget is 9") as refused:
        prepare(wrapped(both), STAGES, NOETHER, Permissions(budget_cents=9))
    assert (refused.value.kind, refused.value.exit_code) == ("budget", 2)


_LEAVES = stages("double_n", "inc_n", "is_big", "truthy_one", "echo_any", "two_sources") | CONSTANTS


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(nodes(_LEAVES, most_leaves=8))
def test_what_strict_accepts_noether_accepts(root):
    try:
        _prepare(root)
    except GraphError:
        return
    _prepare(root, NOETHER)


def _exit_code(text: str, profile: Profile) -> int:
    try:
        prepare(text, STAGES, profile)
    except GraphError as error:
        return error.exit_code
    return 0


@pytest.mark.parametrize("profile", [STRICT, NOETHER], ids=lambda p: p.name)
def test_types_that_get_ever_deeper_are_a_finding(profile):
    one = {"op": "Stage", "id": "identity"}
    root = _sequence(*[{"op": "Fanout", "source": one, "targets": [one]}] * 600)
    assert _exit_code(wrapped(root), profile) == 2
    if profile is STRICT:
        _prepare(_sequence(*[{"op": "Fanout", "source": one, "targets": [one]}] * 20))


def test_following_a_value_that_gets_ever_deeper_comes_to_an_end():
    one = {"op": "Stage", "id": "identity"}
    root = _sequence(*[{"op": "Fanout", "source": one, "targets": [one]}] * 600)
    resolved = resolve(parse_graph(wrapped(root)), STAGES).graph.root
    assert follow(resolved, NUMBER, STAGES) == []


def test_a_source_that_is_not_given_is_null():
    merge = {"op": "Merge", "sources": [_UPPER], "target": {"op": "Stage", "id": "to_text"}}
    prepared = _prepare(merge)
    found = follow(prepared.root, Known({"other": 1}), STAGES)
    assert [(one.path, one.expected, one.found) for one in found] == [
        ("$.root.sources[0]", "Text", "Null")
    ]


def test_what_a_generic_stage_with_config_gives_is_left_open():
    generic = {"op": "Stage", "id": "identity", "config": {"n": 1}}
    _prepare(_sequence({"op": "Const", "value": "x"}, generic, _DOUBLE))


def test_a_retry_takes_back_earlier_warnings_under_noether_only():
    netty = {"op": "Stage", "id": "netty"}
    root = _sequence(netty, {"op": "Retry", "stage": netty, "max_attempts": 2})
    assert _prepare(root, NOETHER).warnings == ()
    assert len(_prepare(root).warnings) == 1


def test_a_plan_tells_what_waits_for_what():
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
    asked = plan(_prepare({"op": "Stage", "id": "llm_extract"}).root, STAGES)
    assert (asked.cost.time_ms_p50, asked.cost.tokens_est, asked.cost.memory_mb) == (300, 800, 10)


def test_noether_has_no_word_for_the_capability_of_processes():
    text, words = wrapped({"op": "Stage", "id": "kill_process"}), "network,process"
    prepare(text, STAGES, STRICT, Permissions(capabilities=words))
    with pytest.raises(GraphError, match="process is not granted"):
        prepare(text, STAGES, NOETHER, Permissions(capabilities=words))


def test_a_parsed_graph_can_be_given_in_place_of_its_text():
    graph = parse_graph(wrapped(_DOUBLE))
    assert prepare(graph, STAGES).composition_id == _prepare(_DOUBLE).composition_id


def test_what_a_graph_passes_on_at_its_end_has_the_type_of_what_it_gets():
    let = {"op": "Let", "bindings": {"again": _DOUBLE}, "body": {"op": "Stage", "id": "identity"}}
    told = show(_prepare(_sequence(_DOUBLE, let)).checked.output)
    assert told == "Record { again: Record { n: Number }, n: Number }"
    assert "<" in show(_prepare(_sequence(_DOUBLE, let), NOETHER).checked.output)
