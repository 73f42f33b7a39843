"""Notes in any form accept annotations, and an annotation removes nothing."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloron.agentstate.records import annotated, base_of, encode, resolved

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
NOTES = st.none() | st.text() | VALUES.map(json.dumps)
PATCHES = st.dictionaries(st.text(), VALUES)


@pytest.mark.parametrize(
    ("notes", "base"),
    [
        (None, {}),
        ("", {}),
        ("first", {"text": "first"}),
        ("[1]", {"text": "[1]"}),
        ("7", {"text": "7"}),
        ('{"a":1}', {"a": 1}),
    ],
)
def test_notes_of_any_form_can_be_annotated(notes, base) -> None:
    assert base_of(notes) == base


@given(NOTES, PATCHES)
def test_an_annotation_keeps_every_other_key(notes, patch) -> None:
    merged = json.loads(annotated(notes, patch))
    assert merged == base_of(notes) | patch


@given(NOTES, st.text())
def test_a_resolution_keeps_every_other_key(notes, message) -> None:
    after = resolved(notes, message)
    if after is None:
        assert not message or message == notes
    elif not notes:
        assert after == message
    else:
        assert json.loads(after) == base_of(notes) | {"resolution": message}


@given(VALUES)
def test_encoded_json_reads_back_and_is_utf8(value) -> None:
    text = encode(value)
    assert json.loads(text.encode().decode()) == value


def test_a_lone_surrogate_is_escaped_because_utf8_cannot_encode_it() -> None:
    assert encode("\ud800") == '"\\ud800"'
