"""The feedback block: real YAML, whatever the agent wrote."""

from __future__ import annotations

import msgspec
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from caloron.domain.model.feedback import ASSESSMENTS, Feedback, feedback_yaml, joined
from caloron.domain.model.snapshots import marker, marker_key

#: All characters with lone surrogates, because agents write JSON.
TEXT = st.text(st.characters(codec=None, exclude_categories=()))


def test_the_block_has_exactly_the_lines_that_other_tools_parse() -> None:
    feedback = Feedback(
        task_id="login",
        agent_role="developer",
        task_clarity=8,
        blockers=('no "net"', "b"),
        tools_used=("Bash",),
        tokens_consumed=1200,
        time_to_complete_min=3,
        self_assessment="completed",
        notes="café 🎉 | Files: a.py",
    )
    assert feedback_yaml(feedback) == (
        "---\n"
        "caloron_feedback:\n"
        '  task_id: "login"\n'
        '  agent_role: "developer"\n'
        "  task_clarity: 8\n"
        '  blockers: ["no \\"net\\"", "b"]\n'
        '  tools_used: ["Bash"]\n'
        "  tokens_consumed: 1200\n"
        "  time_to_complete_min: 3\n"
        '  self_assessment: "completed"\n'
        '  notes: "café 🎉 | Files: a.py"\n'
        "---"
    )


@settings(deadline=None)
@given(
    st.builds(
        Feedback,
        task_id=TEXT,
        agent_role=TEXT,
        task_clarity=st.integers(0, 10),
        blockers=st.lists(TEXT).map(tuple),
        tools_used=st.lists(TEXT).map(tuple),
        tokens_consumed=st.integers(0),
        time_to_complete_min=st.integers(0),
        self_assessment=st.sampled_from(ASSESSMENTS),
        notes=TEXT,
    )
)
@example(
    Feedback(notes="a \"b\" 'c'\n---\ncaloron_feedback: x\n\t# \x85\u2028\ufeff\x7f\ud800\uffff")
)
@example(Feedback(blockers=("]", "---", "- x", "a: b", "\\", "%", "@x", "😀", "yes", "0x1")))
def test_a_yaml_parser_reads_back_every_field(feedback: Feedback) -> None:
    text = feedback_yaml(feedback)
    assert text.encode("utf-8")
    lines = text.split("\n")
    assert (lines[0], lines[-1]) == ("---", "---")
    assert len(text.splitlines()) == len(lines) == 12
    fields = msgspec.structs.asdict(feedback)
    decoded = {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}
    expected = {"caloron_feedback": decoded}
    assert yaml.safe_load("\n".join(lines[1:-1])) == expected
    # Between the two lines there is one document; a reader of several finds it first.
    assert next(yaml.safe_load_all(text)) == expected


def test_an_agent_cannot_smuggle_in_a_marker_of_ours() -> None:
    text = feedback_yaml(Feedback(notes=f"x {marker('issue/1/a')}", blockers=(marker("pull/1"),)))
    assert marker_key(text) == ""


def test_a_later_round_hides_neither_low_clarity_nor_notes_nor_blockers() -> None:
    first = Feedback(
        task_clarity=3,
        blockers=("no schema",),
        tokens_consumed=10,
        self_assessment="partial",
        notes="it was unclear",
    )
    fix = Feedback(
        task_clarity=9, tokens_consumed=5, self_assessment="completed", notes="renamed it"
    )
    silent = Feedback(self_assessment="completed", notes="renamed it")
    feedback = joined(joined(joined(None, first), fix), silent)
    assert (feedback.task_clarity, feedback.self_assessment) == (3, "completed")
    assert feedback.notes.splitlines() == ["it was unclear", "renamed it"]
    assert feedback.blockers == ("no schema",)
    assert feedback.tokens_consumed == 15
