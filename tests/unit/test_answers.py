"""The line of an answer that people and later prompts see."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloron.answers import closing_words

_BLOCK = """---
caloron_feedback:
  task_clarity: 9
  blockers:
    - "no network"
  self_assessment: completed
  notes: "one line for people"
---"""
_RESULT = {
    "type": "result",
    "subtype": "success",
    "is_error": False,
    "result": "I wrote it.\n---",
    "usage": {"input_tokens": 12},
}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("I wrote it.", "I wrote it."),
        ("", ""),
        ("\n  \n", ""),
        (f"Nothing else to fix.\n\n{_BLOCK}", "Nothing else to fix."),
        (f"Nothing else to fix.\n\n{_BLOCK}\n", "Nothing else to fix."),
        (f"Done.\n\n```yaml\n{_BLOCK}\n```", "Done."),
        (f"It is in order.\n{_BLOCK}\nAPPROVED", "APPROVED"),
        (_BLOCK, ""),
        ("Done.\n\ncaloron_feedback:\n  task_clarity: 9\n  notes: |\n    two\n    lines", "Done."),
        ("Done.\ntask_clarity: 9\nblockers: []\nself_assessment: completed", "Done."),
        ("Done.\nCALORON_FEEDBACK_START\ntask_clarity: 9\nCALORON_FEEDBACK_END", "Done."),
        ('Done.\n{"caloron_feedback": {"task_clarity": 9,\n "notes": ""}}', "Done."),
        ("Notes: the window is half open", "Notes: the window is half open"),
        ('Here is the plan.\n```json\n[{"id": "a"}]\n```', "Here is the plan."),
        ('```json\n[{"id": "a"}]\n```', ""),
        ('[{"id": "a",\n  "title": "A"}]', ""),
        ('{"themes": [],\n "sentiment": "positive"\n}', ""),
        ("```\nIt works.\nAPPROVED\n```", "APPROVED"),
        ("I ran it:\n```sh\npytest\n```\nAll green.", "All green."),
        ("Cut here:\n```python\nprint(1)\n", "print(1)"),
        ("1 failed, 6 passed\n======", "1 failed, 6 passed"),
        ("[main 4f2c1aa] Add a file", "[main 4f2c1aa] Add a file"),
        ("[1, 2] are the lines", "[1, 2] are the lines"),
        (json.dumps(_RESULT), ""),
        (json.dumps(_RESULT)[:70], ""),
        (f"warning: old\n{json.dumps(_RESULT)}", "warning: old"),
        ("x" * 900, "x" * 500),
        ("---", ""),
        ("```", ""),
    ],
)
def test_closing_words_are_the_last_line_of_prose(answer: str, words: str) -> None:
    assert closing_words(answer) == words


@given(st.text(alphabet=st.sampled_from("ab :{}[]\"'`~-#\n>*"), max_size=200))
def test_closing_words_of_any_text_are_one_line_and_idempotent(answer: str) -> None:
    words = closing_words(answer)
    assert "\n" not in words
    assert closing_words(words) in (words, "")
