"""Prompts: what is asked for, and foreign text that stays data."""

from __future__ import annotations

import pytest

from caloron.agents import prompting
from caloron.agents.sandbox import NoSandbox

NONCE = "7f3a"


def fenced(text: str) -> str:
    return f"[begin {NONCE}]\n{text}\n[end {NONCE}]"


def test_the_product_owner_is_asked_for_a_list_and_told_what_was_wrong_with_the_last() -> None:
    first = prompting.po("make $it ${so}", [], nonce=NONCE)
    assert fenced("make $it ${so}") in first
    assert '"depends_on"' in first
    assert "last plan" not in first
    again = prompting.po("make it", ["task a: unknown dependency b"], nonce=NONCE)
    assert fenced("- task a: unknown dependency b") in again


@pytest.mark.parametrize(
    "prompt",
    [
        prompting.review("Title", "do it", ["it works"], "+x", "1 passed", nonce=NONCE),
        prompting.check("Title", "do it", ["it works"], nonce=NONCE),
    ],
)
def test_a_verdict_is_asked_for_in_exactly_two_forms(prompt: str) -> None:
    assert "\nAPPROVED\nCHANGES_NEEDED: the reason" in prompt
    assert fenced("Title\n\ndo it") in prompt
    assert fenced("- it works") in prompt


def test_every_foreign_text_stands_between_delimiters_and_empty_parts_are_left_out() -> None:
    review = prompting.review("T", "p", [], "the diff", "the tests", nonce=NONCE)
    assert fenced("the diff") in review
    assert fenced("the tests") in review
    assert "done when" not in review
    fix = prompting.fix("T", "p", [], "the reason", nonce=NONCE)
    assert fenced("the reason") in fix
    assert "tests printed" not in fix
    resolve = prompting.resolve("T", "p", [], ["a.py", "b.py"], nonce=NONCE)
    assert fenced("- a.py\n- b.py") in resolve
    implement = prompting.implement("T", "p", [], 12, "it crashed", nonce=NONCE)
    assert fenced("it crashed") in implement
    assert "issue #12" in implement
    assert "issue" not in prompting.implement("T", "p", [], nonce=NONCE)


def test_an_unconfined_agent_still_sees_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_TOKEN", "secret")
    monkeypatch.setenv("CALORON_CRASH_AT", "x")
    monkeypatch.setenv("TERM", "dumb")
    environment = NoSandbox().environment({"CALORON_ROLE": "fix"})
    assert environment["TERM"] == "dumb"
    assert environment["CALORON_ROLE"] == "fix"
    assert environment.keys() <= {"PATH", "HOME", "LANG", "LC_ALL", "TERM", "TZ", "CALORON_ROLE"}
