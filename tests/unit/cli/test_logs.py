"""The last lines of a log, as they are and as people read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caloron.agents.clis.claude import ClaudeCode
from caloron.cli.commands.inspect import task as logs


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text("ab\r文", max_size=9), max_size=30), st.booleans(), st.integers(1, 40))
def test_the_last_lines_are_those_of_the_whole_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], end: bool, count: int
) -> None:
    file = tmp_path_factory.mktemp("logs") / "output.log"
    text = "\n".join(lines) + ("\n" if end and lines else "")
    file.write_bytes(text.encode())
    whole = text.removesuffix("\n").split("\n") if text.strip("\n") or len(lines) > 1 else []
    raw, shown = logs._last(file, count, str)
    assert raw.removesuffix("\n") == shown
    assert shown.split("\n")[-count:] == (whole[-count:] or [""])


def test_lines_that_are_not_for_people_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "output.log"
    file.write_text("".join(f"{n} noise\nwords {n}\n" for n in range(100)))
    raw, shown = logs._last(file, 3, lambda line: line if line.startswith("words") else "")
    assert shown == "words 97\nwords 98\nwords 99"
    assert "noise" in raw


_BLOCK = """---
caloron_feedback:
  task_id: "a"
  task_clarity: 8
  blockers:
    - "the build is slow"
  self_assessment: completed
  notes: ""
---"""


@pytest.mark.parametrize("around", ["{}", "```yaml\n{}\n```", "{}\n\n"])
def test_the_feedback_block_is_not_shown_to_people(tmp_path: Path, around: str) -> None:
    file = tmp_path / "output.log"
    file.write_text(
        f"Looked around.\ntask_id: 5 is a line of a program\nDone.\n\n{around.format(_BLOCK)}\n"
    )
    raw, shown = logs._last(file, 1, str)
    assert shown == "Done."
    assert raw.startswith("Done.\n\n")
    assert "the build is slow" in raw
    assert logs._last(file, 2, str)[1] == "task_id: 5 is a line of a program\nDone."


def test_the_last_line_of_claude_code_is_its_own(tmp_path: Path) -> None:
    reply = {"type": "assistant", "message": {"content": [
        {"type": "text", "text": f"expiring() is tested.\n\n{_BLOCK}"}]}}  # fmt: skip
    end = {"type": "result", "subtype": "success", "num_turns": 3, "total_cost_usd": 0.12}
    file = tmp_path / "output.log"
    file.write_text(f"{json.dumps(reply)}\n{json.dumps(end)}\n")
    readable = ClaudeCode.format_line
    assert logs._last(file, 1, readable)[1] == "finished after 3 turns, 0.12 USD"
    raw, shown = logs._last(file, 2, readable)
    assert shown == "expiring() is tested.\nfinished after 3 turns, 0.12 USD"
    assert [json.loads(line)["type"] for line in raw.splitlines()] == ["assistant", "result"]
