"""Checks of a graph before its run, with stages from a catalogue."""

from __future__ import annotations

from typing import Any

import pytest

from caloron.graph.catalogue import Catalogue
from caloron.graph.errors import Refused
from caloron.graph.prepare import prepare
from caloron.graph.runners.functions import FunctionRunner
from caloron.graph.runtime.run import run
from caloron.graph.stage import define
from caloron.graph.types import (
    NULL,
    NUMBER,
    TEXT,
    Record,
    RecordWith,
    Union,
    Var,
    record,
    show,
)
from tests.support.bench import Bench, const, sequence, stage
from tests.support.noether import wrapped


def _let(body: dict[str, Any], **bindings: Any) -> dict[str, Any]:
    return {"op": "Let", "bindings": bindings, "body": body}


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


def test_an_unknown_input_may_have_the_missing_field(bench):
    graph = sequence(stage("echo"), _let(stage("wants_both"), x=const(1)))
    assert bench.run(graph, {"y": "text"}).output == {"x": 1, "y": "text"}


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
