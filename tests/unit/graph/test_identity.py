"""Ids of stages and graphs are those that the real Noether 0.8.2 gives."""

from __future__ import annotations

import json

import pytest

from caloron.graph.errors import ParseError
from caloron.graph.json_text import sha256
from caloron.graph.nodes import composition_id
from caloron.graph.parser import parse_graph
from caloron.graph.stage import PURE, define, parse_effects
from caloron.graph.stage_file import parse_stage, stage_json, stage_of
from caloron.graph.stdlib import standard_stages
from caloron.graph.type_syntax import parse_type
from caloron.graph.types import BOOL, NUMBER, TEXT
from tests.support.noether import STDLIB, VECTORS, wrapped


def test_the_85_stages_that_we_ship_are_the_published_ones():
    shipped = {stage.name: (stage.id, stage.signature_id) for stage in standard_stages()}
    published = {stage["name"]: (stage["stage_id"], stage["signature_id"]) for stage in STDLIB}
    assert len(shipped) == 85
    assert shipped == published


@pytest.mark.parametrize("published", STDLIB, ids=lambda stage: stage["name"])
def test_a_shipped_stage_declares_the_published_capabilities_and_costs(published):
    shipped = next(stage for stage in standard_stages() if stage.name == published["name"])
    written = stage_json(shipped)
    assert sorted(written["capabilities"]) == sorted(published["capabilities"])
    assert written["cost"] == published["cost"]


@pytest.mark.parametrize("published", STDLIB, ids=lambda stage: stage["name"])
def test_a_stage_of_the_standard_library_has_its_published_ids(published):
    stage = define(
        published["name"],
        parse_type(published["input"]),
        parse_type(published["output"]),
        effects=parse_effects(published["effects"], "$.effects"),
        implementation_hash=sha256("noether-stdlib-v0.1.0:" + published["name"]),
    )
    assert stage.implementation_hash == published["implementation_hash"]
    assert stage.signature_id == published["signature_id"]
    assert stage.id == published["stage_id"]


@pytest.mark.parametrize(
    ("input", "output", "implementation", "id"),
    [
        (
            TEXT,
            NUMBER,
            "abc123",
            "980de483c8940ece66165badd67c41a7f82aa286d1b170da5c12b149049e8ce3",
        ),
        (
            BOOL,
            BOOL,
            "identity",
            "9ff5f0c6927b8f2eb767e5ed2288dc07f192b2e8c6e78246fdd452a54296dbbc",
        ),
    ],
)
def test_the_id_of_a_stage_hashes_its_five_fields(input, output, implementation, id):
    stage = define("test", input, output, effects=(PURE,), implementation_hash=implementation)
    assert stage.id == id


#: Noether refuses one spelling of a type that the format allows.
_SPECS = [v for v in VECTORS["stages"] if v["spec"]["name"] != "canon_list"]


@pytest.mark.parametrize("vector", _SPECS, ids=lambda v: v["spec"]["name"])
def test_a_simple_spec_is_taken_or_refused_as_noether_does(vector):
    if vector["exit"] != 0:
        with pytest.raises(ParseError):
            stage_of(vector["spec"], strict=False)
        return
    stage = stage_of(vector["spec"], strict=False)
    assert (stage.id, stage.signature_id) == (vector["id"], vector["signature_id"])
    assert stage_json(stage)["signature"] == vector["signature"]
    assert stage_json(stage)["lifecycle"] == vector["lifecycle"]


@pytest.mark.parametrize("vector", [v for v in VECTORS["stages"] if v["exit"] == 0])
def test_the_full_form_reads_back_as_the_same_stage(vector):
    stage = stage_of(vector["spec"], strict=False)
    assert parse_stage(json.dumps(stage_json(stage))) == stage


def test_a_full_form_whose_id_is_not_its_own_is_refused_unless_noether_would_take_it():
    written = stage_json(stage_of(VECTORS["stages"][0]["spec"])) | {"id": "0" * 64}
    assert stage_of(written, strict=False).id == "0" * 64
    with pytest.raises(ParseError, match=r"\$\.id: the id is not that of this content"):
        stage_of(written)


def test_every_spelling_of_a_list_gives_one_id():
    spec = VECTORS["stages"][0]["spec"]
    spellings = (
        {"List": "Text"},
        {"List": {"kind": "Text"}},
        {"kind": "List", "value": "Text"},
        {"kind": "List", "value": {"kind": "Text"}},
    )
    ids = {stage_of(spec | {"input": spelling}).id for spelling in spellings}
    assert len(ids) == 1


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("graph", "id"),
    [
        (v["graph"], v.get("composition_id") or v["data"]["composition_id"])
        for v in VECTORS["runs"] + VECTORS["checks"]
        if v["exit"] == 0
    ],
)
def test_a_graph_has_the_composition_id_of_the_real_program(graph, id, strict):
    assert composition_id(parse_graph(json.dumps(graph), strict=strict)) == id


_A, _B = {"op": "Stage", "id": "a"}, {"op": "Stage", "id": "b"}


@pytest.mark.parametrize(
    ("root", "id"),
    [
        (
            {"op": "Stage", "id": "abc"},
            "ab56a331cb4e7500cb0b2fd3ba64a91209b30e1157d348b2744530404b34c175",
        ),
        (
            {"op": "Stage", "id": "abc", "pinning": "both"},
            "76f888bcb0c7d3ade22e94690cb2c92d7de6087dba961b3336cb9c25f987d1ce",
        ),
        (
            {"op": "Const", "value": 42},
            "4050c90d55850ef6ca90894ee8835be62dc566642754f8e9997ca50bc621fd26",
        ),
        (
            {"op": "Sequential", "stages": [_A, {"op": "Sequential", "stages": [_B]}]},
            "cdbf14b4a212103df761b794054db54f5020724a7d57159338d7b0d60daa29f9",
        ),
        (
            {"op": "Retry", "stage": _A, "max_attempts": 3},
            "ef34c80ef4a63df066523530343e1fe859810a58f1cc6aaa1e5954371cf89a03",
        ),
    ],
)
def test_published_composition_ids(root, id):
    assert composition_id(parse_graph(wrapped(root))) == id
