"""Feedback is read from any output of an agent, and no output crashes the parser."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caloron.agents.feedback import parse
from caloron.domain.model.feedback import Feedback, feedback_yaml

AS_ASKED = """Done, all tests pass.

---
caloron_feedback:
  task_clarity: 8   # quite clear
  blockers: ["no network", 'pip: "offline"']
  self_assessment: completed
  notes: "added a test"
---
"""
FIELDS = {
    "task_clarity": 8,
    "blockers": ["no network", 'pip: "offline"'],
    "self_assessment": "completed",
    "notes": "added a test",
}
ODDLY = {"task_clarity": "8/10", "self_assessment": "Completed"}
EXPECTED = msgspec.convert(FIELDS, Feedback)


def read(answer: str) -> Feedback:
    feedback = parse(answer)
    assert feedback is not None
    return feedback


@pytest.mark.parametrize(
    "answer",
    [
        AS_ASKED,
        AS_ASKED + "\nAPPROVED\n",
        AS_ASKED.replace("---\ncal", "```yaml\ncal").replace("---\n", "```\n"),
        AS_ASKED.replace("---\n", "\n"),
        AS_ASKED.replace("---\ncal", "Here it is:\n\ncal").replace("---\n", "Bye.\n"),
        AS_ASKED.rstrip().removesuffix("---"),
        AS_ASKED.replace("caloron_feedback:\n", ""),
        AS_ASKED.replace("caloron_feedback:\n", "").replace("\n  ", "\n"),
        AS_ASKED.replace("\n  ", "\n"),
        AS_ASKED.replace("\n", "\r\n"),
        f"CALORON_FEEDBACK_START\n{json.dumps(FIELDS)}\nCALORON_FEEDBACK_END\n",
        f"```json\n{json.dumps({'caloron_feedback': FIELDS | ODDLY}, indent=2)}\n```",
        AS_ASKED.replace(
            """["no network", 'pip: "offline"']""", """\n    - no network\n    - 'pip: "offline"'"""
        ),
    ],
)
def test_a_block_in_any_form_has_the_same_feedback(answer: str) -> None:
    assert parse(answer) == EXPECTED


def test_the_last_block_counts() -> None:
    earlier = AS_ASKED.replace("8", "2").replace("completed", "failed")
    assert parse(earlier + "\nthen\n" + AS_ASKED) == EXPECTED
    joined = earlier.rstrip().removesuffix("---") + AS_ASKED.partition("---\n")[2]
    assert parse(joined) == EXPECTED


def test_broken_quoting_loses_only_the_broken_field() -> None:
    feedback = read(AS_ASKED.replace('"added a test"', 'he feedback "no" and: left'))
    assert feedback.task_clarity == 8
    assert feedback.blockers[0] == "no network"
    assert feedback.self_assessment == "completed"
    assert "left" in feedback.notes


@pytest.mark.parametrize("escape", ["\\UFFFFFFFF", "\\U00110000", "\\xZZ"])
def test_an_invalid_escape_does_not_fail(escape: str) -> None:
    feedback = read(AS_ASKED.replace("added a test", escape))
    assert feedback.task_clarity == 8


def test_an_incomplete_block_has_its_complete_fields() -> None:
    feedback = read(AS_ASKED[: AS_ASKED.index("  self_assessment")] + "  self_ass")
    assert feedback.task_clarity == 8
    assert "no network" in feedback.blockers
    # A missing assessment does not count as a success.
    assert feedback.self_assessment == "partial"


def test_a_verdict_after_an_unclosed_block_is_not_part_of_the_block() -> None:
    feedback = read(AS_ASKED.rstrip().removesuffix("---\n").removesuffix("---") + "APPROVED")
    assert feedback.task_clarity == 8
    assert "APPROVED" not in feedback.notes


@pytest.mark.parametrize(
    ("clarity", "expected"),
    [
        ("8/10", 8), ("11", 10), ("0", 1), ("7.6", 8), ("90%", 9), ("high", 0), ("", 0),
        ("9" * 999, 10),
    ],
)  # fmt: skip
def test_clarity_is_a_number_from_1_to_10_or_0_if_missing(clarity: str, expected: int) -> None:
    feedback = read(f"---\ncaloron_feedback:\n  task_clarity: {clarity}\n  notes: x\n---")
    assert feedback.task_clarity == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("COMPLETED", "completed"), ("done", "completed"), ("completed, no errors", "completed"),
        ("not completed", "failed"), ("partially done", "partial"), ("blocked", "blocked"),
        ("crashed", "partial"), ("¯", "partial"), ("[completed]", "completed"),
    ],
)  # fmt: skip
def test_an_unknown_assessment_never_counts_as_completed(word: str, expected: str) -> None:
    feedback = read(f"---\ncaloron_feedback:\n  task_clarity: 5\n  self_assessment: {word}\n---")
    assert feedback.self_assessment == expected


@pytest.mark.parametrize("words", ["none", "[]", "", "~", "N/A", "[none]", '[""]', "a disk, full"])
def test_blockers_as_text_become_a_list_and_no_blockers_in_many_words_are_none(words: str) -> None:
    feedback = read(f"---\ncaloron_feedback:\n  task_clarity: 5\n  blockers: {words}\n---")
    assert feedback.blockers == ((words,) if "full" in words else ())


@pytest.mark.parametrize(
    "answer",
    ["", "I am done.", "Notes: I changed x.\nBlockers are none.", "---\na: 1\n---", "```\n```"],
)
def test_an_answer_without_feedback_has_none(answer: str) -> None:
    assert parse(answer) is None


def test_an_echo_of_the_requested_form_is_no_feedback() -> None:
    from caloron.agents import prompting

    prompt = prompting.for_task("implement", title="T", prompt="p", acceptance=(), nonce="7f3a")
    feedback = read(prompt)
    assert (feedback.task_clarity, feedback.self_assessment, feedback.notes) == (0, "partial", "")


def test_measured_values_are_not_read_from_the_agent() -> None:
    liar = Feedback(task_id="other", agent_role="boss", task_clarity=4, tokens_consumed=1)
    assert parse(feedback_yaml(liar)) == Feedback(task_clarity=4)


def test_long_fields_are_cut() -> None:
    long = Feedback(
        task_clarity=3,
        blockers=tuple("b" * 3000 for _ in range(30)),
        tools_used=tuple(f"t{n}" for n in range(90)),
        notes="n" * 9000,
    )
    feedback = read(feedback_yaml(long).replace("b" * 3000, "b" * 400))
    assert len(feedback.blockers) <= 20
    assert all(len(item) <= 500 for item in feedback.blockers)
    assert len(feedback.notes) <= 2000


@settings(deadline=None)
@given(st.text() | st.text("caloron_feedbktsy:-`{}[]\"',\n# 8&*|>!%@", max_size=400))
def test_no_output_of_an_agent_crashes_the_parser(answer: str) -> None:
    parse(answer)
    parse(f"---\ncaloron_feedback:\n  task_clarity: {answer}\n  blockers: {answer}\n---")
    parse("---\ncaloron_feedback:\n" + answer)
    parse('{"caloron_feedback": {"notes": 1, "blockers": ' + answer)


@settings(deadline=None)
@given(
    st.builds(
        Feedback,
        task_clarity=st.integers(1, 10),
        self_assessment=st.sampled_from(["completed", "partial", "blocked", "failed"]),
        blockers=st.lists(
            st.from_regex(r"[a-z]{3,20}x( [a-z]{3,9}x){0,5}", fullmatch=True), max_size=5
        ).map(tuple),
        notes=st.from_regex(r"([a-z]{3,20}x[:.,#\"'\n]? ?){0,6}[a-z]+x", fullmatch=True),
    )
)  # fmt: skip
def test_rendered_feedback_is_read_back(feedback: Feedback) -> None:
    assert parse(feedback_yaml(feedback)) == feedback


@pytest.mark.parametrize(
    "hostile",
    [
        "caloron_feedback:\n  blockers: " + "[" * 50_000,
        "caloron_feedback: {" * 5_000,
        "---\n" * 50_000 + "caloron_feedback:",
        "task_clarity: 1\nnotes: x\n" * 20_000,
        "caloron_feedback:\n  notes: &a [x]\n  blockers: [" + "*a," * 5_000 + "]",
        " " * 100_000 + "caloron_feedback:",
        "`" * 100_000,
        "-" * 100_000,
        "> " * 60_000 + "notes",
    ],
)
def test_a_hostile_answer_is_parsed_in_time_and_claims_no_success(hostile: str) -> None:
    feedback = parse(hostile)
    assert feedback is None or feedback.self_assessment == "partial"
