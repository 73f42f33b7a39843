"""JSON is read strictly and written in the two forms that are hashed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloron.graph.errors import ParseError
from caloron.graph.json_text import MAX_NESTING, canonical, compact, decode

_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
JSON = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("number", "hashed_in_traces", "hashed_in_ids"),
    [
        (1.0, "1.0", "1"),
        (-0.0, "-0.0", "0"),
        (1e-5, "0.00001", "0.00001"),
        (1e-6, "1e-6", "0.000001"),
        (1e-7, "1e-7", "1e-7"),
        (1e15, "1000000000000000.0", "1000000000000000"),
        (1e16, "1e16", "10000000000000000"),
        (1.5e300, "1.5e300", "1.5e+300"),
        (12345678901234567890, "12345678901234567890", "12345678901234567000"),
    ],
)
def test_numbers_in_both_forms(number, hashed_in_traces, hashed_in_ids):
    assert compact(number) == hashed_in_traces
    assert canonical(number) == hashed_in_ids
    assert compact({"n": [number]}) == '{"n":[' + hashed_in_traces + "]}"


def test_keys_are_sorted_by_code_point_in_traces_and_by_utf16_in_ids():
    keys = {"\U0001f600": 1, "\ufb01": 2}
    assert list(json.loads(compact(keys | {"x": 1e-9}))) == ["x", "\ufb01", "\U0001f600"]
    assert list(json.loads(canonical(keys))) == ["\U0001f600", "\ufb01"]
    assert list(json.loads(compact(keys))) == ["\ufb01", "\U0001f600"]


@given(JSON)
def test_both_forms_read_back_as_the_same_value(value):
    assert decode(compact(value)) == value
    assert compact(decode(compact(value))) == compact(value)
    assert json.loads(canonical(value)) == json.loads(canonical(json.loads(canonical(value))))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("NaN", "NaN is no JSON number"),
        ("[Infinity]", "Infinity is no JSON number"),
        ("1e999", "out of range"),
        ("9" * 5000, "out of range"),
        ("99999999999999999999", "does not fit into 64 bits"),
        ('"\\ud800"', "half of a surrogate pair"),
        ("[" * 128 + "]" * 128, "nested more than 127 deep"),
        ("[" * 100_000, "nested more than 127 deep"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_invalid_text_is_refused_with_the_reason(text, message):
    with pytest.raises(ParseError, match=message):
        decode(text)


def test_nesting_up_to_the_limit_is_fine():
    assert decode("[" * MAX_NESTING + "]" * MAX_NESTING)


def test_a_wide_integer_is_a_float_where_noether_reads_it_so():
    assert decode("99999999999999999999", allow_bigint=True) == 1e20
    assert compact(decode("[18446744073709551615,-9223372036854775808]")) == (
        "[18446744073709551615,-9223372036854775808]"
    )
