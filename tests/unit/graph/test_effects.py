"""The forms of effects, their order, their names and their refusals."""

from __future__ import annotations

import pytest

from caloron.graph.errors import ParseError
from caloron.graph.stage import (
    CAPABILITIES,
    FALLIBLE,
    KINDS,
    PURE,
    Effect,
    cost_of,
    effect_of_word,
    effect_set,
    effects_json,
    kinds_of_words,
    parse_effects,
)
from caloron.graph.stage_file import stage_of
from tests.support.noether import VECTORS

_SPEC = VECTORS["stages"][0]["spec"]


def test_effects_are_sorted_by_kind_then_by_detail_and_kept_once():
    cheap, dear = Effect("Cost", 5), Effect("Cost", 10)
    one, other = Effect("Llm", "a"), Effect("Llm", "b")
    effects = [PURE, other, dear, one, cheap, FALLIBLE, PURE]
    assert effect_set(effects) == (cheap, dear, FALLIBLE, one, other, PURE)
    assert cost_of(effects) == 15


def test_effects_written_as_json_read_back():
    details: dict[str, int | str] = {"Cost": 3, "FsRead": "/a", "FsWrite": "/b", "Llm": "m"}
    effects = effect_set(Effect(kind, details.get(kind)) for kind in KINDS)
    assert parse_effects(effects_json(effects), "$") == effects
    assert [effect.word for effect in effects] == list(KINDS.values())


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ([], "$"),
        ({"effects": [{"effect": "Magic"}]}, "$.effects[0]"),
        ({"effects": [{"effect": "Pure"}, {"effect": "Cost"}]}, "$.effects[1]"),
        ({"effects": [{"effect": "Cost", "cents": -1}]}, "$.effects[0]"),
        ({"effects": [{"effect": "FsRead", "path": 1}]}, "$.effects[0]"),
    ],
)
def test_an_invalid_effect_is_refused_with_the_path(written, path):
    with pytest.raises(ParseError) as refused:
        parse_effects(written, "$")
    assert refused.value.path == path


@pytest.mark.parametrize(
    ("word", "effect"),
    [
        ("Pure", PURE),
        ("non-deterministic", Effect("NonDeterministic")),
        ("nondeterministic", Effect("NonDeterministic")),
        ("llm", Effect("Llm", "unknown")),
        ("Cost", Effect("Cost", 0)),
        ("FsRead", None),
        ("bogus", None),
    ],
)
def test_the_words_of_a_simple_spec(word, effect):
    assert effect_of_word(word) == effect


def test_strict_refuses_or_accepts_effects_that_noether_drops_silently():
    assert stage_of(_SPEC | {"effects": ["bogus"]}, strict=False).effects == (PURE,)
    with pytest.raises(ParseError, match=r"\$\.effects\[0\]: unknown effect 'bogus'"):
        stage_of(_SPEC | {"effects": ["bogus"]})
    cost = {"effect": "Cost", "cents": 7}
    assert stage_of(_SPEC | {"effects": [cost]}, strict=False).effects == (PURE,)
    assert stage_of(_SPEC | {"effects": [cost]}).effects == (Effect("Cost", 7),)


def test_effect_names_on_the_command_line_have_several_spellings():
    assert kinds_of_words("Network, fsread,non-deterministic,what", KINDS) == frozenset(
        {"Network", "FsRead", "NonDeterministic"}
    )
    assert kinds_of_words(["gpu"], CAPABILITIES) == frozenset({"Gpu"})
    assert kinds_of_words("", KINDS) == frozenset()
