"""Ids of stages and graphs are those that the real Noether 0.8.2 gives."""

from __future__ import annotations

import json

import pytest

from caloron.graph.errors import ParseError
from caloron.graph.nodes import composition_id
from caloron.graph.parser import parse_graph
from caloron.graph.stage_file import parse_stage, stage_json, stage_of
from caloron.graph.stdlib import standard_stages
from caloron.graph.type_syntax import parse_type
from caloron.graph.types import type_json
from tests.support.noether import STDLIB, VECTORS


def test_the_85_stages_that_we_ship_are_the_published_ones():
    shipped = {stage.name: stage_json(stage) for stage in standard_stages()}
    assert len(shipped) == len(STDLIB) == 85
    for published in STDLIB:
        written = shipped[published["name"]]
        assert (written["id"], written["signature_id"]) == (
            published["stage_id"], published["signature_id"],
        )  # fmt: skip
        assert sorted(written["capabilities"]) == sorted(published["capabilities"])
        assert written["cost"] == published["cost"]
        for side in ("input", "output"):
            assert type_json(parse_type(published[side])) == published[side]
            assert written["signature"][side] == published[side]


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
